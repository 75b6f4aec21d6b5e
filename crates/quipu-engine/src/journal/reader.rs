//! Reads the journal back: every whole record in order, up to the tail or to fatal damage.
//!
//! In: the files of a directory. Out: records, and a [`Tail`] at which writing continues.
//!
//! Invariants:
//! - a record is returned only if its check, its position and its chain are right;
//! - an unreadable record is a torn tail only without evidence of a sync beyond it. The evidence
//!   may be in the control file, in a record before it, or in one behind it. With evidence it is
//!   damage, and the start refuses it.

use std::path::{Path, PathBuf};

use quipu_model::{Vfs, VfsFile};

use super::control::{ControlFile, ControlState};
use super::format::{Position, RECORD_BYTES_MAX, RECORD_HEADER_BYTES, RecordBody, RecordHeader, record_check};
use super::segments::{Segment, segment_file, segment_number};
use super::{Damage, JournalError, io_error};
use crate::base::sync::Arc;

/// A sync-evidence candidate up to this length is always checked.
const SHORT_CANDIDATE_BYTES: usize = 4 << 10;

/// Longer candidates are checked up to this many bytes in all.
const LONG_CANDIDATES_BYTES: usize = 64 << 20;

/// Size of the pieces in which the stream is read.
const READ_BYTES: usize = 1 << 20;

/// A whole record, checked.
pub struct Record<'a> {
    /// Position of its first byte.
    pub position: Position,
    /// Length, header included.
    pub bytes: usize,
    /// Its header.
    pub header: RecordHeader,
    /// Its time and its entries.
    pub body: RecordBody<'a>,
}

impl Record<'_> {
    /// Position of its end, where the next record begins.
    pub fn end(&self) -> Position {
        self.position.plus(self.bytes as u64)
    }
}

/// End of the records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tail {
    /// Position of the next record.
    pub position: Position,
    /// The chain there.
    pub previous: u32,
    /// Position up to which the journal is known to be synced.
    pub synced: Position,
    /// The torn record behind the last one, if there is one.
    pub torn: Option<TornTail>,
}

/// A record that was being written when the node stopped. It was never acknowledged as synced, so
/// it is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornTail {
    /// The file.
    pub file: PathBuf,
    /// Byte offset in the file.
    pub offset: u64,
    /// Description of the fault.
    pub reason: &'static str,
}

/// The segments of a directory, as the control file demands them.
pub struct SegmentList {
    /// The segments that hold the journal, contiguous, oldest first.
    pub segments: Vec<Segment>,
    /// Files no longer or not yet in use; they may be removed.
    pub leftovers: Vec<PathBuf>,
}

/// Finds the segment files. Refuses if a required one is missing, or is not the one that its name
/// indicates.
pub fn find_segments(vfs: &dyn Vfs, dir: &Path, control: &ControlState) -> Result<SegmentList, JournalError> {
    let files = vfs.list(dir).map_err(|e| io_error(dir, "list", e))?;
    let mut numbers: Vec<u64> = files.iter().filter_map(|file| segment_number(file)).collect();
    numbers.sort_unstable();
    let mut segments: Vec<Segment> = Vec::new();
    let mut number = control.first;
    loop {
        let required = number < control.end;
        if !required && !numbers.contains(&number) {
            break;
        }
        let base = segments.last().map(|segment| segment.end);
        match Segment::open_checked(vfs, dir, control.log, number, base) {
            Ok(segment) => segments.push(segment),
            // The node stopped while it prepared this segment: it was never used.
            Err(JournalError::Damage(_)) if !required => break,
            Err(error) => return Err(error),
        }
        number += 1;
    }
    let within = segments.first().is_none_or(|segment| segment.base <= control.start)
        && segments.last().is_none_or(|segment| control.start <= segment.end);
    if !within {
        let (file, start) = (dir.join(segment_file(control.first)), control.start);
        let reason = format!("the journal starts at position {start}, which is not in it");
        return Err(Damage { file, offset: 0, position: Some(start), reason }.into());
    }
    let live = control.first..number;
    let leftovers =
        numbers.iter().filter(|number| !live.contains(number)).map(|n| dir.join(segment_file(*n))).collect();
    Ok(SegmentList { segments, leftovers })
}

