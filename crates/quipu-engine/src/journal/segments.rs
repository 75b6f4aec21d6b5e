//! The segment files: prepared ahead, written in order, recycled after the cut.
//!
//! In: handed-over bytes, from the commit. Out: files whose bytes, taken one after another, are the stream of records.
//!
//! Invariants:
//! - segments are contiguous: each begins at the position where the one before it ends;
//! - a segment is used only after its header, its full length and its name are durable and the control file knows of it, so a
//!   commit changes no metadata and a segment that is missing at start is known to be missing.
//!
//! Not here: when to prepare or cut (`driver`), what the bytes mean (`format`).

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use quipu_model::{Vfs, VfsFile};

use super::format::{Position, SEGMENT_HEADER_BYTES, SegmentHeader};
use super::pending_records::FilledRecords;
use super::{Damage, JournalError, io_error};
use crate::sync::Arc;

/// The name of a segment file.
pub fn segment_file(number: u64) -> String {
    format!("journal-{number:016x}.seg")
}

/// The number in a segment's file name; `None` for other files.
pub fn segment_number(file: &str) -> Option<u64> {
    let digits = file.strip_prefix("journal-")?.strip_suffix(".seg")?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// An open segment file.
#[derive(Clone)]
pub struct Segment {
    /// As in the file name.
    pub number: u64,
    /// Where its part of the stream begins.
    pub base: Position,
    /// Where its part of the stream ends.
    pub end: Position,
    /// The file, while there is something to write or sync in it: a long journal of small segments must not hold all of them open.
    pub file: Option<Arc<dyn VfsFile>>,
    /// Where it is, for error messages and recycling.
    pub path: PathBuf,
    /// The file system's number of the file while it is open, by which it is known from one that has taken its place.
    pub identity: u64,
}

impl Segment {
    /// Offset in the file of a position in this segment.
    pub fn offset(&self, position: Position) -> u64 {
        SEGMENT_HEADER_BYTES + (position.0 - self.base.0)
    }

    /// Length of the file.
    pub fn bytes(&self) -> u64 {
        SEGMENT_HEADER_BYTES + (self.end.0 - self.base.0)
    }

    /// Opens the file, to write it or to sync it.
    pub fn reopen(&mut self, vfs: &dyn Vfs) -> Result<(), JournalError> {
        self.file = Some(vfs.open(&self.path).map_err(|e| io_error(&self.path, "open", e))?);
        self.identity = vfs.identity(&self.path).map_err(|e| io_error(&self.path, "look at", e))?;
        Ok(())
    }

    /// Checks the header and length of an existing segment against what they ought to be.
    pub fn open_checked(
        vfs: &dyn Vfs,
        dir: &Path,
        log: u64,
        number: u64,
        base: Option<Position>,
    ) -> Result<Segment, JournalError> {
        let path = dir.join(segment_file(number));
        let bad = |reason: String| JournalError::from(Damage { file: path.clone(), offset: 0, position: None, reason });
        // A file that is not there is damage; one that cannot be opened just now, for want of descriptors say, is not.
        let file = vfs.open(&path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => bad("it is missing".to_owned()),
            _ => io_error(&path, "open", e),
        })?;
        let mut header = [0; SEGMENT_HEADER_BYTES as usize];
        let read = super::read_full(&*file, &mut header, 0).map_err(|e| io_error(&path, "read", e))?;
        if read < header.len() {
            return Err(bad(format!("it ends after {read} bytes, within its header")));
        }
        let header = SegmentHeader::decode(&header).map_err(&bad)?;
        if header.log != log {
            return Err(bad("it belongs to another data directory".to_owned()));
        }
        if header.number != number || base.is_some_and(|base| base != header.base) {
            let (number, base) = (header.number, header.base);
            return Err(bad(format!("it holds segment {number} at position {base}: files were swapped or copied")));
        }
        let bytes = file.bytes().map_err(|e| io_error(&path, "measure", e))?;
        if bytes != header.bytes || bytes <= SEGMENT_HEADER_BYTES {
            return Err(bad(format!("it has {bytes} bytes instead of {}", header.bytes)));
        }
        let end = header.base.plus(bytes - SEGMENT_HEADER_BYTES);
        let identity = vfs.identity(&path).map_err(|e| io_error(&path, "look at", e))?;
        Ok(Segment { number, base: header.base, end, file: None, path, identity })
    }

    /// Makes a segment, from a file that is no longer needed if there is one. On return it is durable.
    pub fn prepare(
        vfs: &dyn Vfs,
        dir: &Path,
        header: SegmentHeader,
        spare: Option<&Path>,
        zeros: bool,
    ) -> Result<Segment, JournalError> {
        let path = dir.join(segment_file(header.number));
        let file = match spare {
            Some(old) => {
                vfs.rename(old, &path).map_err(|e| io_error(old, "rename", e))?;
                vfs.open(&path).map_err(|e| io_error(&path, "open", e))?
            }
            None => vfs.create(&path).map_err(|e| io_error(&path, "create", e))?,
        };
        let lengthened = if zeros { file.write_zeros(header.bytes) } else { file.allocate(header.bytes) };
        lengthened.map_err(|e| io_error(&path, "write", e))?;
        file.write_all_at(&header.encode(), 0).map_err(|e| io_error(&path, "write", e))?;
        file.sync_data().map_err(|e| io_error(&path, "sync", e))?;
        vfs.sync_dir(dir).map_err(|e| io_error(dir, "sync", e))?;
        let end = header.base.plus(header.bytes - SEGMENT_HEADER_BYTES);
        let identity = vfs.identity(&path).map_err(|e| io_error(&path, "look at", e))?;
        Ok(Segment { number: header.number, base: header.base, end, file: Some(file), path, identity })
    }
}

