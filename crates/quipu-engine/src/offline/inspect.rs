//! Inspects a data directory without changing it: for `quipu inspect`, `quipu restore`, and tests.

use std::path::{Path, PathBuf};

use quipu_model::{Ledger, LedgerError, Vfs};

use crate::base::sync::Arc;
use crate::core::watermark::Watermark;
use crate::journal::control::{ControlFile, ControlState, SLOT_BYTES};
use crate::journal::format::Position;
use crate::journal::reader::{Record, Tail, find_segments, open_control, visit_records};
use crate::journal::segments::Segment;
use crate::journal::{Damage, JournalError, io_error};
use crate::recovery::open::OpenError;
use crate::recovery::{DataDir, read_watermark, recover};

/// Result of an inspection.
pub struct Inspection {
    /// The directory.
    pub dir: PathBuf,
    /// Content of the control file; `None` in a directory without a journal.
    pub control: Option<ControlState>,
    /// The segments, oldest first, each with the number of records that begin in it.
    pub segments: Vec<(Segment, u64)>,
    /// Number of records in all.
    pub records: u64,
    /// The ledger, if it could be opened.
    pub ledger: Option<Arc<dyn Ledger>>,
    /// The ledger's watermark, if it has one.
    pub watermark: Option<Watermark>,
    /// Parts of its files that a start does not read: damage there is neither found nor harmful.
    pub unchecked: Vec<UncheckedRange>,
    /// Number of counters in ledger and journal together, including expired ones not yet removed.
    /// Known only if the directory is whole.
    pub counters: u64,
    /// The end of the records, or the error that would keep the server from starting.
    pub verdict: Result<Tail, OpenError>,
}

/// A part of a file that no checksum was compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UncheckedRange {
    /// The file.
    pub file: PathBuf,
    /// Offset of its first byte.
    pub from: u64,
    /// Offset behind its last byte.
    pub to: u64,
    /// Reason why it is not read.
    pub reason: String,
}

/// Reads the whole journal over the ledger and passes each good record to `visit`.
pub fn inspect(
    vfs: &dyn Vfs,
    dir: &Path,
    open_ledger: impl FnOnce() -> Result<Arc<dyn Ledger>, LedgerError>,
    mut visit: impl FnMut(&Segment, &Record<'_>) -> Result<(), Damage>,
) -> Result<Inspection, JournalError> {
    vfs.list(dir).map_err(|e| io_error(dir, "list", e))?;
    let nothing = Tail { position: Default::default(), previous: 0, synced: Default::default(), torn: None };
    let (control, ledger, watermark, segments, verdict) = (None, None, None, Vec::new(), Ok(nothing));
    let mut inspection = Inspection {
        dir: dir.to_owned(),
        control,
        segments,
        records: 0,
        ledger,
        watermark,
        unchecked: Vec::new(),
        counters: 0,
        verdict,
    };
    if let Err(error) = inspect_directory(vfs, dir, open_ledger, &mut visit, &mut inspection) {
        inspection.verdict = Err(error);
    }
    if let (Some(control), Ok(tail)) = (inspection.control, &inspection.verdict) {
        let unread = unread_ranges(&inspection.segments, control.start, tail.position);
        inspection.unchecked.extend(unread);
    }
    Ok(inspection)
}

/// The parts of segments before the first live record, and behind the last one.
fn unread_ranges(segments: &[(Segment, u64)], start: Position, end: Position) -> Vec<UncheckedRange> {
    let mut parts = Vec::new();
    for (segment, _) in segments {
        let mut push = |from: Position, to: Position, reason: &str| {
            if from < to {
                let (from, to) = (segment.offset(from), segment.offset(to));
                parts.push(UncheckedRange { file: segment.path.clone(), from, to, reason: reason.to_owned() });
            }
        };
        push(segment.base, start.min(segment.end), "the ledger has it");
        push(end.max(segment.base), segment.end, "behind the last record");
    }
    parts
}

/// Records its findings, up to the first error.
fn inspect_directory(
    vfs: &dyn Vfs,
    dir: &Path,
    open_ledger: impl FnOnce() -> Result<Arc<dyn Ledger>, LedgerError>,
    visit: &mut impl FnMut(&Segment, &Record<'_>) -> Result<(), Damage>,
    inspection: &mut Inspection,
) -> Result<(), OpenError> {
    let Some(file) = open_control(vfs, dir)? else { return Ok(()) };
    for (from, to) in ControlFile::unused_parts() {
        inspection.unchecked.push(UncheckedRange {
            file: file.path().to_owned(),
            from,
            to,
            reason: "unused".to_owned(),
        });
    }
    if let Some((from, reason)) = file.unreadable_slot() {
        let (from, to, reason) = (*from, *from + SLOT_BYTES as u64, format!("one of two copies, {reason}"));
        inspection.unchecked.push(UncheckedRange { file: file.path().to_owned(), from, to, reason });
    }
    let control = *file.state();
    inspection.control = Some(control);
    let segments = find_segments(vfs, dir, &control)?.segments;
    inspection.segments = segments.iter().map(|segment| (segment.clone(), 0)).collect();
    let opened = open_ledger();
    if opened.is_err() {
        // The server would stop here, but the extent of the intact journal is worth knowing.
        let _ = visit_records(vfs, &control, &segments, |record| {
            let index = segments.partition_point(|segment| segment.end <= record.position);
            inspection.segments[index].1 += 1;
            inspection.records += 1;
            visit(&segments[index], record)
        });
    }
    let ledger = opened.map_err(|source| OpenError::Ledger { dir: dir.to_owned(), source })?;
    inspection.ledger = Some(Arc::clone(&ledger));
    inspection.watermark = read_watermark(&*ledger, dir, &control)?;
    let (at_rest, counts, records) = (inspection.watermark.clone(), &mut inspection.segments, &mut inspection.records);
    // Any hash seed works if there are no stored hashes to agree with.
    let fresh = || Watermark::new(control.log, 1, 0);
    let directory = DataDir { vfs, dir, control: &control, segments: &segments, ledger: &*ledger, threads: None };
    let recovered = recover(directory, at_rest, fresh, |record| {
        let index = segments.partition_point(|segment| segment.end <= record.position);
        counts[index].1 += 1;
        *records += 1;
        visit(&segments[index], record)
    })?;
    inspection.counters = recovered.table.counters();
    inspection.verdict = Ok(recovered.tail);
    Ok(())
}
