//! Encodes names for paths and queries: any bytes, percent-encoded by RFC 3986.

/// Malformed percent-encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the '%' at byte {at} is not followed by two hexadecimal digits")]
pub struct PercentError {
    /// Offset of the `%`, counted from 0.
    pub at: usize,
}

/// Decodes a path segment.
pub fn percent_decode(text: &str) -> Result<Vec<u8>, PercentError> {
    decode(text.as_bytes(), |byte| byte)
}

/// Decodes a key or value of a query. As in forms, a plus is a space.
pub fn query_decode(text: &str) -> Result<Vec<u8>, PercentError> {
    decode(text.as_bytes(), |byte| if byte == b'+' { b' ' } else { byte })
}

/// Encodes bytes as a path segment.
pub fn percent_encode(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        // A colon is allowed in a segment, and nearly every name has one.
        if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push('%');
            text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
    text
}

fn decode(text: &[u8], plain: impl Fn(u8) -> u8) -> Result<Vec<u8>, PercentError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        if byte == b'%' {
            let digits = text.get(at + 1).zip(text.get(at + 2));
            let value = digits.and_then(|(high, low)| Some(hex(*high)? << 4 | hex(*low)?));
            bytes.push(value.ok_or(PercentError { at })?);
            at += 3;
        } else {
            bytes.push(plain(byte));
            at += 1;
        }
    }
    Ok(bytes)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_plus_is_a_space_in_queries_only() {
        assert_eq!(percent_decode("a+b%20c").unwrap(), b"a+b c");
        assert_eq!(query_decode("a+b%20c").unwrap(), b"a b c");
    }

    #[test]
    fn what_is_not_encoded_is_refused_by_its_place() {
        for (text, at) in [("%", 0), ("a%2", 1), ("ab%zz", 2), ("%41%4", 3), ("%+1", 0)] {
            assert_eq!(percent_decode(text), Err(PercentError { at }), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let text = percent_encode(&bytes);
            prop_assert_eq!(percent_decode(&text).unwrap(), bytes.clone());
            prop_assert_eq!(query_decode(&text).unwrap(), bytes);
        }
    }
}
