//! Encodes the tree's keys and values.
//!
//! ```text
//! key    'c'  hash, 8 bytes, big-endian  name          a cell; sorted by hash, then name
//!        'o'  hash, 8 bytes, big-endian  name          this node's own cells of the counter on a shared
//!                                                      store; likewise
//!        't'  bytes of the engine                      an auxiliary record
//!        'w'                                           the watermark
//!
//! value  of a cell
//!        ┌───────────────┬──────────┬───────────────┬──────────────┬─────────────┐
//!        │ 0001 0nex     │ value    │ epoch, millis │ epoch, node  │ expires_at  │
//!        │ 1 byte        │ varint   │ varint, if e  │ 8 bytes LE,  │ varint,     │
//!        │ format, flags │ (zigzag) │               │ if n         │ if x        │
//!        └───────────────┴──────────┴───────────────┴──────────────┴─────────────┘
//!        of the others: bytes of the engine, as they are
//! ```
//!
//! A varint has 7 bits a byte, least significant first; all but its last byte have the high bit
//! set. Zero fields are left out, so a counter that was only ever added to takes 2 to 11 bytes.

use quipu_model::varint::{put_varint, put_zigzag, take_varint, take_zigzag};
use quipu_model::{Cell, Epoch, Millis, NodeId};

/// First byte of the key of a cell.
pub const CELL: u8 = b'c';

/// First byte of the key of this node's own cells on a shared store.
pub const OWN: u8 = b'o';

/// First byte of the key of an auxiliary record.
pub const AUX: u8 = b't';

/// Key of the watermark. Greater than every other key, so it is the last of each ingestion.
pub const WATERMARK: &[u8] = b"w";

/// Bytes of a cell's key before the name.
const KEY_PREFIX_BYTES: usize = 9;

/// Format of a cell's value, the high half of its first byte.
const FORMAT: u8 = 1;

const HAS_EXPIRY: u8 = 0b001;
const HAS_EPOCH: u8 = 0b010;
const HAS_NODE: u8 = 0b100;

/// Reason why bytes are no valid record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RecordError(&'static str);

const ENDLESS_NUMBER: RecordError = RecordError("a number in the value of a cell does not end");

/// Overwrites `key` with the key of a cell.
pub fn cell_key(key: &mut Vec<u8>, hash: u64, name: &[u8]) {
    write_key(key, CELL, hash, name);
}

/// Overwrites `key` with the key of this node's own cells of a counter.
pub fn own_key(key: &mut Vec<u8>, hash: u64, name: &[u8]) {
    write_key(key, OWN, hash, name);
}

/// Overwrites `key` with the key of an auxiliary record.
pub fn aux_record_key(key: &mut Vec<u8>, aux_key: &[u8]) {
    key.clear();
    key.push(AUX);
    key.extend_from_slice(aux_key);
}

fn write_key(key: &mut Vec<u8>, first: u8, hash: u64, name: &[u8]) {
    key.clear();
    key.push(first);
    key.extend_from_slice(&hash.to_be_bytes());
    key.extend_from_slice(name);
}

/// Decodes hash and name from the key of a cell, or of own cells.
pub fn decode_key(key: &[u8]) -> Result<(u64, &[u8]), RecordError> {
    let (prefix, name) =
        key.split_first_chunk::<KEY_PREFIX_BYTES>().ok_or(RecordError("the key of a counter is too short"))?;
    let [CELL | OWN, hash @ ..] = prefix else {
        return Err(RecordError("the key is not that of a counter"));
    };
    Ok((u64::from_be_bytes(*hash), name))
}

/// Overwrites `bytes` with the value of a cell.
pub fn encode_cell(bytes: &mut Vec<u8>, cell: &Cell) {
    let Cell { epoch: Epoch { millis, node }, value, expires_at } = *cell;
    let mut flags = 0;
    flags |= if expires_at.is_some() { HAS_EXPIRY } else { 0 };
    flags |= if millis != 0 { HAS_EPOCH } else { 0 };
    flags |= if node != NodeId(0) { HAS_NODE } else { 0 };
    bytes.clear();
    bytes.push(FORMAT << 4 | flags);
    put_zigzag(bytes, value);
    if millis != 0 {
        put_varint(bytes, millis);
    }
    if node != NodeId(0) {
        bytes.extend_from_slice(&node.0.to_le_bytes());
    }
    if let Some(Millis(at)) = expires_at {
        put_varint(bytes, at);
    }
}

