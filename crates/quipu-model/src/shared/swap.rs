//! Computes every change other than an add, on a fetched row.
//!
//! In: a row, the store's time, the context of the swap, and the change. Out: the row to swap in,
//! and the reply once it is in.
//!
//! Invariants:
//! - a row that is due expires before any change: all nodes compute the same next epoch;
//! - a change of value ends the epoch. It takes the row's value of each cell, and the reply
//!   contains that value in full;
//! - late settlement, closing and folding take nothing, and keep the epoch;
//! - a change of expiry alone keeps the epoch, so no writer has to begin anew;
//! - a refused change computes no row.
//!
//! Not here: sending the swap, and determining its outcome (`attempt`).

use std::collections::BTreeSet;
use std::time::Duration;

use crate::shared::body::{self, is_registered};
use crate::shared::snapshot::has_elapsed;
use crate::shared::{FetchedRow, FinalCell, RowVersion, Snapshot, SwapId, TooWide, late, retire};
use crate::{Epoch, Expiry, ExpiryCondition, ExpiryTime, Millis, NodeId, Reply, SetExpiry, Writer};

/// Context of a swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwapContext<'w> {
    /// Id of the swap: drawn anew for every computation, and reused only to resend the identical
    /// row.
    pub id: SwapId,
    /// Node that raises the epoch.
    pub node: NodeId,
    /// Time for which rows remember the spent cells of unregistered writers.
    pub grace: Duration,
    /// Writers in the registry, in any stage. Rows keep the spent cells of these, for any length of
    /// absence.
    pub registered: &'w BTreeSet<Writer>,
}

/// An empty registry.
pub static NO_WRITERS: BTreeSet<Writer> = BTreeSet::new();

/// A change of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Sets the value; replies `Ok`, or `Value` with the value before.
    Set {
        /// The new value.
        value: i64,
        /// Effect on the expiry.
        expiry: SetExpiry,
        /// Replies with the value before, and refuses if that does not fit.
        reply_old: bool,
    },
    /// Sets to 0, keeping the expiry; replies `Integer`, the value before.
    Reset,
    /// Deletes; replies `Value`, the value before.
    Take,
    /// Deletes; replies `Integer`, the number of deleted counters.
    Delete,
    /// Replies `Integer`: 1 if the expiry was set.
    Expire {
        /// New expiry.
        when: ExpiryTime,
        /// Condition for the change.
        condition: ExpiryCondition,
    },
    /// Replies `Integer`: 1 if there was an expiry to remove.
    Persist,
    /// Reads and changes the expiry; replies `Value`.
    ReadAndExpire(Expiry),
    /// Moves a row that is due into its next epoch; replies `Ok`.
    Lapse,
    /// Moves a row up to an epoch that it does not know, for a writer that does; replies `Ok`.
    ///
    /// If the row is older than the epoch, it lost it. Its values were taken when that epoch began,
    /// and do not count again. A value set since is lost, which an audit reports. If the row is
    /// younger, the row that knew the epoch was forgotten in between, and its values count on.
    CatchUp(Epoch),
    /// Counts the part of an ended incarnation's final cell that the row does not know, and closes
    /// the cell. Replies `Integer`: 1 if there was such a part, else 0. With 0 there is nothing to
    /// wait for, even if the row has to move for another reason.
    ///
    /// A seq stands for the same state for every successor. So an ended incarnation assigns none,
    /// which its writer might have assigned to another state.
    Late(FinalCell),
    /// Closes the cells of a retired writer; replies `Integer`, their number.
    Close(Writer),
    /// Folds the closed cells of a retired writer into the base; replies `Integer`, their number.
    Fold(Writer),
    /// Folds the body of a retired writer into the folded body, which the caller swaps in with the
    /// row. Replies `Integer`: 1 if there was one.
    FoldBody(Writer),
    /// Removes the row of a counter that has been gone for `grace`; replies `Integer`: 1 if it did.
    Forget,
}

/// Computed result of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwapPlan {
    /// Row to swap in.
    pub next: NextRow,
    /// Reply once the row is in, or at once if there is nothing to swap.
    pub reply: Reply,
}

/// Row to swap in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextRow {
    /// None: the row is already up to date.
    Unchanged,
    /// This row.
    Row(Snapshot),
    /// Remove the row.
    Removed,
}

/// Verdict of a store on a swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwapVerdict {
    /// The swap was applied.
    Swapped,
    /// The row has another version, and this call changed nothing. If the swap was sent more than
    /// once, an earlier copy may have moved the row. Its list of swaps decides
    /// ([`SwapAttempt::outcome`](crate::shared::SwapAttempt::outcome)).
    Moved,
}

/// Reason why a change is refused. Nothing was swapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SwapError {
    /// The reply must contain the value before, which does not fit.
    #[error(transparent)]
    TooWide(#[from] TooWide),
    /// An expiry outside the range of time.
    #[error("invalid expire time")]
    ExpireTime,
    /// The reply must contain the value before, and a sketch has none.
    #[error("a sketch has no value")]
    Sketch,
}

