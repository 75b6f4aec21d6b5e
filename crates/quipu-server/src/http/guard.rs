//! Decides which requests are served.
//!
//! In: the head of a request. Out: the decision. The body has not been read yet.
//!
//! Invariants:
//! - If a password is set, only the public routes are served without it.
//! - If none is set, a request is served only under `localhost`, an IP address or a name of
//!   `http_hosts`. A page that points its own name at this server (DNS rebinding) has that name in
//!   `Host`, which it cannot change.
//! - A page of another origin changes nothing. The missing CORS headers would only hide the reply
//!   from the page, after the change.
//! - Without a password, a page of another origin does not even cause a read. The reply's timing,
//!   or an error, would tell the page about data that it cannot see.
//!
//! Browsers write `Host`, `Origin` and `Sec-Fetch-*` themselves; a page cannot set them. `Referer`,
//! `X-Forwarded-*`, `Forwarded` and `Content-Type` decide nothing: a page omits or chooses them,
//! and a client sends any.

use axum::http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use axum::http::{HeaderValue, Method, Request, Version};

use super::problem::Problem;
use super::reason;
use super::routes;
use crate::server_state::ServerState;

/// Relation of the sending page to this server: `same-origin`, `same-site`, `cross-site`, or `none`
/// for a request of the user. Browsers send it to addresses that they trust; loopback is one.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Mode of the request: `navigate` opens a page.
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// Destination of the reply: `document` is a window of its own, not a frame.
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Longest host that an error repeats: no DNS name is longer.
const HOST_SHOWN_BYTES_MAX: usize = 253;

/// Accepts a request, or returns the problem.
pub(super) fn check_request<B>(server: &ServerState, request: &Request<B>) -> Result<(), Problem> {
    let authority = authority(request)?;
    match &server.password {
        Some(password) if !routes::is_public(request.uri().path()) => {
            let given = request.headers().get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
            if !given.is_some_and(|given| password.matches(given)) {
                let detail = "send the password of the server: 'Authorization: Bearer …'";
                return Err(Problem::new(reason::UNAUTHORIZED, detail));
            }
        }
        // The password admits a client under any name.
        Some(_) => {}
        None => check_host(server, authority)?,
    }
    check_origin(request, authority, server.password.is_some())
}

/// The request's `host[:port]`: given once, or not at all in HTTP/1.0.
fn authority<B>(request: &Request<B>) -> Result<Option<&[u8]>, Problem> {
    let wrong = |detail: &str| Err(Problem::new(reason::BAD_HOST, format!("{detail}; nothing was applied")));
    let target = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let mut hosts = request.headers().get_all(HOST).iter().map(HeaderValue::as_bytes);
    match (target, hosts.next(), hosts.next()) {
        (_, _, Some(_)) => wrong("the request has two Host headers"),
        (Some(target), Some(host), None) if !target.eq_ignore_ascii_case(host) => {
            wrong("the request line and the Host header name different hosts")
        }
        // No browser speaks HTTP/1.0.
        (_, None, None) if request.version() > Version::HTTP_10 => wrong("the request has no Host header"),
        (target, host, None) => Ok(target.or(host)),
    }
}

/// Refuses names through which a foreign page may have reached this server.
fn check_host(server: &ServerState, authority: Option<&[u8]>) -> Result<(), Problem> {
    let Some(authority) = authority else { return Ok(()) };
    if server.http_hosts.serves(authority) {
        return Ok(());
    }
    let shown = match authority.len() <= HOST_SHOWN_BYTES_MAX {
        true => format!("'{}'", authority.escape_ascii()),
        false => "this host".to_owned(),
    };
    Err(Problem::new(
        reason::MISDIRECTED,
        format!(
            "{shown} is not served; nothing was applied. Without a password only 'localhost', IP addresses and the names in \
             http_hosts are: ask for one of these, add the name (--http-hosts, QUIPU_HTTP_HOSTS), or set a password"
        ),
    ))
}

/// Refuses requests of pages of another origin: changes always, reads if no password is set.
fn check_origin<B>(request: &Request<B>, authority: Option<&[u8]>, has_password: bool) -> Result<(), Problem> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if is_read && has_password {
        return Ok(());
    }
    let all_are_ours = |name: HeaderName, is_ours: &dyn Fn(&[u8]) -> bool| {
        request.headers().get_all(name).iter().all(|value| is_ours(value.as_bytes()))
    };
    let same_origin = all_are_ours(ORIGIN, &|origin| {
        let origin = std::str::from_utf8(origin).ok().and_then(|origin| origin.split_once("://"));
        let host = origin.map(|(_scheme, host)| host.as_bytes());
        host.zip(authority).is_some_and(|(host, authority)| host.eq_ignore_ascii_case(authority))
    });
    let same_site = all_are_ours(SEC_FETCH_SITE, &|site| matches!(site, b"same-origin" | b"none"));
    if same_origin && (same_site || is_read && opens_window(request)) {
        return Ok(());
    }
    let detail = "the request comes from a page of another origin; nothing was applied";
    Err(Problem::new(reason::CROSS_ORIGIN, detail))
}

/// Returns true if the user follows a link. The reply is then a page of its own, which the linking
/// page cannot read.
fn opens_window<B>(request: &Request<B>) -> bool {
    let header_is = |name: HeaderName, word: &str| request.headers().get(name).is_some_and(|value| value == word);
    header_is(SEC_FETCH_MODE, "navigate") && header_is(SEC_FETCH_DEST, "document")
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
