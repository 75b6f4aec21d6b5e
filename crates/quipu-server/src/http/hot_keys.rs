//! Serves `GET /v1/hot`: the hottest counters.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use quipu_protocol::json;

use super::HttpState;
use super::counters::object;
use super::problem::RequestFailure;
use super::request::Query;
use crate::hot_keys::{HOT_NAMES_MAX, HotKey, SAMPLE};

/// Default number of counters in each list.
const COUNT_DEFAULT: u64 = 10;

/// `GET /v1/hot`
pub(super) async fn hot_keys(
    State(state): State<Arc<HttpState>>,
    request: Request,
) -> Result<Response, RequestFailure> {
    let mut query = Query::from_uri(request.uri())?;
    let count = query.take_number("count", 1, HOT_NAMES_MAX.into())?.unwrap_or(COUNT_DEFAULT) as usize;
    query.finish()?;
    let server = &state.server;
    let report = server.hot_keys.list(count, server.engine.now());
    let note = report.note();
    Ok(object(|out| {
        out.extend_from_slice(format!("\"since\":\"{}\",\"sample\":{SAMPLE}", json::rfc3339(report.since)).as_bytes());
        for (word, list) in [("writes", report.writes), ("reads", report.reads)] {
            out.extend_from_slice(format!(",\"{word}\":[").as_bytes());
            for (index, HotKey { name, about, at_least, at_most }) in list.rows.iter().enumerate() {
                out.extend_from_slice(if index == 0 { b"{" } else { b",{" });
                json::write_name(out, name);
                let rest = format!(",\"about\":{about},\"at_least\":{at_least},\"at_most\":{at_most}}}");
                out.extend_from_slice(rest.as_bytes());
            }
            out.extend_from_slice(format!("],\"{word}_enough\":{}", list.enough).as_bytes());
        }
        let note = note.map_or_else(|| "null".to_owned(), |note| format!("\"{note}\""));
        out.extend_from_slice(format!(",\"note\":{note}").as_bytes());
    }))
}
