//! Counters that tell items apart: how often each came, and which came most often.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use quipu_model::{Command, Dialect, Frequencies, Frequency, Ranked, Refusal, Reply, SketchCommand, TOP_ITEMS_MAX};
use quipu_protocol::json;

use super::Door;
use super::ask;
use super::counters::object;
use super::problem::{Failure, Problem};
use super::reason;
use super::request::{self, Query, checked};
use crate::metrics::Operation;

/// Most items of one request: they have to fit its head.
pub(super) const ITEMS_MAX: usize = 64;

/// Rows of a list, unless the request says how many.
const TOP_DEFAULT: u64 = 10;

/// `GET /v1/counters/{name}/frequency`
pub(super) async fn frequency(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Failure> {
    let (parts, _) = request.into_parts();
    let name = request::counter(&parts.uri)?;
    let _timed = door.shared.latencies.time(Operation::Read, checked(&name));
    let mut query = Query::with_many(&parts.uri, "item")?;
    let items = query.take_all("item");
    query.finish()?;
    if items.len() > ITEMS_MAX {
        let text = format!("'item' may be given {ITEMS_MAX} times");
        return Err(Problem::new(reason::BAD_QUERY, text).into());
    }
    let asked = items.iter().map(|item| &**item).collect();
    let command = SketchCommand::ReadItems { name: checked(&name), items: asked, dialect: Dialect::Native };
    let Frequencies { rows, total, error } = match ask_of(&door, command).await? {
        Some(Reply::Frequencies(frequencies)) => frequencies,
        // Nothing has come to a counter that does not exist.
        None => Frequencies { rows: vec![Frequency { at_most: 0, typical: 0 }; items.len()], total: 0, error: 0 },
        Some(other) => unreachable!("reading items replies with frequencies, not {other:?}"),
    };
    Ok(object(|out| {
        json::write_name(out, &name);
        out.extend_from_slice(b",\"kind\":\"frequency\",");
        json::write_total(out, "total", number(total));
        out.push(b',');
        json::write_total(out, "error", number(error));
        out.extend_from_slice(b",\"items\":[");
        for (index, (item, Frequency { at_most, typical })) in items.iter().zip(rows).enumerate() {
            out.extend_from_slice(if index == 0 { b"{" } else { b",{" });
            write_item(out, item);
            out.push(b',');
            json::write_total(out, "at_most", number(at_most));
            out.push(b',');
            json::write_total(out, "typical", number(typical));
            out.push(b'}');
        }
        out.push(b']');
    }))
}

/// `GET /v1/counters/{name}/top`
pub(super) async fn top(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Failure> {
    let (parts, _) = request.into_parts();
    let name = request::counter(&parts.uri)?;
    let _timed = door.shared.latencies.time(Operation::Read, checked(&name));
    let mut query = Query::of(&parts.uri)?;
    let k = query.take_number("k", 1, TOP_ITEMS_MAX.into())?.unwrap_or(TOP_DEFAULT) as usize;
    query.finish()?;
    let rows = match ask_of(&door, SketchCommand::ListTop { name: checked(&name), dialect: Dialect::Native }).await? {
        Some(Reply::Ranked(rows)) => rows,
        None => Vec::new(),
        Some(other) => unreachable!("a list replies with rows, not {other:?}"),
    };
    Ok(object(|out| {
        json::write_name(out, &name);
        out.extend_from_slice(b",\"kind\":\"top\",\"rows\":[");
        for (index, Ranked { item, at_most, at_least, certain }) in rows.iter().take(k).enumerate() {
            out.extend_from_slice(if index == 0 { b"{" } else { b",{" });
            json::write_bytes(out, "key", item);
            out.push(b',');
            json::write_total(out, "at_most", number(*at_most));
            out.push(b',');
            json::write_total(out, "at_least", number(*at_least));
            out.extend_from_slice(format!(",\"certain\":{certain}}}").as_bytes());
        }
        out.push(b']');
    }))
}

/// Writes `"item":"…"`.
pub(super) fn write_item(out: &mut Vec<u8>, item: &[u8]) {
    json::write_bytes(out, "item", item);
}

/// What a counter says; `None` if it does not exist.
async fn ask_of(door: &Door, command: SketchCommand<'_>) -> Result<Option<Reply>, Failure> {
    match ask::carry_out(&door.shared, &Command::Sketch(command)).await {
        Ok(reply) => Ok(Some(reply)),
        Err(Failure::Refused(Refusal::NoSketch { .. })) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Beyond this nobody has counted anything.
fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
