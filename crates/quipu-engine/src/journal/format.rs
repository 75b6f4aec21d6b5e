//! Encodes and decodes the bytes of the journal: segment headers, records and their entries.
//!
//! The journal is one endless stream of records, cut into segment files. A **position** is an
//! offset in that stream. A record may begin in one segment and end in the next. All numbers are
//! little-endian.
//!
//! ```text
//! segment file (journal-<number, 16 hex digits>.seg), preallocated to its full length
//!   0  u64  check   xxh3 over bytes 8..64
//!   8  [8]  magic   "QUIPUJNL"
//!  16  u32  version 1
//!  20  u32  zero
//!  24  u64  log     drawn when the directory was made; the same in every file of it
//!  32  u64  number  as in the file name
//!  40  u64  base    position of the first byte after this header
//!  48  u64  bytes   length of the file
//!  56  u64  zero
//!  64  … the stream
//!
//! record
//!   0  u64  check     xxh3 over bytes 8.. of the record, seeded with log + position
//!   8  u32  bytes     length of the body
//!  12  u32  previous  low half of the check of the record before: the chain
//!  16  u64  synced    position known to be synced when this record was written to the file
//!  24  … body         time (varint, Unix milliseconds), then entries up to the end
//!
//! entry: a tag, then the fields that the tag announces
//!   tag & 0x07   0 sketch: changes in the body of the cell before it · 1 cell · 2 gone · 3 flush ·
//!                4 joined · 5 start · 6 token: the record's other entries are its effect ·
//!                7 namespace: settings, or a sampling record
//!   tag & 0x08   an expiry follows (cell); a producer's sequence number follows (token);
//!                the edits begin with an empty body (sketch); a sampling record follows (namespace)
//!   tag & 0x10   an epoch follows (cell, gone), without it: the first epoch;
//!                a claim at the shared store follows at the end (token)
//!   tag & 0x20   the counter did not exist before (cell)
//!   tag & 0x40   only the ledger knows whether it existed: a counter in memory mode that is
//!                journaled with others, or a shared one (cell, gone)
//!   tag & 0x80   this node's own cells on the shared store follow at the end (cell, gone)
//!   name       varint length, bytes                           (cell, gone, sketch)
//!   epoch      varint milliseconds, u64 node                  (cell, gone if 0x10; flush always)
//!   value      zigzag varint, the running value               (cell)
//!   expiry     varint, Unix milliseconds                      (cell if 0x08)
//!   count, sum varint, zigzag varint: operations merged into this entry, and their sum (cell)
//!   own        varint length, bytes of `sharing::own`         (cell, gone if 0x80)
//!   writer     u64 node, u64 incarnation                      (joined, start)
//!   time       varint, Unix milliseconds of the store         (joined)
//!   hash       16 bytes, of the token or the producer         (token)
//!   digest     u64, of the command                            (token)
//!   number     varint                                         (token if 0x08)
//!   outcome    as in `tokens::token_record`                   (token)
//!   claim      as in `tokens::claim_record`                   (token if 0x10)
//!   name       u8 length, bytes                               (namespace)
//!   settings   u16 length, then as `quipu_model::Namespace` encodes them: all run-time settings
//!              from here on                                   (namespace)
//!   sampling   as in `namespaces::sampling`, in place of the settings (namespace if 0x08)
//!   kind       u8, the number of a `quipu_sketch::Kind`       (sketch)
//!   pane       varint; 0: none                                (sketch)
//!   version    varint, after the edits                        (sketch)
//!   edits      varint count; per edit four varints (offset, bytes removed, bytes inserted,
//!              bytes stored), then the stored bytes; the other inserted bytes are zeros (sketch)
//! ```
//!
//! Each record has a seed by position and a chain:
//! - The position keeps a record of a recycled segment from passing for a new one. It also
//!   identifies a record behind a damaged one.
//! - The chain keeps a record left by a torn tail from following the records of a later
//!   incarnation.
//!
//! Golden files under `testdata/` pin this drawing.

use std::fmt;

use quipu_model::varint::{self, put_varint, put_zigzag};
use quipu_model::{
    Epoch, Incarnation, Millis, NAMESPACE_BYTES_MAX, NAMESPACE_SETTINGS_BYTES_MAX, Namespace, NodeId, StoredReply,
    Writer,
};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::journal::claim_record::ClaimRecord;
use crate::journal::sampling_record::SamplingRecord;
use crate::journal::stored_outcome::{put_outcome, take_outcome};
use crate::journal::token_key::TokenKey;