/// The live segments, oldest first, and how far they are written.
pub struct SegmentLog {
    /// Contiguous.
    pub segments: VecDeque<Segment>,
    /// Everything before this was handed to the operating system.
    pub written: Position,
    /// The chain there.
    pub previous: u32,
    /// Where seal wants to cut.
    pub mark: Option<CutMark>,
    /// What was handed over last, for its memory.
    pub spare_buffers: FilledRecords,
}

/// A place to cut at.
#[derive(Debug, Clone, Copy)]
pub struct CutMark {
    /// A record begins here.
    pub position: Position,
    /// The chain there, known once that record is handed over.
    pub previous: Option<u32>,
}

impl SegmentLog {
    /// Keeps the chain if the next record is the marked one.
    pub fn record_mark_chain(&mut self, next: Position) {
        if let Some(mark) = self.mark.as_mut().filter(|mark| mark.position == next) {
            mark.previous = Some(self.previous);
        }
    }

    /// Writes bytes that follow what was written last. Room was reserved, so there are segments for all of them.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), JournalError> {
        while !bytes.is_empty() {
            let at = self.written;
            let segment = self.segment_at(at).expect("room was reserved before anything was applied");
            let fits = usize::try_from(segment.end.0 - at.0).unwrap_or(usize::MAX).min(bytes.len());
            let (now, later) = bytes.split_at(fits);
            let offset = segment.offset(at);
            let file = segment.file.as_ref().expect("a segment stays open until it is synced to its end");
            file.write_all_at(now, offset).map_err(|e| io_error(&segment.path, "write", e))?;
            self.written = at.plus(fits as u64);
            bytes = later;
        }
        Ok(())
    }

    /// The segments that hold bytes in `from..to`.
    pub fn segments_between(&self, from: Position, to: Position) -> Vec<Segment> {
        self.segments.iter().filter(|s| s.base < to && from < s.end).cloned().collect()
    }

    /// Closes the segments that are synced to their end: nothing more is written to them.
    pub fn close_synced(&mut self, synced: Position) {
        for segment in self.segments.iter_mut().take_while(|segment| segment.end <= synced) {
            segment.file = None;
        }
    }

    /// The segment in which a byte at this position goes.
    pub fn segment_at(&self, position: Position) -> Option<&Segment> {
        let index = self.segments.partition_point(|segment| segment.end <= position);
        self.segments.get(index)
    }

    /// Where the prepared segments end.
    pub fn end(&self) -> Option<Position> {
        self.segments.back().map(|segment| segment.end)
    }
}
