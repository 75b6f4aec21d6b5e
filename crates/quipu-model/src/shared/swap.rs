//! Everything that is not an add, computed on a row as it was seen.
//!
//! In: a row, the store's time, who asks, and the change. Out: the row to swap in, and the reply to give once it is in.
//!
//! Invariants:
//! - a row that is due has expired first, whatever the change: all nodes compute the same next epoch;
//! - a change of value ends the epoch, and what it takes of each cell is what the row held: it is in the reply, in full;
//! - what is only counted late, closed or folded takes nothing, and keeps the epoch;
//! - a change of expiry alone keeps the epoch, so that no writer has to begin anew;
//! - a refused change computes no row.
//!
//! Not here: sending it, and finding out what became of it (`attempt`).

use std::collections::BTreeSet;
use std::time::Duration;

use crate::shared::body::{self, is_registered};
use crate::shared::snapshot::has_elapsed;
use crate::shared::{FetchedRow, FinalCell, RowVersion, Snapshot, SwapId, TooWide, late, retire};
use crate::{Epoch, Expiry, ExpiryCondition, ExpiryTime, Millis, NodeId, Reply, SetExpiry, Writer};

/// Who swaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwapContext<'w> {
    /// The swap's name: drawn anew for every computation, used again only to send the very same row again.
    pub id: SwapId,
    /// The node that raises the epoch.
    pub node: NodeId,
    /// How long rows remember what they kept of writers that nobody knows any more.
    pub grace: Duration,
    /// Writers that the registry knows, in whatever stage: what rows kept of these is not forgotten, however long they are away.
    pub registered: &'w BTreeSet<Writer>,
}

/// A registry that knows nobody.
pub static NO_WRITERS: BTreeSet<Writer> = BTreeSet::new();

/// What is to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Sets the value; replies `Ok`, or `Value` with the value before.
    Set {
        /// The new value.
        value: i64,
        /// What happens to the expiry.
        expiry: SetExpiry,
        /// Reply with the value before, and refuse if that does not fit.
        reply_old: bool,
    },
    /// Sets to 0, keeping the expiry; replies `Integer`, the value before.
    Reset,
    /// Deletes; replies `Value`, the value before.
    Take,
    /// Deletes; replies `Integer`, how many existed.
    Delete,
    /// Replies `Integer`: 1 if the expiry was set.
    Expire {
        /// When.
        when: ExpiryTime,
        /// Under which condition.
        condition: ExpiryCondition,
    },
    /// Replies `Integer`: 1 if there was an expiry to remove.
    Persist,
    /// Reads and changes the expiry; replies `Value`.
    ReadAndExpire(Expiry),
    /// Moves a row that is due into its next epoch; replies `Ok`.
    Lapse,
    /// Moves a row that does not know of an epoch up to it, for a writer that does; replies `Ok`. If the row is older than the epoch,
    /// it lost it: what it holds was taken when that epoch began and does not count again, and what was set since is lost, which an
    /// audit reports. If it is younger, the row that knew was forgotten in between, and what it holds counts on.
    CatchUp(Epoch),
    /// Counts what a life that is over said last and the row does not know, and closes the cell; replies `Integer`: 1 if there was
    /// any news, 0 if the store knew as much, and then there is nothing to wait for, even if the row has to move for another reason.
    ///
    /// A seq says the same whoever brings it, so a life that is over gives none, which its writer might have given to something else.
    Late(FinalCell),
    /// Closes the cells of a retired writer; replies `Integer`, how many.
    Close(Writer),
    /// Folds the closed cells of a retired writer into the base; replies `Integer`, how many.
    Fold(Writer),
    /// Folds the body of a retired writer into that of nobody, which is to be swapped in with the row; replies `Integer`: 1 if there was one.
    FoldBody(Writer),
    /// Removes the row of a counter that has been gone for `grace`; replies `Integer`: 1 if it was.
    Forget,
}

/// What a change comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwapPlan {
    /// What to swap in.
    pub next: NextRow,
    /// What to reply once it is in, or at once if there is nothing to swap.
    pub reply: Reply,
}

/// What to swap in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextRow {
    /// Nothing: the row is already as it should be.
    Unchanged,
    /// This row.
    Row(Snapshot),
    /// No row.
    Removed,
}

/// What a store answers to a swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwapVerdict {
    /// It is in.
    Swapped,
    /// The row is not the one that was seen, and this call changed nothing. If the swap was sent more than once, an earlier copy may
    /// be what moved it: the row's list of swaps says ([`SwapAttempt::outcome`](crate::shared::SwapAttempt::outcome)).
    Moved,
}

/// Why a change is refused. Nothing was swapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SwapError {
    /// The value before has to be in the reply and does not fit.
    #[error(transparent)]
    TooWide(#[from] TooWide),
    /// An expiry outside the range of time.
    #[error("invalid expire time")]
    ExpireTime,
    /// The value before has to be in the reply, and there is none: it is a sketch.
    #[error("a sketch has no value")]
    Sketch,
}

/// Computes a change.
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
    // An expiry that is already past deletes at once.
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

/// Whether the value before is in the reply.
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
    // A point before 1970 is as past as any.
    millis.map(|millis| Millis(millis.max(0).unsigned_abs())).ok_or(SwapError::ExpireTime)
}

#[cfg(test)]
mod tests;
