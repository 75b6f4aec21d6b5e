//! Reads and changes the settings of namespaces at run time.
//!
//! In: the name of a namespace, and new settings. Out: all settings in force, each with its origin;
//! or every mistake.
//!
//! Invariants:
//! - A reply to a change means that it is durable and in force. A problem means that nothing
//!   changed.
//! - Changes run one at a time, on a thread of their own: a change waits for a seal, and other
//!   requests must not.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::Response;
use quipu_engine::{Engine, PutNamespaceError};
use quipu_model::{NAMESPACE_KEYS, Namespace, NamespaceKey, ShardCount, check_namespace_name};
use quipu_protocol::json;
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::HttpState;
use super::counters::json_response;
use super::problem::{Mistake, Problem, RequestFailure};
use super::reason;
use super::request::{self, BODY_BYTES_MAX, bad_body, expect_no_query};
use crate::Origins;
use crate::server_state::ServerState;

/// Origin of a default value.
const DEFAULT: &str = "default";

/// `GET /v1/namespaces`
pub(super) async fn list(State(state): State<Arc<HttpState>>, request: Request) -> Result<Response, RequestFailure> {
    expect_no_query(&request.into_parts().0)?;
    let engine = &state.server.engine;
    let mut names: Vec<Box<[u8]>> = engine.options().namespaces.iter().map(|(name, _)| name.clone()).collect();
    names.extend(engine.policies().runtime_settings().keys().cloned());
    names.sort_unstable();
    names.dedup();
    let mut out = b"{\"namespaces\":[".to_vec();
    for (index, name) in names.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(&mut out, &state.server, name);
    }
    out.extend_from_slice(b"]}\n");
    Ok(json_response(out))
}

/// `GET /v1/namespaces/{name}`: also for a namespace without settings; the server's settings apply
/// there.
pub(super) async fn show(State(state): State<Arc<HttpState>>, request: Request) -> Result<Response, RequestFailure> {
    let (parts, _) = request.into_parts();
    let name = namespace_name(&parts.uri)?;
    check_namespace_name(&name).map_err(|text| Problem::new(reason::BAD_PATH, text))?;
    expect_no_query(&parts)?;
    Ok(namespace_response(&state.server, &name))
}

/// `PUT /v1/namespaces/{name}`
pub(super) async fn put(State(state): State<Arc<HttpState>>, request: Request) -> Result<Response, RequestFailure> {
    let (parts, body) = request.into_parts();
    let name = namespace_name(&parts.uri)?;
    expect_no_query(&parts)?;
    let body = request::read_body(body, BODY_BYTES_MAX, state.server.limits.http_body_time_max).await?;
    let (settings, mistakes) = json::parse_namespace(&body).map_err(|error| bad_body(&error))?;
    let mut mistakes: Vec<Mistake> =
        mistakes.into_iter().map(|mistake| Mistake { key: Some(mistake.key), text: mistake.text }).collect();
    if !mistakes.is_empty() {
        let others = state.server.engine.check_namespace(&name, &settings);
        mistakes.extend(others.into_iter().map(|text| Mistake { key: None, text }));
        return Err(mistakes_problem(mistakes).into());
    }
    // The thread holds the permit to its end, even after the client has gone: so at most one thread
    // runs.
    let permit = Arc::clone(&state.change_permit).acquire_owned().await.map_err(|_| RequestFailure::OutcomeUnknown)?;
    let (sender, receiver) = oneshot::channel();
    let (engine, namespace) = (state.server.engine.clone(), name.clone());
    let work = move || {
        let done = apply_settings(&engine, &namespace, settings);
        drop((engine, permit));
        // The send fails if the client has gone.
        let _ = sender.send(done);
    };
    if let Err(error) = std::thread::Builder::new().name("quipu-namespace".to_owned()).spawn(work) {
        return Err(Problem::new(reason::BUSY, format!("no thread for the change: {error}")).into());
    }
    receiver.await.unwrap_or(Err(RequestFailure::OutcomeUnknown))?;
    Ok(namespace_response(&state.server, &name))
}