/// Format version in every file. A file of another version is refused.
pub const VERSION: u32 = 1;

/// Length of a segment header.
pub const SEGMENT_HEADER_BYTES: u64 = 64;

/// Length of a record header.
pub const RECORD_HEADER_BYTES: usize = 24;

/// Longest record. The protocols bound the longest command at a few megabytes; a greater length is
/// damage.
pub const RECORD_BYTES_MAX: usize = 1 << 28;

/// Most bytes of an entry besides its name: tag, lengths, epoch, value, expiry, count and sum at
/// their longest.
pub const ENTRY_BYTES_MAX: usize = 1 + 2 + 18 + 10 + 10 + 10 + 10;

/// Most bytes of a namespace entry: tag, lengths, name, settings.
pub const NAMESPACE_ENTRY_BYTES_MAX: usize = 1 + 1 + NAMESPACE_BYTES_MAX + 2 + NAMESPACE_SETTINGS_BYTES_MAX;

/// Most bytes of a record besides its entries: header and time.
pub const RECORD_OVERHEAD_BYTES_MAX: usize = RECORD_HEADER_BYTES + 10;

const MAGIC: &[u8; 8] = b"QUIPUJNL";

/// An offset in the stream of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position(pub u64);

impl Position {
    /// The position `bytes` further on.
    #[must_use]
    pub fn plus(self, bytes: u64) -> Position {
        Position(self.0 + bytes)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Header of a segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Log id, drawn when the directory was made.
    pub log: u64,
    /// Segment number, as in the file name.
    pub number: u64,
    /// Position of the first byte after the header.
    pub base: Position,
    /// Length of the file.
    pub bytes: u64,
}

impl SegmentHeader {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES as usize] {
        let mut out = [0; SEGMENT_HEADER_BYTES as usize];
        out[8..16].copy_from_slice(MAGIC);
        out[16..20].copy_from_slice(&VERSION.to_le_bytes());
        for (at, field) in [(24, self.log), (32, self.number), (40, self.base.0), (48, self.bytes)] {
            out[at..at + 8].copy_from_slice(&field.to_le_bytes());
        }
        let check = xxh3_64(&out[8..]);
        out[..8].copy_from_slice(&check.to_le_bytes());
        out
    }

    /// Decodes a header, or describes the fault.
    pub fn decode(bytes: &[u8; SEGMENT_HEADER_BYTES as usize]) -> Result<SegmentHeader, String> {
        // Version before check: a newer version may check differently, and "newer" is the more
        // useful answer.
        if &bytes[8..16] != MAGIC {
            return Err("it does not begin like a journal segment".to_owned());
        }
        let version = u32_at(bytes, 16);
        if version != VERSION {
            return Err(format!("it has version {version}, this program knows version {VERSION}"));
        }
        if xxh3_64(&bytes[8..]) != u64_at(bytes, 0) {
            return Err("the check of its header does not match".to_owned());
        }
        Ok(SegmentHeader {
            log: u64_at(bytes, 24),
            number: u64_at(bytes, 32),
            base: Position(u64_at(bytes, 40)),
            bytes: u64_at(bytes, 48),
        })
    }
}

/// Header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// Checksum over the rest of the record, seeded with its position.
    pub check: u64,
    /// Length of the body.
    pub body_bytes: usize,
    /// Low half of the check of the record before.
    pub previous: u32,
    /// Position known to be synced when this record was written to the file.
    pub synced: Position,
}

impl RecordHeader {
    /// Reads the fields; nothing is checked yet.
    pub fn read(bytes: &[u8; RECORD_HEADER_BYTES]) -> RecordHeader {
        RecordHeader {
            check: u64_at(bytes, 0),
            body_bytes: u32_at(bytes, 8) as usize,
            previous: u32_at(bytes, 12),
            synced: Position(u64_at(bytes, 16)),
        }
    }
}

/// Completes a record with a body and an empty header; returns its check.
pub fn finish_record(record: &mut [u8], log: u64, position: Position, previous: u32, synced: Position) -> u64 {
    let body_bytes = u32::try_from(record.len() - RECORD_HEADER_BYTES).expect("admission bounds a record");
    record[8..12].copy_from_slice(&body_bytes.to_le_bytes());
    record[12..16].copy_from_slice(&previous.to_le_bytes());
    record[16..24].copy_from_slice(&synced.0.to_le_bytes());
    let check = record_check(record, log, position);
    record[..8].copy_from_slice(&check.to_le_bytes());
    check
}

