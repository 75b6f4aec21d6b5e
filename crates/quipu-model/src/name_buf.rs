//! Owned name of a table entry. Short names are stored inline, so most need no allocation.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;

/// Longest name stored inline: with its length and a tag it fills three words.
pub const NAME_INLINE_BYTES_MAX: usize = 22;

/// An owned counter name.
#[derive(Clone)]
pub struct NameBuf(NameRepr);

#[derive(Clone)]
enum NameRepr {
    Inline(u8, [u8; NAME_INLINE_BYTES_MAX]), // used bytes of the array; the others are 0
    Heap(Box<[u8]>),
}

impl From<&[u8]> for NameBuf {
    fn from(bytes: &[u8]) -> NameBuf {
        if bytes.len() > NAME_INLINE_BYTES_MAX {
            return NameBuf(NameRepr::Heap(bytes.into()));
        }
        let mut short = [0; NAME_INLINE_BYTES_MAX];
        short[..bytes.len()].copy_from_slice(bytes);
        NameBuf(NameRepr::Inline(bytes.len() as u8, short))
    }
}

impl Deref for NameBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            NameRepr::Inline(bytes, short) => &short[..usize::from(*bytes)],
            NameRepr::Heap(long) => long,
        }
    }
}

impl Borrow<[u8]> for NameBuf {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl AsRef<[u8]> for NameBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for NameBuf {
    fn eq(&self, other: &NameBuf) -> bool {
        **self == **other
    }
}

impl Eq for NameBuf {}

impl PartialOrd for NameBuf {
    fn partial_cmp(&self, other: &NameBuf) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NameBuf {
    fn cmp(&self, other: &NameBuf) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl fmt::Debug for NameBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_kept_name_takes_three_words() {
        assert_eq!(size_of::<NameBuf>(), 24);
    }

    proptest! {
        #[test]
        fn a_kept_name_is_its_bytes(a in proptest::collection::vec(any::<u8>(), 0..50), b in proptest::collection::vec(0u8..2, 0..30)) {
            let (buf_a, buf_b) = (NameBuf::from(&a[..]), NameBuf::from(&b[..]));
            prop_assert_eq!(&buf_a[..], &a[..]);
            prop_assert_eq!(buf_a.cmp(&buf_b), a.cmp(&b));
            prop_assert_eq!(buf_a == buf_b, a == b);
        }
    }
}
