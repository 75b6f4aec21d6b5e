//! Byte layout of a top list.
//!
//! ```text
//! 0  1             2 .. 4     4 .. 8  8 .. 12  12 .. 16  16 .. 20
//! 1  number: 4, 8  item room  k       slots    cells     slots used
//!
//! 20 .. 24  24 .. 28  28    29 .. 32  32 .. 40    40 .. 48
//! width     depth     bits  0         decay, f64  N, u64
//!
//! 48 ..         slots: at_most, error (a number each), length of the item (2 bytes), the item and
//!               zeros up to `item room`
//! behind them   cells of the filter, `bits` bits each; the first of a byte is in its lowest bits
//! ```
//!
//! All little-endian. Numbers take 4 bytes, and items little room, until one does not fit. Then the
//! list gets a new, wider layout. `width`, `depth` and `decay` are the request of a RedisBloom
//! client, and returned to it on demand.
//!
//! `cells` is the size of the filter, in cells of 32 bits. The filter begins with sixteen times as
//! many cells of 2 bits. When a value does not fit, two neighbours become one of twice the bits, up
//! to 32. There are as many cells of 64 bits as of 32, in twice the memory. A list from before
//! `bits` existed has 0 there: its cells are as wide as its numbers.

use crate::{BYTES_MAX, CorruptSketch, SketchError};

pub const HEADER: usize = 48;
pub const USED: usize = 16;
pub const N: usize = 40;

/// Longest item. In a list of thousands, longer ones would take more memory than the counts are
/// worth.
pub const ITEM_BYTES_MAX: usize = 1024;

/// Granularity of an item's room.
const ROOM_STEP: usize = 8;

/// Initial bits of a cell, and the most that fit the filter's initial memory.
pub const BITS_FIRST: u32 = 2;
const BITS_USUAL: u32 = 32;

/// Sizes of a list. Only `number`, `bits` and `room` change with the counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Layout {
    pub number: usize,
    pub bits: u32,
    pub room: usize,
    pub k: u32,
    pub slots: u32,
    pub cells: u32,
    pub width: u32,
    pub depth: u32,
    pub decay: f64,
}

impl Layout {
    pub fn slot_len(&self) -> usize {
        2 * self.number + 2 + self.room
    }

    pub fn slot(&self, slot: u32) -> usize {
        HEADER + slot as usize * self.slot_len()
    }

    /// Returns the number of cells.
    pub fn cell_count(&self) -> u32 {
        self.cells * (BITS_USUAL / self.bits).max(1)
    }

    /// Returns the greatest value of a cell.
    pub fn cell_max(&self) -> u64 {
        u64::MAX >> (64 - self.bits)
    }

    /// Returns the offset of a cell, and its shift if it is a part of a byte.
    #[inline]
    fn cell(&self, cell: usize) -> (usize, u32) {
        let bit = cell * self.bits as usize;
        (self.slot(self.slots) + bit / 8, (bit % 8) as u32)
    }

    /// Returns the value of a cell.
    #[inline]
    pub fn read_cell(&self, bytes: &[u8], cell: usize) -> u64 {
        let (at, shift) = self.cell(cell);
        match self.bits {
            bits @ ..8 => u64::from(bytes[at] >> shift) & self.cell_max_of(bits),
            8 => u64::from(bytes[at]),
            16 => u64::from(u16::from_le_bytes([bytes[at], bytes[at + 1]])),
            bits => number(bytes, at, bits as usize / 8),
        }
    }

    /// Returns offset, bytes and number of bytes for writing a cell. The value must fit the cell.
    #[inline]
    pub fn written_cell(&self, bytes: &[u8], cell: usize, value: u64) -> (usize, [u8; 8], usize) {
        let (at, shift) = self.cell(cell);
        match self.bits {
            bits @ ..8 => {
                let others = bytes[at] & !((self.cell_max_of(bits) as u8) << shift);
                (at, u64::from(others | ((value as u8) << shift)).to_le_bytes(), 1)
            }
            bits => (at, value.to_le_bytes(), bits as usize / 8),
        }
    }

