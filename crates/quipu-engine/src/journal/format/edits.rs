//! Encodes and decodes changes of sketches' bodies, as drawn in `format`.

use quipu_model::varint::put_varint;

use super::entry::{IS_WHOLE, SKETCH, UnknownEntry, take_bytes, take_varint};

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
    pub(super) count: u64,
    pub(super) bytes: &'a [u8], // the edits as drawn above, checked
}

impl<'a> PackedEdits<'a> {
    /// The edits, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = PackedEdit<'a>> + use<'a> {
        let mut rest = self.bytes;
        (0..self.count).map_while(move |_| take_edit(&mut rest).ok())
    }

    pub(super) fn take_from(rest: &mut &'a [u8]) -> Result<PackedEdits<'a>, UnknownEntry> {
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
