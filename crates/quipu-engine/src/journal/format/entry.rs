//! Encodes and decodes the entries of a record, as drawn in `format`.

use quipu_model::varint::{self, put_varint, put_zigzag};
use quipu_model::{Epoch, Incarnation, Millis, NAMESPACE_BYTES_MAX, Namespace, NodeId, StoredReply, Writer};

use super::edits::{PackedEdits, put_sketch};
use super::u64_at;
use crate::journal::claim_record::ClaimRecord;
use crate::journal::sampling_record::SamplingRecord;
use crate::journal::stored_outcome::{put_outcome, take_outcome};
use crate::journal::token_key::TokenKey;

/// Existence of a counter before an entry. It keeps the number of counters exact although a start
/// does not read all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PriorExistence {
    /// The counter existed.
    Present,
    /// The counter did not exist.
    Absent,
    /// The journal has only part of the counter's history: the ledger knows.
    Unknown,
}

impl PriorExistence {
    fn tag_bits(self) -> u8 {
        match self {
            PriorExistence::Present => 0,
            PriorExistence::Absent => WAS_ABSENT,
            PriorExistence::Unknown => IS_UNKNOWN,
        }
    }

    pub(super) fn from_tag(tag: u8) -> Result<PriorExistence, UnknownEntry> {
        match (tag & WAS_ABSENT != 0, tag & IS_UNKNOWN != 0) {
            (false, false) => Ok(PriorExistence::Present),
            (true, false) => Ok(PriorExistence::Absent),
            (false, true) => Ok(PriorExistence::Unknown),
            (true, true) => Err(UnknownEntry),
        }
    }
}

/// One result in a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry<'a> {
    /// New state of a counter.
    Cell {
        /// Name of the counter.
        name: &'a [u8],
        /// Epoch of the counter.
        epoch: Epoch,
        /// Running value.
        value: i64,
        /// Expiry of the counter.
        expires_at: Option<Millis>,
        /// Number of operations merged into this entry.
        count: u64,
        /// Sum of their deltas.
        sum: i64,
        /// Existence before the entry.
        before: PriorExistence,
        /// This node's own cells of the counter on the shared store; empty without one.
        own: &'a [u8],
    },
    /// A counter was deleted or has expired.
    Gone {
        /// Name of the counter.
        name: &'a [u8],
        /// The raised epoch, for all later values.
        epoch: Epoch,
        /// Existence before the entry: present or unknown.
        before: PriorExistence,
        /// This node's own cells of the counter on the shared store; empty without one.
        own: &'a [u8],
    },
    /// Every counter was deleted.
    Flush {
        /// The raised epoch, for all of them.
        epoch: Epoch,
    },
    /// The node is about to register an incarnation with a shared store.
    Joined {
        /// The registered writer.
        writer: Writer,
        /// Time of the registration, by the store's clock.
        at: Millis,
    },
    /// An incarnation of the node begins.
    Start {
        /// The writer from here on.
        writer: Writer,
    },
    /// The token, or the producer's sequence number, that caused the record's other entries.
    Token {
        /// Hash of the token or of the producer.
        key: TokenKey,
        /// Digest of the command.
        digest: u64,
        /// Sequence number, for a producer.
        number: Option<u64>,
        /// The stored reply.
        outcome: StoredReply,
        /// The claim at the shared store under which the command was applied.
        claim: Option<Box<ClaimRecord>>,
    },
    /// A change in the body of a sketch; its cell is the entry before.
    Sketch {
        /// Name of the sketch.
        name: &'a [u8],
        /// Number of its kind.
        kind: u8,
        /// Number of the pane; 0: the sketch has none.
        pane: u64,
        /// Version after the change.
        version: u64,
        /// True if the edits begin with an empty body, regardless of the body before.
        whole: bool,
        /// The changes.
        edits: PackedEdits<'a>,
    },
    /// Run-time settings of a namespace, in place of earlier ones.
    Namespace {
        /// Name of the namespace.
        name: &'a [u8],
        /// The settings; boxed, since nearly all entries are cells.
        settings: Box<Namespace>,
    },
    /// Sampling of a namespace from here on, or up to here.
    Sampling {
        /// Name of the namespace.
        name: &'a [u8],
        /// The sampling record.
        sampling: SamplingRecord,
    },
}

pub(super) const SKETCH: u8 = 0;
pub(super) const CELL: u8 = 1;
const GONE: u8 = 2;
const FLUSH: u8 = 3;
const JOINED: u8 = 4;
const START: u8 = 5;
const TOKEN: u8 = 6;
const NAMESPACE: u8 = 7;
const TYPE_MASK: u8 = 0x07;
const HAS_EXPIRY: u8 = 0x08;
const HAS_NUMBER: u8 = 0x08;
const HAS_CLAIM: u8 = 0x10;
pub(super) const IS_WHOLE: u8 = 0x08;
const IS_SAMPLING: u8 = 0x08;
const HAS_EPOCH: u8 = 0x10;
pub(super) const WAS_ABSENT: u8 = 0x20;
pub(super) const IS_UNKNOWN: u8 = 0x40;
const HAS_OWN: u8 = 0x80;

