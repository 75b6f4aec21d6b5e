//! Tokens: how a mutation is told from its retries.
//!
//! In: what a client calls its mutation, and the mutation. Out: the time that a name carries and what that means; the bytes in which two mutations are
//! compared; the answer as it is remembered.
//!
//! A mutation is named by a **token** (a producer and an item of its own choosing) or by a **sequence number** of a producer. A token may carry the time at
//! which it was made; then one that is too old to be remembered is known to be, and is refused. One that carries none is forgotten after the window.
//!
//! Invariants:
//! - different identities have different keys, different commands have different payloads;
//! - a token that is fresh at a time was not made so long before it that a retry may have been forgotten.
//!
//! Not here: remembering (the engine), claims on a shared store (`shared::claim`).

use std::time::Duration;

use crate::shared::claim::TOKEN_BYTES_MAX;
use crate::{Command, Expiry, ExpiryCondition, ExpiryTime, Millis, Reply, SetCondition, SetExpiry};

/// Longest producer and item together: with a byte for their border they are a token of a shared store.
pub const IDENTITY_BYTES_MAX: usize = TOKEN_BYTES_MAX - 1;

/// So far ahead of this node's clock a token may be: clocks of clients differ, by seconds where they are kept and rarely by a minute.
pub const TOKEN_AHEAD_MAX: Duration = Duration::from_secs(60);

/// Digits of the milliseconds in a token `ms-nonce`: those of the years 2001 to 2286. Fewer or more are a number of something else.
const MILLIS_DIGITS: usize = 13;

/// Length of a UUID as it is written.
const UUID_BYTES: usize = 36;

/// Longest answer that is remembered, about: what a few hundred items with their names take. A mutation whose answer may be longer is refused a token.
pub const STORED_REPLY_BYTES_MAX: usize = 64 << 10;

/// What a client calls a mutation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity<'a> {
    producer: &'a [u8], // with the item, at most IDENTITY_BYTES_MAX bytes
    item: IdentityItem<'a>,
}

/// What a producer calls one of its mutations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdentityItem<'a> {
    /// A token of its own choosing; not empty.
    Token(&'a [u8]),
    /// The number of the mutation, from 1 on, without gaps.
    Sequence(u64),
}

/// What cannot name a mutation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadIdentity {
    /// Over the bound.
    #[error("producer and item are too long: {bytes} bytes, at most {IDENTITY_BYTES_MAX} are allowed")]
    TooLong {
        /// Their length.
        bytes: usize,
    },
    /// Every mutation would have the same.
    #[error("a token must not be empty")]
    Empty,
    /// Numbers begin with 1.
    #[error("sequence numbers begin with 1")]
    Zero,
}

impl<'a> Identity<'a> {
    /// A token; a client that is alone may leave its producer empty.
    pub fn token(producer: &'a [u8], item: &'a [u8]) -> Result<Identity<'a>, BadIdentity> {
        if item.is_empty() {
            return Err(BadIdentity::Empty);
        }
        Identity::checked(producer, item.len(), IdentityItem::Token(item))
    }

    /// The number of a mutation among those of its producer.
    pub fn sequence(producer: &'a [u8], n: u64) -> Result<Identity<'a>, BadIdentity> {
        match n {
            0 => Err(BadIdentity::Zero),
            n => Identity::checked(producer, 0, IdentityItem::Sequence(n)),
        }
    }

    fn checked(producer: &'a [u8], item_bytes: usize, item: IdentityItem<'a>) -> Result<Identity<'a>, BadIdentity> {
        match producer.len() + item_bytes {
            0..=IDENTITY_BYTES_MAX => Ok(Identity { producer, item }),
            bytes => Err(BadIdentity::TooLong { bytes }),
        }
    }

    /// The identity of a token whose [key](Identity::key) this is.
    pub fn from_token_key(key: &'a [u8]) -> Option<Identity<'a>> {
        let (&producer_bytes, rest) = key.split_first()?;
        let (producer, item) = rest.split_at_checked(usize::from(producer_bytes))?;
        Identity::token(producer, item).ok()
    }

    /// Who names it.
    pub fn producer(&self) -> &'a [u8] {
        self.producer
    }

    /// How.
    pub fn item(&self) -> IdentityItem<'a> {
        self.item
    }

    /// The bytes under which it is remembered: of a token, all of it; of a sequence, its producer. At most [`TOKEN_BYTES_MAX`].
    pub fn key(&self) -> Vec<u8> {
        let item = if let IdentityItem::Token(item) = self.item { item } else { &[] };
        let mut key = Vec::with_capacity(1 + self.producer.len() + item.len());
        // The bound keeps it below a byte.
        key.push(self.producer.len() as u8);
        key.extend_from_slice(self.producer);
        key.extend_from_slice(item);
        key
    }

    /// The time it carries: that of a UUID of version 7, or of `ms-nonce` with 13 digits.
    pub fn time(&self) -> Option<Millis> {
        match self.item {
            IdentityItem::Token(item) => uuid_time(item).or_else(|| prefix_time(item)),
            IdentityItem::Sequence(_) => None,
        }
    }
}