fn apply_settings(engine: &Engine, name: &[u8], settings: Namespace) -> Result<(), RequestFailure> {
    engine.put_namespace(name, settings).map_err(|error| match error {
        PutNamespaceError::Mistakes(mistakes) => {
            mistakes_problem(mistakes.into_iter().map(|text| Mistake { key: None, text }).collect()).into()
        }
        PutNamespaceError::Refused(refusal) => refusal.into(),
        // The next start decides if the change was written.
        _ => RequestFailure::OutcomeUnknown,
    })
}

fn mistakes_problem(mistakes: Vec<Mistake>) -> Problem {
    let (count, s) = (mistakes.len(), if mistakes.len() == 1 { "" } else { "s" });
    let first = mistakes.first().map(|mistake| mistake.text.as_str()).unwrap_or_default();
    let detail = format!("{count} mistake{s}, and nothing was changed: {first}{}", if count > 1 { "; …" } else { "" });
    Problem { mistakes, ..Problem::new(reason::BAD_SETTINGS, detail) }
}

/// Reads the namespace name in a path.
fn namespace_name(uri: &Uri) -> Result<Vec<u8>, Problem> {
    let segment = uri.path().split('/').nth(3).unwrap_or_default();
    json::percent_decode(segment)
        .map_err(|error| Problem::new(reason::BAD_PATH, format!("the name of the namespace is not encoded: {error}")))
}

fn namespace_response(server: &ServerState, name: &[u8]) -> Response {
    let mut out = Vec::with_capacity(1024);
    write(&mut out, server, name);
    out.push(b'\n');
    json_response(out)
}

/// Writes the settings in force in a namespace.
fn write(out: &mut Vec<u8>, server: &ServerState, name: &[u8]) {
    let (policies, options) = (server.engine.policies(), server.engine.options());
    let put = policies.runtime_settings().get(name);
    let configured = options.namespaces.iter().find(|(known, _)| **known == *name).map(|(_, configured)| configured);
    let defaults = server_defaults(&server.engine);
    let mut settings = Map::new();
    for key in NAMESPACE_KEYS {
        let at_run_time = put.and_then(|put| Some(((key.show)(&put.settings)?, put.changed_at)));
        let (value, from) = match (at_run_time, configured.and_then(|configured| (key.show)(configured))) {
            (Some((value, at)), _) => (Some(value), format!("run time at {}", json::rfc3339(at))),
            (None, Some(value)) => (Some(value), server.origins.namespace_origin(name, key)),
            (None, None) => server.origins.server_setting(key, &defaults),
        };
        let value = value.map_or(Value::Null, |value| json::setting_value(&value));
        settings.insert(key.key.to_owned(), serde_json::json!({"value": value, "from": from}));
    }
    out.push(b'{');
    json::write_name(out, name);
    let put_at = put.map_or(Value::Null, |put| json::rfc3339(put.changed_at).into());
    let put =
        put.map_or_else(|| json::namespace_value(&Namespace::default()), |put| json::namespace_value(&put.settings));
    out.extend_from_slice(
        format!(",\"settings\":{},\"put\":{put},\"put_at\":{put_at}}}", Value::from(settings)).as_bytes(),
    );
}

/// Settings that apply where a namespace has none.
fn server_defaults(engine: &Engine) -> Namespace {
    let options = engine.options();
    Namespace {
        durability: Some(options.durability),
        freshness: Some(options.sharing.freshness),
        settle_every: Some(options.sharing.settle_every),
        shards: Some(ShardCount::Fixed(options.sharing.shards)),
        pick: Some(options.sharing.pick),
        token_window: Some(options.token_window),
        ..Namespace::default()
    }
}

impl Origins {
    fn namespace_origin(&self, name: &[u8], key: &NamespaceKey) -> String {
        let known = self.namespaces.get(&(Box::from(name), key.key));
        known.cloned().unwrap_or_else(|| "options".to_owned())
    }

    fn server_setting(&self, key: &NamespaceKey, defaults: &Namespace) -> (Option<String>, String) {
        match self.server.get(key.key) {
            Some((value, from)) => (Some(value.clone()), from.clone()),
            None => {
                let default = Some(key.default.to_owned()).filter(|default| !default.is_empty());
                let value = (key.show)(defaults);
                let from = if value.is_none() || value == default { DEFAULT } else { "options" };
                (value.or(default), from.to_owned())
            }
        }
    }
}