/// Computes the check of a whole record.
pub fn record_check(record: &[u8], log: u64, position: Position) -> u64 {
    xxh3_64_with_seed(&record[8..], log.wrapping_add(position.0))
}

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

    fn from_tag(tag: u8) -> Result<PriorExistence, UnknownEntry> {
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

const SKETCH: u8 = 0;
const CELL: u8 = 1;
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
const IS_WHOLE: u8 = 0x08;
const IS_SAMPLING: u8 = 0x08;
const HAS_EPOCH: u8 = 0x10;
const WAS_ABSENT: u8 = 0x20;
const IS_UNKNOWN: u8 = 0x40;
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

/// A change of a sketch's bytes: `length` bytes replace the `removed` bytes at `at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedEdit<'a> {
    /// Offset in the body.
    pub at: u32,
    /// Number of bytes removed.
    pub removed: u32,
    /// Number of bytes inserted.
    pub length: u32,
    /// The first of the inserted bytes; the others are zeros.
    pub bytes: &'a [u8],
}

/// Edits in their journal encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedEdits<'a> {
    count: u64,
    bytes: &'a [u8], // the edits as drawn above, checked
}

impl<'a> PackedEdits<'a> {
    /// The edits, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = PackedEdit<'a>> + use<'a> {
        let mut rest = self.bytes;
        (0..self.count).map_while(move |_| take_edit(&mut rest).ok())
    }

    fn take_from(rest: &mut &'a [u8]) -> Result<PackedEdits<'a>, UnknownEntry> {
        let count = take_varint(rest)?;
        let before = *rest;
        for _ in 0..count {
            take_edit(rest)?;
        }
        Ok(PackedEdits { count, bytes: &before[..before.len() - rest.len()] })
    }
}

fn take_edit<'a>(rest: &mut &'a [u8]) -> Result<PackedEdit<'a>, UnknownEntry> {
    let mut number = || match take_varint(rest)? {
        number if number <= SKETCH_BYTES_MAX as u64 => Ok(number as u32),
        _ => Err(UnknownEntry),
    };
    let (at, removed, length, stored) = (number()?, number()?, number()?, number()?);
    let bytes = if stored <= length { take_bytes(rest, stored as usize)? } else { return Err(UnknownEntry) };
    Ok(PackedEdit { at, removed, length, bytes })
}

/// Most bytes of a sketch's body.
pub(crate) const SKETCH_BYTES_MAX: usize = quipu_sketch::BYTES_MAX;

/// Most bytes of an edit besides its data: four numbers of at most [`SKETCH_BYTES_MAX`].
pub const EDIT_OVERHEAD_BYTES_MAX: usize = 4 * 4;

/// Most bytes of a sketch entry besides its name and edits: tag, lengths, kind, pane, version, edit
/// count.
pub const SKETCH_ENTRY_BYTES_MAX: usize = 1 + 2 + 1 + 10 + 10 + 5;

/// Appends the fields before the edits of a sketch.
pub fn put_sketch(out: &mut Vec<u8>, name: &[u8], (kind, pane): (u8, u64), version: u64, whole: bool) {
    out.push(if whole { SKETCH | IS_WHOLE } else { SKETCH });
    put_varint(out, name.len() as u64);
    out.extend_from_slice(name);
    out.push(kind);
    put_varint(out, pane);
    put_varint(out, version);
}

/// Appends the number of edits and the edits, without their trailing zeros.
pub fn put_edits<'e>(out: &mut Vec<u8>, edits: impl ExactSizeIterator<Item = PackedEdit<'e>>) {
    put_varint(out, edits.len() as u64);
    for PackedEdit { at, removed, length, bytes } in edits {
        let stored = trim_trailing_zeros(bytes);
        for number in [u64::from(at), u64::from(removed), u64::from(length), stored.len() as u64] {
            put_varint(out, number);
        }
        out.extend_from_slice(stored);
    }
}

/// Returns the bytes without trailing zeros.
pub fn trim_trailing_zeros(bytes: &[u8]) -> &[u8] {
    // A large sketch is mostly zeros at first: the loop skips 16 zeros at once.
    let (rest, words) = bytes.as_rchunks::<16>();
    let zeros = words.iter().rev().take_while(|word| **word == [0; 16]).count();
    let bytes = &bytes[..rest.len() + (words.len() - zeros) * 16];
    &bytes[..bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)]
}

