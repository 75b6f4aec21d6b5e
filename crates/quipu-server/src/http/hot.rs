//! `GET /v1/hot`: the counters that are asked for most often.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use quipu_model::Ranked;
use quipu_protocol::json;

use super::Door;
use super::counters::object;
use super::problem::Failure;
use super::request::Query;
use crate::hot::{HOT_NAMES_MAX, SAMPLE};

/// Counters of each list, unless the request says how many.
const COUNT_DEFAULT: u64 = 10;

/// `GET /v1/hot`
pub(super) async fn hot(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Failure> {
    let mut query = Query::of(request.uri())?;
    let count = query.take_number("count", 1, HOT_NAMES_MAX.into())?.unwrap_or(COUNT_DEFAULT) as usize;
    query.finish()?;
    let shared = &door.shared;
    let seen = shared.hot.seen(count, shared.engine.now());
    Ok(object(|out| {
        out.extend_from_slice(format!("\"since\":\"{}\",\"sample\":{SAMPLE}", json::rfc3339(seen.since)).as_bytes());
        for (word, rows) in [("writes", seen.writes), ("reads", seen.reads)] {
            out.extend_from_slice(format!(",\"{word}\":[").as_bytes());
            for (index, Ranked { item, at_most, at_least, certain }) in rows.iter().enumerate() {
                out.extend_from_slice(if index == 0 { b"{" } else { b",{" });
                json::write_name(out, item);
                let rest = format!(",\"at_most\":{at_most},\"at_least\":{at_least},\"certain\":{certain}}}");
                out.extend_from_slice(rest.as_bytes());
            }
            out.push(b']');
        }
    }))
}
