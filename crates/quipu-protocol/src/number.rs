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

/// Appends the one spelling of a number, as a bulk string.
pub fn append_bulk(out: &mut Vec<u8>, value: i64) {
    let mut line = [0; ROOM_BYTES];
    let at = spell(&mut line, value);
    append_line(out, b'$', (LINE_BYTES_MAX - 2 - at) as i64);
    out.extend_from_slice(&line[at..LINE_BYTES_MAX]);
}

/// Appends a line: a first byte, the one spelling of a number, an end of line.
#[inline]
pub fn append_line(out: &mut Vec<u8>, first: u8, value: i64) {
    let mut line = [0; ROOM_BYTES];
    let at = spell(&mut line, value) - 1;
    line[at] = first;
    // Always as many bytes as the longest line has, which is quicker than to ask how many, and then those too many off again.
    let end = out.len() + LINE_BYTES_MAX - at;
    if let Some(longest) = line[at..].first_chunk::<LINE_BYTES_MAX>() {
        out.extend_from_slice(longest);
    }
    out.truncate(end);
}

/// Lines of integers, one after another. Of a counter that is counted up, most differ from the one before in the last digit only.
#[derive(Default)]
pub struct Lines {
    /// The newest line, how long it is, and its number; none yet if that is 0.
    line: [u8; LINE_BYTES_MAX],
    bytes: usize,
    value: i64,
}

impl Lines {
    /// Appends the line of a number.
    #[inline]
    pub fn append(&mut self, out: &mut Vec<u8>, value: i64) {
        let next = self.value > 0 && value.checked_sub(1) == Some(self.value);
        match self.line.get_mut(self.bytes.wrapping_sub(3)) {
            Some(digit) if next && *digit < b'9' => *digit += 1,
            _ => {
                let mut room = [0; ROOM_BYTES];
                let at = spell(&mut room, value) - 1;
                room[at] = b':';
                self.bytes = LINE_BYTES_MAX - at;
                if let Some(longest) = room[at..].first_chunk() {
                    self.line = *longest;
                }
            }
        }
        self.value = value;
        // Always as many bytes as the longest line has, which is quicker than to ask how many, and then those too many off again.
        let end = out.len() + self.bytes;
        out.extend_from_slice(&self.line);
        out.truncate(end);
    }
}

/// The longest line: a first byte, a number, an end of line.
const LINE_BYTES_MAX: usize = 1 + I64_BYTES_MAX + 2;

/// Room for a line at the end of a longest one, and as many bytes behind it.
const ROOM_BYTES: usize = 2 * LINE_BYTES_MAX;

/// Every number below 100, in two digits each.
const PAIRS: [u8; 200] = {
    let (mut pairs, mut number) = ([0; 200], 0);
    while number < 100 {
        pairs[2 * number] = b'0' + (number / 10) as u8;
        pairs[2 * number + 1] = b'0' + (number % 10) as u8;
        number += 1;
    }
    pairs
};

/// Spells a number at the end of a line, before its end; returns where it begins, which is never the first byte.
#[inline]
fn spell(line: &mut [u8; ROOM_BYTES], value: i64) -> usize {
    let mut at = LINE_BYTES_MAX - 2;
    line[at] = b'\r';
    line[at + 1] = b'\n';
    let mut rest = value.unsigned_abs();
    while rest >= 10 {
        // Below 100, so the cast keeps it whole.
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
            let (mut lines, mut out, mut expected, mut value) = (Lines::default(), Vec::new(), String::new(), first);
            for step in steps {
                lines.append(&mut out, value);
                expected += &format!(":{value}\r\n");
                value = value.wrapping_add(step);
            }
            prop_assert_eq!(std::str::from_utf8(&out).unwrap(), expected);
        }

        #[test]
        fn what_is_read_has_one_spelling(bytes in "[-+0-9 ]{0,22}") {
            if let Some(value) = integer(bytes.as_bytes()) {
                prop_assert_eq!(value.to_string(), bytes);
            }
        }
    }
}