impl<'a> Entry<'a> {
    /// Decodes the first entry in these bytes.
    pub fn decode(mut bytes: &'a [u8]) -> Result<Entry<'a>, UnknownEntry> {
        take_entry(&mut bytes)
    }

    /// Appends the entry.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            &Entry::Cell { name, epoch, value, expires_at, count, sum, before, own } => {
                let expiry = if expires_at.is_some() { HAS_EXPIRY } else { 0 };
                put_named(out, CELL | expiry | before.tag_bits() | own_tag(own), name, epoch);
                put_zigzag(out, value);
                if let Some(at) = expires_at {
                    put_varint(out, at.0);
                }
                put_varint(out, count);
                put_zigzag(out, sum);
                put_own(out, own);
            }
            &Entry::Gone { name, epoch, before, own } => {
                put_named(out, GONE | before.tag_bits() | own_tag(own), name, epoch);
                put_own(out, own);
            }
            &Entry::Flush { epoch } => {
                out.push(FLUSH);
                put_epoch(out, epoch);
            }
            &Entry::Joined { writer, at } => {
                out.push(JOINED);
                put_writer(out, writer);
                put_varint(out, at.0);
            }
            &Entry::Start { writer } => {
                out.push(START);
                put_writer(out, writer);
            }
            Entry::Token { key, digest, number, outcome, claim } => {
                let flag = |is_there, flag| if is_there { flag } else { 0 };
                out.push(TOKEN | flag(number.is_some(), HAS_NUMBER) | flag(claim.is_some(), HAS_CLAIM));
                out.extend_from_slice(&key.bytes());
                out.extend_from_slice(&digest.to_le_bytes());
                if let Some(number) = number {
                    put_varint(out, *number);
                }
                put_outcome(out, outcome);
                claim.iter().for_each(|claim| claim.encode(out));
            }
            &Entry::Sketch { name, kind, pane, version, whole, edits } => {
                put_sketch(out, name, (kind, pane), version, whole);
                put_varint(out, edits.count);
                out.extend_from_slice(edits.bytes);
            }
            Entry::Sampling { name, sampling } => {
                put_namespace(out, NAMESPACE | IS_SAMPLING, name);
                sampling.encode(out);
            }
            Entry::Namespace { name, settings } => {
                put_namespace(out, NAMESPACE, name);
                let at = out.len();
                out.extend_from_slice(&[0; 2]);
                settings.encode(out);
                let bytes = u16::try_from(out.len() - at - 2).expect("settings have a bound");
                out[at..at + 2].copy_from_slice(&bytes.to_le_bytes());
            }
        }
    }
}

/// The check matches but the body is invalid: written by a newer program or by another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an entry of a form this program does not know")]
pub struct UnknownEntry;

fn own_tag(own: &[u8]) -> u8 {
    if own.is_empty() { 0 } else { HAS_OWN }
}

fn put_own(out: &mut Vec<u8>, own: &[u8]) {
    if !own.is_empty() {
        put_varint(out, own.len() as u64);
        out.extend_from_slice(own);
    }
}

fn put_named(out: &mut Vec<u8>, tag: u8, name: &[u8], epoch: Epoch) {
    let first = epoch == Epoch::FIRST;
    out.push(if first { tag } else { tag | HAS_EPOCH });
    put_varint(out, name.len() as u64);
    out.extend_from_slice(name);
    if !first {
        put_epoch(out, epoch);
    }
}

fn put_writer(out: &mut Vec<u8>, writer: Writer) {
    out.extend_from_slice(&writer.node.0.to_le_bytes());
    out.extend_from_slice(&writer.incarnation.0.to_le_bytes());
}

fn put_epoch(out: &mut Vec<u8>, epoch: Epoch) {
    put_varint(out, epoch.millis);
    out.extend_from_slice(&epoch.node.0.to_le_bytes());
}

