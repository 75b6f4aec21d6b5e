//! Reads the parts of a request: the counter in its path, its query, its body.
//!
//! In: a request. Out: its parts, checked; or a problem that names the mistake.
//!
//! Invariants:
//! - A body is read within its bounds in bytes and time, and only after the request was accepted.
//! - An unknown part is refused, never ignored.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Uri;
use axum::http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use quipu_model::{NAME_BYTES_MAX, Name};
use quipu_protocol::json::{percent_decode, query_decode};
use tokio::time::timeout;

use super::problem::Problem;
use super::reason;

/// Most bytes in the body of a single operation: a delta, a shard key and a token.
pub(super) const BODY_BYTES_MAX: usize = 4 << 10;

/// Reads the counter name in a path `/v1/counters/{name}…`.
pub(super) fn counter_name(uri: &Uri) -> Result<Vec<u8>, Problem> {
    let segment = uri.path().split('/').nth(3).unwrap_or_default();
    decode_name(segment)
}

/// Decodes and checks a name in a path segment.
pub(super) fn decode_name(segment: &str) -> Result<Vec<u8>, Problem> {
    let bytes = percent_decode(segment)
        .map_err(|error| Problem::new(reason::BAD_PATH, format!("the name of the counter is not encoded: {error}")))?;
    check_name(&bytes)?;
    Ok(bytes)
}

/// A checked name, for use in a command.
pub(super) fn checked_name(name: &[u8]) -> Name<'_> {
    Name::new(name).expect("the length of a name is checked when the request is read")
}

pub(super) fn check_name(name: &[u8]) -> Result<(), Problem> {
    match Name::new(name) {
        // RESP accepts an empty name; in a path it is nearly always a variable that was not set.
        Ok(name) if name.bytes().is_empty() => Err(Problem::new(reason::BAD_PATH, "the name of the counter is empty")),
        Ok(_) => Ok(()),
        Err(error) => Err(Problem::new(reason::BAD_PATH, error.to_string())),
    }
}

/// Longest name in a path, with every byte encoded.
const NAME_ENCODED_BYTES_MAX: usize = 3 * NAME_BYTES_MAX;

/// A query; the handler must take every key.
pub(super) struct Query(Vec<(String, Vec<u8>)>);

impl Query {
    /// Parses the query of a request; every key at most once.
    pub fn from_uri(uri: &Uri) -> Result<Query, Problem> {
        Query::with_many(uri, "")
    }

    /// Parses a query in which one key may be repeated.
    pub fn with_many(uri: &Uri, many: &str) -> Result<Query, Problem> {
        let wrong = |text: String| Problem::new(reason::BAD_QUERY, text);
        let mut pairs: Vec<(String, Vec<u8>)> = Vec::new();
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if value.len() > NAME_ENCODED_BYTES_MAX {
                return Err(wrong(format!("a value of {} bytes is too long", value.len())));
            }
            let decode = |text| query_decode(text).map_err(|error| wrong(format!("'{pair}': {error}")));
            let key = String::from_utf8_lossy(&decode(key)?).into_owned();
            if (key != many || many.is_empty()) && pairs.iter().any(|(known, _)| *known == key) {
                return Err(wrong(format!("'{key}' is given twice")));
            }
            pairs.push((key, decode(value)?));
        }
        Ok(Query(pairs))
    }

    /// Takes the value of a key.
    pub fn take(&mut self, key: &str) -> Option<Vec<u8>> {
        let at = self.0.iter().position(|(known, _)| known == key)?;
        Some(self.0.swap_remove(at).1)
    }

    /// Takes all values of a key, in order.
    pub fn take_all(&mut self, key: &str) -> Vec<Vec<u8>> {
        let (taken, rest) = std::mem::take(&mut self.0).into_iter().partition(|(known, _)| known == key);
        self.0 = rest;
        Vec::into_iter(taken).map(|(_, value)| value).collect()
    }

    /// Takes a whole number within bounds.
    pub fn take_number(&mut self, key: &str, least: u64, most: u64) -> Result<Option<u64>, Problem> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let number = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
        match number.filter(|number| (least..=most).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                Err(Problem::new(reason::BAD_QUERY, format!("'{key}' must be a whole number from {least} to {most}")))
            }
        }
    }

    /// Checks that no key is left.
    pub fn finish(self) -> Result<(), Problem> {
        match self.0.first() {
            None => Ok(()),
            Some((key, _)) => Err(Problem::new(reason::BAD_QUERY, format!("'{key}' means nothing here"))),
        }
    }
}

/// Refuses any query.
pub(super) fn expect_no_query(parts: &Parts) -> Result<(), Problem> {
    Query::from_uri(&parts.uri)?.finish()
}

/// Reads the whole body, within bounds.
pub(super) async fn read_body(body: Body, bytes_max: usize, time_max: Duration) -> Result<Bytes, Problem> {
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let too_large = || Problem::new(reason::BODY_TOO_LARGE, format!("a body may have {bytes_max} bytes here"));
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large());
    }
    match timeout(time_max, Limited::new(body, bytes_max).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(Problem::new(reason::BAD_BODY, format!("the body cannot be read: {error}"))),
        Err(_) => {
            let seconds = time_max.as_secs_f64();
            Err(Problem::new(reason::BODY_TIMEOUT, format!("the body must arrive within {seconds} s")))
        }
    }
}

/// Problem for a malformed body.
pub(super) fn bad_body(error: &serde_json::Error) -> Problem {
    Problem::new(reason::BAD_BODY, error.to_string())
}
