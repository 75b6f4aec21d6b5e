//! Tokens identify a mutation and its retries.
//!
//! In: a mutation, and its identity from the client. Out: the time in a token and its freshness;
//! bytes for comparing two mutations; the reply in its stored form.
//!
//! A mutation is identified by a **token** (a producer and an item of its own choosing) or by a
//! **sequence number** of a producer. A token may carry its creation time. If it is too old to be
//! remembered, that time shows it, and the token is refused. A token without a time is forgotten
//! after the window.
//!
//! Invariants:
//! - different identities have different keys, and different commands have different payloads;
//! - while a token is fresh, no retry of it can have been forgotten.
//!
//! Not here: remembering (the engine), claims on a shared store (`shared::claim`).

use std::time::Duration;

use crate::shared::claim::TOKEN_BYTES_MAX;
use crate::{Command, Expiry, ExpiryCondition, ExpiryTime, Millis, Reply, SetCondition, SetExpiry};

/// Longest producer and item together. With a separator byte they form a token of a shared store.
pub const IDENTITY_BYTES_MAX: usize = TOKEN_BYTES_MAX - 1;

/// Greatest lead of a token's time over this node's clock. Clocks of synchronised clients differ by
/// seconds, and rarely by a minute.
pub const TOKEN_AHEAD_MAX: Duration = Duration::from_secs(60);

/// Digits of the milliseconds in a token `ms-nonce`: those of the years 2001 to 2286. Any other
/// number of digits has another meaning.
const MILLIS_DIGITS: usize = 13;

/// Length of a UUID in text form.
const UUID_BYTES: usize = 36;

/// Approximate longest stored reply: a few hundred items with their names. A mutation with a
/// possibly longer reply must not have a token.
pub const STORED_REPLY_BYTES_MAX: usize = 64 << 10;

/// Identity of a mutation, chosen by the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity<'a> {
    // With the item, at most IDENTITY_BYTES_MAX bytes.
    producer: &'a [u8],
    item: IdentityItem<'a>,
}

/// Identity of one mutation of a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdentityItem<'a> {
    /// A token of the producer's choosing; not empty.
    Token(&'a [u8]),
    /// The number of the mutation, from 1 on, without gaps.
    Sequence(u64),
}

/// An invalid identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadIdentity {
    /// Over the bound.
    #[error("producer and item are too long: {bytes} bytes, at most {IDENTITY_BYTES_MAX} are allowed")]
    TooLong {
        /// Length of both.
        bytes: usize,
    },
    /// An empty token would be equal for all mutations.
    #[error("a token must not be empty")]
    Empty,
    /// Sequence numbers begin with 1.
    #[error("sequence numbers begin with 1")]
    Zero,
}

impl<'a> Identity<'a> {
    /// Creates the identity of a token. A single client may leave the producer empty.
    pub fn token(producer: &'a [u8], item: &'a [u8]) -> Result<Identity<'a>, BadIdentity> {
        if item.is_empty() {
            return Err(BadIdentity::Empty);
        }
        Identity::checked(producer, item.len(), IdentityItem::Token(item))
    }

    /// Creates the identity of the producer's nth mutation.
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

    /// Decodes the identity of a token from its [key](Identity::key).
    pub fn from_token_key(key: &'a [u8]) -> Option<Identity<'a>> {
        let (&producer_bytes, rest) = key.split_first()?;
        let (producer, item) = rest.split_at_checked(usize::from(producer_bytes))?;
        Identity::token(producer, item).ok()
    }

    /// Returns the producer.
    pub fn producer(&self) -> &'a [u8] {
        self.producer
    }

    /// Returns the token or the sequence number.
    pub fn item(&self) -> IdentityItem<'a> {
        self.item
    }

    /// Returns the storage key: a token's is all of it, a sequence's is its producer. At most
    /// [`TOKEN_BYTES_MAX`] bytes.
    pub fn key(&self) -> Vec<u8> {
        let item = if let IdentityItem::Token(item) = self.item { item } else { &[] };
        let mut key = Vec::with_capacity(1 + self.producer.len() + item.len());
        // The bound keeps the length below 256.
        key.push(self.producer.len() as u8);
        key.extend_from_slice(self.producer);
        key.extend_from_slice(item);
        key
    }

    /// Returns the time in the token: of a UUID of version 7, or of `ms-nonce` with 13 digits.
    pub fn time(&self) -> Option<Millis> {
        match self.item {
            IdentityItem::Token(item) => uuid_time(item).or_else(|| prefix_time(item)),
            IdentityItem::Sequence(_) => None,
        }
    }
}

/// Freshness of a token by its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenAge {
    /// It may be applied, unless it was before.
    Fresh,
    /// It may have been applied and forgotten.
    TooOld,
    /// It would outlive the window.
    FromFuture,
}

/// Returns the freshness of a token with this time.
pub fn token_age(carried: Millis, now: Millis, window: Duration) -> TokenAge {
    if carried.0 > time_after(now, TOKEN_AHEAD_MAX).0 {
        TokenAge::FromFuture
    } else if time_after(carried, window) <= now {
        TokenAge::TooOld
    } else {
        TokenAge::Fresh
    }
}

/// Returns the time until which an applied token is remembered: the window plus its greatest
/// possible lead.
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

/// Stored reply of a mutation.
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
    /// [`Reply::Value`] of a counter that did not exist.
    Absent,
    /// [`Reply::Pair`]; boxed, because nearly all replies are one number.
    Pair(Box<(i64, i64)>),
    /// A list of results; boxed, too.
    List(Box<StoredList>),
}

/// A stored list of results, at most [`STORED_REPLY_BYTES_MAX`] bytes.
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
    /// Returns its approximate size in bytes, rather too high than too low.
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
    /// Converts a reply. `None` for the reply of a read, and for a refusal, which is not stored.
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

    /// Converts back into a reply.
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

    /// Returns its approximate heap size in bytes.
    pub fn heap_bytes(&self) -> usize {
        match self {
            StoredReply::Pair(_) => 16,
            StoredReply::List(listed) => listed.heap_bytes(),
            _ => 0,
        }
    }
}

/// Appends a distinct encoding of a mutation, also in concatenation with others; returns false for
/// other commands.
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