/// What the time that a token carries says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenAge {
    /// It may be applied, if it was not before.
    Fresh,
    /// It may have been applied and forgotten.
    TooOld,
    /// It would be remembered for longer than the window.
    FromFuture,
}

/// Whether a token that carries this time is fresh.
pub fn token_age(carried: Millis, now: Millis, window: Duration) -> TokenAge {
    if carried.0 > time_after(now, TOKEN_AHEAD_MAX).0 {
        TokenAge::FromFuture
    } else if time_after(carried, window) <= now {
        TokenAge::TooOld
    } else {
        TokenAge::Fresh
    }
}

/// Until when a token that was applied then is remembered: for the window, and for as long as it may have been ahead.
pub fn forget_at(applied: Millis, window: Duration) -> Millis {
    time_after(time_after(applied, window), TOKEN_AHEAD_MAX)
}

fn time_after(at: Millis, by: Duration) -> Millis {
    Millis(at.0.saturating_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)))
}

fn uuid_time(item: &[u8]) -> Option<Millis> {
    if item.len() != UUID_BYTES || item[14] != b'7' || !matches!(item[19], b'8' | b'9' | b'a' | b'b' | b'A' | b'B') {
        return None;
    }
    let mut millis = 0;
    for (at, &byte) in item.iter().enumerate() {
        match (at, byte) {
            (8 | 13 | 18 | 23, b'-') => {}
            (8 | 13 | 18 | 23, _) => return None,
            // 48 bits: the first twelve digits.
            (..13, digit) => millis = millis << 4 | u64::from(char::from(digit).to_digit(16)?),
            (_, digit) if digit.is_ascii_hexdigit() => {}
            _ => return None,
        }
    }
    Some(Millis(millis))
}

fn prefix_time(item: &[u8]) -> Option<Millis> {
    let (digits, nonce) = item.split_at_checked(MILLIS_DIGITS)?;
    if !matches!(nonce, [b'-', _, ..]) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(Millis(digits.iter().fold(0, |millis, digit| millis * 10 + u64::from(digit - b'0'))))
}

/// The answer of a mutation, as it is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredReply {
    /// [`Reply::Ok`].
    Ok,
    /// [`Reply::Nil`].
    Nil,
    /// [`Reply::Integer`].
    Integer(i64),
    /// [`Reply::Value`] of a counter that existed.
    Value(i64),
    /// [`Reply::Value`] of one that did not.
    Absent,
    /// [`Reply::Pair`]; apart, because nearly all answers are one number.
    Pair(Box<(i64, i64)>),
    /// Several things; apart, too.
    List(Box<StoredList>),
}

/// An answer of several things, at most [`STORED_REPLY_BYTES_MAX`] of them in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredList {
    /// [`Reply::Bytes`].
    Bytes(Box<[u8]>),
    /// [`Reply::Integers`].
    Integers(Vec<i64>),
    /// [`Reply::Items`].
    Items(Vec<Option<Box<[u8]>>>),
}

impl StoredList {
    /// About how many bytes it takes, rather more than less.
    pub fn heap_bytes(&self) -> usize {
        const EACH: usize = 24;
        match self {
            StoredList::Bytes(bytes) => EACH + bytes.len(),
            StoredList::Integers(numbers) => EACH + 8 * numbers.len(),
            StoredList::Items(items) => {
                EACH + items.iter().map(|item| EACH + item.as_ref().map_or(0, |item| item.len())).sum::<usize>()
            }
        }
    }
}

impl StoredReply {
    /// What is remembered of a reply; `None`: it is no answer of a mutation, or a refusal, of which there is nothing to remember.
    pub fn from_reply(reply: &Reply) -> Option<StoredReply> {
        Some(match reply {
            Reply::Ok => StoredReply::Ok,
            Reply::Nil => StoredReply::Nil,
            Reply::Integer(value) => StoredReply::Integer(*value),
            Reply::Value(Some(value)) => StoredReply::Value(*value),
            Reply::Value(None) => StoredReply::Absent,
            Reply::Pair(value, applied) => StoredReply::Pair(Box::new((*value, *applied))),
            Reply::Bytes(bytes) => StoredReply::List(Box::new(StoredList::Bytes(bytes.clone()))),
            Reply::Integers(numbers) => StoredReply::List(Box::new(StoredList::Integers(numbers.clone()))),
            Reply::Items(items) => StoredReply::List(Box::new(StoredList::Items(items.clone()))),
            _ => return None,
        })
    }

