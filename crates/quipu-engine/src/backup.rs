//! Backs up: a copy of ledger and journal, made while counting goes on.
//!
//! In: a running engine and an empty place. Out: a data directory with a state that existed, which has everything that was acknowledged before the
//! backup began.
//!
//! How both halves fit, though they are copied one after the other: the journal is not cut from before the first to after the last, so whatever the
//! ledger's copy does not have is in the journal; and the end of the journal's copy is chosen after the ledger's, whose every cell was
//! synced in the journal before it was ingested, so the ledger's copy is not ahead.
//!
//! Invariants:
//! - one backup at a time, outside the data directory, into a place that held nothing;
//! - nothing of it opens before all of it is durable (`making`); one that is given up leaves nothing behind;
//! - an error here is no error of the engine.

use std::ops::ControlFlow;
use std::path::Path;

use crate::engine::{Dead, Inner};
use crate::failpoint::step;
use crate::journal::control::Control;
use crate::journal::format::Position;
use crate::journal::segments::Segment;
use crate::journal::{Hold, Wait};
use crate::making::{Making, MakingError};
use crate::sync::{MutexGuard, try_lock};

/// A backup under way.
pub struct Backup<'e> {
    inner: &'e Inner,
    // In the order in which they are let go: what was not finished is removed while nobody else may begin.
    making: Option<Making<'e>>,
    hold: Hold<'e>,
    _one: MutexGuard<'e, ()>,
    /// Everything before this is in it.
    least: Position,
    stage: Stage,
}

enum Stage {
    /// The ledger comes next, once the journal has synced what it had when the backup began.
    Ledger,
    /// Segments to copy, the next one last.
    Segments { control: Control, left: Vec<Segment>, end: Position },
}

/// How far a step of a backup has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// Go on.
    More,
    /// Go on when the journal has come so far.
    Waits(Wait),
    /// It is whole and durable.
    Done(BackedUp),
}

/// What a backup holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackedUp {
    /// Where its journal ends.
    pub position: Position,
    /// Bytes of its segment files.
    pub journal_bytes: u64,
    /// Bytes of its ledger.
    pub ledger_bytes: u64,
}

/// Why there is no backup. What was written has been removed.
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
    Dead(#[from] Dead),
    /// The copy could not be made.
    #[error(transparent)]
    Making(#[from] MakingError),
}

impl<'e> Backup<'e> {
    /// Takes the place, and keeps the journal from being cut.
    pub(crate) fn begin(inner: &'e Inner, dir: &Path) -> Result<Backup<'e>, BackupError> {
        let one = try_lock(&inner.backing_up).ok_or(BackupError::Busy)?;
        if inner.is_closed() {
            return Err(BackupError::Closed);
        }
        let hold = inner.journal.hold();
        let least = inner.journal.reserved();
        step!("backup_held");
        let making = Some(Making::begin(inner.journal.vfs(), dir, &inner.options.data)?);
        step!("backup_begun");
        Ok(Backup { inner, making, hold, _one: one, least, stage: Stage::Ledger })
    }

    /// Does a little more. After an error the backup is over and gone.
    pub fn step(&mut self) -> Result<Backing, BackupError> {
        let inner = self.inner;
        if inner.is_closed() {
            return Err(BackupError::Closed);
        }
        match &mut self.stage {
            Stage::Ledger => {
                let wait = Wait { written: self.least, synced: self.least };
                if !inner.journal.reached(wait) {
                    return Ok(Backing::Waits(wait));
                }
                step!("backup_synced");
                self.copy_ledger()?;
                step!("backup_ledger");
                let end = inner.journal.synced();
                let (control, mut left) = self.hold.extent(end);
                left.reverse();
                self.stage = Stage::Segments { control, left, end };
                Ok(Backing::More)
            }
            Stage::Segments { control, left, end } => {
                let making = self.making.as_ref().ok_or(BackupError::Closed)?;
                if let Some(segment) = left.pop() {
                    let mut go_on = |_| go_on(inner);
                    making.add_segment(inner.journal.vfs(), &segment, control.log, *end, &mut go_on)?;
                    step!("backup_segment");
                    return Ok(Backing::More);
                }
                let (control, end) = (*control, *end);
                self.finish(control, end)
            }
        }
    }

    fn copy_ledger(&self) -> Result<(), BackupError> {
        let making = self.making.as_ref().ok_or(BackupError::Closed)?;
        let copied = self.inner.ledger.copy_to(making.dir(), &mut |_| go_on(self.inner));
        Ok(copied.map_err(|error| making.ledger_error(error))?)
    }

    fn finish(&mut self, control: Control, position: Position) -> Result<Backing, BackupError> {
        let (_, segments) = self.hold.extent(position);
        let (first, end) = match (segments.first(), segments.last()) {
            (Some(first), Some(last)) => (first.number, last.number + 1),
            // The journal was cut where its segments end; the next one begins there.
            _ => (control.end, control.end),
        };
        let base = segments.last().map_or(control.base, |segment| segment.end);
        // Not a clean stop: whoever opens it begins a new incarnation.
        let control = Control { clean: false, first, end, base, synced: position, ..control };
        step!("backup_copied");
        self.making.take().ok_or(BackupError::Closed)?.finish(control)?;
        step!("backup_done");
        let journal_bytes = segments.iter().map(Segment::bytes).sum();
        Ok(Backing::Done(BackedUp { position, journal_bytes, ledger_bytes: self.inner.ledger.stats().disk_bytes }))
    }
}

/// Whoever closes the engine does not wait for a long copy.
fn go_on(inner: &Inner) -> ControlFlow<()> {
    if inner.is_closed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
