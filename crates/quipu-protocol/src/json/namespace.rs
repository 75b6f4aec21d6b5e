//! Reads and writes the settings of a namespace as JSON.

use std::fmt;

use quipu_model::{NAMESPACE_KEYS, Namespace};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::whole::{kind_of, read_whole};

/// Mistake in a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceMistake {
    /// Key with the mistake.
    pub key: String,
    /// Description of the mistake.
    pub text: String,
}

/// Reads a body: the valid settings, and every mistake. `Err`: the body is not an object.
pub fn parse_namespace(body: &[u8]) -> Result<(Namespace, Vec<NamespaceMistake>), serde_json::Error> {
    let Pairs(pairs) = serde_json::from_slice(body)?;
    let (mut namespace, mut mistakes, mut seen) = (Namespace::default(), Vec::new(), Vec::new());
    for (word, value) in pairs {
        let text = if seen.contains(&word) {
            Err(format!("'{word}' is given twice"))
        } else {
            read(&mut namespace, &word, value.get())
        };
        seen.push(word.clone());
        if let Err(text) = text {
            mistakes.push(NamespaceMistake { key: word, text });
        }
    }
    Ok((namespace, mistakes))
}

/// The namespace's settings as a JSON object, in the form of a request body.
pub fn namespace_value(namespace: &Namespace) -> Value {
    let entries =
        NAMESPACE_KEYS.iter().filter_map(|key| Some((key.key.to_owned(), setting_value(&(key.show)(namespace)?))));
    Value::Object(entries.collect::<Map<_, _>>())
}

/// A setting as a JSON value: a number where the text is one.
pub fn setting_value(text: &str) -> Value {
    text.parse::<u64>().map_or_else(|_| text.into(), Value::from)
}

fn read(namespace: &mut Namespace, word: &str, value: &str) -> Result<(), String> {
    let Some(key) = NAMESPACE_KEYS.iter().find(|known| known.key == word) else {
        let known: Vec<&str> = NAMESPACE_KEYS.iter().map(|known| known.key).collect();
        return Err(format!("unknown key '{word}': there are {}", known.join(", ")));
    };
    let text = match value.as_bytes().first() {
        // `null` counts as absent.
        Some(b'n') => return Ok(()),
        Some(b'"') if key.form.takes_text() => {
            serde_json::from_str(value).map_err(|error| format!("'{word}': {error}"))?
        }
        // Clients that count in doubles write 2.0.
        Some(b'-' | b'0'..=b'9') if key.form.takes_number() && value.contains(['.', 'e', 'E']) => {
            read_whole(value).map_err(|error| format!("{word}: {error}"))?.to_string()
        }
        Some(b'-' | b'0'..=b'9') if key.form.takes_number() => value.to_owned(),
        _ => return Err(format!("'{word}' must be {}, not {}", key.form.expected(), kind_of(value))),
    };
    (key.take)(namespace, &text).map_err(|text| format!("{word}: {text}"))
}

/// An object's pairs in the order received, so that a duplicate key is detected.
struct Pairs<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Pairs<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pairs<'de>, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with the settings of a namespace")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

#[cfg(test)]
mod tests {
    use quipu_model::{Durability, ShardCount};

    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let body = br#"{"durability": "relaxed", "ttl": "24h", "shards": 8.0, "pick": null}"#;
        let (namespace, mistakes) = parse_namespace(body).unwrap();
        assert_eq!(mistakes, []);
        assert_eq!((namespace.durability, namespace.shards), (Some(Durability::Relaxed), Some(ShardCount::Fixed(8))));
        assert_eq!(namespace.pick, None);
        let written = namespace_value(&namespace).to_string();
        assert_eq!(written, r#"{"durability":"relaxed","ttl":"24h","shards":8}"#.parse::<Value>().unwrap().to_string());
        assert_eq!(parse_namespace(written.as_bytes()).unwrap(), (namespace, vec![]));
        assert_eq!(parse_namespace(b"{}").unwrap(), (Namespace::default(), vec![]));
    }

    #[test]
    fn every_mistake_is_named() {
        let body = br#"{"kind": "tops", "durabilty": "durable", "ttl": 5, "shards": 65, "pick": ["hash"], "freshness": "1s", "freshness": "2s", "token_window": true, "fail_mode": "x"}"#;
        let (_, mistakes) = parse_namespace(body).unwrap();
        let found: Vec<(&str, &str)> = mistakes.iter().map(|mistake| (&*mistake.key, &*mistake.text)).collect();
        let all = "kind, durability, ttl, window, decay, freshness, settle_every, shards, pick, token_window, max_counters, fail_mode, sample, overload";
        assert_eq!(
            found,
            [
                ("kind", "kind: unknown kind 'tops': it is count, unique, frequency, top"),
                ("durabilty", &*format!("unknown key 'durabilty': there are {all}")),
                ("ttl", "'ttl' must be a string such as \"50ms\" or \"10s\", not a number"),
                ("shards", "shards: '65' is not a number from 1 to 64, or auto"),
                ("pick", "'pick' must be a string, not an array"),
                ("freshness", "'freshness' is given twice"),
                ("token_window", "'token_window' must be a string such as \"50ms\" or \"10s\", not a boolean"),
                ("fail_mode", "fail_mode: unknown fail mode 'x': it is local, open, last-known or closed"),
            ]
        );
        for (number, text) in [
            ("8.0000000000000000001", "shards: 8.0000000000000000001 is not a whole number of 64 bits"),
            ("18446744073709551617", "shards: '18446744073709551617' is not a number from 1 to 64, or auto"),
            ("-1", "shards: '-1' is not a number from 1 to 64, or auto"),
        ] {
            let (namespace, mistakes) = parse_namespace(format!("{{\"shards\": {number}}}").as_bytes()).unwrap();
            assert_eq!((namespace.shards, mistakes.len(), &*mistakes[0].text), (None, 1, text));
        }
        for body in [&b""[..], b"[]", b"7", b"null", b"{", b"{\"ttl\": \"1s\"} x"] {
            assert!(parse_namespace(body).is_err(), "{}", body.escape_ascii());
        }
    }
}
