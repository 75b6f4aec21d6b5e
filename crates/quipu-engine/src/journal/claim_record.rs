//! Encodes a node's record of its claim at the shared store, kept beside the token's reply.
//!
//! In: a claim that the store granted. Out: its bytes in the journal and in the ledger; the claim
//! again, with its reply.
//!
//! ```text
//! incarnation u64 · attempt u64 · payload u64 · forget_at u64, milliseconds of the store ·
//! length of the token u8 · token
//! ```
//!
//! A store may lose a claim that it granted. The node that applied the mutation puts the claim
//! back, so it keeps the whole claim.

use quipu_model::shared::claim::TOKEN_BYTES_MAX;
use quipu_model::shared::{Claim, ClaimToken};
use quipu_model::{Incarnation, Millis, NodeId, Writer};

/// Most bytes of a record.
pub const CLAIM_RECORD_BYTES_MAX: usize = 4 * 8 + 1 + TOKEN_BYTES_MAX;

/// The part of a claim that a node keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRecord {
    /// The token.
    pub token: ClaimToken,
    /// The incarnation that claimed it.
    pub incarnation: Incarnation,
    /// The attempt of that incarnation.
    pub attempt: u64,
    /// Digest of the mutation, the same on every node.
    pub payload: u64,
    /// Time at which the store forgets the claim, by the store's clock.
    pub forget_at: Millis,
}

impl ClaimRecord {
    /// Builds the record of a claim.
    pub fn from_claim(claim: &Claim) -> ClaimRecord {
        let Claim { token, owner, attempt, payload, forget_at, .. } = claim;
        let (token, incarnation) = (token.clone(), owner.incarnation);
        ClaimRecord { token, incarnation, attempt: *attempt, payload: *payload, forget_at: *forget_at }
    }

    /// Rebuilds the claim of a node, with its mutation's reply.
    pub fn to_claim(&self, node: NodeId, reply: Box<[u8]>) -> Claim {
        let ClaimRecord { token, incarnation, attempt, payload, forget_at } = self;
        let owner = Writer { node, incarnation: *incarnation };
        let (token, reply) = (token.clone(), Some(reply));
        Claim { token, owner, attempt: *attempt, payload: *payload, forget_at: *forget_at, reply }
    }

    /// Appends the record's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.incarnation.0, self.attempt, self.payload, self.forget_at.0] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        // The bound of a token keeps its length below 256.
        out.push(self.token.bytes().len() as u8);
        out.extend_from_slice(self.token.bytes());
    }

    /// Decodes a record; `None` if the bytes are invalid.
    pub fn decode(rest: &mut &[u8]) -> Option<ClaimRecord> {
        let (incarnation, attempt) = (Incarnation(take_u64(rest)?), take_u64(rest)?);
        let (payload, forget_at) = (take_u64(rest)?, Millis(take_u64(rest)?));
        let (&length, left) = rest.split_first()?;
        let (token, left) = left.split_at_checked(usize::from(length))?;
        *rest = left;
        Some(ClaimRecord { token: ClaimToken::new(token).ok()?, incarnation, attempt, payload, forget_at })
    }

    /// Approximate bytes in memory, the record itself included.
    pub fn bytes(&self) -> usize {
        size_of::<ClaimRecord>() + self.token.bytes().len()
    }
}

fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    let (bytes, left) = rest.split_first_chunk::<8>()?;
    *rest = left;
    Some(u64::from_le_bytes(*bytes))
}
