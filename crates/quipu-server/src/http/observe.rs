//! Serves `POST /v1/counters/{name}/observe`: counts items in a counter of any approximate kind.
//!
//! In: items with their counts. Out: the reply of the counter's kind.
//!
//! The kind comes from the body, else from the namespace, else from the existing counter. Without
//! any of these, a new counter counts unique items. A retry under a token resolves to the same
//! kind, since the first attempt created the counter.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use quipu_model::{Command, Dialect, FrequencySize, Kind, Millis, Name, Reply, SketchCommand, TopSize};
use quipu_protocol::json::{self, COUNTED_ITEMS_MAX, ObservedItem};

use super::HttpState;
use super::counters::object;
use super::execute;
use super::items::write_item;
use super::problem::{Problem, RequestFailure};
use super::reason;
use super::request::{self, bad_body, checked_name};
use super::token::{BodyIdentity, RequestToken};
use crate::metrics::HttpOperation;

/// `POST /v1/counters/{name}/observe`
pub(super) async fn observe(State(state): State<Arc<HttpState>>, request: Request) -> Result<Response, RequestFailure> {
    let (parts, body) = request.into_parts();
    let name = request::counter_name(&parts.uri)?;
    let _timer = state.server.http_latencies.time(HttpOperation::Observe, checked_name(&name));
    request::expect_no_query(&parts)?;
    let limits = &state.server.limits;
    let body = request::read_body(body, limits.http_body_bytes_max, limits.http_body_time_max).await?;
    let body = json::parse_observe(&body).map_err(|error| bad_body(&error))?;
    let given = BodyIdentity { token: body.token, producer: body.producer, seq: body.seq };
    let token = RequestToken::from_request(&parts.headers, given)?;
    let kind = match body.kind {
        Some(kind) => kind,
        None => kind_of(&state, checked_name(&name)).await?,
    };
    let command = command(kind, checked_name(&name), &body.items)?;
    let command = Command::Sketch(match body.at {
        Some(at) => SketchCommand::At { at: Millis(at), command: Box::new(command) },
        None => command,
    });
    let reply = execute::execute_once(&state.server, token.as_ref(), &command).await?;
    Ok(object(|out| {
        json::write_name(out, &name);
        out.extend_from_slice(format!(",\"kind\":\"{}\"", kind.name()).as_bytes());
        match reply {
            Reply::Integer(changed) => out.extend_from_slice(format!(",\"changed\":{}", changed != 0).as_bytes()),
            Reply::Integers(at_most) => {
                out.extend_from_slice(b",\"items\":[");
                for (index, (item, at_most)) in body.items.iter().zip(at_most).enumerate() {
                    out.extend_from_slice(if index == 0 { b"{" } else { b",{" });
                    write_item(out, item.item().as_bytes());
                    out.push(b',');
                    json::write_total(out, "at_most", at_most);
                    out.push(b'}');
                }
                out.push(b']');
            }
            Reply::Items(expelled) => {
                out.extend_from_slice(b",\"expelled\":[");
                for (index, item) in expelled.iter().flatten().enumerate() {
                    out.extend_from_slice(if index == 0 { b"{" } else { b",{" });
                    write_item(out, item);
                    out.push(b'}');
                }
                out.push(b']');
            }
            other => unreachable!("observing replies with numbers or items, not {other:?}"),
        }
    }))
}

/// Kind of the counter, or of the counter to create, where the request gives none.
async fn kind_of(state: &HttpState, name: Name<'_>) -> Result<Kind, RequestFailure> {
    let given = state.server.engine.policies().policy(name).kind;
    if let Some(kind) = given {
        return Ok(kind);
    }
    match execute::execute_command(&state.server, &Command::KindOf { name }).await? {
        Reply::Kind(Some(known)) => Ok(known.kind),
        _ => Ok(Kind::Unique),
    }
}

fn command<'a>(kind: Kind, name: Name<'a>, items: &'a [ObservedItem]) -> Result<SketchCommand<'a>, Problem> {
    let dialect = Dialect::Native;
    let wrong = |text: &str| Err(Problem::new(reason::BAD_BODY, text));
    if kind == Kind::Unique {
        if items.iter().any(|item| item.count() != 1) {
            return wrong("'count' means nothing to a counter of different items");
        }
        return Ok(SketchCommand::Observe {
            name,
            items: items.iter().map(|item| item.item().as_bytes()).collect(),
            dialect,
        });
    }
    if items.len() > COUNTED_ITEMS_MAX {
        return wrong(&format!("'items' may have {COUNTED_ITEMS_MAX} items that are counted"));
    }
    let items = items.iter().map(|item| (item.item().as_bytes(), item.count())).collect();
    match kind {
        Kind::Frequency => {
            Ok(SketchCommand::CountItems { name, items, make: Some(FrequencySize::default_size()), dialect })
        }
        Kind::Top => Ok(SketchCommand::CountTop { name, items, make: Some(TopSize::default_size()), dialect }),
        Kind::Count | Kind::Unique => {
            Err(Problem::new(reason::WRONG_KIND, "a count is added to, and observes nothing"))
        }
    }
}
