//! A name as a table keeps it: short ones in place, so that most counters need no allocation of their own.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;

/// Names up to this long are kept in place: with their length and a tag they fill three words.
pub const KEPT_BYTES_MAX: usize = 22;

/// See the module.
#[derive(Clone)]
pub struct KeptName(Kept);

#[derive(Clone)]
enum Kept {
    Short(u8, [u8; KEPT_BYTES_MAX]), // so many bytes of the array; the others are 0
    Long(Box<[u8]>),
}

impl From<&[u8]> for KeptName {
    fn from(bytes: &[u8]) -> KeptName {
        if bytes.len() > KEPT_BYTES_MAX {
            return KeptName(Kept::Long(bytes.into()));
        }
        let mut short = [0; KEPT_BYTES_MAX];
        short[..bytes.len()].copy_from_slice(bytes);
        KeptName(Kept::Short(bytes.len() as u8, short))
    }
}

impl Deref for KeptName {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Kept::Short(bytes, short) => &short[..usize::from(*bytes)],
            Kept::Long(long) => long,
        }
    }
}

impl Borrow<[u8]> for KeptName {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl AsRef<[u8]> for KeptName {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for KeptName {
    fn eq(&self, other: &KeptName) -> bool {
        **self == **other
    }
}

impl Eq for KeptName {}

impl PartialOrd for KeptName {
    fn partial_cmp(&self, other: &KeptName) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KeptName {
    fn cmp(&self, other: &KeptName) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl fmt::Debug for KeptName {
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
        assert_eq!(size_of::<KeptName>(), 24);
    }

    proptest! {
        #[test]
        fn a_kept_name_is_its_bytes(a in proptest::collection::vec(any::<u8>(), 0..50), b in proptest::collection::vec(0u8..2, 0..30)) {
            let (kept_a, kept_b) = (KeptName::from(&a[..]), KeptName::from(&b[..]));
            prop_assert_eq!(&kept_a[..], &a[..]);
            prop_assert_eq!(kept_a.cmp(&kept_b), a.cmp(&b));
            prop_assert_eq!(kept_a == kept_b, a == b);
        }
    }
}
