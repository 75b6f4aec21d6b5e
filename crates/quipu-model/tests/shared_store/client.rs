//! Someone who swaps: reads, computes, sends, and finds out what became of it.

use quipu_model::Reply;
use quipu_model::shared::{Attempt, Change, Computed, Fate, Seen, Snapshot, Version};

#[derive(Default)]
pub enum Client {
    #[default]
    Idle,
    /// Has read; others may act before it computes and sends.
    Read { change: Change, seen: Seen, version: Version },
    /// Has sent; may send the very same again.
    Sent { change: Change, seen: Seen, attempt: Attempt, computed: Box<Computed> },
}

/// What the client made of the row it looked at.
pub enum Found {
    /// The reply is true.
    Done(Reply),
    /// Send the same again.
    Again,
    /// Compute anew.
    Anew(Change),
}

impl Client {
    pub fn look(&self, row: &Snapshot) -> Result<Option<Found>, String> {
        let Client::Sent { change, attempt, computed, .. } = self else { return Ok(None) };
        Ok(Some(match attempt.fate(row) {
            Fate::Swapped => Found::Done(computed.reply.clone()),
            Fate::Never => Found::Anew(*change),
            Fate::Open => Found::Again,
            Fate::Forgotten => return Err("a swap was forgotten".to_owned()),
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
