//! The problem types of HTTP: those of refusals, and those that only a request over HTTP can have.

pub use quipu_model::reason::problem_types::*;

use quipu_model::ProblemType;
use quipu_model::reason::problem_types::ALL as OF_REFUSALS;

/// How many problem types there are.
pub const COUNT: usize = OF_REFUSALS.len() + own::ALL.len();

/// All problem types.
pub fn all() -> impl Iterator<Item = &'static ProblemType> {
    OF_REFUSALS.iter().chain(own::ALL).copied()
}

pub use own::{
    BAD_BODY, BAD_PATH, BAD_QUERY, BAD_SETTINGS, BODY_TIMEOUT, BODY_TOO_LARGE, CROSS_ORIGIN, METHOD_NOT_ALLOWED,
    NO_ROUTE, NOT_READY, UNAUTHORIZED,
};

mod own {
    quipu_model::problem_types! {
        BAD_PATH           "bad-path"           400 0 "The path does not name a counter or a namespace"
        BAD_QUERY          "bad-query"          400 0 "The query is not understood"
        BAD_BODY           "bad-body"           400 0 "The body is not understood"
        UNAUTHORIZED       "unauthorized"       401 0 "The password is missing or wrong"
        CROSS_ORIGIN       "cross-origin"       403 0 "Pages of other origins may not change counters"
        NO_ROUTE           "no-route"           404 0 "There is nothing here"
        METHOD_NOT_ALLOWED "method-not-allowed" 405 0 "The method is not offered here"
        BODY_TIMEOUT       "body-timeout"       408 0 "The body did not arrive in time"
        BODY_TOO_LARGE     "body-too-large"     413 0 "The body is larger than its bound"
        BAD_SETTINGS       "bad-settings"       422 0 "The settings of the namespace have mistakes"
        NOT_READY          "not-ready"          503 1 "The server is not ready"
    }
}
