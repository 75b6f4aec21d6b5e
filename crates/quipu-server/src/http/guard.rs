//! Who may ask.
//!
//! In: the head of a request. Out: whether it is let in; its body has not been read yet.
//!
//! Invariants:
//! - with a password set, only what the table of routes calls public is answered without it;
//! - a page in a browser cannot change a counter of a server that its user happens to reach: there is no CORS, and by the time the browser
//!   keeps the reply from the page, the add would be done.

use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{Method, Request};

use super::problem::Problem;
use super::reason;
use super::routes;
use crate::shared::Shared;

/// Lets a request in, or says why not.
pub(super) fn let_in<B>(shared: &Shared, request: &Request<B>) -> Result<(), Problem> {
    if let Some(password) = &shared.password
        && !routes::is_public(request.uri().path())
    {
        let given = request.headers().get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        if !given.is_some_and(|given| password.is(given)) {
            let detail = "send the password of the server: 'Authorization: Bearer …'";
            return Err(Problem::new(reason::UNAUTHORIZED, detail));
        }
    }
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
    if let (true, Some(origin)) = (changes, request.headers().get(ORIGIN)) {
        let host = request.headers().get(HOST).map(|host| host.as_bytes());
        let authority =
            origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, rest)| rest.as_bytes());
        if !authority.zip(host).is_some_and(|(origin, host)| origin.eq_ignore_ascii_case(host)) {
            let detail = "the request comes from a page of another origin; nothing was applied";
            return Err(Problem::new(reason::CROSS_ORIGIN, detail));
        }
    }
    Ok(())
}

/// The password in a header `Bearer …`.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_is_bearer_in_any_case() {
        assert_eq!(bearer(b"Bearer secret"), Some(&b"secret"[..]));
        assert_eq!(bearer(b"bearer  secret "), Some(&b"secret"[..]));
        for other in [&b"Basic c2VjcmV0"[..], b"secret", b"Bearersecret", b"Bearer", b""] {
            assert_eq!(bearer(other), None, "{}", other.escape_ascii());
        }
    }
}
