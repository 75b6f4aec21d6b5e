//! Claims of tokens on a shared store: they decide which node applies a mutation sent to several
//! nodes.
//!
//! In: the store's present claim of a token, and a new claim. Out: permission to apply the
//! mutation, or the reply of an earlier attempt.
//!
//! Invariants:
//! - at most one attempt holds a token, until it releases it unapplied;
//! - once a reply is stored, every claim of that token with that payload gets it, until the window
//!   ends;
//! - a claim that arrives after its own window is refused, so a late one cannot apply the mutation
//!   again.
//!
//! An attempt sends the same claim again if the outcome of the first is unknown. After a crash the
//! node ends its open claim: its journal has the reply, or its absence proves that nothing was
//! applied.
//!
//! Not here: the age limit of tokens, and the encoding of replies (the engine).

use std::time::Duration;

use crate::token::TOKEN_AHEAD_MAX;
use crate::{Millis, Writer};

/// Longest token. A UUID has 36 bytes; this leaves room for a prefix, but none to store data in
/// tokens.
pub const TOKEN_BYTES_MAX: usize = 128;

/// Longest reply stored with a token: a name of 512 bytes, a value, and room to spare.
pub const CLAIM_REPLY_BYTES_MAX: usize = 1_024;

/// The idempotency id of one mutation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimToken(Box<[u8]>); // at most TOKEN_BYTES_MAX bytes

/// A token over [`TOKEN_BYTES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("token is too long: {bytes} bytes, at most {TOKEN_BYTES_MAX} are allowed")]
pub struct TokenTooLong {
    /// Length of the refused token.
    pub bytes: usize,
}

/// A claim to a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The token.
    pub token: ClaimToken,
    /// Writer that will apply the mutation.
    pub owner: Writer,
    /// Attempt of the owner: drawn at random for each command that it runs.
    pub attempt: u64,
    /// Digest of the mutation: equal tokens must have equal digests.
    pub payload: u64,
    /// End of the window, by the store's clock.
    pub forget_at: Millis,
    /// Reply, at most [`CLAIM_REPLY_BYTES_MAX`] bytes; `None` while it is in flight.
    pub reply: Option<Box<[u8]>>,
}

/// Verdict of a store on a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimVerdict {
    /// The caller applies the mutation, then ends the claim.
    Claimed,
    /// Another attempt holds the token.
    InFlight {
        /// Owner of that attempt.
        owner: Writer,
        /// That attempt. An owner that meets a finished attempt of its own ends it first.
        attempt: u64,
    },
    /// It was applied before; this is the reply.
    Done {
        /// The reply.
        reply: Box<[u8]>,
    },
    /// The token was used for another mutation.
    Mismatch,
    /// The claim's own window is over.
    TooLate,
}

/// End of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimEnd {
    /// Applied, with this reply.
    Done(Box<[u8]>),
    /// Not applied, and never will be by this attempt.
    Released,
}

/// Verdict of a store on the end of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimEndVerdict {
    /// Ended, now or by an earlier call.
    Ended,
    /// This attempt does not hold the token.
    NotHeld,
}

/// Verdict of a store on a restored claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreVerdict {
    /// The store has the claim and its reply now.
    Restored,
    /// The store had it already, or its window is over.
    Known,
    /// The store has another claim of the token: two nodes may have applied it.
    Conflict,
}

