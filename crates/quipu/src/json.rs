//! Writes the output of `--json`: one value, on one line.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quipu_protocol::json::SAFE_INTEGER_MAX;

/// Decimals are rounded to 1/10,000: nanoseconds as microseconds, and a digit more.
const DECIMALS: f64 = 10_000.0;

/// A value.
pub enum Json {
    Null,
    Bool(bool),
    /// A string beyond ±2^53: readers that count in doubles would round it.
    Number(i128),
    /// Rounded to a measurement's precision; null if it is not a number.
    Decimal(f64),
    Text(String),
    List(Vec<Json>),
    /// In the order of output.
    Object(Vec<(&'static str, Json)>),
}

impl Json {
    /// A text value.
    pub fn text(text: impl ToString) -> Json {
        Json::Text(text.to_string())
    }

    /// A count.
    pub fn count(count: u64) -> Json {
        Json::Number(count.into())
    }

    /// The key and value of a counter's name: `name` if it is text, else `name_base64`.
    pub fn name_field(bytes: &[u8]) -> (&'static str, Json) {
        match std::str::from_utf8(bytes) {
            Ok(text) => ("name", Json::text(text)),
            Err(_) => ("name_base64", Json::Text(STANDARD.encode(bytes))),
        }
    }

    /// The name of a counter: unchanged if it is text, else with its bytes escaped.
    pub fn name(bytes: &[u8]) -> Json {
        Json::Text(std::str::from_utf8(bytes).map_or_else(|_| bytes.escape_ascii().to_string(), str::to_owned))
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Json::Null => f.write_str("null"),
            Json::Bool(switch) => write!(f, "{switch}"),
            Json::Number(number) if number.unsigned_abs() > SAFE_INTEGER_MAX.into() => write!(f, "\"{number}\""),
            Json::Number(number) => write!(f, "{number}"),
            Json::Decimal(number) if number.is_finite() => write!(f, "{}", (number * DECIMALS).round() / DECIMALS),
            Json::Decimal(_) => f.write_str("null"),
            Json::Text(text) => quoted(text, f),
            Json::List(values) => {
                f.write_str("[")?;
                for (index, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if index == 0 { "" } else { "," })?;
                }
                f.write_str("]")
            }
            Json::Object(fields) => {
                f.write_str("{")?;
                for (index, (key, value)) in fields.iter().enumerate() {
                    f.write_str(if index == 0 { "" } else { "," })?;
                    quoted(key, f)?;
                    write!(f, ":{value}")?;
                }
                f.write_str("}")
            }
        }
    }
}

fn quoted(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("\"")?;
    for letter in text.chars() {
        match letter {
            '"' | '\\' => write!(f, "\\{letter}")?,
            control if control.is_control() => write!(f, "\\u{:04x}", u32::from(control))?,
            letter => write!(f, "{letter}")?,
        }
    }
    f.write_str("\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_on_one_line_whatever_is_in_them() {
        let value = Json::Object(vec![
            ("none", Json::Null),
            ("yes", Json::Bool(true)),
            ("decimals", Json::List([0.25, 1e7, 1.0 / 3.0, f64::NAN].map(Json::Decimal).into())),
            ("list", Json::List(vec![Json::Number(i128::MIN), Json::count(1 << 53), Json::count((1 << 53) + 1)])),
            ("text", Json::text("a\"b\\c\nd\u{7f}é")),
            ("names", Json::List(vec![Json::name("größe:1".as_bytes()), Json::name(b"\xff\0")])),
        ]);
        assert_eq!(
            value.to_string(),
            "{\"none\":null,\"yes\":true,\"decimals\":[0.25,10000000,0.3333,null],\"list\":[\"-170141183460469231731687303715884105728\",9007199254740992,\"9007199254740993\"],\
             \"text\":\"a\\\"b\\\\c\\u000ad\\u007fé\",\"names\":[\"größe:1\",\"\\\\xff\\\\x00\"]}"
        );
    }
}
