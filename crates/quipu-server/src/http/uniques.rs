//! Reads counters of unique items, with bounds.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use quipu_model::{Command, Dialect, Estimate, Name, Reply, SketchCommand};
use quipu_protocol::json;

use super::HttpState;
use super::counters::object;
use super::execute;
use super::problem::{Problem, RequestFailure};
use super::reason;
use super::request::{self, Query, checked_name};
use crate::metrics::HttpOperation;

/// Most counters in one union.
pub(super) const UNION_NAMES_MAX: usize = 64;

/// `GET /v1/counters/{name}/uniques`
pub(super) async fn uniques(State(state): State<Arc<HttpState>>, request: Request) -> Result<Response, RequestFailure> {
    let (parts, _) = request.into_parts();
    let name = request::counter_name(&parts.uri)?;
    let _timer = state.server.http_latencies.time(HttpOperation::Read, checked_name(&name));
    let mut query = Query::from_uri(&parts.uri)?;
    let with = query.take("with").unwrap_or_default();
    query.finish()?;
    let wrong = |text: String| Problem::new(reason::BAD_QUERY, format!("'with': {text}"));
    // Each name is percent-encoded as in a path, so that a comma in a name differs from the
    // separator.
    let others = with.split(|byte| *byte == b',').filter(|other| !other.is_empty());
    let others: Vec<Vec<u8>> = others
        .map(|other| {
            let text = std::str::from_utf8(other).map_err(|_| wrong("names are percent-encoded".to_owned()))?;
            json::percent_decode(text).map_err(|error| wrong(error.to_string()))
        })
        .collect::<Result<_, Problem>>()?;
    if others.len() >= UNION_NAMES_MAX {
        return Err(wrong(format!("at most {} names", UNION_NAMES_MAX - 1)).into());
    }
    let mut names = vec![checked_name(&name)];
    for other in &others {
        names.push(Name::new(other).map_err(|error| wrong(error.to_string()))?);
    }
    let command = Command::Sketch(SketchCommand::CountUnique { names, dialect: Dialect::Native });
    match execute::execute_command(&state.server, &command).await? {
        Reply::Estimate(Estimate { value, low, high }) => Ok(object(|out| {
            // No real count exceeds `i64::MAX`.
            let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
            json::write_name(out, &name);
            out.extend_from_slice(b",\"kind\":\"unique\",");
            json::write_total(out, "value", number(value));
            out.extend_from_slice(format!(",\"exact\":{},\"bound\":{{", low == high).as_bytes());
            json::write_total(out, "low", number(low));
            out.push(b',');
            json::write_total(out, "high", number(high));
            out.extend_from_slice(b"},\"display\":");
            json::write_string(out, &json::display(number(value)));
        })),
        other => unreachable!("counting uniques replies with an estimate, not {other:?}"),
    }
}
