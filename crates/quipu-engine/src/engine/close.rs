//! Closes an engine: seals all counters, commits, and marks a clean stop.

use quipu_model::LedgerError;

use crate::base::sync::{Ordering, lock};
use crate::core::Core;
use crate::core::commit::{JournalFailure, block_on};
use crate::execute::turn::LaneVisit;
use crate::journal::{JournalError, Wait};
use crate::seal::SealError;

/// Why a clean stop failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Counters could not be sealed. Counters of memory namespaces are lost; all others are in the
    /// journal.
    #[error("counters could not be sealed: {0}")]
    Unsealed(SealError),
    /// The journal failed.
    #[error(transparent)]
    JournalFailed(#[from] JournalFailure),
    /// The control file could not be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl Core {
    pub(crate) fn close(&self) -> Result<(), CloseError> {
        // One at a time: a second call returns when the first is done, and retries its failed part.
        let mut closed = lock(&self.close_done);
        if *closed {
            return Ok(());
        }
        // While the journal may still grant more room than the lanes hold.
        self.visit_all_lanes(LaneVisit::Join);
        self.closed.store(true, Ordering::Release);
        self.visit_all_lanes(LaneVisit::Close);
        // A concurrent `put_namespace` is refused too, or finishes before the mark.
        self.namespaces.wait_for_change();
        // A running backup notices the close, gives up and removes its files.
        drop(lock(&self.backup_lock));
        let sealed = loop {
            match self.seal_all() {
                // Caused by a turn that was under way when the close began; there cannot be
                // another.
                Err(SealError::Flushed) => {}
                sealed => break sealed,
            }
        };
        let end = self.journal.reserved();
        block_on(self.commit_until(Wait { written: end, synced: end }))?;
        match sealed {
            // The journal has all counters but those of memory namespaces: the stop is clean
            // without a seal.
            Err(SealError::Ledger(LedgerError::Full(_))) if !self.namespaces.current().has_memory() => {}
            sealed => sealed.map_err(CloseError::Unsealed)?,
        }
        self.journal.record_synced(true)?;
        *closed = true;
        Ok(())
    }
}
