//! Manages the segment files: prepared ahead, written in order, recycled after the cut.
//!
//! In: record bytes, from the commit. Out: files that together hold the stream of records.
//!
//! Invariants:
//! - segments are contiguous: each begins at the position where the one before it ends;
//! - a segment is used only after its header, its full length and its name are durable, and the
//!   control file lists it. So a commit changes no metadata, and a start detects a missing segment.
//!
//! Not here: the schedule of preparing and cutting (`background`), the meaning of the bytes
//! (`format`).

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use quipu_model::{Vfs, VfsFile};

use super::format::{Position, SEGMENT_HEADER_BYTES, SegmentHeader};
use super::pending_records::FilledRecords;
use super::{Damage, JournalError, io_error};
use crate::base::sync::Arc;

/// Name of a segment file.
pub fn segment_file(number: u64) -> String {
    format!("journal-{number:016x}.seg")
}

/// Number in the name of a segment file; `None` for other files.
pub fn segment_number(file: &str) -> Option<u64> {
    let digits = file.strip_prefix("journal-")?.strip_suffix(".seg")?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// A segment file.
#[derive(Clone)]
pub struct Segment {
    /// Segment number, as in the file name.
    pub number: u64,
    /// Position of its first byte.
    pub base: Position,
    /// Position behind its last byte.
    pub end: Position,
    /// The open file, as long as it needs writes or syncs. A long journal of small segments must
    /// not keep all of them open.
    pub file: Option<Arc<dyn VfsFile>>,
    /// Path, for error messages and recycling.
    pub path: PathBuf,
    /// File id while the file is open. It distinguishes the file from a replacement at the same
    /// path.
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

    /// Opens the file, to write or to sync it.
    pub fn reopen(&mut self, vfs: &dyn Vfs) -> Result<(), JournalError> {
        self.file = Some(vfs.open(&self.path).map_err(|e| io_error(&self.path, "open", e))?);
        self.identity = vfs.identity(&self.path).map_err(|e| io_error(&self.path, "look at", e))?;
        Ok(())
    }

    /// Checks the header and the length of an existing segment.
    pub fn open_checked(
        vfs: &dyn Vfs,
        dir: &Path,
        log: u64,
        number: u64,
        base: Option<Position>,
    ) -> Result<Segment, JournalError> {
        let path = dir.join(segment_file(number));
        let bad = |reason: String| JournalError::from(Damage { file: path.clone(), offset: 0, position: None, reason });
        // A missing file is damage. A file that cannot be opened now, for lack of descriptors for
        // example, is not.
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

    /// Makes a segment, durably on return. Reuses a spare file if there is one.
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

/// The live segments, oldest first, and their written position.
pub struct SegmentLog {
    /// Contiguous.
    pub segments: VecDeque<Segment>,
    /// Position up to which records are written to the file.
    pub written: Position,
    /// The chain there.
    pub previous: u32,
    /// The requested cut of the seal.
    pub mark: Option<CutMark>,
    /// The last written buffers, kept for their memory.
    pub spare_buffers: FilledRecords,
}

/// A position to cut at.
#[derive(Debug, Clone, Copy)]
pub struct CutMark {
    /// Start of a record.
    pub position: Position,
    /// The chain there, known once that record is written.
    pub previous: Option<u32>,
}

impl SegmentLog {
    /// Keeps the chain if the next record is the marked one.
    pub fn record_mark_chain(&mut self, next: Position) {
        if let Some(mark) = self.mark.as_mut().filter(|mark| mark.position == next) {
            mark.previous = Some(self.previous);
        }
    }

    /// Appends bytes to the segments. Room was reserved, so there are segments for all of them.
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

    /// Closes the segments that are synced to their end: they are not written any more.
    pub fn close_synced(&mut self, synced: Position) {
        for segment in self.segments.iter_mut().take_while(|segment| segment.end <= synced) {
            segment.file = None;
        }
    }

    /// The segment of a position.
    pub fn segment_at(&self, position: Position) -> Option<&Segment> {
        let index = self.segments.partition_point(|segment| segment.end <= position);
        self.segments.get(index)
    }

    /// End of the prepared segments.
    pub fn end(&self) -> Option<Position> {
        self.segments.back().map(|segment| segment.end)
    }
}
