//! A client that swaps: it reads, computes, sends, and determines the outcome.

use quipu_model::Reply;
use quipu_model::shared::{Change, FetchedRow, RowVersion, Snapshot, SwapAttempt, SwapOutcome, SwapPlan};

#[derive(Default)]
pub enum Client {
    #[default]
    Idle,
    /// Has read; others may act before it computes and sends.
    Read { change: Change, seen: FetchedRow, version: RowVersion },
    /// Has sent; may send the very same again.
    Sent { change: Change, seen: FetchedRow, attempt: SwapAttempt, computed: Box<SwapPlan> },
}

/// What the client made of the row it looked at.
pub enum AttemptResult {
    /// The reply is true.
    Done(Reply),
    /// Send the same again.
    Again,
    /// Compute anew.
    Anew(Change),
}

impl Client {
    pub fn check_attempt(&self, row: &Snapshot) -> Result<Option<AttemptResult>, String> {
        let Client::Sent { change, attempt, computed, .. } = self else { return Ok(None) };
        Ok(Some(match attempt.outcome(row) {
            SwapOutcome::Swapped => AttemptResult::Done(computed.reply.clone()),
            SwapOutcome::NotApplied => AttemptResult::Anew(*change),
            SwapOutcome::Pending => AttemptResult::Again,
            SwapOutcome::Unknown => return Err("a swap was forgotten".to_owned()),
        }))
    }
}

/// What a reply returned to whoever asked, if it returns what it took.
pub fn returned(change: &Change, reply: &Reply) -> i128 {
    match (change, reply) {
        (Change::Set { reply_old: true, .. } | Change::Take, Reply::Value(Some(value))) => i128::from(*value),
        (Change::Reset, Reply::Integer(value)) => i128::from(*value),
        _ => 0,
    }
}
