//! Integers as Redis reads them from arguments: strictly, one spelling per number.

/// Longest spelling of an `i64`: a sign and 19 digits.
pub const I64_BYTES_MAX: usize = 20;

/// Reads a signed integer: no plus sign, no leading zeros, no spaces, no `-0`.
pub fn integer(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let magnitude = natural(digits)?;
    match (negative, magnitude) {
        (true, 0) => None,
        (true, magnitude) => 0i64.checked_sub_unsigned(magnitude),
        (false, magnitude) => i64::try_from(magnitude).ok(),
    }
}

/// Reads an unsigned integer, as strictly.
pub fn natural(digits: &[u8]) -> Option<u64> {
    match digits {
        [] => None,
        b"0" => Some(0),
        [b'0', ..] => None,
        digits => digits.iter().try_fold(0u64, |sum, &byte| {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                return None;
            }
            sum.checked_mul(10)?.checked_add(u64::from(digit))
        }),
    }
}

/// Appends the one spelling of a number.
pub fn append(out: &mut Vec<u8>, value: i64) {
    let mut digits = [0u8; I64_BYTES_MAX];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        // The remainder is below ten, so the cast keeps it whole.
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_one_spelling_of_a_number_is_read() {
        for spelling in ["", "-", "+1", "01", "-0", "-01", " 1", "1 ", "1.0", "x", "1x", "9223372036854775808"] {
            assert_eq!(integer(spelling.as_bytes()), None, "{spelling:?}");
        }
        assert_eq!(integer(b"0"), Some(0));
        assert_eq!(integer(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(integer(b"-9223372036854775809"), None);
        assert_eq!(natural(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(natural(b"18446744073709551616"), None);
    }

    proptest! {
        #[test]
        fn a_number_written_is_read_back(value: i64) {
            let mut out = Vec::new();
            append(&mut out, value);
            prop_assert_eq!(std::str::from_utf8(&out).unwrap(), value.to_string());
            prop_assert_eq!(integer(&out), Some(value));
        }

        #[test]
        fn what_is_read_has_one_spelling(bytes in "[-+0-9 ]{0,22}") {
            if let Some(value) = integer(bytes.as_bytes()) {
                prop_assert_eq!(value.to_string(), bytes);
            }
        }
    }
}