/// Opens the control file of a directory, which must have one if it has segments.
pub fn open_control(vfs: &dyn Vfs, dir: &Path) -> Result<Option<ControlFile>, JournalError> {
    if let Some(control) = ControlFile::open(vfs, dir)? {
        return Ok(Some(control));
    }
    let files = vfs.list(dir).map_err(|e| io_error(dir, "list", e))?;
    if files.iter().any(|file| file == super::control::CONTROL_FILE_UNFINISHED) {
        return Err(JournalError::Unfinished { dir: dir.to_owned() });
    }
    match files.iter().find(|file| segment_number(file).is_some()) {
        None => Ok(None),
        Some(segment) => Err(Damage {
            file: dir.join(super::control::CONTROL_FILE),
            offset: 0,
            position: None,
            reason: format!("it is missing, but {segment} is there"),
        }
        .into()),
    }
}

/// Reads every record from the start to the tail and passes each to `visit`.
pub fn visit_records(
    vfs: &dyn Vfs,
    control: &ControlState,
    segments: &[Segment],
    mut visit: impl FnMut(&Record<'_>) -> Result<(), Damage>,
) -> Result<Tail, JournalError> {
    let mut stream = SegmentStream { vfs, segments, open_file: None, window: Vec::new(), base: control.start };
    let mut tail = Tail { position: control.start, previous: control.previous, synced: control.synced, torn: None };
    let reason = loop {
        let (header, record) = match read_record(&mut stream, tail.position, control.log, tail.previous)? {
            ReadStep::Record(header, record) => (header, record),
            ReadStep::End => break None,
            ReadStep::Damaged(reason) => break Some(reason),
        };
        let damage = |reason: &str| damage_at(segments, tail.position, reason.to_owned());
        let body = RecordBody::decode(&record[RECORD_HEADER_BYTES..]).map_err(|bad| damage(&bad.to_string()))?;
        visit(&Record { position: tail.position, bytes: record.len(), header, body })?;
        tail.position = tail.position.plus(record.len() as u64);
        tail.previous = header.check as u32;
        tail.synced = tail.synced.max(header.synced);
    };
    if tail.position < tail.synced {
        let found = reason.unwrap_or("there is nothing");
        let reason = format!("{found}, though the journal was synced up to position {}", tail.synced);
        return Err(damage_at(segments, tail.position, reason).into());
    }
    if let Some((behind, synced)) = find_sync_evidence(&mut stream, tail.position, control.log)? {
        let found = reason.unwrap_or("there is nothing");
        let reason =
            format!("{found}, though the record at position {behind} says it was synced up to position {synced}");
        return Err(damage_at(segments, tail.position, reason).into());
    }
    // After a clean stop no record was being written: the bytes behind belong to a recycled
    // segment.
    let reason = reason.filter(|_| !(control.clean && tail.position == control.synced));
    tail.torn = reason.map(|reason| {
        let at = damage_at(segments, tail.position, String::new());
        TornTail { file: at.file, offset: at.offset, reason }
    });
    Ok(tail)
}

/// Builds the damage at a position, with its file and offset.
pub fn damage_at(segments: &[Segment], position: Position, reason: String) -> Damage {
    let index = segments.partition_point(|segment| segment.end <= position);
    match segments.get(index).or(segments.last()) {
        Some(segment) => {
            let offset = segment.offset(position.max(segment.base).min(segment.end));
            Damage { file: segment.path.clone(), offset, position: Some(position), reason }
        }
        None => Damage { file: PathBuf::new(), offset: 0, position: Some(position), reason },
    }
}

enum ReadStep<'s> {
    Record(RecordHeader, &'s [u8]),
    /// Zeros, or the end of the last segment.
    End,
    Damaged(&'static str),
}

fn read_record<'s>(
    stream: &'s mut SegmentStream<'_>,
    position: Position,
    log: u64,
    previous: u32,
) -> Result<ReadStep<'s>, JournalError> {
    let Some(head) = stream.bytes_at(position, RECORD_HEADER_BYTES)? else { return Ok(ReadStep::End) };
    let head: &[u8; RECORD_HEADER_BYTES] = head.try_into().expect("a slice of that length");
    if head.iter().all(|&byte| byte == 0) {
        return Ok(ReadStep::End);
    }
    let header = RecordHeader::read(head);
    let bytes = RECORD_HEADER_BYTES + header.body_bytes;
    if header.body_bytes == 0 || bytes > RECORD_BYTES_MAX {
        return Ok(ReadStep::Damaged("the length of the record makes no sense"));
    }
    let Some(record) = stream.bytes_at(position, bytes)? else {
        return Ok(ReadStep::Damaged("the record is longer than what is left of the journal"));
    };
    if record_check(record, log, position) != header.check {
        return Ok(ReadStep::Damaged("the check of the record does not match"));
    }
    if header.previous != previous {
        return Ok(ReadStep::Damaged("the record does not follow the one before it"));
    }
    Ok(ReadStep::Record(header, record))
}

