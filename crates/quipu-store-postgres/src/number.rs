//! Converts whole numbers to `numeric`, and 128 bits to `uuid`, in the server's binary forms.
//!
//! A numeric on the wire, all big-endian:
//!
//! ```text
//! i16 digits   number of digits that follow
//! i16 weight   value of the first digit: digit × 10000^weight
//! u16 sign     0 positive, 0x4000 negative, anything else no number
//! u16 scale    number of shown decimals: 0 here
//! i16 …        digits to the base of 10000, most significant first, without zeros at either end
//! ```
//!
//! Invariants:
//! - every i128 and every u64 survives the conversion both ways;
//! - a value that is no whole number of that range is an error, never rounded.

use std::error::Error;

use bytes::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// Base of one digit on the wire.
const BASE: u128 = 10_000;

/// Digits of the widest i128: 39 decimals.
const DIGITS_MAX: usize = 10;

const NEGATIVE: u16 = 0x4000;

/// Bytes before the digits.
const HEAD_BYTES: usize = 8;

type ConversionError = Box<dyn Error + Sync + Send>;

/// A whole number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number(pub(crate) i128);

impl From<u64> for Number {
    fn from(value: u64) -> Number {
        Number(value.into())
    }
}

/// A column's value that this crate never writes.
#[derive(Debug, thiserror::Error)]
#[error("not a whole number of the range")]
pub(crate) struct NotWhole;

impl Number {
    pub(crate) fn unsigned(self) -> Result<u64, NotWhole> {
        self.0.try_into().map_err(|_| NotWhole)
    }
}

impl ToSql for Number {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, ConversionError> {
        let mut digits = [0_u16; DIGITS_MAX]; // least significant first
        let (mut rest, mut count) = (self.0.unsigned_abs(), 0);
        while rest > 0 {
            digits[count] = (rest % BASE) as u16;
            rest /= BASE;
            count += 1;
        }
        let zeros = digits[..count].iter().take_while(|&&digit| digit == 0).count();
        let weight = count.saturating_sub(1) as u16;
        let sign = if self.0 < 0 { NEGATIVE } else { 0 };
        let head = [(count - zeros) as u16, weight, sign, 0];
        for part in head.iter().chain(digits[zeros..count].iter().rev()) {
            out.extend_from_slice(&part.to_be_bytes());
        }
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::NUMERIC
    }

    to_sql_checked!();
}

impl FromSql<'_> for Number {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Number, ConversionError> {
        let (head, digits) = raw.split_at_checked(HEAD_BYTES).ok_or(NotWhole)?;
        let part = |bytes: &[u8]| u16::from_be_bytes([bytes[0], bytes[1]]);
        let (count, weight, sign) = (part(&head[..2]), part(&head[2..4]) as i16, part(&head[4..6]));
        if digits.len() != 2 * usize::from(count) {
            return Err(NotWhole.into());
        }
        let mut value: i128 = 0;
        let mut digit_count = i32::from(weight) + 1;
        for digit in digits.chunks_exact(2) {
            let digit = i128::from(part(digit));
            if digit_count <= 0 {
                return Err(NotWhole.into());
            }
            // Summed as a negative number: the range below zero holds one value more than the range
            // above.
            value = value.checked_mul(BASE as i128).and_then(|value| value.checked_sub(digit)).ok_or(NotWhole)?;
            digit_count -= 1;
        }
        if value != 0 {
            for _ in 0..digit_count {
                value = value.checked_mul(BASE as i128).ok_or(NotWhole)?;
            }
        }
        match sign {
            NEGATIVE => Ok(Number(value)),
            0 => Ok(Number(value.checked_neg().ok_or(NotWhole)?)),
            _ => Err(NotWhole.into()),
        }
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::NUMERIC
    }
}

/// 128 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Bits(pub(crate) u128);

impl Bits {
    pub(crate) fn from_halves(high: u64, low: u64) -> Bits {
        Bits(u128::from(high) << 64 | u128::from(low))
    }

    pub(crate) fn halves(self) -> (u64, u64) {
        ((self.0 >> 64) as u64, self.0 as u64)
    }
}

impl ToSql for Bits {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, ConversionError> {
        out.extend_from_slice(&self.0.to_be_bytes());
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::UUID
    }

    to_sql_checked!();
}

impl FromSql<'_> for Bits {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Bits, ConversionError> {
        Ok(Bits(u128::from_be_bytes(raw.try_into()?)))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::UUID
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn there_and_back(value: i128) -> i128 {
        let mut bytes = BytesMut::new();
        Number(value).to_sql(&Type::NUMERIC, &mut bytes).unwrap();
        Number::from_sql(&Type::NUMERIC, &bytes).unwrap().0
    }

    fn read(parts: &[u16]) -> Option<i128> {
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_be_bytes()).collect();
        Number::from_sql(&Type::NUMERIC, &bytes).ok().map(|number| number.0)
    }

    #[test]
    fn the_ends_of_the_range_survive() {
        for value in [0, 1, -1, 9_999, 10_000, -10_000, 100_000_000, i128::MAX, i128::MIN, u64::MAX.into()] {
            assert_eq!(there_and_back(value), value);
        }
    }

    #[test]
    fn what_is_no_whole_number_of_the_range_is_refused() {
        assert_eq!(read(&[2, 0, 0, 1, 1, 5_000]), None, "1.5");
        assert_eq!(read(&[1, 0xffff, 0, 1, 5_000]), None, "0.5");
        assert_eq!(read(&[0, 0, 0xc000, 0]), None, "not a number");
        assert_eq!(read(&[1, 10, 0, 0, 1]), None, "10^40");
        assert_eq!(read(&[2, 1, 0, 0, 1]), None, "cut short");
        assert_eq!(read(&[1, 1, 0, 2, 7]), Some(70_000), "decimals that are all zero are none");
        assert_eq!(read(&[0, 0, 0, 0]), Some(0));
    }

    proptest! {
        #[test]
        fn any_number_survives(value: i128, bits in 0_u32..128) {
            prop_assert_eq!(there_and_back(value >> bits), value >> bits);
        }
    }

    #[test]
    fn bits_survive_and_keep_their_halves() {
        let bits = Bits::from_halves(1, u64::MAX);
        let mut bytes = BytesMut::new();
        bits.to_sql(&Type::UUID, &mut bytes).unwrap();
        assert_eq!(Bits::from_sql(&Type::UUID, &bytes).unwrap().halves(), (1, u64::MAX));
    }
}
