//! Whether the server is well, and whether it can do all that is asked of it.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use quipu_engine::Standing;

use super::Door;
use super::problem::{Problem, Reason};

/// `GET /healthz`: a journal that failed has ended the process, so whoever can answer is well.
pub(super) async fn healthz() -> Response {
    text("ok\n")
}

/// `GET /readyz`: whether reads and writes are taken, or why not.
pub(super) async fn readyz(State(door): State<Arc<Door>>) -> Response {
    let engine = &door.shared.engine;
    let why_not = if engine.stats().disk_full {
        Some("the disk is full: writes are refused, reads go on".to_owned())
    } else if let Some(Standing::Fenced { reason }) = engine.sharing().map(|sharing| sharing.standing()) {
        Some(reason)
    } else {
        None
    };
    match why_not {
        None => text("ready\n"),
        Some(detail) => Problem::new(Reason::NotReady, detail).into_response(),
    }
}

fn text(text: &'static str) -> Response {
    ([(CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}
