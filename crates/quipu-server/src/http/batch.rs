//! Serves `POST /v1/batch`: many operations in one request, each with its own result.
//!
//! In: a JSON array, or a line for each item (NDJSON). Out: the results, in the same order and
//! format.
//!
//! Invariants:
//! - Items run in order, and each is applied or refused by itself: a batch is not a transaction.
//! - The server applies nothing before it has parsed the whole body: a mistake in any item refuses
//!   the request.
//! - Items, bytes and concurrent batches have bounds.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use quipu_engine::{NotRun, Turn};
use quipu_model::{Command, Freshness, Reading, Refusal, Reply};
use quipu_protocol::json::{self, BatchItem, BatchOp};
use serde_json::value::RawValue;

use super::HttpState;
use super::counters::{json_response, write_deleted, write_reset};
use super::execute::{self, StepOutcome};
use super::problem::{Problem, RequestFailure};
use super::reason;
use super::request::{self, bad_body, check_name, checked_name};
use super::token::{self, BodyIdentity, RequestToken};
use crate::metrics::HttpOperation;

/// Most items of one batch: with the longest replies, half a megabyte.
pub(super) const BATCH_ITEMS_MAX: usize = 2_048;

/// Most concurrent batches: with their bodies and replies, about 32 MB.
pub(super) const BATCHES_MAX: usize = 16;

/// Most items in one turn: later ones wait for the next turn, so that other requests run first.
const TURN_ITEMS_MAX: usize = 256;

/// `POST /v1/batch`
pub(super) async fn batch(State(state): State<Arc<HttpState>>, request: Request) -> Result<Response, RequestFailure> {
    let (parts, body) = request.into_parts();
    let _timer = state.server.http_latencies.time_all(HttpOperation::Batch);
    request::expect_no_query(&parts)?;
    let token = token::batch_token(&parts.headers)?;
    // Before the body is read: a request that waits for a permit must not hold memory.
    let _permit = state
        .batch_permits
        .try_acquire()
        .map_err(|_| Problem::new(reason::BUSY, format!("{BATCHES_MAX} batches are under way")))?;
    let limits = &state.server.limits;
    let body = request::read_body(body, limits.http_body_bytes_max, limits.http_body_time_max).await?;
    let (batch_format, items) = parse(&body, token.as_ref())?;
    let mut results = Vec::with_capacity(items.len() * 64);
    let mut done = 0;
    while done < items.len() {
        let part = &items[done..(done + TURN_ITEMS_MAX).min(items.len())];
        run_items(&state, part, |index, out| {
            batch_format.write_separator(&mut results, done + index);
            results.extend_from_slice(out);
        })
        .await?;
        done += part.len();
        // Other ready tasks run before the rest of a long batch.
        tokio::task::yield_now().await;
    }
    batch_format.write_end(&mut results);
    let mut response = json_response(Vec::new());
    *response.body_mut() = Body::from(results);
    if batch_format == BatchFormat::Lines {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    }
    Ok(response)
}

/// Format of a batch and of its results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BatchFormat {
    Array,
    Lines,
}

impl BatchFormat {
    fn write_separator(self, out: &mut Vec<u8>, index: usize) {
        out.extend_from_slice(match (self, index) {
            (BatchFormat::Array, 0) => b"[",
            (BatchFormat::Array, _) => b",\n ",
            (BatchFormat::Lines, 0) => b"",
            (BatchFormat::Lines, _) => b"\n",
        });
    }

    fn write_end(self, out: &mut Vec<u8>) {
        match (self, out.is_empty()) {
            (BatchFormat::Array, true) => out.extend_from_slice(b"[]\n"),
            (BatchFormat::Array, false) => out.extend_from_slice(b"]\n"),
            (BatchFormat::Lines, true) => {}
            (BatchFormat::Lines, false) => out.push(b'\n'),
        }
    }
}

/// A parsed item.
struct CheckedItem {
    op: BatchOp,
    name: Vec<u8>,
    delta: i64,
    shard_key: Option<String>,
    token: Option<RequestToken>,
}