/// Searches behind the stopping point for a whole record written when the journal was synced beyond
/// it.
///
/// The search scans every byte, yet is cheap. It computes a check only if the candidate's `synced`
/// lies between the stopping point and the candidate itself. Old records of recycled segments all
/// refer to positions before it.
///
/// Clients choose the names, and a name full of such bytes looks like many candidates. Long
/// candidates are therefore checked only up to a bound in all. Most records are short, so evidence
/// is still found.
fn find_sync_evidence(
    stream: &mut SegmentStream<'_>,
    stopped: Position,
    log: u64,
) -> Result<Option<(Position, Position)>, JournalError> {
    let mut at = stopped.plus(1);
    let mut long_bytes_left = LONG_CANDIDATES_BYTES;
    while let Some(window) = stream.window_at(at, RECORD_HEADER_BYTES)? {
        let mut candidate = None;
        for (index, head) in window.windows(RECORD_HEADER_BYTES).enumerate() {
            let synced = u64::from_le_bytes(head[16..24].try_into().expect("eight of 24 bytes"));
            let here = at.0 + index as u64;
            if stopped.0 < synced && synced <= here {
                candidate = Some(Position(here));
                break;
            }
        }
        let Some(here) = candidate else {
            at = at.plus((window.len() - RECORD_HEADER_BYTES + 1) as u64);
            continue;
        };
        let head = stream.bytes_at(here, RECORD_HEADER_BYTES)?.expect("it was just read");
        let header = RecordHeader::read(head.try_into().expect("a slice of that length"));
        let bytes = RECORD_HEADER_BYTES + header.body_bytes;
        let short = bytes <= SHORT_CANDIDATE_BYTES;
        let plausible = header.body_bytes > 0 && (short || bytes <= long_bytes_left);
        if plausible && !short {
            long_bytes_left -= bytes;
        }
        let record = if plausible { stream.bytes_at(here, bytes)? } else { None };
        if record.is_some_and(|record| record_check(record, log, here) == header.check) {
            return Ok(Some((here, header.synced)));
        }
        at = here.plus(1);
    }
    Ok(None)
}

/// The segments as one stream of bytes, with a window that moves forwards.
struct SegmentStream<'a> {
    vfs: &'a dyn Vfs,
    segments: &'a [Segment],
    /// The segment that was read last.
    open_file: Option<(usize, Arc<dyn VfsFile>)>,
    window: Vec<u8>,
    base: Position,
}

impl SegmentStream<'_> {
    /// `bytes` bytes from `position` on; `None` if the stream ends before.
    fn bytes_at(&mut self, position: Position, bytes: usize) -> Result<Option<&[u8]>, JournalError> {
        Ok(self.window_at(position, bytes)?.map(|window| &window[..bytes]))
    }

    /// The rest of the window from `position` on, at least `bytes` long.
    fn window_at(&mut self, position: Position, bytes: usize) -> Result<Option<&[u8]>, JournalError> {
        let mut from = (position.0 - self.base.0) as usize;
        if from + bytes > self.window.len() {
            self.window.drain(..from.min(self.window.len()));
            self.base = position;
            from = 0;
            while self.window.len() < bytes {
                if !self.read_next()? {
                    return Ok(None);
                }
            }
        }
        Ok(Some(&self.window[from..]))
    }

    /// Appends the next piece; false at the end of the stream.
    fn read_next(&mut self) -> Result<bool, JournalError> {
        let at = self.base.plus(self.window.len() as u64);
        let index = self.segments.partition_point(|segment| segment.end <= at);
        let Some(segment) = self.segments.get(index) else { return Ok(false) };
        let piece = usize::try_from(segment.end.0 - at.0).unwrap_or(READ_BYTES).min(READ_BYTES);
        let had = self.window.len();
        self.window.resize(had + piece, 0);
        let file = match &self.open_file {
            Some((open, file)) if *open == index => file.clone(),
            _ => self.vfs.open(&segment.path).map_err(|e| io_error(&segment.path, "open", e))?,
        };
        let read = super::read_full(&*file, &mut self.window[had..], segment.offset(at))
            .map_err(|e| io_error(&segment.path, "read", e))?;
        self.open_file = Some((index, file));
        if read < piece {
            let reason = "the file is shorter than it was when it was opened".to_owned();
            return Err(damage_at(self.segments, at, reason).into());
        }
        Ok(true)
    }
}
