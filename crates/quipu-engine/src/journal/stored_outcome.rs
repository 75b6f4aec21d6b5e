//! Encodes the stored reply of a mutation with a token, for the journal and for the ledger.
//!
//! ```text
//! outcome  a byte, then numbers, i64 each
//!   0 OK · 1 nil · 2 integer, one number · 3 value, one number · 4 no value · 5 pair, two numbers
//!   6 bytes: u32 length, bytes
//!   7 integers: u32 count, numbers
//!   8 items: u32 count, then per item u32 length and bytes; a length of all ones: no item
//! ```
//!
//! All numbers are little-endian.

use quipu_model::{StoredList, StoredReply};

/// Length that marks a missing item.
const NO_ITEM: u32 = u32::MAX;

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

/// Takes a little-endian number.
pub fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    let (bytes, left) = rest.split_first_chunk::<8>()?;
    *rest = left;
    Some(u64::from_le_bytes(*bytes))
}
