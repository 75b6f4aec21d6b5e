//! `GET /metrics`

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use super::Door;
use crate::metrics::{Seen, text};

/// `GET /metrics`
pub(super) async fn metrics(State(door): State<Arc<Door>>) -> impl IntoResponse {
    let text = text(&Seen::new(&door.shared, door.watches.watchers() as u64));
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}