pub(super) fn take_entry<'a>(rest: &mut &'a [u8]) -> Result<Entry<'a>, UnknownEntry> {
    let tag = take_bytes(rest, 1)?[0];
    let known = match tag & TYPE_MASK {
        CELL => TYPE_MASK | HAS_EXPIRY | HAS_EPOCH | WAS_ABSENT | IS_UNKNOWN | HAS_OWN,
        GONE => TYPE_MASK | HAS_EPOCH | IS_UNKNOWN | HAS_OWN,
        TOKEN => TYPE_MASK | HAS_NUMBER | HAS_CLAIM,
        SKETCH => TYPE_MASK | IS_WHOLE,
        NAMESPACE => TYPE_MASK | IS_SAMPLING,
        _ => TYPE_MASK,
    };
    if tag & !known != 0 {
        return Err(UnknownEntry);
    }
    match tag & TYPE_MASK {
        CELL => {
            let (name, epoch) = take_named(rest, tag)?;
            let value = take_zigzag(rest)?;
            let expires_at = if tag & HAS_EXPIRY != 0 { Some(Millis(take_varint(rest)?)) } else { None };
            let (count, sum) = (take_varint(rest)?, take_zigzag(rest)?);
            let (before, own) = (PriorExistence::from_tag(tag)?, take_own(rest, tag)?);
            Ok(Entry::Cell { name, epoch, value, expires_at, count, sum, before, own })
        }
        GONE => {
            let (name, epoch) = take_named(rest, tag)?;
            Ok(Entry::Gone { name, epoch, before: PriorExistence::from_tag(tag)?, own: take_own(rest, tag)? })
        }
        FLUSH => Ok(Entry::Flush { epoch: take_epoch(rest)? }),
        JOINED => {
            let writer = take_writer(rest)?;
            Ok(Entry::Joined { writer, at: Millis(take_varint(rest)?) })
        }
        START => Ok(Entry::Start { writer: take_writer(rest)? }),
        TOKEN => {
            let key = TokenKey::from_bytes(take_bytes(rest, 16)?.try_into().expect("a slice of that length"));
            let digest = take_u64(rest)?;
            let number = if tag & HAS_NUMBER != 0 { Some(take_varint(rest)?) } else { None };
            let outcome = take_outcome(rest).ok_or(UnknownEntry)?;
            let claim = match tag & HAS_CLAIM != 0 {
                true => Some(Box::new(ClaimRecord::decode(rest).ok_or(UnknownEntry)?)),
                false => None,
            };
            Ok(Entry::Token { key, digest, number, outcome, claim })
        }
        SKETCH => {
            let (name, _) = take_named(rest, tag)?;
            let kind = take_bytes(rest, 1)?[0];
            let (pane, version) = (take_varint(rest)?, take_varint(rest)?);
            let edits = PackedEdits::take_from(rest)?;
            Ok(Entry::Sketch { name, kind, pane, version, whole: tag & IS_WHOLE != 0, edits })
        }
        NAMESPACE => {
            let bytes = usize::from(take_bytes(rest, 1)?[0]);
            let name = take_bytes(rest, bytes)?;
            if name.len() > NAMESPACE_BYTES_MAX {
                return Err(UnknownEntry);
            }
            if tag & IS_SAMPLING != 0 {
                let (sampling, behind) = SamplingRecord::decode(rest).ok_or(UnknownEntry)?;
                *rest = behind;
                return Ok(Entry::Sampling { name, sampling });
            }
            let bytes = take_bytes(rest, 2)?;
            let settings = take_bytes(rest, usize::from(u16::from_le_bytes([bytes[0], bytes[1]])))?;
            Ok(Entry::Namespace { name, settings: Box::new(Namespace::decode(settings).ok_or(UnknownEntry)?) })
        }
        _ => Err(UnknownEntry),
    }
}

fn put_namespace(out: &mut Vec<u8>, tag: u8, name: &[u8]) {
    out.push(tag);
    out.push(u8::try_from(name.len()).expect("the name of a namespace is checked before it is written down"));
    out.extend_from_slice(name);
}

fn take_own<'a>(rest: &mut &'a [u8], tag: u8) -> Result<&'a [u8], UnknownEntry> {
    if tag & HAS_OWN == 0 {
        return Ok(&[]);
    }
    let bytes = usize::try_from(take_varint(rest)?).map_err(|_| UnknownEntry)?;
    if bytes == 0 { Err(UnknownEntry) } else { take_bytes(rest, bytes) }
}

#[inline]
pub(super) fn take_named<'a>(rest: &mut &'a [u8], tag: u8) -> Result<(&'a [u8], Epoch), UnknownEntry> {
    let bytes = usize::try_from(take_varint(rest)?).map_err(|_| UnknownEntry)?;
    if bytes > quipu_model::NAME_BYTES_MAX {
        return Err(UnknownEntry);
    }
    let name = take_bytes(rest, bytes)?;
    let epoch = if tag & HAS_EPOCH != 0 { take_epoch(rest)? } else { Epoch::FIRST };
    Ok((name, epoch))
}

fn take_writer(rest: &mut &[u8]) -> Result<Writer, UnknownEntry> {
    Ok(Writer { node: NodeId(take_u64(rest)?), incarnation: Incarnation(take_u64(rest)?) })
}

fn take_epoch(rest: &mut &[u8]) -> Result<Epoch, UnknownEntry> {
    Ok(Epoch { millis: take_varint(rest)?, node: NodeId(take_u64(rest)?) })
}

#[inline]
pub(super) fn take_varint(rest: &mut &[u8]) -> Result<u64, UnknownEntry> {
    varint::take_varint(rest).ok_or(UnknownEntry)
}

#[inline]
pub(super) fn take_zigzag(rest: &mut &[u8]) -> Result<i64, UnknownEntry> {
    varint::take_zigzag(rest).ok_or(UnknownEntry)
}

fn take_u64(rest: &mut &[u8]) -> Result<u64, UnknownEntry> {
    Ok(u64_at(take_bytes(rest, 8)?, 0))
}

#[inline]
pub(super) fn take_bytes<'a>(rest: &mut &'a [u8], bytes: usize) -> Result<&'a [u8], UnknownEntry> {
    let (taken, left) = rest.split_at_checked(bytes).ok_or(UnknownEntry)?;
    *rest = left;
    Ok(taken)
}
