//! Reads item counters: item frequencies and top lists.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use quipu_model::{Command, Dialect, Frequencies, Frequency, Refusal, Reply, SketchCommand, TOP_ITEMS_MAX, TopItem};
use quipu_protocol::json;

use super::HttpState;
use super::counters::object;
use super::execute;
use super::problem::{Problem, RequestFailure};
use super::reason;
use super::request::{self, Query, checked_name};
use crate::metrics::HttpOperation;

/// Most items of one request: they have to fit the request head.
pub(super) const ITEMS_MAX: usize = 64;

/// Default number of rows in a list.
const TOP_DEFAULT: u64 = 10;

/// `GET /v1/counters/{name}/frequency`
pub(super) async fn frequency(
    State(state): State<Arc<HttpState>>,
    request: Request,
) -> Result<Response, RequestFailure> {
    let (parts, _) = request.into_parts();
    let name = request::counter_name(&parts.uri)?;
    let _timer = state.server.http_latencies.time(HttpOperation::Read, checked_name(&name));
    let mut query = Query::with_many(&parts.uri, "item")?;
    let items = query.take_all("item");
    query.finish()?;
    if items.len() > ITEMS_MAX {
        let text = format!("'item' may be given {ITEMS_MAX} times");
        return Err(Problem::new(reason::BAD_QUERY, text).into());
    }
    let asked = items.iter().map(|item| &**item).collect();
    let command = SketchCommand::ReadItems { name: checked_name(&name), items: asked, dialect: Dialect::Native };
    let Frequencies { rows, total, error } = match execute_sketch(&state, command).await? {
        Some(Reply::Frequencies(frequencies)) => frequencies,
        // An absent counter has counted no items.
        None => Frequencies { rows: vec![Frequency { at_most: 0, typical: 0 }; items.len()], total: 0, error: 0 },
        Some(other) => unreachable!("reading items replies with frequencies, not {other:?}"),
    };
    Ok(object(|out| {
        json::write_name(out, &name);
        out.extend_from_slice(b",\"kind\":\"frequency\",");
        json::write_total(out, "total", saturate_i64(total));
        out.push(b',');
        json::write_total(out, "error", saturate_i64(error));
        out.extend_from_slice(b",\"items\":[");
        for (index, (item, Frequency { at_most, typical })) in items.iter().zip(rows).enumerate() {
            out.extend_from_slice(if index == 0 { b"{" } else { b",{" });
            write_item(out, item);
            out.push(b',');
            json::write_total(out, "at_most", saturate_i64(at_most));
            out.push(b',');
            json::write_total(out, "typical", saturate_i64(typical));
            out.push(b'}');
        }
        out.push(b']');
    }))
}

/// `GET /v1/counters/{name}/top`
pub(super) async fn top(State(state): State<Arc<HttpState>>, request: Request) -> Result<Response, RequestFailure> {
    let (parts, _) = request.into_parts();
    let name = request::counter_name(&parts.uri)?;
    let _timer = state.server.http_latencies.time(HttpOperation::Read, checked_name(&name));
    let mut query = Query::from_uri(&parts.uri)?;
    let k = query.take_number("k", 1, TOP_ITEMS_MAX.into())?.unwrap_or(TOP_DEFAULT) as usize;
    query.finish()?;
    let rows =
        match execute_sketch(&state, SketchCommand::ListTop { name: checked_name(&name), dialect: Dialect::Native })
            .await?
        {
            Some(Reply::TopItems(rows)) => rows,
            None => Vec::new(),
            Some(other) => unreachable!("a list replies with rows, not {other:?}"),
        };
    Ok(object(|out| {
        json::write_name(out, &name);
        out.extend_from_slice(b",\"kind\":\"top\",\"rows\":[");
        for (index, TopItem { item, at_most, at_least, certain }) in rows.iter().take(k).enumerate() {
            out.extend_from_slice(if index == 0 { b"{" } else { b",{" });
            json::write_bytes(out, "key", item);
            out.push(b',');
            json::write_total(out, "at_most", saturate_i64(*at_most));
            out.push(b',');
            json::write_total(out, "at_least", saturate_i64(*at_least));
            out.extend_from_slice(format!(",\"certain\":{certain}}}").as_bytes());
        }
        out.push(b']');
    }))
}

/// Writes `"item":"…"`.
pub(super) fn write_item(out: &mut Vec<u8>, item: &[u8]) {
    json::write_bytes(out, "item", item);
}

/// Executes a sketch command; `None` if the counter does not exist.
async fn execute_sketch(state: &HttpState, command: SketchCommand<'_>) -> Result<Option<Reply>, RequestFailure> {
    match execute::execute_command(&state.server, &Command::Sketch(command)).await {
        Ok(reply) => Ok(Some(reply)),
        Err(RequestFailure::Refused(Refusal::NoSketch { .. })) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Converts a count; no real count exceeds `i64::MAX`.
fn saturate_i64(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
