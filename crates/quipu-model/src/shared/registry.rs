//! Registry of a store's writers: registrations, leases and retirement.
//!
//! In: the registration of a writer, and the store's clock. Out: its next registration, or the next
//! step of its retirement.
//!
//! ```text
//! Live ── lease gone for retire_after ─► Retiring ── all rows closed ─► Closed
//! Closed ── grace, all rows folded ─► Folded ── grace ─► (none)
//! ```
//!
//! Invariants:
//! - a registration is replaced only by compare-and-swap: renewing and retiring cannot both win;
//! - a writer that is no longer live never becomes live again: its node begins a new incarnation;
//! - one writer has one holder: a second process with the same id is refused during the first one's
//!   lease;
//! - every step may be repeated; a pass that found an open cell restarts the wait.
//!
//! Not here: closing and folding on a row (`retire`); walking the rows and renewing the lease (the
//! engine).

use std::time::Duration;

use crate::shared::snapshot::{has_elapsed, time_after};
use crate::{Millis, Writer};

/// Most registrations of a store: thousands of nodes, and crashed incarnations until they are
/// folded. The registry is read whole, so it has to fit one reply.
pub const REGISTRATIONS_MAX: usize = 16_384;

/// Process that has a writer's data directory open. Drawn at random at its start, and never stored
/// by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Holder(pub u64);

/// Registration of one writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// The writer.
    pub writer: Writer,
    /// Process that writes; `None` after a clean stop.
    pub holder: Option<Holder>,
    /// End of the lease.
    pub lease_until: Millis,
    /// Stage of retirement.
    pub stage: WriterStage,
    /// Raised with each replacement of the registration; the first is 1.
    pub version: u64,
}

/// Stage of a writer's retirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterStage {
    /// It writes.
    Live,
    /// Its cells are being closed, row by row.
    Retiring {
        /// Begin of the stage.
        since: Millis,
    },
    /// All its cells are closed.
    Closed {
        /// Begin of the stage.
        since: Millis,
    },
    /// All its cells are folded.
    Folded {
        /// Begin of the stage.
        since: Millis,
    },
}

/// Verdict of a store on a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegisterVerdict {
    /// The registration is stored.
    Registered,
    /// The registration has changed meanwhile; nothing was replaced.
    Moved,
    /// The registry has [`REGISTRATIONS_MAX`] entries.
    Full,
}

/// Reason why a writer may not continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RenewError {
    /// Another process writes under this id: a copied data directory or machine.
    #[error("writer {writer} is held by another process until {until}")]
    Held {
        /// The writer.
        writer: Writer,
        /// End of its lease.
        until: Millis,
    },
    /// The writer was retired: begin a new incarnation, and get the kept value of each cell by its
    /// verdict.
    #[error("writer {writer} was retired; it goes on as a new incarnation")]
    Retired {
        /// The writer.
        writer: Writer,
    },
    /// The writer was retired long ago, and the store may have forgotten its kept values. Settled
    /// and unsettled values are then indistinguishable: an operator has to decide
    /// (`quipu writers adopt`).
    #[error("writer {writer} was retired and its cells are forgotten; see `quipu writers adopt`")]
    Forgotten {
        /// The writer.
        writer: Writer,
    },
}

/// Next step of retiring a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetireStep {
    /// Nothing yet.
    Wait,
    /// Replace the registration by this one.
    Register(Registration),
    /// Close its cells in every row, then replace the registration by [`Registration::closed`].
    Close,
    /// Close, then fold, its cells in every row, then replace the registration by
    /// [`Registration::folded`].
    Fold,
    /// Remove the registration.
    Remove,
}

/// Returns the registration with which a writer continues: at its start, and then periodically
/// within each lease. `first` means that this incarnation has never been registered anywhere.
pub fn renew(
    known: Option<&Registration>,
    (writer, holder): (Writer, Holder),
    first: bool,
    at: Millis,
    lease: Duration,
) -> Result<Registration, RenewError> {
    let version = match known {
        None if first => 0,
        None => return Err(RenewError::Forgotten { writer }),
        Some(known) => match known.stage {
            WriterStage::Live if known.holder.is_none_or(|known| known == holder) || known.lease_until <= at => {
                known.version
            }
            WriterStage::Live => return Err(RenewError::Held { writer, until: known.lease_until }),
            WriterStage::Retiring { .. } | WriterStage::Closed { .. } => return Err(RenewError::Retired { writer }),
            WriterStage::Folded { .. } => return Err(RenewError::Forgotten { writer }),
        },
    };
    let (lease_until, version) = (time_after(at, lease), version.saturating_add(1));
    Ok(Registration { writer, holder: Some(holder), lease_until, stage: WriterStage::Live, version })
}

impl Registration {
    /// Releases a registration after a clean stop: it has no holder, and its lease runs on, so a
    /// restart finds it live.
    #[must_use]
    pub fn released(self) -> Registration {
        Registration { holder: None, version: self.version.saturating_add(1), ..self }
    }

