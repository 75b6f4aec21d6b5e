//! Encodes tokens at rest: their auxiliary records in the ledger, and outcomes there and in the
//! journal.
//!
//! ```text
//! record of a token      key  1, hash (16 bytes)
//!                        value  applied at u64, digest u64, outcome; then its claim, if it has one
//! record of a producer   key  2, hash (16 bytes)   value  number u64, digest u64, outcome
//! record of the horizon  key  3                    value  u64, Unix milliseconds
//! keys that begin with 4 belong to `namespaces`
//! keys that begin with 5 belong to `sketches`
//!
//! outcome  a byte, then numbers, i64 each
//!   0 OK · 1 nil · 2 integer, one number · 3 value, one number · 4 no value · 5 pair, two numbers
//!   6 bytes: u32 length, bytes
//!   7 integers: u32 count, numbers
//!   8 items: u32 count, then per item u32 length and bytes; a length of all ones: no item
//! ```
//!
//! All numbers are little-endian.

use quipu_model::{AuxRecord, Millis, StoredList, StoredReply};

use super::{AppliedToken, LastSequence, TokenKey};
use crate::journal::claim_record::ClaimRecord;

const TOKEN: u8 = 1;
const PRODUCER: u8 = 2;
const HORIZON: u8 = 3;

/// Length that marks a missing item.
const NO_ITEM: u32 = u32::MAX;

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

/// Appends an outcome.
pub fn put_outcome(out: &mut Vec<u8>, outcome: &StoredReply) {
    if let StoredReply::List(listed) = outcome {
        return put_listed(out, listed);
    }
    let (kind, numbers) = match outcome {
        StoredReply::Ok => (0, [None, None]),
        StoredReply::Nil => (1, [None, None]),
        StoredReply::Integer(value) => (2, [Some(*value), None]),
        StoredReply::Value(value) => (3, [Some(*value), None]),
        StoredReply::Absent => (4, [None, None]),
        StoredReply::Pair(pair) => (5, [Some(pair.0), Some(pair.1)]),
        StoredReply::List(_) => unreachable!("it was written above"),
    };
    out.push(kind);
    numbers.into_iter().flatten().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

fn put_listed(out: &mut Vec<u8>, listed: &StoredList) {
    let length = |out: &mut Vec<u8>, length: usize| {
        let length = u32::try_from(length).expect("an answer that is remembered has a bound");
        out.extend_from_slice(&length.to_le_bytes());
    };
    match listed {
        StoredList::Bytes(bytes) => {
            out.push(6);
            length(out, bytes.len());
            out.extend_from_slice(bytes);
        }
        StoredList::Integers(numbers) => {
            out.push(7);
            length(out, numbers.len());
            numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        }
        StoredList::Items(items) => {
            out.push(8);
            length(out, items.len());
            for item in items {
                match item {
                    Some(item) => {
                        length(out, item.len());
                        out.extend_from_slice(item);
                    }
                    None => out.extend_from_slice(&NO_ITEM.to_le_bytes()),
                }
            }
        }
    }
}

/// Decodes an outcome; `None` if the bytes are invalid.
pub fn take_outcome(rest: &mut &[u8]) -> Option<StoredReply> {
    let (&kind, left) = rest.split_first()?;
    *rest = left;
    if let 6..=8 = kind {
        return take_listed(kind, rest).map(|listed| StoredReply::List(Box::new(listed)));
    }
    let mut number = || take_u64(rest).map(|number| number as i64);
    Some(match kind {
        0 => StoredReply::Ok,
        1 => StoredReply::Nil,
        2 => StoredReply::Integer(number()?),
        3 => StoredReply::Value(number()?),
        4 => StoredReply::Absent,
        5 => StoredReply::Pair(Box::new((number()?, number()?))),
        _ => return None,
    })
}

fn take_listed(kind: u8, rest: &mut &[u8]) -> Option<StoredList> {
    let count = take_u32(rest)? as usize;
    // The capacity follows the bytes present, never the announced count.
    Some(match kind {
        6 => StoredList::Bytes(take_bytes(rest, count)?.into()),
        7 => {
            let numbers = take_bytes(rest, count.checked_mul(8)?)?;
            StoredList::Integers(numbers.as_chunks().0.iter().map(|number| i64::from_le_bytes(*number)).collect())
        }
        _ => {
            let mut items = Vec::with_capacity(count.min(rest.len() / 4));
            for _ in 0..count {
                items.push(match take_u32(rest)? {
                    NO_ITEM => None,
                    length => Some(take_bytes(rest, length as usize)?.into()),
                });
            }
            StoredList::Items(items)
        }
    })
}

fn take_bytes<'a>(rest: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(bytes)?;
    *rest = left;
    Some(taken)
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    let (bytes, left) = rest.split_first_chunk::<4>()?;
    *rest = left;
    Some(u32::from_le_bytes(*bytes))
}

fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    let (bytes, left) = rest.split_first_chunk::<8>()?;
    *rest = left;
    Some(u64::from_le_bytes(*bytes))
}