/// Body of a record: its time and its entries.
#[derive(Debug, Clone, Copy)]
pub struct RecordBody<'a> {
    /// Engine time of the record.
    pub time: Millis,
    entries: &'a [u8],
}

impl<'a> RecordBody<'a> {
    /// Decodes the time; [`RecordBody::entries`] decodes the entries.
    pub fn decode(bytes: &'a [u8]) -> Result<RecordBody<'a>, UnknownEntry> {
        let mut rest = bytes;
        let time = Millis(take_varint(&mut rest)?);
        Ok(RecordBody { time, entries: rest })
    }

    /// The entries, in order, up to the first unreadable one.
    pub fn entries(&self) -> impl Iterator<Item = Result<Entry<'a>, UnknownEntry>> + use<'a> {
        self.entries_with_bytes().map(|entry| entry.map(|(entry, _)| entry))
    }

    /// The entries, each with its bytes.
    pub fn entries_with_bytes(&self) -> EntryIter<'a> {
        EntryIter { rest: self.entries }
    }
}

/// Iterator over the entries of a record.
pub struct EntryIter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for EntryIter<'a> {
    type Item = Result<(Entry<'a>, &'a [u8]), UnknownEntry>;

    /// Decodes the next entry. An unreadable entry ends the iteration.
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let from = std::mem::take(&mut self.rest);
        let mut behind = from;
        Some(take_entry(&mut behind).map(|entry| {
            self.rest = behind;
            (entry, &from[..from.len() - behind.len()])
        }))
    }
}

impl<'a> EntryIter<'a> {
    /// Decodes the next entry if it is a plain cell, the most frequent form, without building an
    /// [`Entry`]. Leaves any other entry for [`EntryIter::next`].
    #[inline]
    pub fn next_plain_cell(&mut self) -> Option<PlainCell<'a>> {
        let (&tag, mut rest) = self.rest.split_first()?;
        if tag & !(WAS_ABSENT | IS_UNKNOWN) != CELL {
            return None;
        }
        let (name, _) = take_named(&mut rest, tag).ok()?;
        let value = take_zigzag(&mut rest).ok()?;
        // A restore does not need the count and the sum of the adds.
        take_varint(&mut rest).ok()?;
        take_varint(&mut rest).ok()?;
        let before = PriorExistence::from_tag(tag).ok()?;
        self.rest = rest;
        Some(PlainCell { name, value, before })
    }
}

/// A cell of the first epoch, without an expiry and without own cells on a shared store.
pub struct PlainCell<'a> {
    /// Name of the counter.
    pub name: &'a [u8],
    /// Running value.
    pub value: i64,
    /// Existence before the entry.
    pub before: PriorExistence,
}