    /// Returns the next step of its retirement at this time.
    pub fn retire_step(&self, at: Millis, retire_after: Duration, grace: Duration) -> RetireStep {
        match self.stage {
            WriterStage::Live if has_elapsed(self.lease_until, retire_after, at) => {
                RetireStep::Register(self.retiring(at))
            }
            WriterStage::Live => RetireStep::Wait,
            WriterStage::Retiring { .. } => RetireStep::Close,
            WriterStage::Closed { since } if has_elapsed(since, grace, at) => RetireStep::Fold,
            WriterStage::Folded { since } if has_elapsed(since, grace, at) => RetireStep::Remove,
            WriterStage::Closed { .. } | WriterStage::Folded { .. } => RetireStep::Wait,
        }
    }

    /// Begins the retirement, regardless of the holder. There is no wait if the writer has nothing
    /// left to put, or if a duplicate instance puts other values under the same name.
    #[must_use]
    pub fn retiring(self, at: Millis) -> Registration {
        self.at_stage(WriterStage::Retiring { since: at })
    }

    /// Ends stage `Retiring`, after a walk begun in this stage has closed its cells in every row.
    #[must_use]
    pub fn closed(self, at: Millis) -> Registration {
        self.at_stage(WriterStage::Closed { since: at })
    }

    /// Ends stage `Closed`, after its cells were folded in every row. If some had to be closed
    /// first, a late put had opened them, and their `grace` begins now.
    #[must_use]
    pub fn folded(self, at: Millis, closed_some: bool) -> Registration {
        self.at_stage(if closed_some { WriterStage::Closed { since: at } } else { WriterStage::Folded { since: at } })
    }

    fn at_stage(self, stage: WriterStage) -> Registration {
        Registration { stage, version: self.version.saturating_add(1), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Incarnation, NodeId};

    const WRITER: Writer = Writer { node: NodeId(1), incarnation: Incarnation(1) };
    const ME: (Writer, Holder) = (WRITER, Holder(1));
    const LEASE: Duration = Duration::from_millis(100);
    const RETIRE_AFTER: Duration = Duration::from_millis(1_000);
    const GRACE: Duration = Duration::from_millis(5_000);

    fn step(registration: &Registration, at: u64) -> RetireStep {
        registration.retire_step(Millis(at), RETIRE_AFTER, GRACE)
    }

    #[test]
    fn a_writer_registers_once_and_then_renews() {
        let first = renew(None, ME, true, Millis(0), LEASE).unwrap();
        assert_eq!((first.lease_until, first.version), (Millis(100), 1));
        let next = renew(Some(&first), ME, false, Millis(60), LEASE).unwrap();
        assert_eq!((next.lease_until, next.version), (Millis(160), 2));
        assert_eq!(step(&next, 1_159), RetireStep::Wait);
    }

    #[test]
    fn a_second_process_with_the_same_id_is_refused_until_the_lease_ends_or_is_released() {
        let first = renew(None, ME, true, Millis(0), LEASE).unwrap();
        let other = (WRITER, Holder(2));
        assert!(matches!(renew(Some(&first), other, false, Millis(99), LEASE), Err(RenewError::Held { .. })));
        assert!(renew(Some(&first), other, false, Millis(100), LEASE).is_ok());
        assert!(renew(Some(&first.released()), other, false, Millis(99), LEASE).is_ok());
    }

    #[test]
    fn a_writer_goes_out_by_steps_and_never_comes_back_as_itself() {
        let live = renew(None, ME, true, Millis(0), LEASE).unwrap();
        let RetireStep::Register(retiring) = step(&live, 1_100) else { panic!("it is retired") };
        assert_eq!(step(&retiring, 1_101), RetireStep::Close);
        let closed = retiring.closed(Millis(1_200));
        assert_eq!((step(&closed, 6_199), step(&closed, 6_200)), (RetireStep::Wait, RetireStep::Fold));
        let again = closed.folded(Millis(6_300), true);
        assert_eq!((step(&again, 11_299), step(&again, 11_300)), (RetireStep::Wait, RetireStep::Fold));
        let folded = again.folded(Millis(11_300), false);
        assert_eq!((step(&folded, 16_299), step(&folded, 16_300)), (RetireStep::Wait, RetireStep::Remove));

        let back = |known| renew(known, ME, false, Millis(20_000), LEASE);
        assert_eq!(back(Some(&retiring)), Err(RenewError::Retired { writer: WRITER }));
        assert_eq!(back(Some(&closed)), Err(RenewError::Retired { writer: WRITER }));
        assert_eq!(back(Some(&folded)), Err(RenewError::Forgotten { writer: WRITER }));
        assert_eq!(back(None), Err(RenewError::Forgotten { writer: WRITER }), "also once the registration is gone");
    }

    #[test]
    fn one_that_is_retired_under_its_lease_is_out_for_its_holder_too() {
        let held = renew(None, ME, true, Millis(0), LEASE).unwrap();
        let retiring = held.retiring(Millis(10));
        assert_eq!((retiring.version, step(&retiring, 11)), (2, RetireStep::Close));
        assert!(matches!(renew(Some(&retiring), ME, false, Millis(20), LEASE), Err(RenewError::Retired { .. })));
    }
}
