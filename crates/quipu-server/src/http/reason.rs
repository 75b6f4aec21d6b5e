//! Defines the problem types of HTTP: those of refusals, and those that only HTTP requests can
//! have.

pub use quipu_model::reason::problem_types::*;

use quipu_model::reason::problem_types::ALL as OF_REFUSALS;
use quipu_model::{ProblemType, Reason};

/// Number of problem types.
pub const COUNT: usize = OF_REFUSALS.len() + own::ALL.len();

/// All problem types.
pub fn all() -> impl Iterator<Item = &'static ProblemType> {
    OF_REFUSALS.iter().chain(own::ALL).copied()
}

pub use own::{
    BAD_BODY, BAD_HOST, BAD_PATH, BAD_QUERY, BAD_SETTINGS, BODY_TIMEOUT, BODY_TOO_LARGE, CROSS_ORIGIN,
    METHOD_NOT_ALLOWED, MISDIRECTED, NO_ROUTE, NOT_READY, UNAUTHORIZED,
};

mod own {
    quipu_model::problem_types! {
        BAD_PATH           "bad-path"           400 0 "The path does not name a counter or a namespace"
        BAD_QUERY          "bad-query"          400 0 "The query is not understood"
        BAD_BODY           "bad-body"           400 0 "The body is not understood"
        BAD_HOST           "bad-host"           400 0 "The request does not name one host"
        UNAUTHORIZED       "unauthorized"       401 0 "The password is missing or wrong"
        CROSS_ORIGIN       "cross-origin"       403 0 "Pages of other origins may not do this"
        NO_ROUTE           "no-route"           404 0 "There is nothing here"
        METHOD_NOT_ALLOWED "method-not-allowed" 405 0 "The method is not offered here"
        BODY_TIMEOUT       "body-timeout"       408 0 "The body did not arrive in time"
        BODY_TOO_LARGE     "body-too-large"     413 0 "The body is larger than its bound"
        MISDIRECTED        "misdirected"        421 0 "The server is not served under this host"
        BAD_SETTINGS       "bad-settings"       422 0 "The settings of the namespace have mistakes"
        NOT_READY          "not-ready"          503 1 "The server is not ready"
    }
}

/// Reasons of problems that no refusal of the engine causes.
pub const REASONS: &[Reason] = &[
    row(
        BAD_PATH,
        "The name in the path is empty, too long, or wrongly percent-encoded.",
        "Encode the name as a URL does; a counter's name has at most 512 bytes.",
    ),
    row(
        BAD_QUERY,
        "A parameter of the query is unknown or has a wrong value.",
        "The detail names it. `/openapi.json` lists the parameters of every path.",
    ),
    row(
        BAD_BODY,
        "The body is not the JSON that this path takes.",
        "The detail names the mistake. `/openapi.json` has a schema and an example.",
    ),
    row(
        BAD_HOST,
        "The request has no `Host` header, or two, or one that contradicts its request line.",
        "Send one `Host` header. A proxy in between may add a second one.",
    ),
    row(
        UNAUTHORIZED,
        "The server has a password, and the request brings none or a wrong one.",
        "Send `Authorization: Bearer PASSWORD`.",
    ),
    row(
        CROSS_ORIGIN,
        "A browser sent a change from a page of another origin; or a read, and the server has no password.",
        "Send it from your own server, or serve the page and Quipu under one origin.",
    ),
    row(
        NO_ROUTE,
        "Nothing has this path.",
        "Look for the path in `/openapi.json`; counters are under `/v1/counters/NAME`.",
    ),
    row(METHOD_NOT_ALLOWED, "The path exists, and not with this method.", "The `Allow` header lists its methods."),
    row(
        BODY_TIMEOUT,
        "The body did not arrive within 10 seconds.",
        "Send it again on a new connection, in smaller requests if the network is slow.",
    ),
    row(
        BODY_TOO_LARGE,
        "The body, or the number of items in it, is over its bound.",
        "Split the batch. The bound in bytes is `limits.http_body_bytes`.",
    ),
    row(
        MISDIRECTED,
        "Without a password, HTTP is served under `localhost`, IP addresses and the names in `http_hosts`. A page of \
         another origin could reach it under any other name.",
        "Ask for an IP address, add the name to `http_hosts`, or set a password.",
    ),
    row(
        BAD_SETTINGS,
        "The settings of a namespace have mistakes; none of them was changed.",
        "`errors` names every mistake with its key. docs/configuration.md lists all keys.",
    ),
    row(
        BAD_TOKEN,
        "The header `Idempotency-Key`, or `token`, `producer` or `seq` in the body, is malformed.",
        "Send one token, or one producer with one number, as the detail says.",
    ),
    row(
        BUSY,
        "As many batches, watchers or changes of settings are under way as may be.",
        "Try again after a second, or send fewer at once.",
    ),
    row(
        NOT_READY,
        "The server is starting or stopping, or a fault keeps it from counting.",
        "Wait for it; `/readyz` says why. A stopped server does not come back by itself.",
    ),
];

const fn row(http: &'static ProblemType, cause: &'static str, remedy: &'static str) -> Reason {
    Reason { name: http.word, resp: None, http: Some(http), cause, remedy }
}
