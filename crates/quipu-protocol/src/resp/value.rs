//! Reply of a server, as a value.

/// A reply. RESP2 and RESP3 spell some of them differently; see `resp::reply`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Null.
    Null,
    /// A simple string, such as `OK`.
    Simple(String),
    /// A refusal; a client acts on its first word.
    Error(String),
    /// An integer.
    Integer(i64),
    /// A Boolean.
    Bool(bool),
    /// A number that may exceed 64 bits or have a fraction, as spelled.
    Number(String),
    /// Bytes.
    Bulk(Vec<u8>),
    /// Values in order.
    Array(Vec<Value>),
    /// Pairs of key and value, in order of arrival. RESP2 sends an array of alternating keys and
    /// values instead; [`Value::pairs`] reads either.
    Map(Vec<(Value, Value)>),
    /// Values without order.
    Set(Vec<Value>),
    /// A push of the server, not a reply.
    Push(Vec<Value>),
}

impl Value {
    /// The number in an integer or in bytes.
    pub fn number(&self) -> Option<i64> {
        match self {
            Value::Integer(number) => Some(*number),
            Value::Bulk(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
            _ => None,
        }
    }

    /// The bytes of a bulk or simple string.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Value::Bulk(bytes) => Some(bytes),
            Value::Simple(text) => Some(text.as_bytes()),
            _ => None,
        }
    }

    /// The elements of an array; empty for any other value.
    pub fn elements(&self) -> &[Value] {
        match self {
            Value::Array(elements) => elements,
            _ => &[],
        }
    }

    /// The pairs of a map, or of an array of alternating keys and values; empty for any other
    /// value.
    pub fn pairs(&self) -> Vec<(&Value, &Value)> {
        match self {
            Value::Map(pairs) => pairs.iter().map(|(key, value)| (key, value)).collect(),
            Value::Array(elements) => elements.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect(),
            _ => Vec::new(),
        }
    }

    /// The value under a key of a map, or of an array of alternating keys and values.
    pub fn field(&self, key: &str) -> Option<&Value> {
        self.pairs().into_iter().find(|(found, _)| found.bytes() == Some(key.as_bytes())).map(|(_, value)| value)
    }

    /// The text of a refusal.
    pub fn error(&self) -> Option<&str> {
        match self {
            Value::Error(text) => Some(text),
            _ => None,
        }
    }

    /// Returns true for null.
    pub fn is_nil(&self) -> bool {
        *self == Value::Null
    }
}