    #[inline]
    fn cell_max_of(&self, bits: u32) -> u64 {
        (1 << bits) - 1
    }

    /// Returns the layout with cells of twice the bits: half as many up to 32 bits, then as many in
    /// twice the memory.
    pub fn with_wider_cells(&self) -> Layout {
        Layout { bits: self.bits * 2, ..*self }
    }

    /// Returns the byte range of all cells.
    pub fn all_cells(&self) -> std::ops::Range<usize> {
        self.slot(self.slots)..self.len() as usize
    }

    pub fn len(&self) -> u64 {
        let cells = u64::from(self.cells) * u64::from(self.bits.max(BITS_USUAL) / 8);
        HEADER as u64 + u64::from(self.slots) * self.slot_len() as u64 + cells
    }

    pub fn check_len(&self) -> Result<(), SketchError> {
        let bytes = self.len();
        if bytes > BYTES_MAX as u64 { Err(SketchError::TooLarge { bytes }) } else { Ok(()) }
    }

    /// Returns the room for an item of this length.
    pub fn room_for(len: usize) -> usize {
        len.next_multiple_of(ROOM_STEP).max(ROOM_STEP)
    }

    /// Returns the layout with room for this number in slots, and for an item of this length.
    pub fn wider(&self, value: u64, item_len: usize) -> Layout {
        let number = if value > u64::from(u32::MAX) { 8 } else { self.number };
        Layout { number, room: self.room.max(Layout::room_for(item_len)), ..*self }
    }

    /// Returns the bytes of an empty list.
    pub fn empty(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len() as usize];
        bytes[..2].copy_from_slice(&[1, self.number as u8]);
        bytes[2..4].copy_from_slice(&(self.room as u16).to_le_bytes());
        for (at, value) in [(4, self.k), (8, self.slots), (12, self.cells), (20, self.width), (24, self.depth)] {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        bytes[28] = self.bits as u8;
        bytes[32..40].copy_from_slice(&self.decay.to_le_bytes());
        bytes
    }

    /// Decodes a header, and checks that the bytes have the length that it implies.
    pub fn read(bytes: &[u8]) -> Result<Layout, CorruptSketch> {
        if bytes.len() < HEADER || bytes[0] != 1 || bytes[29..32] != [0; 3] {
            return Err(CorruptSketch("the header of a top list"));
        }
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("it is 4 bytes"));
        let layout = Layout {
            number: bytes[1] as usize,
            bits: if bytes[28] == 0 { 8 * u32::from(bytes[1]) } else { bytes[28].into() },
            room: u16::from_le_bytes([bytes[2], bytes[3]]) as usize,
            k: word(4),
            slots: word(8),
            cells: word(12),
            width: word(20),
            depth: word(24),
            decay: f64::from_bits(number(bytes, 32, 8)),
        };
        let right = matches!(layout.number, 4 | 8)
            && matches!(layout.bits, 2 | 4 | 8 | 16 | 32 | 64)
            && layout.room == Layout::room_for(layout.room)
            && layout.room <= ITEM_BYTES_MAX
            && layout.k >= 1
            && layout.slots as u64 >= 2 * u64::from(layout.k)
            && layout.cells >= 1
            && (0.0..=1.0).contains(&layout.decay)
            && word(USED) <= layout.slots
            && layout.len() == bytes.len() as u64
            && bytes.len() <= BYTES_MAX;
        if right { Ok(layout) } else { Err(CorruptSketch("the sizes of a top list")) }
    }
}

/// Reads a number of 4 or 8 bytes.
#[inline]
pub fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    if len == 4 {
        u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().expect("it is 4 bytes")))
    } else {
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("it is 8 bytes"))
    }
}
