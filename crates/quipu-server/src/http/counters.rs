//! Serves single counters: add, read, reset, delete, and the list of them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use quipu_model::{Command, Freshness, Kind, Pattern, Reply, Scan};
use quipu_protocol::json;

use super::HttpState;
use super::execute;
use super::problem::{Problem, RequestFailure};
use super::reason;
use super::request::{self, BODY_BYTES_MAX, Query, bad_body, checked_name};
use super::token::{BodyIdentity, RequestToken};
use crate::metrics::{HttpOperation, LatencyTimer};

/// Default number of counters on one page of the list.
pub(super) const LIST_LIMIT_DEFAULT: u64 = 100;

/// Most counters on one page.
pub(super) const LIST_LIMIT_MAX: u64 = 1_000;

/// Names examined in one step of a walk: with the longest names, every byte of them escaped, about
/// 300 KB of reply.
const LIST_STEP_NAMES: usize = 100;

/// Bytes of names at which a page ends; with the last step, a reply stays within 1 MB.
const LIST_BYTES_MAX: usize = 64 << 10;

/// Most steps for one page. For a rare prefix the server does not search all counters at once. The
/// page is then short or empty, and its cursor continues.
const LIST_STEPS_MAX: usize = 64;

/// `POST /v1/counters/{name}/add`
pub(super) async fn add(State(state): State<Arc<HttpState>>, request: Request) -> Result<Response, RequestFailure> {
    let (parts, body) = request.into_parts();
    let name = request::counter_name(&parts.uri)?;
    let _timer = state.server.http_latencies.time(HttpOperation::Add, checked_name(&name));
    let mut query = Query::from_uri(&parts.uri)?;
    let no_reply = match query.take("reply").as_deref() {
        None => false,
        Some(b"none") => true,
        Some(_) => return Err(Problem::new(reason::BAD_QUERY, "'reply' can only be 'none'").into()),
    };
    query.finish()?;
    let body = request::read_body(body, BODY_BYTES_MAX, state.server.limits.http_body_time_max).await?;
    let body = json::parse_add(&body).map_err(|error| bad_body(&error))?;
    let identity = BodyIdentity { token: body.token, producer: body.producer, seq: body.seq };
    let token = RequestToken::from_request(&parts.headers, identity)?;
    let shard_key = body.shard_key.as_deref().map(str::as_bytes);
    let command = Command::Add { name: checked_name(&name), delta: body.delta, shard_key };
    match execute::execute_once(&state.server, token.as_ref(), &command).await? {
        Reply::Integer(_) if no_reply => Ok(StatusCode::NO_CONTENT.into_response()),
        Reply::Integer(value) => Ok(object(|out| {
            json::write_name(out, &name);
            out.push(b',');
            json::write_total(out, "value", value);
        })),
        other => unreachable!("an add replies with a number, not {other:?}"),
    }
}

/// `GET /v1/counters/{name}`
pub(super) async fn read(State(state): State<Arc<HttpState>>, request: Request) -> Result<Response, RequestFailure> {
    let (parts, _) = request.into_parts();
    let name = request::counter_name(&parts.uri)?;
    let _timer = state.server.http_latencies.time(HttpOperation::Read, checked_name(&name));
    let mut query = Query::from_uri(&parts.uri)?;
    let freshness = match query.take("freshness") {
        None => Freshness::Usual,
        Some(text) => Freshness::parse(&text).ok_or_else(|| {
            Problem::new(reason::BAD_QUERY, "'freshness' is 'cached', 'fresh', or a time up to an hour such as '500ms'")
        })?,
    };
    query.finish()?;
    let reading = execute::read_counter(&state.server, checked_name(&name), freshness).await?;
    let mut out = Vec::with_capacity(512);
    json::write_reading(&mut out, &name, &reading);
    out.push(b'\n');
    Ok(json_response(out))
}

/// `POST /v1/counters/{name}/reset`
pub(super) async fn reset(State(state): State<Arc<HttpState>>, request: Request) -> Result<Response, RequestFailure> {
    let MutationRequest { name, token, _timer } = read_mutation(&state, request, HttpOperation::Reset).await?;
    let command = Command::Reset { name: checked_name(&name) };
    match execute::execute_once(&state.server, token.as_ref(), &command).await? {
        Reply::Integer(before) => Ok(object(|out| write_reset(out, &name, before))),
        other => unreachable!("a reset replies with a number, not {other:?}"),
    }
}

/// `DELETE /v1/counters/{name}`
pub(super) async fn delete(State(state): State<Arc<HttpState>>, request: Request) -> Result<Response, RequestFailure> {
    let MutationRequest { name, token, _timer } = read_mutation(&state, request, HttpOperation::Delete).await?;
    let command = Command::Delete { names: vec![checked_name(&name)] };
    match execute::execute_once(&state.server, token.as_ref(), &command).await? {
        Reply::Integer(deleted) => Ok(object(|out| write_deleted(out, &name, deleted == 1))),
        other => unreachable!("a delete replies with a number, not {other:?}"),
    }
}

