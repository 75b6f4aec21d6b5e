//! Reads request bodies: an add, another mutation, an observation, a batch item.

use quipu_model::Kind;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::whole::{kind_of, read_whole};

/// Body of an add. An empty one adds 1.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddBody {
    /// Delta.
    #[serde(default = "one", deserialize_with = "whole")]
    pub delta: i64,
    /// Key that picks the shard, in namespaces that shard by the add.
    #[serde(default)]
    pub shard_key: Option<String>,
    /// Token of the mutation.
    #[serde(default)]
    pub token: Option<String>,
    /// Producer of the token or of the sequence number.
    #[serde(default)]
    pub producer: Option<String>,
    /// Sequence number of the mutation, for a producer that numbers its mutations.
    #[serde(default)]
    pub seq: Option<u64>,
}

/// Body of a mutation without arguments. May be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MutationBody {
    /// Token of the mutation.
    #[serde(default)]
    pub token: Option<String>,
    /// Producer of the token or of the sequence number.
    #[serde(default)]
    pub producer: Option<String>,
    /// Sequence number of the mutation, for a producer that numbers its mutations.
    #[serde(default)]
    pub seq: Option<u64>,
}

/// Most items of one observation: the server hashes each while other requests wait.
pub const OBSERVE_ITEMS_MAX: usize = 10_000;

/// Most items of one observation with counts: each may have an item in the reply.
pub const COUNTED_ITEMS_MAX: usize = 1_000;

/// Body of an observation.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObserveBody {
    /// Observed items.
    #[serde(deserialize_with = "few_enough")]
    pub items: Vec<ObservedItem>,
    /// Kind of the counter.
    #[serde(default, deserialize_with = "approximate")]
    pub kind: Option<Kind>,
    /// Time of the observation, in milliseconds since 1970; default: now.
    #[serde(default)]
    pub at: Option<u64>,
    /// Token of the mutation.
    #[serde(default)]
    pub token: Option<String>,
    /// Producer of the token or of the sequence number.
    #[serde(default)]
    pub producer: Option<String>,
    /// Sequence number of the mutation, for a producer that numbers its mutations.
    #[serde(default)]
    pub seq: Option<u64>,
}

/// An item, or an item with a count.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "an item is a string, or an object such as {\"item\": \"a\", \"count\": 2}")]
pub enum ObservedItem {
    /// One occurrence.
    Once(String),
    /// Several occurrences.
    Counted(CountedItem),
}

/// An item and its count.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountedItem {
    /// The item.
    pub item: String,
    /// Number of occurrences.
    #[serde(default = "once")]
    pub count: u64,
}

impl ObservedItem {
    /// The item.
    pub fn item(&self) -> &str {
        match self {
            ObservedItem::Once(item) => item,
            ObservedItem::Counted(counted) => &counted.item,
        }
    }

    /// Number of occurrences.
    pub fn count(&self) -> u64 {
        match self {
            ObservedItem::Once(_) => 1,
            ObservedItem::Counted(counted) => counted.count,
        }
    }
}

fn once() -> u64 {
    1
}

/// Reads the name of an approximate kind.
fn approximate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Kind>, D::Error> {
    let Some(word) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    let known = [Kind::Unique, Kind::Frequency, Kind::Top].into_iter().find(|kind| kind.name() == word);
    let unknown = || D::Error::custom(format!("'kind' is 'unique', 'frequency' or 'top', not '{word}'"));
    known.map(Some).ok_or_else(unknown)
}

fn few_enough<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ObservedItem>, D::Error> {
    let items = Vec::<ObservedItem>::deserialize(deserializer)?;
    match items.len() > OBSERVE_ITEMS_MAX {
        true => Err(D::Error::custom(format!("'items' may have {OBSERVE_ITEMS_MAX} items, not {}", items.len()))),
        false => Ok(items),
    }
}

/// One item of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchItem {
    /// Operation.
    #[serde(default)]
    pub op: BatchOp,
    /// Counter name.
    #[serde(default)]
    pub name: Option<String>,
    /// Counter name, percent-encoded as in a path; for names that are not text.
    #[serde(default)]
    pub name_encoded: Option<String>,
    /// Delta of an add.
    #[serde(default, deserialize_with = "whole_if_there")]
    pub delta: Option<i64>,
    /// Key that picks the shard, as in [`AddBody`].
    #[serde(default)]
    pub shard_key: Option<String>,
    /// Token of the mutation.
    #[serde(default)]
    pub token: Option<String>,
    /// Producer of the token or of the sequence number.
    #[serde(default)]
    pub producer: Option<String>,
    /// Sequence number of the mutation, for a producer that numbers its mutations.
    #[serde(default)]
    pub seq: Option<u64>,
}

/// Operation of a batch item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BatchOp {
    /// Adds.
    #[default]
    Add,
    /// Reads.
    Read,
    /// Sets to 0.
    Reset,
    /// Deletes.
    Delete,
}

/// Parses the body of an add; the error names the mistake and its position.
pub fn parse_add(body: &[u8]) -> Result<AddBody, serde_json::Error> {
    match is_empty(body) {
        true => Ok(AddBody { delta: 1, shard_key: None, token: None, producer: None, seq: None }),
        false => object(body),
    }
}

