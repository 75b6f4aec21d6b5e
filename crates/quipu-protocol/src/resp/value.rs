//! What a server has replied.

/// A reply. RESP2 and RESP3 spell some of them differently; see `resp::reply`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Nothing there.
    Null,
    /// A word, such as `OK`.
    Simple(String),
    /// A refusal; its first word is what a client acts on.
    Error(String),
    /// A number.
    Integer(i64),
    /// Yes or no.
    Bool(bool),
    /// A number that may not fit 64 bits or not be whole, as it was spelled.
    Number(String),
    /// Bytes.
    Bulk(Vec<u8>),
    /// Values in order.
    Array(Vec<Value>),
    /// Values by keys, in the order they came. RESP2 has an array of both in turn instead: [`Value::pairs`] reads either.
    Map(Vec<(Value, Value)>),
    /// Values without order.
    Set(Vec<Value>),
    /// What the server says without being asked: not the reply to anything.
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

    /// The bytes of a string or of a word.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Value::Bulk(bytes) => Some(bytes),
            Value::Simple(text) => Some(text.as_bytes()),
            _ => None,
        }
    }

    /// The elements of an array; none of any other.
    pub fn elements(&self) -> &[Value] {
        match self {
            Value::Array(elements) => elements,
            _ => &[],
        }
    }

    /// Keys and values of a map, or of an array that has them in turn; none of any other.
    pub fn pairs(&self) -> Vec<(&Value, &Value)> {
        match self {
            Value::Map(pairs) => pairs.iter().map(|(key, value)| (key, value)).collect(),
            Value::Array(elements) => elements.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect(),
            _ => Vec::new(),
        }
    }

    /// The value under a key of a map, or of an array that has keys and values in turn.
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

    /// Whether there is nothing there.
    pub fn is_nil(&self) -> bool {
        *self == Value::Null
    }
}
