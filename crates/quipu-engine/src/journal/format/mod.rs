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
mod body;
mod edits;
mod entry;
#[cfg(test)]
mod tests;

use std::fmt;

use quipu_model::{NAMESPACE_BYTES_MAX, NAMESPACE_SETTINGS_BYTES_MAX};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

pub use self::body::{EntryIter, PlainCell, RecordBody, put_time};
pub(crate) use self::edits::SKETCH_BYTES_MAX;
pub use self::edits::{
    EDIT_OVERHEAD_BYTES_MAX, PackedEdit, PackedEdits, SKETCH_ENTRY_BYTES_MAX, put_edits, put_sketch,
    trim_trailing_zeros,
};
pub use self::entry::{Entry, PriorExistence, UnknownEntry};

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

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a slice of eight bytes"))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("a slice of four bytes"))
}
