//! Counter name: any bytes, up to a bound. The namespace is the part before the first `:`.

use std::fmt;

/// Longest name. It fits a URL path, and a million names of this length fit in memory.
pub const NAME_BYTES_MAX: usize = 512;

/// The namespace of names without a `:`.
pub const NAMESPACE_DEFAULT: &[u8] = b"default";

/// A checked name that borrows its bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name<'a>(&'a [u8]); // at most NAME_BYTES_MAX bytes

impl<'a> Name<'a> {
    /// Checks the length. Every byte is allowed, and so is the empty name, as in Redis.
    pub fn new(bytes: &'a [u8]) -> Result<Name<'a>, NameTooLong> {
        if bytes.len() > NAME_BYTES_MAX {
            return Err(NameTooLong { bytes: bytes.len() });
        }
        Ok(Name(bytes))
    }

    /// Returns the bytes of the whole name.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Returns the part before the first `:`, the unit of policy. Names without one belong to
    /// `default`.
    pub fn namespace(self) -> &'a [u8] {
        match self.0.iter().position(|&byte| byte == b':') {
            Some(end) => &self.0[..end],
            None => NAMESPACE_DEFAULT,
        }
    }
}

impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// A name over [`NAME_BYTES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("name is too long: {bytes} bytes, at most {NAME_BYTES_MAX} are allowed")]
pub struct NameTooLong {
    /// Length of the refused name.
    pub bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_ends_at_the_first_colon() {
        for (name, namespace) in
            [("likes:42:x", "likes"), ("likes", "default"), (":42", ""), ("", "default"), ("a:", "a")]
        {
            assert_eq!(Name::new(name.as_bytes()).unwrap().namespace(), namespace.as_bytes(), "{name}");
        }
    }

    #[test]
    fn a_name_is_refused_one_byte_past_the_bound() {
        let bytes = [0xff; NAME_BYTES_MAX + 1];
        assert!(Name::new(&bytes[..NAME_BYTES_MAX]).is_ok());
        assert_eq!(Name::new(&bytes), Err(NameTooLong { bytes: 513 }));
    }
}
