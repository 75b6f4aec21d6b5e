//! Serves the health checks: liveness and readiness.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use quipu_engine::{Membership, StoreHealth};

use super::HttpState;
use super::problem::Problem;
use super::reason;
use super::request::Query;

/// `GET /healthz`: a failed journal ends the process, so a server that replies is live.
pub(super) async fn healthz() -> Response {
    text("ok\n")
}

/// `GET /readyz`: ready for reads and writes, or the reason why not. A node counts without its
/// store, so only `?store=required` checks the store.
pub(super) async fn readyz(State(state): State<Arc<HttpState>>, uri: Uri) -> Result<Response, Problem> {
    let engine = &state.server.engine;
    let mut query = Query::from_uri(&uri)?;
    let needs_store = match query.take("store").as_deref() {
        None => false,
        Some(b"required") => true,
        Some(_) => return Err(Problem::new(reason::BAD_QUERY, "'store' can only be 'required'")),
    };
    query.finish()?;
    let why_not = if engine.stats().disk_full {
        Some("the disk is full: writes are refused, reads go on".to_owned())
    } else if let Some(Membership::Fenced { reason }) = engine.sharing().map(|sharing| sharing.membership()) {
        Some(reason)
    } else if needs_store {
        store_problem(&state)
    } else {
        None
    };
    match why_not {
        None => Ok(text("ready\n")),
        Some(detail) => Err(Problem::new(reason::NOT_READY, detail)),
    }
}

/// Reason why the shared store is unusable, if it is.
fn store_problem(state: &HttpState) -> Option<String> {
    let store = state.server.store.as_deref().unwrap_or("");
    let Some(sharing) = state.server.engine.sharing() else {
        return Some("no shared store is configured: start the server with --store URL".to_owned());
    };
    match sharing.health() {
        StoreHealth::Reachable => {
            let problem = sharing.store_problems().into_iter().next();
            let problem =
                problem.map(|problem| format!("the shared store {store} does not keep what it confirms: {problem}"));
            problem.or_else(|| sharing.registry_problem())
        }
        StoreHealth::Unknown => Some(format!("the shared store {store} has not answered yet")),
        StoreHealth::Unreachable { error, .. } => Some(format!("the shared store {store} cannot be reached: {error}")),
    }
}

fn text(text: &'static str) -> Response {
    ([(CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}