/// Decodes the value of a cell.
pub fn decode_cell(mut bytes: &[u8]) -> Result<Cell, RecordError> {
    let (&first, rest) = bytes.split_first().ok_or(RecordError("the value of a cell is empty"))?;
    bytes = rest;
    if first >> 4 != FORMAT {
        return Err(RecordError("the value of a cell has a format this program does not know"));
    }
    let flags = first & 0x0f;
    if flags & !(HAS_EXPIRY | HAS_EPOCH | HAS_NODE) != 0 {
        return Err(RecordError("the value of a cell has a field this program does not know"));
    }
    let value = take_zigzag(&mut bytes).ok_or(ENDLESS_NUMBER)?;
    let millis = if flags & HAS_EPOCH != 0 { take_varint(&mut bytes).ok_or(ENDLESS_NUMBER)? } else { 0 };
    let node = if flags & HAS_NODE != 0 {
        let (node, rest) = bytes.split_first_chunk::<8>().ok_or(RecordError("the value of a cell is too short"))?;
        bytes = rest;
        NodeId(u64::from_le_bytes(*node))
    } else {
        NodeId(0)
    };
    let expires_at =
        if flags & HAS_EXPIRY != 0 { Some(Millis(take_varint(&mut bytes).ok_or(ENDLESS_NUMBER)?)) } else { None };
    if !bytes.is_empty() {
        return Err(RecordError("the value of a cell is too long"));
    }
    Ok(Cell { epoch: Epoch { millis, node }, value, expires_at })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(cell: Cell) -> Vec<u8> {
        let mut bytes = vec![0xff; 3];
        encode_cell(&mut bytes, &cell);
        bytes
    }

    fn cell(value: i64, millis: u64, node: u64, expires_at: Option<u64>) -> Cell {
        Cell { epoch: Epoch { millis, node: NodeId(node) }, value, expires_at: expires_at.map(Millis) }
    }

    #[test]
    fn the_bytes_are_as_drawn() {
        let mut key = vec![1, 2, 3];
        cell_key(&mut key, 0x0102_0304_0506_0708, b"likes:42");
        assert_eq!(key, b"c\x01\x02\x03\x04\x05\x06\x07\x08likes:42");
        for (cell, bytes) in [
            (cell(0, 0, 0, None), &b"\x10\x00"[..]),
            (cell(1, 0, 0, None), b"\x10\x02"),
            (cell(-1, 0, 0, None), b"\x10\x01"),
            (cell(150, 0, 0, None), b"\x10\xac\x02"),
            (cell(1, 0, 0, Some(300)), b"\x11\x02\xac\x02"),
            (cell(1, 5, 0, None), b"\x12\x02\x05"),
            (cell(1, 0, 7, None), b"\x14\x02\x07\0\0\0\0\0\0\0"),
            (cell(64, 5, 7, Some(0)), b"\x17\x80\x01\x05\x07\0\0\0\0\0\0\0\x00"),
            (cell(i64::MIN, 0, 0, None), b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ] {
            assert_eq!(encoded(cell), bytes, "{cell:?}");
            assert_eq!(decode_cell(bytes), Ok(cell));
        }
    }

    #[test]
    fn a_value_that_is_cut_or_has_more_is_refused() {
        let whole = encoded(cell(i64::MAX, u64::MAX, u64::MAX, Some(u64::MAX)));
        for end in 0..whole.len() {
            assert!(decode_cell(&whole[..end]).is_err(), "{end}");
        }
        assert!(decode_cell(&[&whole[..], &[0]].concat()).is_err());
        assert!(decode_cell(b"\x20\x00").is_err());
        assert!(decode_cell(b"\x18\x00").is_err());
        assert!(decode_cell(b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02").is_err());
        assert!(decode_key(b"c1234567").is_err());
        assert!(decode_key(b"w12345678").is_err());
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(value: i64, millis: u64, node: u64, expires_at: Option<u64>) {
            let cell = cell(value, millis, node, expires_at);
            prop_assert_eq!(decode_cell(&encoded(cell)), Ok(cell));
        }

        #[test]
        fn keys_sort_by_hash_and_then_name(a: (u64, Vec<u8>), b: (u64, Vec<u8>)) {
            let key = |(hash, name): &(u64, Vec<u8>)| {
                let mut key = Vec::new();
                cell_key(&mut key, *hash, name);
                key
            };
            let (key_a, key_b) = (key(&a), key(&b));
            prop_assert_eq!(key_a.cmp(&key_b), a.cmp(&b));
            prop_assert_eq!(decode_key(&key_a), Ok((a.0, &a.1[..])));
            prop_assert!(&key_a[..] < WATERMARK);
        }

        #[test]
        fn any_bytes_are_a_cell_or_an_error(bytes: Vec<u8>) {
            let _ = decode_cell(&bytes);
            let _ = decode_key(&bytes);
        }
    }
}
