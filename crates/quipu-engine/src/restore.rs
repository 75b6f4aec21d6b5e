//! Restores: copies what was inspected and found whole into a new data directory.
//!
//! In: an inspection of a backup, or of any data directory that nobody uses. Out: a data directory that opens as a new incarnation; or, after an error
//! or a crash, none.
//!
//! Not here: finding out whether the backup is whole (`inspect`).

use std::path::Path;

use quipu_model::{CopyProgress, Vfs};

use crate::failpoint::step;
use crate::inspect::Inspection;
use crate::journal::control::ControlState;
use crate::journal::format::Position;
use crate::staging::{StagedDirectory, StagingError};

/// Why nothing was restored. What was written has been removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// There is nothing to restore, or it is not whole; the inspection says why.
    #[error("the backup holds no whole journal")]
    NotWhole,
    /// The copy could not be made.
    #[error(transparent)]
    Staging(#[from] StagingError),
}

/// Copies; `source` is the disk that was inspected, `progress` hears of every piece.
pub fn restore(
    source: &dyn Vfs,
    inspection: &Inspection,
    vfs: &dyn Vfs,
    dir: &Path,
    progress: &mut CopyProgress<'_>,
) -> Result<(), RestoreError> {
    let (Some(control), Some(ledger), Ok(_)) = (inspection.control, &inspection.ledger, &inspection.verdict) else {
        return Err(RestoreError::NotWhole);
    };
    let staged = StagedDirectory::begin(vfs, dir, &inspection.dir)?;
    step!("restore_begun");
    ledger.copy_to(staged.dir(), progress).map_err(|error| staged.ledger_error(error))?;
    step!("restore_ledger");
    for (segment, _) in &inspection.segments {
        staged.add_segment(source, segment, control.log, Position(u64::MAX), progress)?;
        step!("restore_segment");
    }
    let end = inspection.segments.last().map_or(control.end, |(segment, _)| segment.number + 1);
    let base = inspection.segments.last().map_or(control.base, |(segment, _)| segment.end);
    // The one it is a copy of may live on: never its incarnation again.
    staged.finish(ControlState { clean: false, end, base, ..control })?;
    step!("restore_done");
    Ok(())
}

/// Bytes that [`restore`] will copy.
pub fn restore_bytes(inspection: &Inspection) -> u64 {
    let segments: u64 = inspection.segments.iter().map(|(segment, _)| segment.end.0 - segment.base.0).sum();
    segments + inspection.ledger.as_ref().map_or(0, |ledger| ledger.stats().disk_bytes)
}