/// Appends the time that begins a body.
pub fn put_time(out: &mut Vec<u8>, time: Millis) {
    put_varint(out, time.0);
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

fn take_entry<'a>(rest: &mut &'a [u8]) -> Result<Entry<'a>, UnknownEntry> {
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
fn take_named<'a>(rest: &mut &'a [u8], tag: u8) -> Result<(&'a [u8], Epoch), UnknownEntry> {
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
fn take_varint(rest: &mut &[u8]) -> Result<u64, UnknownEntry> {
    varint::take_varint(rest).ok_or(UnknownEntry)
}

#[inline]
fn take_zigzag(rest: &mut &[u8]) -> Result<i64, UnknownEntry> {
    varint::take_zigzag(rest).ok_or(UnknownEntry)
}

fn take_u64(rest: &mut &[u8]) -> Result<u64, UnknownEntry> {
    Ok(u64_at(take_bytes(rest, 8)?, 0))
}

#[inline]
fn take_bytes<'a>(rest: &mut &'a [u8], bytes: usize) -> Result<&'a [u8], UnknownEntry> {
    let (taken, left) = rest.split_at_checked(bytes).ok_or(UnknownEntry)?;
    *rest = left;
    Ok(taken)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a slice of eight bytes"))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("a slice of four bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim_record(number: u64, other: u64) -> Box<ClaimRecord> {
        let token = quipu_model::shared::ClaimToken::new(&number.to_le_bytes()[..(other % 9) as usize]).unwrap();
        let (incarnation, forget_at) = (Incarnation(number), Millis(other));
        Box::new(ClaimRecord { token, incarnation, attempt: other, payload: number ^ other, forget_at })
    }

    fn epochs() -> impl Strategy<Value = Epoch> {
        prop_oneof![
            Just(Epoch::FIRST),
            (any::<u64>(), any::<u64>()).prop_map(|(millis, node)| Epoch { millis, node: NodeId(node) })
        ]
    }

    proptest! {
        #[test]
        fn entries_come_back_as_they_went_in(
            name in proptest::collection::vec(any::<u8>(), 0..=512), epoch in epochs(), value: i64,
            expires in proptest::option::of(any::<u64>()), count: u64, sum: i64, node: u64, time: u64,
            own in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let (name, own) = (name.as_slice(), own.as_slice());
            let entries = [
                Entry::Cell { name, epoch, value, expires_at: expires.map(Millis), count, sum, before: [PriorExistence::Present, PriorExistence::Absent, PriorExistence::Unknown][(count % 3) as usize], own },
                Entry::Gone { name, epoch, before: PriorExistence::Unknown, own },
                Entry::Flush { epoch },
                Entry::Joined { writer: Writer { node: NodeId(node), incarnation: Incarnation(count) }, at: Millis(time) },
                Entry::Start { writer: Writer { node: NodeId(node), incarnation: Incarnation(count) } },
                Entry::Token { key: TokenKey::from(u128::from(node) << 70 | u128::from(count)), digest: time, number: expires, outcome: StoredReply::Pair(Box::new((value, sum))), claim: None },
                Entry::Token { key: TokenKey::from(u128::from(node)), digest: time, number: None, outcome: StoredReply::Integer(value), claim: Some(claim_record(node, count)) },
            ];
            let mut bytes = Vec::new();
            put_time(&mut bytes, Millis(time));
            for entry in &entries {
                let before = bytes.len();
                entry.encode(&mut bytes);
                prop_assert!(bytes.len() - before <= ENTRY_BYTES_MAX + name.len() + 2 + own.len());
            }
            let body = RecordBody::decode(&bytes).unwrap();
            prop_assert_eq!(body.time, Millis(time));
            let back: Vec<_> = body.entries().map(|entry| entry.unwrap()).collect();
            prop_assert_eq!(back.as_slice(), &entries);
        }

        /// Reads cells, byte strings that begin like a cell, and cut cells. A plain cell decodes to
        /// the same cell both ways; every other entry is left alone.
        #[test]
        fn a_count_is_what_the_entry_says(
            name in proptest::collection::vec(any::<u8>(), 0..40), epoch in epochs(), value: i64, count: u64, sum: i64,
            expires in proptest::option::of(any::<u64>()), own in proptest::collection::vec(any::<u8>(), 0..3),
            garbage in proptest::collection::vec(any::<u8>(), 0..40), which in 0..4, cut in 0..100usize,
        ) {
            let before = [PriorExistence::Present, PriorExistence::Absent, PriorExistence::Unknown][(count % 3) as usize];
            let expires_at = expires.map(Millis).filter(|_| which == 0);
            let mut bytes = Vec::new();
            if which < 3 {
                let (name, own) = (name.as_slice(), if which == 1 { own.as_slice() } else { &[] });
                Entry::Cell { name, epoch, value, expires_at, count, sum, before, own }.encode(&mut bytes);
            } else {
                bytes.push(CELL | count as u8 & (WAS_ABSENT | IS_UNKNOWN));
            }
            bytes.extend_from_slice(&garbage);
            bytes.truncate(cut.max(1));
            let (mut entries, mut same) = (EntryIter { rest: &bytes }, EntryIter { rest: &bytes });
            let entry = same.next().expect("there are bytes");
            match entries.next_plain_cell() {
                Some(PlainCell { name, value, before }) => {
                    let is_cell = |cell: &Entry<'_>| matches!(cell, Entry::Cell { name: n, epoch: Epoch::FIRST, value: v, expires_at: None, before: b, own: [], .. } if (*n, *v, *b) == (name, value, before));
                    prop_assert!(entry.is_ok_and(|(cell, _)| is_cell(&cell)));
                    prop_assert_eq!(entries.rest, same.rest);
                }
                None => {
                    let is_count = |cell: &Entry<'_>| matches!(cell, Entry::Cell { epoch: Epoch::FIRST, expires_at: None, own: [], .. });
                    prop_assert!(!entry.is_ok_and(|(cell, _)| is_count(&cell)));
                    prop_assert_eq!(entries.rest.len(), bytes.len());
                }
            }
        }

        #[test]
        fn a_namespace_comes_back_as_it_went_in(
            name in proptest::collection::vec(any::<u8>(), 0..=NAMESPACE_BYTES_MAX), millis in 1_000..10_000_000u64,
        ) {
            let ttl = Some(std::time::Duration::from_millis(millis));
            let entry = Entry::Namespace { name: &name, settings: Box::new(Namespace { ttl, ..Namespace::default() }) };
            let mut bytes = Vec::new();
            put_time(&mut bytes, Millis(1));
            entry.encode(&mut bytes);
            prop_assert!(bytes.len() <= 10 + NAMESPACE_ENTRY_BYTES_MAX);
            let body = RecordBody::decode(&bytes).unwrap();
            prop_assert_eq!(body.entries().collect::<Vec<_>>(), vec![Ok(entry)]);
        }

        #[test]
        fn what_was_sampled_comes_back_as_it_went_in(
            name in proptest::collection::vec(any::<u8>(), 0..=NAMESPACE_BYTES_MAX), p in 1..=u32::MAX, by_value: bool,
            until in proptest::option::of((any::<u64>(), any::<u64>())),
        ) {
            let until = until.map(|(millis, node)| Epoch { millis, node: NodeId(node) });
            let entries = [Entry::Sampling { name: &name, sampling: SamplingRecord { p, by_value, until } }, Entry::Flush { epoch: Epoch::FIRST }];
            let mut bytes = Vec::new();
            put_time(&mut bytes, Millis(1));
            entries[0].encode(&mut bytes);
            prop_assert!(bytes.len() <= 10 + NAMESPACE_ENTRY_BYTES_MAX);
            entries[1].encode(&mut bytes);
            let body = RecordBody::decode(&bytes).unwrap();
            prop_assert_eq!(body.entries().map(|entry| entry.unwrap()).collect::<Vec<_>>(), entries);
        }

        #[test]
        fn a_sketch_comes_back_as_it_went_in(
            name in proptest::collection::vec(any::<u8>(), 0..=512), kind: u8, pane: u64, version: u64, whole: bool,
            edits in proptest::collection::vec((0..=SKETCH_BYTES_MAX as u32, 0..=SKETCH_BYTES_MAX as u32, proptest::collection::vec(any::<u8>(), 0..40), 0..90usize), 0..9),
        ) {
            let edits: Vec<(u32, u32, Vec<u8>)> = edits.into_iter().map(|(at, removed, mut bytes, zeros)| {
                bytes.resize(bytes.len() + zeros, 0);
                (at, removed, bytes)
            }).collect();
            let mut bytes = Vec::new();
            put_time(&mut bytes, Millis(1));
            let before = bytes.len();
            put_sketch(&mut bytes, &name, (kind, pane), version, whole);
            put_edits(&mut bytes, edits.iter().map(|(at, removed, bytes)| PackedEdit { at: *at, removed: *removed, length: bytes.len() as u32, bytes }));
            let most = edits.iter().map(|(_, _, bytes)| EDIT_OVERHEAD_BYTES_MAX + bytes.len()).sum::<usize>();
            prop_assert!(bytes.len() - before <= SKETCH_ENTRY_BYTES_MAX + name.len() + most);
            let body = RecordBody::decode(&bytes).unwrap();
            let entries: Vec<_> = body.entries().map(|entry| entry.unwrap()).collect();
            let [Entry::Sketch { name: back, kind: kind_back, pane: pane_back, version: version_back, whole: whole_back, edits: edits_back }] = &entries[..] else {
                panic!("{entries:?}")
            };
            prop_assert_eq!((*back, *kind_back, *pane_back, *version_back, *whole_back), (&name[..], kind, pane, version, whole));
            let unpacked: Vec<_> = edits_back.iter().map(|edit| {
                let mut bytes = edit.bytes.to_vec();
                bytes.resize(edit.length as usize, 0);
                (edit.at, edit.removed, bytes)
            }).collect();
            prop_assert_eq!(unpacked, edits);
            let mut again = bytes[..before].to_vec();
            entries[0].encode(&mut again);
            prop_assert_eq!(again, bytes);
        }

        #[test]
        fn any_bytes_are_an_answer_or_an_error(bytes: Vec<u8>) {
            if let Ok(body) = RecordBody::decode(&bytes) {
                let _ = body.entries().count();
            }
        }
    }
}
