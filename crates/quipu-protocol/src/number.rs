//! Reads and writes integers as Redis does: strictly, one spelling per number.

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

/// Reads an unsigned integer by the same strict rules.
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

/// Appends a number in its one spelling, as a bulk string.
pub fn append_bulk(out: &mut Vec<u8>, value: i64) {
    let mut line = [0; ROOM_BYTES];
    let at = write_decimal(&mut line, value);
    append_line(out, b'$', (LINE_BYTES_MAX - 2 - at) as i64);
    out.extend_from_slice(&line[at..LINE_BYTES_MAX]);
}

/// Appends a line: a first byte, a number in its one spelling, a line end.
#[inline]
pub fn append_line(out: &mut Vec<u8>, first: u8, value: i64) {
    match IntegerLine::try_new(first, value) {
        Some(line) => line.append(out),
        None => append_long_line(out, first, value),
    }
}

/// Appends a line for a number of any length.
#[inline(never)]
fn append_long_line(out: &mut Vec<u8>, first: u8, value: i64) {
    let mut line = [0; ROOM_BYTES];
    let at = write_decimal(&mut line, value) - 1;
    line[at] = first;
    out.extend_from_slice(&line[at..LINE_BYTES_MAX]);
}

/// Writes lines of integers, one after another. For a counter that counts up, most lines differ
/// from the previous one only in the last digit.
#[derive(Default)]
pub struct IntegerLines {
    /// The newest line, if it was a short one.
    line: IntegerLine,
    /// Number on that line.
    value: i64,
}

impl IntegerLines {
    /// Appends the line of a number.
    #[inline]
    pub fn append(&mut self, out: &mut Vec<u8>, value: i64) {
        if value == self.value.wrapping_add(1) && self.line.increment() {
            self.value = value;
            return self.line.append(out);
        }
        match IntegerLine::try_new(b':', value) {
            Some(line) => {
                (self.line, self.value) = (line, value);
                line.append(out);
            }
            None => {
                self.line = IntegerLine::default();
                append_long_line(out, b':', value);
            }
        }
    }
}

/// A line with a non-negative number of at most thirteen digits. It is built in registers and
/// stored with one write. Bytes stored one by one and then loaded together would stall the load.
#[derive(Clone, Copy, Default)]
struct IntegerLine {
    /// Bytes of the line, the first one lowest.
    text: u128,
    /// Number of bytes.
    bytes: u32,
}

impl IntegerLine {
    /// Builds the line of a number that is short enough; nearly all are.
    #[inline]
    fn try_new(first: u8, value: i64) -> Option<IntegerLine> {
        let value = u64::try_from(value).ok()?;
        if let Some(small) = SMALL.get(value as usize) {
            let (text, bytes) = (small & !(0xff << 56), (small >> 56) as u32);
            return Some(IntegerLine { text: u128::from(u64::from(first) | text), bytes });
        }
        if value < EIGHT_DIGITS {
            let (digits, count) = decimal_digits(value as u32);
            return Some(IntegerLine::from_digits(first, u128::from(digits), count));
        }
        let upper = value / EIGHT_DIGITS;
        if upper >= FIVE_DIGITS {
            return None;
        }
        let (upper, count) = decimal_digits(upper as u32);
        let lower = eight_digits((value % EIGHT_DIGITS) as u32) | ZEROS;
        Some(IntegerLine::from_digits(first, u128::from(upper) | u128::from(lower) << (8 * count), count + 8))
    }

    #[inline]
    const fn from_digits(first: u8, digits: u128, count: u32) -> IntegerLine {
        let end = u16::from_le_bytes(*b"\r\n") as u128;
        IntegerLine { text: first as u128 | (digits | end << (8 * count)) << 8, bytes: count + 3 }
    }

    /// Turns the line into that of the next number if only the last digit changes. Returns true if
    /// it did.
    #[inline]
    fn increment(&mut self) -> bool {
        // The last digit stands before the line end.
        let Some(last) = self.bytes.checked_sub(3) else { return false };
        let raises = (self.text >> (8 * last)) as u8 != b'9';
        self.text += u128::from(raises) << (8 * last);
        raises
    }

    #[inline]
    fn append(&self, out: &mut Vec<u8>) {
        // Writes all 16 bytes, then truncates to the line; later output overwrites the rest.
        let begin = out.len();
        out.extend_from_slice(&self.text.to_le_bytes());
        out.truncate(begin + self.bytes as usize);
    }
}

const FIVE_DIGITS: u64 = 100_000;

/// Lines of small numbers, the most common ones when there are many counters. Without the first
/// byte; the last byte holds the length.
static SMALL: [u64; 1_000] = {
    let (mut lines, mut number) = ([0; 1_000], 0);
    while number < lines.len() {
        let (digits, count) = decimal_digits(number as u32);
        let IntegerLine { text, bytes } = IntegerLine::from_digits(0, digits as u128, count);
        lines[number] = text as u64 | (bytes as u64) << 56;
        number += 1;
    }
    lines
};

