//! What a client calls its mutation, so that it can send it again.
//!
//! In: the header `Idempotency-Key`, and `"token"`, `"producer"`, `"seq"` of a body. Out: an identity, or none; or what is wrong with it.
//!
//! Invariants:
//! - a mutation that is named is applied under its name or refused, never applied without it;
//! - the same name means the same on every door: a token in the header is that of `IDMP "" <item>` over RESP.

use axum::http::HeaderMap;
use quipu_model::Identity;

use super::problem::Problem;
use super::reason;

/// The header that a token comes in.
pub(super) const HEADER: &str = "idempotency-key";

/// What a body says of it.
#[derive(Debug, Clone, Default)]
pub(super) struct BodyIdentity {
    pub token: Option<String>,
    pub producer: Option<String>,
    pub seq: Option<u64>,
}

/// The name of a mutation, checked.
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
    /// The name that a request gives its mutation, in its header or in its body.
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

    /// The name of an item of a batch, by its place, where the batch as a whole has one.
    pub fn for_item(&self, index: usize) -> RequestToken {
        // The token stays as it is, since it may carry its time.
        RequestToken { producer: format!("batch/{index}").into_bytes(), value: self.value.clone() }
    }

    /// As the engine takes it.
    pub fn identity(&self) -> Identity<'_> {
        self.try_identity().expect("it is checked when the request is read")
    }

    /// Whether there is such a name, and would be for every item of a batch.
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

/// The token of a whole batch.
pub(super) fn batch_token(headers: &HeaderMap) -> Result<Option<RequestToken>, Problem> {
    let Some(token) = RequestToken::from_request(headers, BodyIdentity::default())? else { return Ok(None) };
    // The longest place there is.
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
    // A structured field has its string in quotes; nearly everybody leaves them out.
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
