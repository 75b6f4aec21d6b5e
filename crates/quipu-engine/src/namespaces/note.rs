//! What was said of namespaces, at rest: the bytes of their notes in the ledger.
//!
//! ```text
//! note of a namespace  key  4, name   value  said at u64 (little-endian), settings as `quipu_model::Namespace` writes them
//! ```

use quipu_model::{Millis, NAMESPACE_BYTES_MAX, Namespace, Note};

use super::Put;

/// The first byte of the key; those before it are of `tokens`.
const NAMESPACE: u8 = 4;

/// The note of a namespace; one that says nothing any more is gone.
pub fn note(name: &[u8], put: &Put) -> Note {
    let mut value = put.at.0.to_le_bytes().to_vec();
    put.settings.encode(&mut value);
    Note { key: key(name), value: Some(value.into()).filter(|_| !put.settings.is_empty()) }
}

/// Whether a key is of a namespace.
pub fn is_of_namespace(key: &[u8]) -> bool {
    key.first() == Some(&NAMESPACE)
}

/// From key and value; `None` if they make no sense.
pub fn decode(key: &[u8], value: &[u8]) -> Option<(Box<[u8]>, Put)> {
    let name = key.strip_prefix(&[NAMESPACE]).filter(|name| name.len() <= NAMESPACE_BYTES_MAX)?;
    let (at, settings) = value.split_first_chunk::<8>()?;
    Some((name.into(), Put { settings: Namespace::decode(settings)?, at: Millis(u64::from_le_bytes(*at)) }))
}

fn key(name: &[u8]) -> Box<[u8]> {
    [&[NAMESPACE], name].concat().into()
}

#[cfg(test)]
mod tests {
    use quipu_model::Durability;

    use super::*;

    #[test]
    fn a_note_comes_back_as_it_went_in() {
        for name in [&b""[..], b"likes", &[0xff; NAMESPACE_BYTES_MAX]] {
            let put = Put { settings: Namespace::durable(Durability::Relaxed), at: Millis(7) };
            let Note { key, value } = note(name, &put);
            assert!(is_of_namespace(&key));
            assert_eq!(decode(&key, &value.unwrap()), Some((name.into(), put)));
        }
        let nothing = Put { settings: Namespace::default(), at: Millis(7) };
        assert_eq!(note(b"likes", &nothing).value, None);
        assert_eq!(decode(&[4, b'a'], &[0; 7]), None);
        assert_eq!(decode(&[4, b'a'], &[0, 0, 0, 0, 0, 0, 0, 0, 200]), None);
        assert_eq!(decode(&[1, b'a'], &[0; 8]), None);
    }
}