const EIGHT_DIGITS: u64 = 100_000_000;

/// Added to eight numbers below ten, makes their digits.
const ZEROS: u64 = u64::from_le_bytes([b'0'; 8]);

/// Digits of a number below 100,000,000 without leading zeros, and their count, at least one.
#[inline]
const fn decimal_digits(number: u32) -> (u64, u32) {
    let digits = eight_digits(number);
    // Zero keeps its last digit.
    let zeros = (digits | 1 << 56).trailing_zeros() / 8;
    ((digits | ZEROS) >> (8 * zeros), 8 - zeros)
}

/// Eight digits of a number below 100,000,000, one per byte, the first one lowest. Splits it into
/// halves, quarters and eighths side by side in one word.
#[inline]
const fn eight_digits(number: u32) -> u64 {
    let fours = (number / 10_000) as u64 | ((number % 10_000) as u64) << 32;
    // By 100: exact below 10,000.
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let twos = hundreds | (fours - 100 * hundreds) << 16;
    // By 10: exact below 100.
    let tens = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | (twos - 10 * tens) << 8
}

/// Longest line: a first byte, a number, a line end.
const LINE_BYTES_MAX: usize = 1 + I64_BYTES_MAX + 2;

/// Buffer for a longest line, and as many bytes behind it.
const ROOM_BYTES: usize = 2 * LINE_BYTES_MAX;

/// Two digits for every number below 100.
const PAIRS: [u8; 200] = {
    let (mut pairs, mut number) = ([0; 200], 0);
    while number < 100 {
        pairs[2 * number] = b'0' + (number / 10) as u8;
        pairs[2 * number + 1] = b'0' + (number % 10) as u8;
        number += 1;
    }
    pairs
};

/// Writes a number before the line end at `LINE_BYTES_MAX`. Returns the offset of its first byte,
/// which is never 0.
#[inline]
fn write_decimal(line: &mut [u8; ROOM_BYTES], value: i64) -> usize {
    let mut at = LINE_BYTES_MAX - 2;
    line[at] = b'\r';
    line[at + 1] = b'\n';
    let mut rest = value.unsigned_abs();
    while rest >= 10 {
        // Below 100, so the cast is exact.
        let pair = (rest % 100) as usize;
        rest /= 100;
        at -= 2;
        line[at..at + 2].copy_from_slice(&PAIRS[2 * pair..2 * pair + 2]);
    }
    if rest > 0 || at == LINE_BYTES_MAX - 2 {
        at -= 1;
        line[at] = b'0' + rest as u8;
    }
    if value < 0 {
        at -= 1;
        line[at] = b'-';
    }
    at
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

    #[test]
    fn eight_digits_are_those_of_the_number() {
        // Every four-digit half, both as the first and as the second.
        for four in 0..10_000 {
            for number in [four, four * 10_000, four * 10_000 + 9_999 - four] {
                let spelled = (eight_digits(number) | ZEROS).to_le_bytes();
                assert_eq!(std::str::from_utf8(&spelled).unwrap(), format!("{number:08}"));
            }
        }
    }

    proptest! {
        #[test]
        fn a_number_written_is_read_back(value: i64) {
            let mut out = Vec::new();
            append_bulk(&mut out, value);
            let spelled = value.to_string();
            prop_assert_eq!(std::str::from_utf8(&out).unwrap(), format!("${}\r\n{spelled}\r\n", spelled.len()));
            prop_assert_eq!(integer(spelled.as_bytes()), Some(value));
            let mut line = b"a".to_vec();
            append_line(&mut line, b':', value);
            prop_assert_eq!(std::str::from_utf8(&line).unwrap(), format!("a:{value}\r\n"));
        }

        #[test]
        fn a_line_after_others_is_the_line_of_its_number(
            first in prop_oneof![any::<i64>(), -20..20_i64, i64::MAX - 3..=i64::MAX],
            steps in proptest::collection::vec(prop_oneof![8 => Just(1), 1 => any::<i64>(), 1 => -2..2_i64], 0..60),
        ) {
            let (mut lines, mut out, mut expected, mut value) = (IntegerLines::default(), Vec::new(), String::new(), first);
            for step in steps {
                lines.append(&mut out, value);
                expected += &format!(":{value}\r\n");
                value = value.wrapping_add(step);
            }
            prop_assert_eq!(std::str::from_utf8(&out).unwrap(), expected);
        }

        #[test]
        fn lines_of_every_length_are_spelled(digits in 0u32..19, near in -3..3_i64, negative: bool) {
            let value = 10_i64.pow(digits).saturating_add(near);
            let value = if negative { -value } else { value };
            let mut line = Vec::new();
            append_line(&mut line, b':', value);
            prop_assert_eq!(std::str::from_utf8(&line).unwrap(), format!(":{value}\r\n"));
        }

        #[test]
        fn what_is_read_has_one_spelling(bytes in "[-+0-9 ]{0,22}") {
            if let Some(value) = integer(bytes.as_bytes()) {
                prop_assert_eq!(value.to_string(), bytes);
            }
        }
    }
}
