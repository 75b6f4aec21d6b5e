//! Reads whole numbers of JSON from their digits.
//!
//! In: a number as received. Out: exactly that number, or the reason for refusing it.
//!
//! Invariant: no number passes through a double, since a double rounds large numbers.

use super::SAFE_INTEGER_MAX;

/// Longest number that an error repeats.
const SHOWN_BYTES_MAX: usize = 40;

/// Reason for refusing a number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WholeNumberError {
    /// It has a fraction.
    #[error("{0} is not a whole number of 64 bits")]
    Fraction(String),
    /// It exceeds 64 bits; or it is so large that a sender that counts in doubles may have rounded
    /// it already.
    #[error(
        "out of range: the number is not a whole number from {} to {} written in digits; a string keeps all digits",
        i64::MIN,
        i64::MAX
    )]
    Range,
}

/// Reads a JSON number exactly.
///
/// Digits alone may have all 64 bits. With a point or an exponent (`2.0`, `1e3`) the sender's
/// number was a double. Beyond 2^53 the intended number is then unknown.
pub fn read_whole(number: &str) -> Result<i64, WholeNumberError> {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let Some((whole, fraction)) =
        mantissa.split_once('.').or((mantissa.len() < number.len()).then_some((mantissa, "")))
    else {
        return number.parse().map_err(|_| WholeNumberError::Range);
    };
    let (is_negative, whole) = whole.strip_prefix('-').map_or((false, whole), |whole| (true, whole));
    let digits = [whole, fraction].concat();
    let significant = digits.trim_end_matches('0');
    let zeros = digits.len() - significant.len();
    let significant = significant.trim_start_matches('0');
    if significant.is_empty() {
        return Ok(0);
    }
    // An exponent too long for 64 bits counts as the largest one: a body is far shorter than
    // either.
    let exponent = exponent.parse().unwrap_or(if exponent.starts_with('-') { i64::MIN } else { i64::MAX });
    let power = exponent.saturating_add_unsigned(zeros as u64).saturating_sub_unsigned(fraction.len() as u64);
    if power < 0 {
        let shown = if number.len() <= SHOWN_BYTES_MAX { number } else { "the number" };
        return Err(WholeNumberError::Fraction(shown.to_owned()));
    }
    let magnitude = u32::try_from(power).ok().and_then(|power| {
        let magnitude = significant.parse::<i64>().ok()?.checked_mul(10_i64.checked_pow(power)?)?;
        (magnitude.unsigned_abs() <= SAFE_INTEGER_MAX).then_some(magnitude)
    });
    magnitude.map(|magnitude| if is_negative { -magnitude } else { magnitude }).ok_or(WholeNumberError::Range)
}

/// JSON type of a value, with its article.
pub(super) fn kind_of(value: &str) -> &'static str {
    match value.as_bytes().first() {
        Some(b'n') => "null",
        Some(b't' | b'f') => "a boolean",
        Some(b'"') => "a string",
        Some(b'[') => "an array",
        Some(b'{') => "an object",
        _ => "a number",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_is_read_exactly_or_refused() {
        for (text, number) in [
            ("0", 0),
            ("-0", 0),
            ("0.000", 0),
            ("0e99999999999999999999", 0),
            ("-0.0e-7", 0),
            ("2.0", 2),
            ("-1e3", -1_000),
            ("1E+3", 1_000),
            ("120e-1", 12),
            ("0.0012e4", 12),
            ("9007199254740992.0", 1 << 53),
            ("-9.007199254740992e15", -(1 << 53)),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(read_whole(text), Ok(number), "{text}");
        }
        for text in [
            "9.007199254740993e15",
            "9007199254740993.0",
            "90071992547409930e-1",
            "1e17",
            "1e400",
            "-1e99999999999999999999",
            "9223372036854775808",
            "18446744073709551616",
        ] {
            assert_eq!(read_whole(text), Err(WholeNumberError::Range), "{text}");
        }
        // As doubles, all but the first are whole.
        for text in [
            "1.5",
            "1.0000000000000000001",
            "4503599627370496.3",
            "9007199254740991.6",
            "1e-400",
            "1e-99999999999999999999",
        ] {
            assert_eq!(read_whole(text), Err(WholeNumberError::Fraction(text.to_owned())), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_point_and_an_exponent_move_digits_and_change_none(
            value in prop_oneof![-(1_i64 << 53)..=1 << 53, -99..99_i64],
            places in 0..40_usize,
            zeros in 0..5_usize,
        ) {
            let digits = format!("{:0>width$}{}", value.unsigned_abs(), "0".repeat(zeros), width = places + 1);
            let (whole, fraction) = digits.split_at(digits.len() - places);
            let sign = if value < 0 { "-" } else { "" };
            let point = if places > 0 { "." } else { "" };
            let exponent = places as i64 - zeros as i64;
            let text = format!("{sign}{whole}{point}{fraction}e{exponent}");
            prop_assert_eq!(read_whole(&text), Ok(value), "{}", text);
        }

        #[test]
        fn digits_alone_are_the_number(value: i64) {
            prop_assert_eq!(read_whole(&value.to_string()), Ok(value));
        }

        #[test]
        fn what_is_read_is_what_was_written(text in "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,25})?([eE][-+]?[0-9]{1,3})?") {
            if let Ok(value) = read_whole(&text) {
                // The double next to an exact whole number up to 2^53 is that number.
                prop_assert_eq!(text.parse::<f64>().unwrap(), value as f64, "{}", text);
            }
        }
    }
}