impl CheckedItem {
    fn check(item: BatchItem, of_batch: Option<RequestToken>) -> Result<CheckedItem, Problem> {
        let wrong = |text: &str| Err(Problem::new(reason::BAD_BODY, text));
        let BatchItem { op, name, name_encoded, delta, shard_key, token, producer, seq } = item;
        let name = match (name, name_encoded) {
            (Some(name), None) => name.into_bytes(),
            (None, Some(encoded)) => {
                request::decode_name(&encoded).map_err(|problem| Problem { reason: reason::BAD_BODY, ..problem })?
            }
            (None, None) => return wrong("'name' is missing"),
            (Some(_), Some(_)) => return wrong("'name' and 'name_encoded' are both given"),
        };
        check_name(&name).map_err(|problem| Problem { reason: reason::BAD_BODY, ..problem })?;
        if op != BatchOp::Add && (delta.is_some() || shard_key.is_some()) {
            return wrong("'delta' and 'shard_key' belong to an add");
        }
        let token =
            match (RequestToken::from_request(&Default::default(), BodyIdentity { token, producer, seq })?, of_batch) {
                (Some(_), Some(_)) => {
                    return wrong("the batch has an Idempotency-Key, and the item a token of its own");
                }
                (Some(_), None) if op == BatchOp::Read => return wrong("a read has no token"),
                (of_item, of_batch) => of_item.or(of_batch).filter(|_| op != BatchOp::Read),
            };
        Ok(CheckedItem { op, name, delta: delta.unwrap_or(1), shard_key, token })
    }

    /// The command of an item that is not a read.
    fn command(&self) -> Command<'_> {
        let name = checked_name(&self.name);
        match self.op {
            BatchOp::Add => {
                Command::Add { name, delta: self.delta, shard_key: self.shard_key.as_deref().map(str::as_bytes) }
            }
            BatchOp::Reset => Command::Reset { name },
            BatchOp::Delete => Command::Delete { names: vec![name] },
            BatchOp::Read => Command::Read { name },
        }
    }
}

/// Parses a body into its items and its format.
fn parse(body: &[u8], token: Option<&RequestToken>) -> Result<(BatchFormat, Vec<CheckedItem>), Problem> {
    let trimmed = body.trim_ascii();
    let (batch_format, raw): (BatchFormat, Vec<&[u8]>) = if trimmed.first() == Some(&b'[') {
        let raw: Vec<&RawValue> = serde_json::from_slice(trimmed).map_err(|error| bad_body(&error))?;
        (BatchFormat::Array, raw.into_iter().map(|raw| raw.get().as_bytes()).collect())
    } else {
        let lines = body.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        (BatchFormat::Lines, lines.filter(|line| !line.is_empty()).collect())
    };
    if batch_format == BatchFormat::Lines && raw.is_empty() {
        return Err(Problem::new(
            reason::BAD_BODY,
            "a batch is an array of items, or a line for each; the body is empty",
        ));
    }
    if raw.len() > BATCH_ITEMS_MAX {
        let text = format!("a batch may have {BATCH_ITEMS_MAX} items, this one has {}", raw.len());
        return Err(Problem::new(reason::BODY_TOO_LARGE, text));
    }
    let items = raw.into_iter().enumerate().map(|(index, raw)| {
        let item = json::parse_item(raw).map_err(|error| bad_body(&error));
        let item = item.and_then(|item| CheckedItem::check(item, token.map(|token| token.for_item(index))));
        item.map_err(|problem| Problem { detail: format!("item {index}: {}", problem.detail), ..problem })
    });
    Ok((batch_format, items.collect::<Result<_, _>>()?))
}

/// Result of an item.
enum ItemResult {
    Reply(Reply),
    Reading(Reading),
}