impl ClaimToken {
    /// Checks the length; every byte is allowed.
    pub fn new(bytes: &[u8]) -> Result<ClaimToken, TokenTooLong> {
        if bytes.len() > TOKEN_BYTES_MAX {
            return Err(TokenTooLong { bytes: bytes.len() });
        }
        Ok(ClaimToken(bytes.into()))
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Returns the time at which a claim made now, by the store's clock, is forgotten.
///
/// A token may carry a time up to [`TOKEN_AHEAD_MAX`] ahead of the store's clock, and is fresh for
/// a window from then. A second [`TOKEN_AHEAD_MAX`] is the margin for a claim under way.
pub fn forget_at(at: Millis, window: Duration) -> Millis {
    let kept_for = window.saturating_add(2 * TOKEN_AHEAD_MAX);
    Millis(at.0.saturating_add(u64::try_from(kept_for.as_millis()).unwrap_or(u64::MAX)))
}

/// Claims a token. `known` is the store's present claim of it.
pub fn claim(known: &mut Option<Claim>, asked: &Claim, at: Millis) -> ClaimVerdict {
    if asked.forget_at <= at {
        return ClaimVerdict::TooLate;
    }
    match known {
        Some(known) if known.forget_at > at => {
            if known.payload != asked.payload {
                return ClaimVerdict::Mismatch;
            }
            match &known.reply {
                Some(reply) => ClaimVerdict::Done { reply: reply.clone() },
                None if (known.owner, known.attempt) == (asked.owner, asked.attempt) => ClaimVerdict::Claimed,
                None => ClaimVerdict::InFlight { owner: known.owner, attempt: known.attempt },
            }
        }
        _ => {
            *known = Some(Claim { reply: None, ..asked.clone() });
            ClaimVerdict::Claimed
        }
    }
}

/// Ends an attempt's claim. Owner and attempt identify it, so a late end cannot end another's
/// claim.
pub fn end(known: &mut Option<Claim>, owner: Writer, attempt: u64, end: &ClaimEnd) -> ClaimEndVerdict {
    let held = known.as_mut().filter(|known| (known.owner, known.attempt) == (owner, attempt));
    match (held, end) {
        (Some(held), ClaimEnd::Done(reply)) => {
            held.reply.get_or_insert_with(|| reply.clone());
            ClaimEndVerdict::Ended
        }
        (Some(held), ClaimEnd::Released) if held.reply.is_none() => {
            *known = None;
            ClaimEndVerdict::Ended
        }
        _ => ClaimEndVerdict::NotHeld,
    }
}

/// Restores a claim that was applied, with its reply. `known` is the store's claim of the token.
///
/// An open claim of the same node gets the reply. A node searches its own records for a token
/// before it claims it. So the open claim is the one that led to this reply.
pub fn restore(known: &mut Option<Claim>, asked: &Claim, at: Millis) -> RestoreVerdict {
    if asked.forget_at <= at {
        return RestoreVerdict::Known;
    }
    match known {
        Some(known) if known.forget_at > at => match &known.reply {
            Some(reply) if known.payload == asked.payload && asked.reply.as_ref() == Some(reply) => {
                RestoreVerdict::Known
            }
            None if known.payload == asked.payload && known.owner.node == asked.owner.node => {
                known.reply.clone_from(&asked.reply);
                RestoreVerdict::Restored
            }
            _ => RestoreVerdict::Conflict,
        },
        _ => {
            *known = Some(asked.clone());
            RestoreVerdict::Restored
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::{TokenAge, token_age};
    use crate::{Incarnation, NodeId};

    const NOW: Millis = Millis(10);

    fn asked(node: u64, attempt: u64) -> Claim {
        let owner = Writer { node: NodeId(node), incarnation: Incarnation(1) };
        let token = ClaimToken::new(b"order-1").unwrap();
        Claim { token, owner, attempt, payload: 5, forget_at: Millis(100), reply: None }
    }

    fn done() -> ClaimEnd {
        ClaimEnd::Done((*b"ok").into())
    }

    #[test]
    fn one_attempt_gets_the_token_and_everyone_else_its_reply() {
        let mut known = None;
        let (first, other) = (asked(1, 1), asked(2, 2));
        assert_eq!(claim(&mut known, &first, NOW), ClaimVerdict::Claimed);
        assert_eq!(claim(&mut known, &first, NOW), ClaimVerdict::Claimed, "asked again after a lost answer");
        let in_flight = ClaimVerdict::InFlight { owner: first.owner, attempt: 1 };
        assert_eq!(claim(&mut known, &other, NOW), in_flight);
        assert_eq!(claim(&mut known, &asked(1, 3), NOW), in_flight, "the same node, another try");
        assert_eq!(end(&mut known, other.owner, 2, &done()), ClaimEndVerdict::NotHeld);
        assert_eq!(end(&mut known, first.owner, 1, &done()), ClaimEndVerdict::Ended);
        for again in [&first, &other] {
            assert_eq!(claim(&mut known, again, NOW), ClaimVerdict::Done { reply: (*b"ok").into() });
        }
        assert_eq!(
            end(&mut known, first.owner, 1, &ClaimEnd::Released),
            ClaimEndVerdict::NotHeld,
            "what is done stays done"
        );
        assert_eq!(end(&mut known, first.owner, 1, &done()), ClaimEndVerdict::Ended);
    }

    #[test]
    fn a_token_means_one_thing() {
        let mut known = None;
        claim(&mut known, &asked(1, 1), NOW);
        assert_eq!(claim(&mut known, &Claim { payload: 6, ..asked(2, 2) }, NOW), ClaimVerdict::Mismatch);
    }

    #[test]
    fn a_token_given_back_may_be_claimed_and_a_late_end_of_the_first_try_ends_nothing() {
        let mut known = None;
        let (first, other) = (asked(1, 1), asked(2, 2));
        claim(&mut known, &first, NOW);
        assert_eq!(end(&mut known, first.owner, 1, &ClaimEnd::Released), ClaimEndVerdict::Ended);
        assert_eq!(claim(&mut known, &other, NOW), ClaimVerdict::Claimed);
        assert_eq!(end(&mut known, first.owner, 1, &ClaimEnd::Released), ClaimEndVerdict::NotHeld);
        assert_eq!(claim(&mut known, &first, NOW), ClaimVerdict::InFlight { owner: other.owner, attempt: 2 });
    }

    #[test]
    fn a_token_is_forgotten_after_its_window_and_a_late_claim_is_refused() {
        let mut known = None;
        claim(&mut known, &asked(1, 1), NOW);
        assert_eq!(claim(&mut known, &asked(2, 2), Millis(100)), ClaimVerdict::TooLate);
        let next = Claim { forget_at: Millis(200), ..asked(2, 2) };
        assert_eq!(claim(&mut known, &next, Millis(100)), ClaimVerdict::Claimed);
    }

    #[test]
    fn a_lost_claim_is_put_back_once_and_never_over_another_one() {
        let applied = |node, reply: &[u8]| Claim { reply: Some(reply.into()), ..asked(node, 9) };
        let mut known = None;
        assert_eq!(restore(&mut known, &applied(1, b"ok"), NOW), RestoreVerdict::Restored);
        assert_eq!(restore(&mut known, &applied(1, b"ok"), NOW), RestoreVerdict::Known);
        assert_eq!(claim(&mut known, &asked(2, 2), NOW), ClaimVerdict::Done { reply: (*b"ok").into() });
        assert_eq!(restore(&mut known, &applied(2, b"other"), NOW), RestoreVerdict::Conflict, "applied twice");
        let other = Claim { payload: 6, ..applied(1, b"ok") };
        assert_eq!(restore(&mut known, &other, NOW), RestoreVerdict::Conflict, "another command");
        let over = Claim { forget_at: NOW, ..applied(2, b"other") };
        assert_eq!(restore(&mut known, &over, NOW), RestoreVerdict::Known, "nobody may retry it any more");
    }

    #[test]
    fn an_open_claim_gets_its_reply_from_its_own_node_alone() {
        let applied = |node| Claim { reply: Some((*b"ok").into()), ..asked(node, 9) };
        let mut known = None;
        claim(&mut known, &asked(1, 1), NOW);
        assert_eq!(restore(&mut known, &applied(2), NOW), RestoreVerdict::Conflict);
        assert_eq!(restore(&mut known, &applied(1), NOW), RestoreVerdict::Restored);
        assert_eq!(claim(&mut known, &asked(2, 2), NOW), ClaimVerdict::Done { reply: (*b"ok").into() });
        assert_eq!(
            end(&mut known, asked(1, 1).owner, 1, &done()),
            ClaimEndVerdict::Ended,
            "a late end changes nothing"
        );
    }

    #[test]
    fn a_claim_outlives_every_time_at_which_its_token_is_fresh() {
        let window = Duration::from_secs(3_600);
        let carried = Millis(NOW.0 + 60_000);
        assert_eq!(token_age(carried, NOW, window), TokenAge::Fresh);
        let forgotten = forget_at(NOW, window);
        assert_eq!(token_age(carried, forgotten, window), TokenAge::TooOld);
        assert_eq!(
            token_age(carried, Millis(forgotten.0 - 60_000), window),
            TokenAge::TooOld,
            "with a minute to spare"
        );
    }

    #[test]
    fn a_token_is_refused_one_byte_past_the_bound() {
        assert!(ClaimToken::new(&[1; TOKEN_BYTES_MAX]).is_ok());
        assert_eq!(ClaimToken::new(&[1; TOKEN_BYTES_MAX + 1]), Err(TokenTooLong { bytes: TOKEN_BYTES_MAX + 1 }));
    }
}
