//! The shared-store protocol: how nodes that meet in one store keep one sum.
//!
//! In: what a store shows of a counter, and what a node wants. Out: verdicts, the next snapshot to swap in, and what a writer
//! goes on with. Everything here is a pure function of its arguments; a store holds, compares and replaces these values and
//! computes nothing itself.
//!
//! Invariants, for one counter, over everything that puts, swaps, crashes and retired writers can do:
//! - each add is in exactly one place: in the row's sum, in what a swap has taken from it, or owed by its writer;
//! - what a writer owes is its running value less what the store kept of it, and the row remembers what it kept while the writer is
//!   registered, and for `grace`;
//! - the present life of a node carries what it owes into its next epoch; a life that is over settles it late, on the row, by seq and total;
//! - every step may be repeated, delayed and reordered, and its answer lost.
//!
//! What it takes for granted:
//! - no message is under way, and no swap computed and not sent, for as long as half of `grace` (what a row kept is dated by the read its
//!   swap was computed from); how long a writer is away does not matter while it is registered;
//! - a writer puts only under an epoch that the store has shown it, or [`Epoch::FIRST`](crate::Epoch::FIRST);
//! - one seq says one thing: each change of what a present life says has its own, and a life that is over gives none.
//!
//! Not here: when to put, swap, renew and retire, and what to journal before (the engine); where rows live (the adapters).

pub mod snapshot;

pub mod put;

pub mod swap;

pub mod attempt;

pub mod carry;

pub mod read;

pub mod retire;

pub mod late;

pub mod registry;

pub mod claim;

pub mod body;

pub mod mirror;

pub use attempt::{SwapAttempt, SwapOutcome};
pub use body::{
    Bodies, BodyPut, BodyVerdict, NODE_INCARNATION, RowWithBodies, incarnation_cell, is_body_cell, node_cell,
};
pub use carry::{NextStep, OwnValue, PendingExpiry};
pub use claim::{Claim, ClaimEnd, ClaimEndVerdict, ClaimToken, ClaimVerdict, RestoreVerdict, TokenTooLong};
pub use late::FinalCell;
pub use mirror::{MirrorError, StoredRow, mirror};
pub use put::{Put, Verdict};
pub use read::{TooWide, Total, nearest, read};
pub use registry::{Holder, RegisterVerdict, Registration, RenewError, RetireStep, WriterStage};
pub use snapshot::{CellId, FetchedRow, RowCell, RowVersion, Seq, Shard, Snapshot, SnapshotError, SpentCell, SwapId};
pub use swap::{Change, NO_WRITERS, NextRow, SwapContext, SwapError, SwapPlan, SwapVerdict, plan_swap};

#[cfg(test)]
mod properties;
