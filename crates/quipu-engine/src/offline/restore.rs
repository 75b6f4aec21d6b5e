//! Restores a backup: copies an inspected, intact directory into a new data directory.
//!
//! In: an inspection of a backup, or of any unused data directory. Out: a data directory that opens
//! as a new incarnation; after an error or a crash, none.
//!
//! Not here: the check that the backup is whole (`inspect`).

use std::path::Path;

use quipu_model::{CopyProgress, Vfs};

use crate::base::failpoint::step;
use crate::journal::control::ControlState;
use crate::journal::format::Position;
use crate::offline::inspect::Inspection;
use crate::offline::staging::{StagedDirectory, StagingError};

/// Reason why nothing was restored. The written files have been removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// There is nothing to restore, or it is not whole; the inspection has the reason.
    #[error("the backup holds no whole journal")]
    NotWhole,
    /// The copy could not be made.
    #[error(transparent)]
    Staging(#[from] StagingError),
}

/// Copies the directory. `source` is the inspected disk; `progress` gets every piece.
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
    // The original may still run: its incarnation is never used again.
    staged.finish(ControlState { clean: false, end, base, ..control })?;
    step!("restore_done");
    Ok(())
}

/// Bytes that [`restore`] will copy.
pub fn restore_bytes(inspection: &Inspection) -> u64 {
    let segments: u64 = inspection.segments.iter().map(|(segment, _)| segment.end.0 - segment.base.0).sum();
    segments + inspection.ledger.as_ref().map_or(0, |ledger| ledger.stats().disk_bytes)
}