/// `GET /v1/counters`
pub(super) async fn list(State(state): State<Arc<HttpState>>, request: Request) -> Result<Response, RequestFailure> {
    let (parts, _) = request.into_parts();
    let _timer = state.server.http_latencies.time_all(HttpOperation::List);
    let mut query = Query::from_uri(&parts.uri)?;
    let prefix = query.take("prefix").unwrap_or_default();
    let limit = query.take_number("limit", 1, LIST_LIMIT_MAX)?.unwrap_or(LIST_LIMIT_DEFAULT) as usize;
    let mut cursor = query.take_number("cursor", 0, u64::MAX)?.unwrap_or(0);
    query.finish()?;
    let pattern = prefix_pattern(&prefix)?;
    let (mut names, mut bytes) = (Vec::new(), 0);
    for _ in 0..LIST_STEPS_MAX {
        let count = LIST_STEP_NAMES.min(limit - names.len());
        let scan = Scan { cursor, pattern: (!prefix.is_empty()).then_some(Pattern(&pattern)), count };
        let Reply::Page(next, page) = execute::execute_command(&state.server, &Command::Scan(scan)).await? else {
            unreachable!("a scan replies with a page")
        };
        bytes += page.iter().map(|name| name.len()).sum::<usize>();
        names.extend(page);
        cursor = next;
        if cursor == 0 || names.len() >= limit || bytes >= LIST_BYTES_MAX {
            break;
        }
    }
    let values = match names.is_empty() {
        true => Vec::new(),
        false => {
            let names = names.iter().map(|name| checked_name(name)).collect();
            match execute::execute_command(&state.server, &Command::ReadMany { names }).await? {
                Reply::Values(values) => values,
                other => unreachable!("reading several replies with their values, not {other:?}"),
            }
        }
    };
    let mut listed = Vec::with_capacity(names.len());
    for (name, value) in names.iter().zip(values) {
        match value {
            Some(value) => listed.push((name, Kind::Count, value)),
            // It is of an approximate kind, or has been removed since the walk found it; then it is
            // not listed.
            None => {
                let reading = execute::read_counter(&state.server, checked_name(name), Freshness::Cached).await?;
                listed.extend(reading.exists.then_some((name, reading.kind, reading.value)));
            }
        }
    }
    Ok(object(|out| {
        out.extend_from_slice(b"\"counters\":[");
        for (index, (name, kind, value)) in listed.into_iter().enumerate() {
            out.extend_from_slice(if index == 0 { b"{" } else { b",{" });
            json::write_name(out, name);
            out.extend_from_slice(format!(",\"kind\":\"{}\",", kind.name()).as_bytes());
            json::write_total(out, "value", value);
            out.push(b'}');
        }
        // A string, since clients must not calculate with it.
        let cursor = if cursor == 0 { "null".to_owned() } else { format!("\"{cursor}\"") };
        out.extend_from_slice(format!("],\"cursor\":{cursor}").as_bytes());
    }))
}

/// A mutation without arguments: its counter and its token.
struct MutationRequest {
    name: Vec<u8>,
    token: Option<RequestToken>,
    _timer: LatencyTimer,
}

async fn read_mutation(
    state: &HttpState,
    request: Request,
    operation: HttpOperation,
) -> Result<MutationRequest, RequestFailure> {
    let (parts, body) = request.into_parts();
    let name = request::counter_name(&parts.uri)?;
    let _timer = state.server.http_latencies.time(operation, checked_name(&name));
    request::expect_no_query(&parts)?;
    let body = request::read_body(body, BODY_BYTES_MAX, state.server.limits.http_body_time_max).await?;
    let body = json::parse_mutation(&body).map_err(|error| bad_body(&error))?;
    let identity = BodyIdentity { token: body.token, producer: body.producer, seq: body.seq };
    let token = RequestToken::from_request(&parts.headers, identity)?;
    Ok(MutationRequest { name, token, _timer })
}

pub(super) fn write_reset(out: &mut Vec<u8>, name: &[u8], before: i64) {
    json::write_name(out, name);
    out.push(b',');
    json::write_total(out, "value", 0);
    out.push(b',');
    json::write_total(out, "before", before);
}

pub(super) fn write_deleted(out: &mut Vec<u8>, name: &[u8], deleted: bool) {
    json::write_name(out, name);
    out.extend_from_slice(format!(",\"deleted\":{deleted}").as_bytes());
}

/// The glob pattern of all names with this prefix.
fn prefix_pattern(prefix: &[u8]) -> Result<Vec<u8>, Problem> {
    let mut pattern = Vec::with_capacity(prefix.len() + 1);
    for &byte in prefix {
        if b"*?[]\\^-".contains(&byte) {
            pattern.push(b'\\');
        }
        pattern.push(byte);
    }
    pattern.push(b'*');
    match pattern.len() > Pattern::BYTES_MAX {
        true => Err(Problem::new(reason::BAD_QUERY, format!("'prefix' may have {} bytes", Pattern::BYTES_MAX - 1))),
        false => Ok(pattern),
    }
}

/// A reply of one object.
pub(super) fn object(write: impl FnOnce(&mut Vec<u8>)) -> Response {
    let mut out = Vec::with_capacity(128);
    out.push(b'{');
    write(&mut out);
    out.extend_from_slice(b"}\n");
    json_response(out)
}

pub(super) fn json_response(body: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_matches_as_it_is_written() {
        for (prefix, name, matches) in [
            (&b"likes:"[..], &b"likes:42"[..], true),
            (b"likes:", b"like", false),
            (b"a*", b"a*b", true),
            (b"a*", b"ab", false),
            (b"[a-c]\\?", b"[a-c]\\?x", true),
            (b"[a-c]\\?", b"b\\?", false),
            (b"\xff", b"\xff\x00", true),
        ] {
            let pattern = prefix_pattern(prefix).unwrap();
            assert_eq!(Pattern(&pattern).matches(name), matches, "{}", pattern.escape_ascii());
        }
        assert!(prefix_pattern(&[b'a'; Pattern::BYTES_MAX]).is_err());
        assert!(prefix_pattern(&[b'a'; Pattern::BYTES_MAX - 1]).is_ok());
    }
}
