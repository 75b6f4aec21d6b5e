//! Encodes namespaces' run-time settings as auxiliary records of the ledger.
//!
//! ```text
//! settings record  key    4, name
//!                  value  changed at u64 (little-endian), settings as encoded by `quipu_model::Namespace`
//! ```

use quipu_model::{AuxRecord, Millis, NAMESPACE_BYTES_MAX, Namespace};

use super::RuntimeSettings;

/// First byte of the key; `tokens` uses the lower ones.
const NAMESPACE: u8 = 4;

/// The record of a namespace; empty settings delete it.
pub fn to_aux_record(name: &[u8], put: &RuntimeSettings) -> AuxRecord {
    let mut value = put.changed_at.0.to_le_bytes().to_vec();
    put.settings.encode(&mut value);
    AuxRecord { key: namespace_key(name), value: Some(value.into()).filter(|_| !put.settings.is_empty()) }
}

/// Returns true for the key of a settings record.
pub fn is_namespace_key(key: &[u8]) -> bool {
    key.first() == Some(&NAMESPACE)
}

/// Decodes key and value; `None` if they are invalid.
pub fn decode(key: &[u8], value: &[u8]) -> Option<(Box<[u8]>, RuntimeSettings)> {
    let name = key.strip_prefix(&[NAMESPACE]).filter(|name| name.len() <= NAMESPACE_BYTES_MAX)?;
    let (at, settings) = value.split_first_chunk::<8>()?;
    Some((
        name.into(),
        RuntimeSettings { settings: Namespace::decode(settings)?, changed_at: Millis(u64::from_le_bytes(*at)) },
    ))
}

fn namespace_key(name: &[u8]) -> Box<[u8]> {
    [&[NAMESPACE], name].concat().into()
}

#[cfg(test)]
mod tests {
    use quipu_model::Durability;

    use super::*;

    #[test]
    fn a_note_comes_back_as_it_went_in() {
        for name in [&b""[..], b"likes", &[0xff; NAMESPACE_BYTES_MAX]] {
            let put =
                RuntimeSettings { settings: Namespace::with_durability(Durability::Relaxed), changed_at: Millis(7) };
            let AuxRecord { key, value } = to_aux_record(name, &put);
            assert!(is_namespace_key(&key));
            assert_eq!(decode(&key, &value.unwrap()), Some((name.into(), put)));
        }
        let nothing = RuntimeSettings { settings: Namespace::default(), changed_at: Millis(7) };
        assert_eq!(to_aux_record(b"likes", &nothing).value, None);
        assert_eq!(decode(&[4, b'a'], &[0; 7]), None);
        assert_eq!(decode(&[4, b'a'], &[0, 0, 0, 0, 0, 0, 0, 0, 200]), None);
        assert_eq!(decode(&[1, b'a'], &[0; 8]), None);
    }
}