/// Parses the body of another mutation.
pub fn parse_mutation(body: &[u8]) -> Result<MutationBody, serde_json::Error> {
    match is_empty(body) {
        true => Ok(MutationBody::default()),
        false => object(body),
    }
}

/// Parses the body of an observation.
pub fn parse_observe(body: &[u8]) -> Result<ObserveBody, serde_json::Error> {
    object(body)
}

/// Parses one item of a batch.
pub fn parse_item(item: &[u8]) -> Result<BatchItem, serde_json::Error> {
    object(item)
}

/// Parses an object. serde would also accept an array, with its elements as the fields in order; no
/// client means that.
fn object<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, serde_json::Error> {
    match body.trim_ascii_start().first() {
        Some(b'{') => serde_json::from_slice(body),
        _ => Err(serde_json::Error::custom("expected an object such as {\"name\": \"likes:42\", \"delta\": 1}")),
    }
}

fn is_empty(body: &[u8]) -> bool {
    body.iter().all(u8::is_ascii_whitespace)
}

fn one() -> i64 {
    1
}

/// Reads a 64-bit integer from a number or a string. Clients that count in doubles need the string.
fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    // The raw text: a number read by serde may be rounded already.
    let text = <&RawValue>::deserialize(deserializer)?.get();
    match text.as_bytes().first() {
        Some(b'-' | b'0'..=b'9') => read_whole(text).map_err(D::Error::custom),
        Some(b'"') => {
            let string: String = serde_json::from_str(text).map_err(D::Error::custom)?;
            string.parse().map_err(|_| D::Error::custom("the string is not a whole number of 64 bits"))
        }
        _ => {
            let kind = kind_of(text);
            Err(D::Error::custom(format!("expected a whole number of 64 bits, or one in a string, not {kind}")))
        }
    }
}

fn whole_if_there<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    whole(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_body_adds_one() {
        for body in ["", " \r\n", "{}"] {
            assert_eq!(parse_add(body.as_bytes()).unwrap().delta, 1, "{body:?}");
        }
    }

    #[test]
    fn deltas_are_whole_numbers_or_strings_of_them() {
        for (body, delta) in [
            (r#"{"delta": -3}"#, -3),
            (r#"{"delta": 2.0}"#, 2),
            (r#"{"delta": -1e3}"#, -1_000),
            (r#"{"delta": 9223372036854775807}"#, i64::MAX),
            ("{\"delta\"\n: \t9007199254740993 , \"token\": \"a\"}", (1 << 53) + 1),
            (r#"{"delta": "\u0037"}"#, 7),
            (r#"{"delta": "-9223372036854775808"}"#, i64::MIN),
        ] {
            assert_eq!(parse_add(body.as_bytes()).unwrap().delta, delta, "{body}");
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let deep = "[".repeat(100_000);
        let (cut, deep) = (format!("{{\"delta\": {deep}"), format!("{{\"delta\": {deep}{}}}", "]".repeat(100_000)));
        for (body, word) in [
            (r#"{"delta": 1.5}"#, "1.5 is not a whole number"),
            (r#"{"delta": 4503599627370496.3}"#, "4503599627370496.3 is not a whole number"),
            (r#"{"delta": 9.007199254740993e15}"#, "the number is not a whole number from -9223372036854775808 to"),
            (r#"{"delta": 1e400}"#, "is not a whole number"),
            (r#"{"delta": 1e17}"#, "is not a whole number"),
            (r#"{"delta": 18446744073709551616}"#, "the number is not a whole number from -9223372036854775808 to"),
            (r#"{"delta": 99999999999999999999}"#, "the number is not a whole number from -9223372036854775808 to"),
            (r#"{"delta": 9223372036854775808}"#, "the number is not a whole number from -9223372036854775808 to"),
            (r#"{"delta": 01}"#, "invalid number"),
            (r#"{"delta": 1.}"#, "invalid number"),
            (r#"{"delta": "\ud800"}"#, "hex escape"),
            (r#"{"delta": {"a": 1}}"#, "not an object"),
            (r#"{"delta": "one"}"#, "string"),
            (r#"{"delta": null}"#, "null"),
            (r#"{"delta": 1, "delta": 2}"#, "duplicate field `delta`"),
            (r#"{"dleta": 1}"#, "unknown field `dleta`"),
            (r#"{"delta": 1} x"#, "trailing characters"),
            ("[1]", "an object such as"),
            (" [{}]", "an object such as"),
            ("1", "an object such as"),
            ("{\"delta\": 1", "EOF"),
            ("{\"delta\u{0}: 1}", "column"),
            (&cut, "EOF"),
            (&deep, "expected a whole number"),
        ] {
            let error = parse_add(body.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(word), "{body:.40}: {error}");
        }
    }

    #[test]
    fn an_item_adds_unless_it_says_otherwise() {
        let item = parse_item(br#"{"name": "a"}"#).unwrap();
        assert_eq!((item.op, item.delta), (BatchOp::Add, None));
        assert_eq!(parse_item(br#"{"op": "reset", "name": "a"}"#).unwrap().op, BatchOp::Reset);
        assert!(
            parse_item(br#"{"op": "set", "name": "a"}"#).unwrap_err().to_string().contains("unknown variant `set`")
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = (parse_add(&bytes), parse_mutation(&bytes), parse_item(&bytes));
        }
    }
}