/// Runs some items and passes on each result.
async fn run_items(
    state: &HttpState,
    items: &[CheckedItem],
    mut on_result: impl FnMut(usize, &[u8]),
) -> Result<(), RequestFailure> {
    let mut outcomes: Vec<Result<ItemResult, Refusal>> = Vec::with_capacity(items.len());
    while outcomes.len() < items.len() {
        let result = execute::run_with_loads(&state.server, |turn| {
            while let Some(item) = items.get(outcomes.len()) {
                match run_item(turn, item) {
                    Ok(result) => outcomes.push(Ok(result)),
                    Err(NotRun::Refused(refusal)) => outcomes.push(Err(refusal)),
                    Err(load) => return Err(load),
                }
            }
            Ok(())
        })
        .await;
        match result {
            Ok(StepOutcome::Completed(())) => {}
            Ok(StepOutcome::Loaded(Reply::Refused(refusal))) => outcomes.push(Err(refusal)),
            Ok(StepOutcome::Loaded(reply)) => outcomes.push(Ok(ItemResult::Reply(reply))),
            // Loading the next item failed; only this item is refused.
            Err(RequestFailure::Refused(refusal)) => outcomes.push(Err(refusal)),
            Err(failure) => return Err(failure),
        }
    }
    let mut out = Vec::with_capacity(128);
    for (index, (item, outcome)) in items.iter().zip(outcomes).enumerate() {
        out.clear();
        write_result(&mut out, item, outcome);
        on_result(index, &out);
    }
    Ok(())
}

fn run_item(turn: &mut Turn<'_>, item: &CheckedItem) -> Result<ItemResult, NotRun> {
    if item.op == BatchOp::Read {
        return turn.reading(checked_name(&item.name), Freshness::Usual).map(ItemResult::Reading);
    }
    match execute::run_in_turn(turn, item.token.as_ref(), &item.command())? {
        Reply::Refused(refusal) => Err(refusal.into()),
        reply => Ok(ItemResult::Reply(reply)),
    }
}

/// Writes a result: an object with a status, and the fields of a single request's reply or problem.
fn write_result(out: &mut Vec<u8>, item: &CheckedItem, outcome: Result<ItemResult, Refusal>) {
    let name = &item.name;
    match outcome {
        Err(refusal) => return Problem::from(refusal).write(out),
        Ok(ItemResult::Reading(reading)) => {
            out.extend_from_slice(b"{\"status\":200,");
            let at = out.len();
            json::write_reading(out, name, &reading);
            // The result object is already open.
            out.remove(at);
            return;
        }
        Ok(ItemResult::Reply(reply)) => {
            out.extend_from_slice(b"{\"status\":200,");
            match (item.op, reply) {
                (BatchOp::Reset, Reply::Integer(before)) => write_reset(out, name, before),
                (BatchOp::Delete, Reply::Integer(deleted)) => write_deleted(out, name, deleted == 1),
                (BatchOp::Add, Reply::Integer(value)) => {
                    json::write_name(out, name);
                    out.push(b',');
                    json::write_total(out, "value", value);
                }
                (op, other) => unreachable!("{op:?} does not reply with {other:?}"),
            }
        }
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_named_by_its_item() {
        for (body, detail) in [
            (&b"[{\"name\":\"a\"},{\"nam\":\"b\"}]"[..], "item 1: unknown field `nam`"),
            (b"{\"name\":\"a\"}\n{\"delta\":1}", "item 1: 'name' is missing"),
            (b"{\"name\":\"a\",\"op\":\"read\",\"delta\":1}", "item 0: 'delta' and 'shard_key' belong to an add"),
            (b"{\"name_encoded\":\"%f\"}", "item 0: the name of the counter is not encoded"),
            (b"[{\"name\":\"a\"}", "EOF while parsing"),
            (b"[[[[1]]]]", "item 0: expected an object such as"),
        ] {
            let problem = parse(body, None).err().unwrap();
            assert!(problem.detail.starts_with(detail), "{}", problem.detail);
        }
        let token = parse(b"[{\"name\":\"a\",\"seq\":1}]", None).err().unwrap();
        assert_eq!(token.reason, reason::BAD_TOKEN);
    }

    #[test]
    fn items_have_a_bound() {
        let lines = |count| "{\"name\":\"a\"}\n".repeat(count).into_bytes();
        assert_eq!(
            parse(&lines(BATCH_ITEMS_MAX), None).unwrap_or_else(|problem| panic!("{problem:?}")).1.len(),
            BATCH_ITEMS_MAX
        );
        assert_eq!(parse(&lines(BATCH_ITEMS_MAX + 1), None).err().unwrap().reason, reason::BODY_TOO_LARGE);
    }

    #[test]
    fn arrays_may_be_nested_no_deeper_than_the_reader_goes() {
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        assert_eq!(parse(deep.as_bytes(), None).err().unwrap().reason, reason::BAD_BODY);
    }
}
