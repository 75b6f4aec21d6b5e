//! Shared-store protocol: keeps one sum of each counter across the nodes of a store.
//!
//! In: the store's row of a counter, and a node's request. Out: verdicts, the next snapshot to swap
//! in, and a writer's next value. Everything here is a pure function of its arguments. A store
//! holds, compares and replaces these values and computes nothing itself.
//!
//! Invariants, for one counter, under any puts, swaps, crashes and retired writers:
//! - each add is in exactly one place: in the row's sum, in the value that a swap has taken, or in
//!   the uncounted value of its writer;
//! - the uncounted value is the writer's running value less the part that the store kept. The row
//!   remembers that part while the writer is registered, and for `grace`;
//! - the current incarnation of a node carries its uncounted value into the next epoch. An ended
//!   incarnation settles it late, on the row, by seq and total;
//! - every step may be repeated, delayed and reordered, and its reply lost.
//!
//! Assumptions:
//! - no message is under way, and no computed swap unsent, for longer than half of `grace`. The row
//!   dates its spent cells by the read that the swap was computed from. A registered writer may be
//!   away for any time;
//! - a writer puts only under an epoch that the store has shown it, or
//!   [`Epoch::FIRST`](crate::Epoch::FIRST);
//! - one seq stands for one state: each change by a current incarnation has its own seq, and an
//!   ended incarnation assigns none.
//!
//! Not here: when to put, swap, renew and retire, and the journaling before it (the engine);
//! storage of rows (the adapters).

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
