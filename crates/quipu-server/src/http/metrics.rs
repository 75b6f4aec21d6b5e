//! Serves `GET /metrics`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use super::HttpState;
use crate::metrics::{MetricSources, text};

/// `GET /metrics`
pub(super) async fn metrics(State(state): State<Arc<HttpState>>) -> impl IntoResponse {
    let text = text(&MetricSources::new(&state.server, state.watches.watchers() as u64));
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}