/// Computes the swap of a change.
pub fn plan_swap(fetched: &FetchedRow, context: &SwapContext<'_>, change: &Change) -> Result<SwapPlan, SwapError> {
    let at = fetched.at;
    let mut row = fetched.snapshot.as_of(at).into_owned();
    if row.is_sketch() && replies_value(change) {
        return Err(SwapError::Sketch);
    }
    let reply = apply(&mut row, at, context, change)?;
    if let Change::Forget = change {
        let gone = is_forgettable(&fetched.snapshot, at, context);
        return Ok(SwapPlan {
            next: if gone { NextRow::Removed } else { NextRow::Unchanged },
            reply: Reply::Integer(i64::from(gone)),
        });
    }
    // An expiry in the past deletes at once.
    if row.is_due(at) {
        row = row.as_of(at).into_owned();
    }
    if row == fetched.snapshot {
        return Ok(SwapPlan { next: NextRow::Unchanged, reply });
    }
    if fetched.snapshot.version == RowVersion::ABSENT {
        row.version.born_at = at;
    }
    row.prune(at, context.grace, context.registered);
    row.record_swap(context.id);
    Ok(SwapPlan { next: NextRow::Row(row), reply })
}

fn apply(row: &mut Snapshot, at: Millis, context: &SwapContext<'_>, change: &Change) -> Result<Reply, SwapError> {
    Ok(match *change {
        Change::Set { value, expiry, reply_old } => {
            let reply = if reply_old { Reply::Value(value_before(row)?) } else { Reply::Ok };
            let expires_at = match expiry {
                SetExpiry::Remove => None,
                SetExpiry::Keep => row.expires_at,
                SetExpiry::At(when) => Some(resolve_time(when, at)?),
            };
            begin_epoch(row, at, context, value, expires_at);
            reply
        }
        Change::Reset => match value_before(row)? {
            Some(value) => {
                let expires_at = row.expires_at;
                begin_epoch(row, at, context, 0, expires_at);
                Reply::Integer(value)
            }
            None => Reply::Integer(0),
        },
        Change::Take => {
            let value = value_before(row)?;
            delete(row, at, context);
            Reply::Value(value)
        }
        Change::Delete => Reply::Integer(i64::from(delete(row, at, context))),
        Change::Expire { when, condition } => {
            let expires_at = resolve_time(when, at)?;
            let wanted = row.exists() && is_condition_met(condition, row.expires_at, expires_at);
            if wanted {
                row.expires_at = Some(expires_at);
            }
            Reply::Integer(i64::from(wanted))
        }
        Change::Persist => Reply::Integer(i64::from(row.expires_at.take().is_some())),
        Change::ReadAndExpire(expiry) => {
            let expires_at = match expiry {
                Expiry::Keep => row.expires_at,
                Expiry::Remove => None,
                Expiry::At(when) => Some(resolve_time(when, at)?),
            };
            let value = value_before(row)?;
            row.expires_at = expires_at.filter(|_| value.is_some());
            Reply::Value(value)
        }
        Change::Lapse | Change::Forget => Reply::Ok,
        Change::CatchUp(epoch) => {
            row.catch_up(epoch, at);
            Reply::Ok
        }
        Change::Late(late) => Reply::Integer(i64::from(late::settle(row, &late, at))),
        Change::Close(writer) => Reply::Integer(retire::close(row, writer)),
        Change::Fold(writer) => Reply::Integer(retire::fold(row, writer, at)),
        Change::FoldBody(writer) => Reply::Integer(i64::from(body::fold_body(row, writer, at))),
    })
}

/// Returns true if the reply contains the value before.
fn replies_value(change: &Change) -> bool {
    matches!(change, Change::Set { reply_old: true, .. } | Change::Reset | Change::Take | Change::ReadAndExpire(_))
}

/// Ends the epoch and begins the next with a value.
fn begin_epoch(row: &mut Snapshot, at: Millis, context: &SwapContext<'_>, value: i64, expires_at: Option<Millis>) {
    row.end_epoch(row.epoch.raised(at, context.node), at, None);
    row.base = Some(i128::from(value));
    row.expires_at = expires_at;
}

fn delete(row: &mut Snapshot, at: Millis, context: &SwapContext) -> bool {
    let existed = row.exists();
    if existed {
        row.end_epoch(row.epoch.raised(at, context.node), at, None);
        row.gone_at = Some(at);
    }
    existed
}

fn value_before(row: &Snapshot) -> Result<Option<i64>, TooWide> {
    let sum = row.sum();
    if row.exists() { i64::try_from(sum).map(Some).map_err(|_| TooWide { sum }) } else { Ok(None) }
}

fn is_forgettable(row: &Snapshot, at: Millis, context: &SwapContext<'_>) -> bool {
    let grace = context.grace;
    row.version != RowVersion::ABSENT
        && !row.exists()
        && row.gone_at.is_none_or(|gone_at| has_elapsed(gone_at, grace, at))
        && row
            .spent
            .iter()
            .all(|(id, spent)| has_elapsed(spent.at, grace, at) && !is_registered(context.registered, &id.writer))
}

fn is_condition_met(condition: ExpiryCondition, present: Option<Millis>, wanted: Millis) -> bool {
    match condition {
        ExpiryCondition::Always => true,
        ExpiryCondition::IfNone => present.is_none(),
        ExpiryCondition::IfSome => present.is_some(),
        // No expiry counts as never: nothing is later, everything is earlier.
        ExpiryCondition::IfLater => present.is_some_and(|present| wanted > present),
        ExpiryCondition::IfEarlier => present.is_none_or(|present| wanted < present),
        ExpiryCondition::IfSomeEarlier => present.is_some_and(|present| wanted < present),
    }
}

fn resolve_time(when: ExpiryTime, at: Millis) -> Result<Millis, SwapError> {
    let millis = match when {
        ExpiryTime::At(millis) => Some(millis),
        ExpiryTime::In(millis) => i64::try_from(at.0).ok().and_then(|at| at.checked_add(millis)),
    };
    // A time before 1970 is past like any other.
    millis.map(|millis| Millis(millis.max(0).unsigned_abs())).ok_or(SwapError::ExpireTime)
}

#[cfg(test)]
mod tests;
