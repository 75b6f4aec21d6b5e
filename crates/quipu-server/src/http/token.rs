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
pub(super) struct Said {
    pub token: Option<String>,
    pub producer: Option<String>,
    pub seq: Option<u64>,
}

/// The name of a mutation, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    producer: Vec<u8>,
    item: Item,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    Token(Vec<u8>),
    Number(u64),
}

impl Token {
    /// The name that a request gives its mutation, in its header or in its body.
    pub fn of(headers: &HeaderMap, said: Said) -> Result<Option<Token>, Problem> {
        let (producer, token) = (said.producer, said.token.map(String::into_bytes));
        let token = match (in_header(headers)?, token) {
            (Some(header), Some(body)) if header != body => {
                return Err(wrong("the header Idempotency-Key and \"token\" in the body are not the same"));
            }
            (header, body) => header.or(body),
        };
        let item = match (token, said.seq) {
            (None, None) if producer.is_some() => return Err(wrong("a producer without a token or a seq")),
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => return Err(wrong("a token and a seq: a mutation has one or the other")),
            (None, Some(_)) if producer.is_none() => return Err(wrong("a seq without a producer")),
            (None, Some(number)) => Item::Number(number),
            (Some(token), None) => Item::Token(token),
        };
        Token { producer: producer.unwrap_or_default().into_bytes(), item }.check().map(Some)
    }

    /// The name of an item of a batch, by its place, where the batch as a whole has one.
    pub fn of_item(&self, index: usize) -> Token {
        // The token stays as it is, since it may carry its time.
        Token { producer: format!("batch/{index}").into_bytes(), item: self.item.clone() }
    }

    /// As the engine takes it.
    pub fn identity(&self) -> Identity<'_> {
        self.try_identity().expect("it is checked when the request is read")
    }

    /// Whether there is such a name, and would be for every item of a batch.
    fn check(self) -> Result<Token, Problem> {
        match self.try_identity() {
            Ok(_) => Ok(self),
            Err(error) => Err(wrong(error.to_string())),
        }
    }

    fn try_identity(&self) -> Result<Identity<'_>, quipu_model::BadIdentity> {
        match &self.item {
            Item::Token(item) => Identity::token(&self.producer, item),
            Item::Number(number) => Identity::sequence(&self.producer, *number),
        }
    }
}

/// The token of a whole batch.
pub(super) fn of_batch(headers: &HeaderMap) -> Result<Option<Token>, Problem> {
    let Some(token) = Token::of(headers, Said::default())? else { return Ok(None) };
    // The longest place there is.
    token.of_item(usize::MAX).check()?;
    Ok(Some(token))
}

fn in_header(headers: &HeaderMap) -> Result<Option<Vec<u8>>, Problem> {
    let mut values = headers.get_all(HEADER).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(wrong("the header Idempotency-Key is there twice"));
    }
    let value = value.as_bytes();
    // A structured field has its string in quotes; nearly everybody leaves them out.
    let bare = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    Ok(Some(bare.unwrap_or(value).to_vec()))
}

fn wrong(detail: impl Into<String>) -> Problem {
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

    fn said(token: Option<&str>, producer: Option<&str>, seq: Option<u64>) -> Said {
        Said { token: token.map(str::to_owned), producer: producer.map(str::to_owned), seq }
    }

    #[test]
    fn the_same_name_is_the_same_wherever_it_is_written() {
        let bare = Token::of(&headers(&["a b"]), Said::default()).unwrap().unwrap();
        for (values, said) in [
            (&["\"a b\""][..], Said::default()),
            (&[], said(Some("a b"), None, None)),
            (&["a b"], said(Some("a b"), Some(""), None)),
        ] {
            assert_eq!(Token::of(&headers(values), said).unwrap().as_ref(), Some(&bare));
        }
        assert_eq!(bare.identity(), Identity::token(b"", b"a b").unwrap());
        assert_eq!(Token::of(&headers(&[]), Said::default()).unwrap(), None);
        let number = Token::of(&headers(&[]), said(None, Some("p"), Some(7))).unwrap().unwrap();
        assert_eq!(number.identity(), Identity::sequence(b"p", 7).unwrap());
    }

    #[test]
    fn what_names_nothing_or_two_things_is_refused() {
        let long = "a".repeat(300);
        for (values, said) in [
            (&["a", "a"][..], Said::default()),
            (&[""], Said::default()),
            (&["\"\""], Said::default()),
            (&["a"], said(Some("b"), None, None)),
            (&["a"], said(None, Some("p"), Some(1))),
            (&[], said(Some("a"), Some("p"), Some(1))),
            (&[], said(None, Some("p"), None)),
            (&[], said(None, None, Some(1))),
            (&[], said(None, Some("p"), Some(0))),
            (&[], said(Some(&long), None, None)),
        ] {
            assert_eq!(Token::of(&headers(values), said.clone()).unwrap_err().reason, reason::BAD_TOKEN, "{said:?}");
        }
    }

    #[test]
    fn an_item_of_a_batch_keeps_the_time_of_its_token() {
        let batch = of_batch(&headers(&["1780000000000-a"])).unwrap().unwrap();
        let (first, second) = (batch.of_item(0), batch.of_item(1));
        assert_ne!(first, second);
        assert_eq!(first.identity().time(), batch.identity().time());
        assert!(first.identity().time().is_some());
    }
}
