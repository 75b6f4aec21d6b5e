//! Locates the arguments of one command in the input.
//!
//! In: offsets recorded by `decode`. Out: slices, borrowed from the connection's input buffer.
//!
//! Nearly every command is short, so the offsets of the first few arguments are stored. Later
//! arguments are found by walking the bytes again. So a command of any length needs no memory
//! beyond its own bytes.
//!
//! Invariant: `decode` checked the bytes. Every walk finds `count` arguments and ends inside the
//! bytes.

use crate::number;

/// Number of stored offsets. SET with every option has eight arguments.
pub(super) const HEAD: usize = 8;

/// Encoding of the arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArgEncoding {
    /// `$3\r\nabc\r\n`, as received.
    Bulk,
    /// A length in seven-bit groups, lowest first, then the bytes: an inline command after
    /// unquoting.
    Packed,
}

/// Offsets of one argument.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ArgSpan {
    pub start: u32,
    pub end: u32,
}

/// The arguments of one command, the name first.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) map: ArgMap,
}

/// Everything except the bytes of the arguments.
#[derive(Debug, Clone, Copy)]
pub(super) struct ArgMap {
    pub form: ArgEncoding,
    pub count: usize,
    /// The first `min(count, HEAD)` are meaningful.
    pub head: [ArgSpan; HEAD],
    /// Offset of the first argument after the head, its length included.
    pub tail: u32,
}

impl<'a> Args<'a> {
    /// Number of arguments, the name included.
    pub fn len(&self) -> usize {
        self.map.count
    }

    /// Returns true for an empty line and for `*0`: there is no request and no reply.
    pub fn is_empty(&self) -> bool {
        self.map.count == 0
    }

    /// Bytes that [`Args::store`] takes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The argument at an index. Fast for the first `HEAD`; use [`Args::iter`] for later ones.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        if index < HEAD.min(self.map.count) {
            let span = self.map.head[index];
            return self.bytes.get(span.start as usize..span.end as usize);
        }
        self.iter().nth(index)
    }

    /// All arguments in order.
    pub fn iter(&self) -> ArgsIter<'a> {
        ArgsIter { args: *self, index: 0, at: self.map.tail as usize }
    }

    /// All arguments from an index on.
    pub fn from(&self, index: usize) -> ArgsIter<'a> {
        let mut iter = self.iter();
        // Skipping within the head costs nothing; no caller skips further.
        for _ in 0..index {
            iter.next();
        }
        iter
    }

    /// The arguments without the last `count`.
    pub fn without_last(&self, count: usize) -> Args<'a> {
        Args { bytes: self.bytes, map: ArgMap { count: self.map.count.saturating_sub(count), ..self.map } }
    }

    /// Appends the bytes to an arena, so that they outlive the input buffer's content.
    pub fn store(&self, arena: &mut Vec<u8>) -> StoredArgs {
        let start = arena.len();
        arena.extend_from_slice(self.bytes);
        StoredArgs { start, end: arena.len(), map: self.map }
    }
}

impl std::fmt::Debug for Args<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(|arg| arg.escape_ascii().to_string())).finish()
    }
}

/// Arguments whose bytes are in an arena.
#[derive(Debug, Clone, Copy)]
pub struct StoredArgs {
    start: usize,
    end: usize,
    map: ArgMap,
}

impl StoredArgs {
    /// Restores the arguments. `arena` must be the one that stores them, and may only have grown
    /// since.
    pub fn args<'a>(&self, arena: &'a [u8]) -> Args<'a> {
        Args { bytes: &arena[self.start..self.end], map: self.map }
    }
}

/// Iterates over arguments.
#[derive(Clone)]
pub struct ArgsIter<'a> {
    args: Args<'a>,
    index: usize,
    at: usize,
}

impl<'a> Iterator for ArgsIter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let Args { bytes, map } = self.args;
        if self.index >= map.count {
            return None;
        }
        let index = self.index;
        self.index += 1;
        if index < HEAD {
            let span = map.head[index];
            return bytes.get(span.start as usize..span.end as usize);
        }
        let (start, end, next) = match map.form {
            ArgEncoding::Bulk => {
                let digits = self.at + 1;
                let line = digits + bytes.get(digits..)?.iter().position(|&byte| byte == b'\r')?;
                let start = line + 2;
                let end = start + usize::try_from(number::natural(&bytes[digits..line])?).ok()?;
                (start, end, end + 2)
            }
            ArgEncoding::Packed => {
                let (len, start) = packed_len(bytes, self.at)?;
                (start, start + len, start + len)
            }
        };
        self.at = next;
        bytes.get(start..end)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.args.map.count - self.index;
        (left, Some(left))
    }
}

impl ExactSizeIterator for ArgsIter<'_> {}

/// Appends a length in seven-bit groups.
pub(super) fn pack_len(out: &mut Vec<u8>, mut len: usize) {
    while len >= 0x80 {
        out.push(0x80 | (len & 0x7f) as u8);
        len >>= 7;
    }
    out.push(len as u8);
}

/// Reads a length in seven-bit groups; returns its end as well.
fn packed_len(bytes: &[u8], mut at: usize) -> Option<(usize, usize)> {
    let (mut len, mut shift) = (0usize, 0);
    loop {
        let byte = *bytes.get(at)?;
        at += 1;
        len |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some((len, at));
        }
        shift += 7;
        if shift > 28 {
            return None;
        }
    }
}
