//! Encodes numbers in as few bytes as they need: 7 bits a byte, least first, and a set high bit in
//! each byte but the last.
//!
//! In: numbers of 64 bits, or *wide* ones of 128. Out: their bytes in the journal and in the
//! ledger.
//!
//! A *zigzag* number has its sign in the lowest bit, so numbers near zero are short with either
//! sign.
//!
//! Invariant: decoding never panics, and a number beyond its width is `None`.

/// Most bytes of a number of 64 bits; the last one has one bit.
const BYTES_MAX: usize = 10;

/// Most bytes of a number of 128 bits; the last one has two bits.
const WIDE_BYTES_MAX: usize = 19;

/// Appends a number.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends a number with a sign.
#[inline]
pub fn put_zigzag(out: &mut Vec<u8>, number: i64) {
    put_varint(out, ((number << 1) ^ (number >> 63)) as u64);
}

/// Appends a number of 128 bits.
pub fn put_wide_varint(out: &mut Vec<u8>, mut number: u128) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends a number of 128 bits with a sign.
pub fn put_wide_zigzag(out: &mut Vec<u8>, number: i128) {
    put_wide_varint(out, ((number << 1) ^ (number >> 127)) as u128);
}

/// Takes a number off the front; `None` if there is none.
#[inline]
pub fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    match *rest {
        [byte, behind @ ..] if *byte < 0x80 => {
            *rest = behind;
            Some(u64::from(*byte))
        }
        _ => take_long_varint(rest),
    }
}

fn take_long_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for (index, byte) in rest.iter().take(BYTES_MAX).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if index == BYTES_MAX - 1 && bits > 1 {
            return None;
        }
        number |= bits << (7 * index);
        if byte & 0x80 == 0 {
            *rest = &rest[index + 1..];
            return Some(number);
        }
    }
    None
}

/// Takes a number with a sign.
#[inline]
pub fn take_zigzag(rest: &mut &[u8]) -> Option<i64> {
    let number = take_varint(rest)?;
    Some((number >> 1) as i64 ^ -((number & 1) as i64))
}

/// Takes a number of 128 bits.
pub fn take_wide_varint(rest: &mut &[u8]) -> Option<u128> {
    let mut number = 0u128;
    for (index, byte) in rest.iter().take(WIDE_BYTES_MAX).enumerate() {
        let bits = u128::from(byte & 0x7f);
        if index == WIDE_BYTES_MAX - 1 && bits > 3 {
            return None;
        }
        number |= bits << (7 * index);
        if byte & 0x80 == 0 {
            *rest = &rest[index + 1..];
            return Some(number);
        }
    }
    None
}

/// Takes a number of 128 bits with a sign.
pub fn take_wide_zigzag(rest: &mut &[u8]) -> Option<i128> {
    let number = take_wide_varint(rest)?;
    Some((number >> 1) as i128 ^ -((number & 1) as i128))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        put(&mut bytes);
        bytes
    }

    #[test]
    fn the_bytes_are_these() {
        assert_eq!(encoded(|out| put_varint(out, 0)), [0]);
        assert_eq!(encoded(|out| put_varint(out, 127)), [0x7f]);
        assert_eq!(encoded(|out| put_varint(out, 300)), [0xac, 0x02]);
        assert_eq!(encoded(|out| put_zigzag(out, -1)), [1]);
        assert_eq!(encoded(|out| put_zigzag(out, 1)), [2]);
        let last = |mut bytes: Vec<u8>| (bytes.len(), bytes.pop());
        assert_eq!(last(encoded(|out| put_varint(out, u64::MAX))), (BYTES_MAX, Some(1)));
        assert_eq!(last(encoded(|out| put_wide_varint(out, u128::MAX))), (WIDE_BYTES_MAX, Some(3)));
    }

    #[test]
    fn a_number_without_an_end_or_beyond_its_width_is_none() {
        for bytes in [&[][..], &[0x80], &[0xff; BYTES_MAX], &[0xff; 64]] {
            let mut rest = bytes;
            assert_eq!((take_varint(&mut rest), rest), (None, bytes));
        }
        for last in [2, 0x81] {
            let mut bytes = [0xff; BYTES_MAX];
            bytes[BYTES_MAX - 1] = last;
            assert_eq!(take_varint(&mut &bytes[..]), None);
        }
        assert_eq!(take_wide_varint(&mut &[0xff; WIDE_BYTES_MAX][..]), None);
        let mut bytes = [0xff; WIDE_BYTES_MAX];
        bytes[WIDE_BYTES_MAX - 1] = 4;
        assert_eq!(take_wide_varint(&mut &bytes[..]), None);
    }

    proptest! {
        #[test]
        fn what_was_put_is_taken(number: u64, signed: i64, wide: u128, wide_signed: i128, behind: Vec<u8>) {
            let mut bytes = encoded(|out| {
                put_varint(out, number);
                put_zigzag(out, signed);
                put_wide_varint(out, wide);
                put_wide_zigzag(out, wide_signed);
            });
            bytes.extend_from_slice(&behind);
            let mut rest = &bytes[..];
            prop_assert_eq!(take_varint(&mut rest), Some(number));
            prop_assert_eq!(take_zigzag(&mut rest), Some(signed));
            prop_assert_eq!(take_wide_varint(&mut rest), Some(wide));
            prop_assert_eq!(take_wide_zigzag(&mut rest), Some(wide_signed));
            prop_assert_eq!(rest, &behind[..]);
        }

        #[test]
        fn a_number_of_64_bits_has_the_same_bytes_in_128(number: u64, signed: i64) {
            prop_assert_eq!(
                encoded(|out| put_varint(out, number)),
                encoded(|out| put_wide_varint(out, u128::from(number)))
            );
            prop_assert_eq!(
                encoded(|out| put_zigzag(out, signed)),
                encoded(|out| put_wide_zigzag(out, i128::from(signed)))
            );
        }
    }
}
