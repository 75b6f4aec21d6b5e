//! Who writes to a store: registrations, leases, and the way out.
//!
//! In: what the registry says of a writer, and the store's clock. Out: the registration to put in its place, or the next step of
//! retiring it.
//!
//! ```text
//! Live ── lease gone for retire_after ─► Retiring ── all rows closed ─► Closed ── grace, all rows folded ─► Folded ── grace ─► (none)
//! ```
//!
//! Invariants:
//! - a registration is replaced only as it was seen: renewing and retiring cannot both win;
//! - a writer that is no longer live never becomes so again: it begins a new incarnation;
//! - one writer has one holder: a second process with the same id is refused while the first one's lease lasts;
//! - every step may be repeated; a pass that found something open begins the wait anew.
//!
//! Not here: what closing and folding do to a row (`retire`); walking the rows and keeping the lease (the engine).

use std::time::Duration;

use crate::shared::snapshot::{has_elapsed, time_after};
use crate::{Millis, Writer};

/// Most registrations a store holds: thousands of nodes, and what crashes leave behind until it is folded. A registry is read
/// whole, so it has to fit one answer.
pub const REGISTRATIONS_MAX: usize = 16_384;

/// Which process has a writer's data directory open. Drawn when it starts and never stored by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Holder(pub u64);

/// What the registry says of one writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// Who.
    pub writer: Writer,
    /// The process that writes; none after a clean stop.
    pub holder: Option<Holder>,
    /// Until when it is certainly wanted.
    pub lease_until: Millis,
    /// Where on its way out it is.
    pub stage: WriterStage,
    /// Raised each time the registration is replaced; the first is 1.
    pub version: u64,
}

/// Where on its way out a writer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterStage {
    /// It writes.
    Live,
    /// It is being closed, row by row.
    Retiring {
        /// Since when.
        since: Millis,
    },
    /// All its cells are closed.
    Closed {
        /// Since when.
        since: Millis,
    },
    /// All its cells are folded.
    Folded {
        /// Since when.
        since: Millis,
    },
}

/// What a store answers to a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegisterVerdict {
    /// It is in.
    Registered,
    /// It is no longer what was seen, and nothing was changed.
    Moved,
    /// There are [`REGISTRATIONS_MAX`] already.
    Full,
}

/// Why a writer may not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RenewError {
    /// Another process writes under this id: a copied data directory or machine.
    #[error("writer {writer} is held by another process until {until}")]
    Held {
        /// Which writer.
        writer: Writer,
        /// Until when.
        until: Millis,
    },
    /// It was retired: begin a new incarnation, and hear per cell what was kept.
    #[error("writer {writer} was retired; it goes on as a new incarnation")]
    Retired {
        /// Which writer.
        writer: Writer,
    },
    /// It was retired so long ago that the store may have forgotten what it kept. What is not settled cannot be told from what
    /// was: an operator has to say (`quipu writers adopt`).
    #[error("writer {writer} was retired and its cells are forgotten; see `quipu writers adopt`")]
    Forgotten {
        /// Which writer.
        writer: Writer,
    },
}

/// What retiring a writer needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetireStep {
    /// Nothing yet.
    Wait,
    /// Replace the registration by this one.
    Register(Registration),
    /// Close its cells in every row, then replace the registration by [`Registration::closed`].
    Close,
    /// Close, then fold, its cells in every row, then replace the registration by [`Registration::folded`].
    Fold,
    /// Remove the registration.
    Remove,
}

/// The registration with which a writer goes on: at its start and then every part of a lease. `first` says that this
/// incarnation has never been registered anywhere.
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
    /// After a clean stop: nobody holds it, and its lease runs on, so that a restart finds it live.
    #[must_use]
    pub fn released(self) -> Registration {
        Registration { holder: None, version: self.version.saturating_add(1), ..self }
    }

    /// What its retirement needs at this time.
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

    /// On its way out, whoever holds it: who has nothing left to say of it, or finds that another says something else under the same name, need not wait.
    #[must_use]
    pub fn retiring(self, at: Millis) -> Registration {
        self.at_stage(WriterStage::Retiring { since: at })
    }

    /// After its cells were closed in every row that a walk begun in this stage came to.
    #[must_use]
    pub fn closed(self, at: Millis) -> Registration {
        self.at_stage(WriterStage::Closed { since: at })
    }

    /// After its cells were folded in every row. If some had to be closed first, a late put had opened them: their `grace` begins now.
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
