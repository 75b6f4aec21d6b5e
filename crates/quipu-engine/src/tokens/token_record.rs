//! Encodes tokens at rest: their auxiliary records in the ledger.
//!
//! ```text
//! record of a token      key  1, hash (16 bytes)
//!                        value  applied at u64, digest u64, outcome; then its claim, if it has one
//! record of a producer   key  2, hash (16 bytes)   value  number u64, digest u64, outcome
//! record of the horizon  key  3                    value  u64, Unix milliseconds
//! keys that begin with 4 belong to `namespaces`
//! keys that begin with 5 belong to `sketches`
//! ```
//!
//! All numbers are little-endian; `journal::stored_outcome` draws the outcome.

use quipu_model::{AuxRecord, Millis, StoredReply};

use super::{AppliedToken, LastSequence, TokenKey};
use crate::journal::claim_record::ClaimRecord;
use crate::journal::stored_outcome::{put_outcome, take_outcome, take_u64};

const TOKEN: u8 = 1;
const PRODUCER: u8 = 2;
const HORIZON: u8 = 3;

/// An auxiliary record about tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenRecord {
    /// A mutation applied under a token.
    Token(TokenKey, AppliedToken),
    /// The last mutation of a producer.
    Producer(TokenKey, LastSequence),
    /// Tokens applied up to this time may have been forgotten.
    Horizon(Millis),
}

impl TokenRecord {
    /// Encodes the record.
    pub fn to_aux_record(&self) -> AuxRecord {
        let mut value = Vec::with_capacity(25);
        let mut put = |first: u64, digest: u64, outcome: &StoredReply| {
            value.extend_from_slice(&first.to_le_bytes());
            value.extend_from_slice(&digest.to_le_bytes());
            put_outcome(&mut value, outcome);
        };
        let key = match self {
            TokenRecord::Token(key, AppliedToken { at, digest, outcome, claim }) => {
                put(at.0, *digest, outcome);
                claim.iter().for_each(|claim| claim.encode(&mut value));
                record_key(TOKEN, *key)
            }
            TokenRecord::Producer(key, LastSequence { number: n, digest, outcome }) => {
                put(*n, *digest, outcome);
                record_key(PRODUCER, *key)
            }
            TokenRecord::Horizon(at) => {
                value.extend_from_slice(&at.0.to_le_bytes());
                Box::from([HORIZON])
            }
        };
        AuxRecord { key, value: Some(value.into()) }
    }

    /// The removal of a token's record.
    pub fn removal(key: TokenKey) -> AuxRecord {
        AuxRecord { key: record_key(TOKEN, key), value: None }
    }

    /// Decodes key and value; `None` if they are invalid.
    pub fn decode(key: &[u8], value: &[u8]) -> Option<TokenRecord> {
        let (&kind, key) = key.split_first()?;
        let mut rest = value;
        let first = take_u64(&mut rest)?;
        if kind == HORIZON {
            return (key.is_empty() && rest.is_empty()).then_some(TokenRecord::Horizon(Millis(first)));
        }
        let key = TokenKey::from_bytes(key.try_into().ok()?);
        let (digest, outcome) = (take_u64(&mut rest)?, take_outcome(&mut rest)?);
        let claim = match kind {
            TOKEN if !rest.is_empty() => Some(Box::new(ClaimRecord::decode(&mut rest)?)),
            _ => None,
        };
        match kind {
            _ if !rest.is_empty() => None,
            TOKEN => Some(TokenRecord::Token(key, AppliedToken { at: Millis(first), digest, outcome, claim })),
            PRODUCER => Some(TokenRecord::Producer(key, LastSequence { number: first, digest, outcome })),
            _ => None,
        }
    }
}

/// Returns true for the key of a token.
pub fn is_token_key(key: &[u8]) -> bool {
    key.first() == Some(&TOKEN)
}

fn record_key(kind: u8, key: TokenKey) -> Box<[u8]> {
    let mut bytes = [kind; 17];
    bytes[1..].copy_from_slice(&key.bytes());
    Box::from(bytes)
}
