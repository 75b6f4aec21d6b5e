//! Writes refusals as problems, in the format of RFC 9457.
//!
//! In: the reason of a refusal. Out: a status, headers, and a body for programs and people.
//!
//! Invariants:
//! - A problem means that nothing was applied.
//! - The problem type sets status, type, title and retry time: `quipu-model/src/reason.rs`,
//!   `http/reason.rs`.

use axum::body::Body;
use axum::http::header::{ALLOW, CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use quipu_model::{ProblemType, Refusal};
use quipu_protocol::json;

use super::reason;

/// Prefix of every problem type; the reason's name follows.
pub(crate) const TYPE_PREFIX: &str = "urn:quipu:problem:";

/// A problem: its type and the details of this case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub reason: &'static ProblemType,
    pub detail: String,
    /// Allowed methods, if the method is the problem.
    pub allow: Option<HeaderValue>,
    /// All mistakes, if there may be several.
    pub mistakes: Vec<Mistake>,
}

/// One of several mistakes in a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mistake {
    /// Key with the mistake, if it concerns one key.
    pub key: Option<String>,
    pub text: String,
}

impl Problem {
    pub fn new(reason: &'static ProblemType, detail: impl Into<String>) -> Problem {
        Problem { reason, detail: detail.into(), allow: None, mistakes: Vec::new() }
    }

    /// Writes the body, or an item of a batch.
    pub fn write(&self, out: &mut Vec<u8>) {
        let Problem { reason, detail, mistakes, .. } = self;
        let ProblemType { word, status, title, .. } = reason;
        let head = format!("{{\"type\":\"{TYPE_PREFIX}{word}\",\"title\":\"{title}\",\"status\":{status},");
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(b"\"detail\":");
        json::write_string(out, detail);
        for (index, Mistake { key, text }) in mistakes.iter().enumerate() {
            out.extend_from_slice(if index == 0 { b",\"errors\":[{\"detail\":" } else { b",{\"detail\":" });
            json::write_string(out, text);
            if let Some(key) = key {
                out.extend_from_slice(b",\"pointer\":");
                // A key as an RFC 6901 pointer.
                json::write_string(out, &format!("#/{}", key.replace('~', "~0").replace('/', "~1")));
            }
            out.push(b'}');
        }
        out.extend_from_slice(if mistakes.is_empty() { b"}" } else { b"]}" });
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        let reason = refusal.reason().http.expect("every refusal has a problem type, as a test of the table says");
        Problem::new(reason, refusal.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut body = Vec::with_capacity(256);
        self.write(&mut body);
        body.push(b'\n');
        let mut response = Response::new(Body::from(body));
        *response.status_mut() =
            StatusCode::from_u16(self.reason.status).expect("the table has statuses between 400 and 599");
        // The metrics read the reason here.
        response.extensions_mut().insert(self.reason);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.reason.retry_after > 0 {
            headers.insert(RETRY_AFTER, HeaderValue::from(u16::from(self.reason.retry_after)));
        }
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, allow);
        }
        if self.reason == reason::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"quipu\""));
        }
        // The server closes instead of waiting for the rest of the body.
        let closing = [
            reason::BAD_HOST,
            reason::UNAUTHORIZED,
            reason::BODY_TOO_LARGE,
            reason::BODY_TIMEOUT,
            reason::CROSS_ORIGIN,
            reason::MISDIRECTED,
        ];
        if closing.contains(&self.reason) {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Reason why there is no regular reply.
#[derive(Debug)]
pub(super) enum RequestFailure {
    /// Nothing was applied.
    Problem(Problem),
    /// The engine refused; nothing was applied.
    Refused(Refusal),
    /// Outcome unknown: applied once or not at all. Any reply would claim one or the other, so the
    /// connection closes without a reply.
    OutcomeUnknown,
}

/// Marks a response that must not be sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct SuppressedResponse;

impl From<Problem> for RequestFailure {
    fn from(problem: Problem) -> RequestFailure {
        RequestFailure::Problem(problem)
    }
}

impl From<Refusal> for RequestFailure {
    fn from(refusal: Refusal) -> RequestFailure {
        RequestFailure::Refused(refusal)
    }
}

impl IntoResponse for RequestFailure {
    fn into_response(self) -> Response {
        match self {
            RequestFailure::Problem(problem) => problem.into_response(),
            RequestFailure::Refused(refusal) => Problem::from(refusal).into_response(),
            RequestFailure::OutcomeUnknown => {
                let mut response = Response::new(Body::empty());
                response.extensions_mut().insert(SuppressedResponse);
                response
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use quipu_protocol::{RespVersion, RespWriter};

    use super::*;

    #[test]
    fn every_reason_is_a_proper_problem() {
        let mut words: Vec<&str> = reason::all().map(|reason| reason.word).collect();
        for reason in reason::all() {
            let response = Problem::new(reason, "a \"word\"\n").into_response();
            assert!((400..600).contains(&response.status().as_u16()));
            let mut body = Vec::new();
            Problem::new(reason, "a \"word\"\n").write(&mut body);
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(body["type"], format!("urn:quipu:problem:{}", reason.word));
            assert_eq!(
                (body["status"].as_u64(), &body["detail"]),
                (Some(reason.status.into()), &"a \"word\"\n".into())
            );
            let later = matches!(reason.status, 503 | 507);
            assert!(!later || response.headers().contains_key(RETRY_AFTER), "{reason:?} says when to try again");
        }
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), reason::COUNT, "a word is used once");
    }

    /// Texts of a refusal in both protocols; RESP once per command where it differs.
    fn golden(refusal: Refusal) -> String {
        let mut text = refusal.reason().name.to_owned();
        let mut lines: Vec<Vec<u8>> = Vec::new();
        for command in ["set", "cms.query", "topk.add"] {
            let mut line = Vec::new();
            RespWriter::new(&mut line, RespVersion::Resp2).refusal(&refusal, command);
            if !lines.contains(&line) {
                text.push_str(&format!("\n  resp   {}", line.escape_ascii()));
                lines.push(line);
            }
        }
        let problem = Problem::from(refusal);
        let mut body = Vec::new();
        problem.write(&mut body);
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let response = problem.into_response();
        let retry = response.headers().get(RETRY_AFTER).map_or("-", |value| value.to_str().unwrap());
        text.push_str(&format!("\n  http   {} {}", response.status().as_u16(), body["type"].as_str().unwrap()));
        text.push_str(&format!("\n  title  {}", body["title"].as_str().unwrap()));
        text.push_str(&format!("\n  detail {}\n  retry  {retry}\n", body["detail"].as_str().unwrap()));
        text
    }

    #[test]
    fn every_refusal_says_over_both_protocols_what_the_golden_file_has() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/refusals.txt");
        let actual: String = Refusal::examples().into_iter().map(golden).collect();
        let golden = std::fs::read_to_string(path).unwrap();
        assert!(actual == golden, "a client may match on these; testdata/refusals.txt is to be:\n{actual}");
    }
}
