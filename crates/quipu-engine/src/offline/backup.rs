//! Backs up a running engine: copies ledger and journal while counting goes on.
//!
//! In: a running engine and an empty place. Out: a data directory with a state that existed. It
//! includes everything acknowledged before the backup began.
//!
//! Ledger and journal are copied one after the other, and still fit:
//! - the journal is not cut from the start of the ledger's copy to the end of the journal's. So
//!   data missing from the ledger's copy is in the journal;
//! - the end of the journal's copy is chosen after the ledger's copy. Every cell there was synced
//!   in the journal before its ingestion, so the ledger's copy is not ahead.
//!
//! Invariants:
//! - one backup at a time, outside the data directory, into an empty place;
//! - no part of it opens before all of it is durable (`staging`); an abandoned one leaves nothing
//!   behind;
//! - an error here is no error of the engine.

use std::ops::ControlFlow;
use std::path::Path;

use crate::base::failpoint::step;
use crate::base::sync::{MutexGuard, try_lock};
use crate::core::Core;
use crate::core::commit::JournalFailure;
use crate::journal::control::ControlState;
use crate::journal::format::Position;
use crate::journal::segments::Segment;
use crate::journal::{CutHold, Wait};
use crate::offline::staging::{StagedDirectory, StagingError};

/// A backup in progress.
pub struct Backup<'e> {
    core: &'e Core,
    // The fields are in drop order: an unfinished copy is removed before another backup may begin.
    staged: Option<StagedDirectory<'e>>,
    cut_hold: CutHold<'e>,
    _exclusive: MutexGuard<'e, ()>,
    /// All records before this position are included.
    includes_until: Position,
    stage: BackupStage,
}

enum BackupStage {
    /// The ledger is next, once the journal has synced its records from before the backup.
    Ledger,
    /// Segments to copy, the next one last.
    Segments { control: ControlState, left: Vec<Segment>, end: Position },
}

/// Progress of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackupStep {
    /// Continue.
    More,
    /// Continue when the journal has reached these positions.
    WaitFor(Wait),
    /// The backup is complete and durable.
    Done(BackupSummary),
}

/// Content of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupSummary {
    /// End position of its journal.
    pub position: Position,
    /// Bytes of its segment files.
    pub journal_bytes: u64,
    /// Bytes of its ledger.
    pub ledger_bytes: u64,
}

/// Reason why a backup failed. Its files have been removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// Try again when it is done.
    #[error("another backup is under way")]
    Busy,
    /// The engine was closed meanwhile.
    #[error("the engine was closed before the backup was done")]
    Closed,
    /// The journal failed meanwhile.
    #[error(transparent)]
    JournalFailed(#[from] JournalFailure),
    /// The copy could not be made.
    #[error(transparent)]
    Staging(#[from] StagingError),
}

impl<'e> Backup<'e> {
    /// Takes the target directory, and keeps the journal from being cut.
    pub(crate) fn begin(core: &'e Core, dir: &Path) -> Result<Backup<'e>, BackupError> {
        let exclusive = try_lock(&core.backup_lock).ok_or(BackupError::Busy)?;
        if core.is_closed() {
            return Err(BackupError::Closed);
        }
        let cut_hold = core.journal.hold_cut();
        let includes_until = core.journal.reserved();
        step!("backup_held");
        let staged = Some(StagedDirectory::begin(core.journal.vfs(), dir, &core.options.data)?);
        step!("backup_begun");
        Ok(Backup { core, staged, cut_hold, _exclusive: exclusive, includes_until, stage: BackupStage::Ledger })
    }

    /// Does the next piece of work. After an error the backup is over and removed.
    pub fn step(&mut self) -> Result<BackupStep, BackupError> {
        let core = self.core;
        if core.is_closed() {
            return Err(BackupError::Closed);
        }
        match &mut self.stage {
            BackupStage::Ledger => {
                let wait = Wait { written: self.includes_until, synced: self.includes_until };
                if !core.journal.has_reached(wait) {
                    return Ok(BackupStep::WaitFor(wait));
                }
                step!("backup_synced");
                self.copy_ledger()?;
                step!("backup_ledger");
                let end = core.journal.synced();
                let (control, mut left) = self.cut_hold.extent(end);
                left.reverse();
                self.stage = BackupStage::Segments { control, left, end };
                Ok(BackupStep::More)
            }
            BackupStage::Segments { control, left, end } => {
                let staged = self.staged.as_ref().ok_or(BackupError::Closed)?;
                if let Some(segment) = left.pop() {
                    let mut progress = |_| continue_unless_closed(core);
                    staged.add_segment(core.journal.vfs(), &segment, control.log, *end, &mut progress)?;
                    step!("backup_segment");
                    return Ok(BackupStep::More);
                }
                let (control, end) = (*control, *end);
                self.finish(control, end)
            }
        }
    }

    fn copy_ledger(&self) -> Result<(), BackupError> {
        let staged = self.staged.as_ref().ok_or(BackupError::Closed)?;
        let copied = self.core.ledger.copy_to(staged.dir(), &mut |_| continue_unless_closed(self.core));
        Ok(copied.map_err(|error| staged.ledger_error(error))?)
    }

    fn finish(&mut self, control: ControlState, position: Position) -> Result<BackupStep, BackupError> {
        let (_, segments) = self.cut_hold.extent(position);
        let (first, end) = match (segments.first(), segments.last()) {
            (Some(first), Some(last)) => (first.number, last.number + 1),
            // The journal was cut where its segments end; the next one begins there.
            _ => (control.end, control.end),
        };
        let base = segments.last().map_or(control.base, |segment| segment.end);
        // Not a clean stop: the next start begins a new incarnation.
        let control = ControlState { clean: false, first, end, base, synced: position, ..control };
        step!("backup_copied");
        self.staged.take().ok_or(BackupError::Closed)?.finish(control)?;
        step!("backup_done");
        let journal_bytes = segments.iter().map(Segment::bytes).sum();
        Ok(BackupStep::Done(BackupSummary {
            position,
            journal_bytes,
            ledger_bytes: self.core.ledger.stats().disk_bytes,
        }))
    }
}

/// Closing the engine does not wait for a long copy.
fn continue_unless_closed(core: &Core) -> ControlFlow<()> {
    if core.is_closed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
