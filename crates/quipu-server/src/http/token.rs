//! Reads the identity that a client gives its mutation, for safe retries.
//!
//! In: the header `Idempotency-Key`, and `"token"`, `"producer"`, `"seq"` of a body. Out: an
//! identity, or none; or the mistake.
//!
//! Invariants:
//! - A mutation with an identity is applied under it or refused, never applied without it.
//! - An identity has the same meaning in both protocols: a token in the header is that of
//!   `IDMP "" <item>` over RESP.

use axum::http::HeaderMap;
use quipu_model::Identity;

use super::problem::Problem;
use super::reason;

/// Header of the token.
pub(super) const HEADER: &str = "idempotency-key";

/// Identity fields of a body.
#[derive(Debug, Clone, Default)]
pub(super) struct BodyIdentity {
    pub token: Option<String>,
    pub producer: Option<String>,
    pub seq: Option<u64>,
}

/// Identity of a mutation, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestToken {
    producer: Vec<u8>,
    value: TokenValue,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TokenValue {
    Token(Vec<u8>),
    Sequence(u64),
}

impl RequestToken {
    /// Identity of a request's mutation, from its header or its body.
    pub fn from_request(headers: &HeaderMap, identity: BodyIdentity) -> Result<Option<RequestToken>, Problem> {
        let (producer, token) = (identity.producer, identity.token.map(String::into_bytes));
        let token = match (header_token(headers)?, token) {
            (Some(header), Some(body)) if header != body => {
                return Err(bad_token("the header Idempotency-Key and \"token\" in the body are not the same"));
            }
            (header, body) => header.or(body),
        };
        let item = match (token, identity.seq) {
            (None, None) if producer.is_some() => return Err(bad_token("a producer without a token or a seq")),
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => return Err(bad_token("a token and a seq: a mutation has one or the other")),
            (None, Some(_)) if producer.is_none() => return Err(bad_token("a seq without a producer")),
            (None, Some(number)) => TokenValue::Sequence(number),
            (Some(token), None) => TokenValue::Token(token),
        };
        RequestToken { producer: producer.unwrap_or_default().into_bytes(), value: item }.check().map(Some)
    }

    /// Identity of a batch item, by its index, where the batch has a token.
    pub fn for_item(&self, index: usize) -> RequestToken {
        // The token stays unchanged, since it may include its time.
        RequestToken { producer: format!("batch/{index}").into_bytes(), value: self.value.clone() }
    }

    /// Identity for the engine.
    pub fn identity(&self) -> Identity<'_> {
        self.try_identity().expect("it is checked when the request is read")
    }

    /// Checks that the identity is valid.
    fn check(self) -> Result<RequestToken, Problem> {
        match self.try_identity() {
            Ok(_) => Ok(self),
            Err(error) => Err(bad_token(error.to_string())),
        }
    }

    fn try_identity(&self) -> Result<Identity<'_>, quipu_model::BadIdentity> {
        match &self.value {
            TokenValue::Token(item) => Identity::token(&self.producer, item),
            TokenValue::Sequence(number) => Identity::sequence(&self.producer, *number),
        }
    }
}

/// Token of a whole batch, valid for every item.
pub(super) fn batch_token(headers: &HeaderMap) -> Result<Option<RequestToken>, Problem> {
    let Some(token) = RequestToken::from_request(headers, BodyIdentity::default())? else { return Ok(None) };
    // The longest index.
    token.for_item(usize::MAX).check()?;
    Ok(Some(token))
}

fn header_token(headers: &HeaderMap) -> Result<Option<Vec<u8>>, Problem> {
    let mut values = headers.get_all(HEADER).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(bad_token("the header Idempotency-Key is there twice"));
    }
    let value = value.as_bytes();
    // A structured field quotes its string; nearly all clients omit the quotes.
    let bare = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    Ok(Some(bare.unwrap_or(value).to_vec()))
}

fn bad_token(detail: impl Into<String>) -> Problem {
    Problem::new(reason::BAD_TOKEN, format!("{}; nothing was applied", detail.into()))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(values: &[&'static str]) -> HeaderMap {
        values
            .iter()
            .map(|value| (axum::http::HeaderName::from_static(HEADER), HeaderValue::from_static(value)))
            .collect()
    }

    fn body_identity(token: Option<&str>, producer: Option<&str>, seq: Option<u64>) -> BodyIdentity {
        BodyIdentity { token: token.map(str::to_owned), producer: producer.map(str::to_owned), seq }
    }

    #[test]
    fn the_same_name_is_the_same_wherever_it_is_written() {
        let bare = RequestToken::from_request(&headers(&["a b"]), BodyIdentity::default()).unwrap().unwrap();
        for (values, identity) in [
            (&["\"a b\""][..], BodyIdentity::default()),
            (&[], body_identity(Some("a b"), None, None)),
            (&["a b"], body_identity(Some("a b"), Some(""), None)),
        ] {
            assert_eq!(RequestToken::from_request(&headers(values), identity).unwrap().as_ref(), Some(&bare));
        }
        assert_eq!(bare.identity(), Identity::token(b"", b"a b").unwrap());
        assert_eq!(RequestToken::from_request(&headers(&[]), BodyIdentity::default()).unwrap(), None);
        let number =
            RequestToken::from_request(&headers(&[]), body_identity(None, Some("p"), Some(7))).unwrap().unwrap();
        assert_eq!(number.identity(), Identity::sequence(b"p", 7).unwrap());
    }

    #[test]
    fn what_names_nothing_or_two_things_is_refused() {
        let long = "a".repeat(300);
        for (values, identity) in [
            (&["a", "a"][..], BodyIdentity::default()),
            (&[""], BodyIdentity::default()),
            (&["\"\""], BodyIdentity::default()),
            (&["a"], body_identity(Some("b"), None, None)),
            (&["a"], body_identity(None, Some("p"), Some(1))),
            (&[], body_identity(Some("a"), Some("p"), Some(1))),
            (&[], body_identity(None, Some("p"), None)),
            (&[], body_identity(None, None, Some(1))),
            (&[], body_identity(None, Some("p"), Some(0))),
            (&[], body_identity(Some(&long), None, None)),
        ] {
            assert_eq!(
                RequestToken::from_request(&headers(values), identity.clone()).unwrap_err().reason,
                reason::BAD_TOKEN,
                "{identity:?}"
            );
        }
    }

    #[test]
    fn an_item_of_a_batch_keeps_the_time_of_its_token() {
        let batch = batch_token(&headers(&["1780000000000-a"])).unwrap().unwrap();
        let (first, second) = (batch.for_item(0), batch.for_item(1));
        assert_ne!(first, second);
        assert_eq!(first.identity().time(), batch.identity().time());
        assert!(first.identity().time().is_some());
    }
}
