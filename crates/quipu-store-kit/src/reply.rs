//! Bounds the time that a call waits for its server.

use std::time::Duration;

use crate::CallFailure;

/// The server did not answer in time.
#[derive(Debug, thiserror::Error)]
#[error("no reply within {0:?}")]
struct ReplyTimeout(Duration);

/// Awaits a driver's answer to a sent call; past the bound the outcome is unknown.
pub async fn await_reply<T, E>(
    reply_timeout: Duration,
    answer: impl Future<Output = Result<T, E>>,
    classify_error: impl FnOnce(E) -> CallFailure,
) -> Result<T, CallFailure> {
    match tokio::time::timeout(reply_timeout, answer).await {
        Ok(answer) => answer.map_err(classify_error),
        Err(_) => Err(CallFailure::lost(ReplyTimeout(reply_timeout))),
    }
}