    /// The reply again.
    pub fn to_reply(&self) -> Reply {
        match self {
            StoredReply::Ok => Reply::Ok,
            StoredReply::Nil => Reply::Nil,
            StoredReply::Integer(value) => Reply::Integer(*value),
            StoredReply::Value(value) => Reply::Value(Some(*value)),
            StoredReply::Absent => Reply::Value(None),
            StoredReply::Pair(pair) => Reply::Pair(pair.0, pair.1),
            StoredReply::List(listed) => match &**listed {
                StoredList::Bytes(bytes) => Reply::Bytes(bytes.clone()),
                StoredList::Integers(numbers) => Reply::Integers(numbers.clone()),
                StoredList::Items(items) => Reply::Items(items.clone()),
            },
        }
    }

    /// About how many bytes it takes beside itself.
    pub fn heap_bytes(&self) -> usize {
        match self {
            StoredReply::Pair(_) => 16,
            StoredReply::List(listed) => listed.heap_bytes(),
            _ => 0,
        }
    }
}

/// Appends what a mutation would do, such that others have other bytes, one after the other too; false if it is none.
pub fn append_payload(command: &Command<'_>, out: &mut Vec<u8>) -> bool {
    let mut name = |tag: u8, name: &crate::Name<'_>| {
        out.push(tag);
        put_bytes(out, name.bytes());
    };
    match command {
        Command::Add { name: counter, delta, shard_key } => {
            name(1, counter);
            put(out, *delta);
            out.push(u8::from(shard_key.is_some()));
            put_bytes(out, shard_key.unwrap_or_default());
        }
        Command::AddSampled { name: counter, amount, p } => {
            name(12, counter);
            put(out, *amount);
            put(out, i64::from(*p));
        }
        Command::AddWithin(add) => {
            name(2, &add.name);
            [add.delta, add.lower, add.upper].into_iter().for_each(|number| put(out, number));
            out.push(u8::from(add.saturate) | u8::from(add.expiry_if_none) << 1);
            put_expiry(out, add.expiry);
        }
        Command::Set(set) => {
            name(3, &set.name);
            put(out, set.value);
            put_set(out, set.condition, set.expiry, set.reply_old);
        }
        Command::Take { name: counter } => name(4, counter),
        Command::ReadAndExpire { name: counter, expiry } => {
            name(5, counter);
            put_expiry(out, *expiry);
        }
        Command::Reset { name: counter } => name(6, counter),
        Command::Delete { names } => {
            out.push(7);
            put(out, names.len() as i64);
            names.iter().for_each(|name| put_bytes(out, name.bytes()));
        }
        Command::Expire { name: counter, when, condition } => {
            name(8, counter);
            put_expiry(out, Expiry::At(*when));
            out.push(match condition {
                ExpiryCondition::Always => 0,
                ExpiryCondition::IfNone => 1,
                ExpiryCondition::IfSome => 2,
                ExpiryCondition::IfLater => 3,
                ExpiryCondition::IfEarlier => 4,
                ExpiryCondition::IfSomeEarlier => 5,
            });
        }
        Command::Persist { name: counter } => name(9, counter),
        Command::Flush => out.push(10),
        Command::Sketch(command) => {
            out.push(11);
            return command.append_payload(out);
        }
        Command::Read { .. }
        | Command::ReadMany { .. }
        | Command::Exists { .. }
        | Command::KindOf { .. }
        | Command::ExpiryOf { .. }
        | Command::Scan(_)
        | Command::ListNames(_)
        | Command::CountNames => return false,
    }
    true
}

pub(crate) fn put_set(out: &mut Vec<u8>, condition: SetCondition, expiry: SetExpiry, reply_old: bool) {
    out.push(match condition {
        SetCondition::Always => 0,
        SetCondition::IfAbsent => 1,
        SetCondition::IfPresent => 2,
    });
    out.push(u8::from(reply_old));
    put_expiry(out, expiry.into());
}

fn put_expiry(out: &mut Vec<u8>, expiry: Expiry) {
    let (tag, millis) = match expiry {
        Expiry::Keep => (0, 0),
        Expiry::Remove => (1, 0),
        Expiry::At(ExpiryTime::In(millis)) => (2, millis),
        Expiry::At(ExpiryTime::At(millis)) => (3, millis),
    };
    out.push(tag);
    put(out, millis);
}

fn put(out: &mut Vec<u8>, number: i64) {
    out.extend_from_slice(&number.to_le_bytes());
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as i64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests;
