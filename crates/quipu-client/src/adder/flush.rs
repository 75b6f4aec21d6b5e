//! Takes sums, sends them under tokens, and sends unanswered ones again.

use std::sync::Arc;

use tokio::time::{Instant, sleep_until, timeout};

use super::{AdderInner, PendingSum};
use crate::Error;
use crate::client::{await_reply, reply_number};
use crate::token::TokenItem;

/// The server's refusal code for a token past its time.
const TOKEN_TIME: &str = "TOKENTIME";

/// A sum on its way.
#[derive(Debug)]
struct SumRequest {
    name: Box<[u8]>,
    sum: PendingSum,
    /// The sampling rate of its events; `None`: all were summed.
    p: Option<u32>,
    token: TokenItem,
    /// True if an earlier flush sent it without an answer.
    unanswered: bool,
}

/// Flushes until the last handle is dropped.
pub(super) async fn run(inner: Arc<AdderInner>) {
    loop {
        if !inner.is_due().await {
            return;
        }
        let (number, mut sum_requests) = inner.take_sums();
        loop {
            sum_requests = inner.send_sums(sum_requests).await;
            if sum_requests.is_empty() {
                break;
            }
            // The flush took its whole timeout: the server is away or overloaded.
            let _ = timeout(inner.client.options().pause_max, inner.wake.notified()).await;
            if inner.state().is_closed {
                return;
            }
        }
        inner.batches_done.send_replace(number);
    }
}

impl AdderInner {
    /// Waits until the sums are due; false if the adder is closed.
    async fn is_due(&self) -> bool {
        let mut due = None;
        loop {
            {
                let mut state = self.state();
                if state.is_closed {
                    return false;
                }
                if !state.sums.is_empty() {
                    if std::mem::take(&mut state.is_urgent) {
                        return true;
                    }
                    due.get_or_insert_with(|| Instant::now() + self.options.interval);
                }
            }
            match due {
                None => self.wake.notified().await,
                Some(due) => {
                    tokio::select! {
                        () = self.wake.notified() => {}
                        () = sleep_until(due) => return true,
                    }
                }
            }
        }
    }

    /// Takes all sums, each under a token of its own.
    fn take_sums(&self) -> (u64, Vec<SumRequest>) {
        let mut state = self.state();
        state.batches_taken += 1;
        (state.adds, state.is_urgent) = (0, false);
        let p = state.sampler.p();
        let sum_request = |(name, sum)| SumRequest { name, sum, p, token: self.client.token(), unanswered: false };
        let sum_requests = state.sums.drain().map(sum_request).collect();
        state.sampler.adjust_rate(Instant::now());
        self.room.notify_waiters();
        (state.batches_taken, sum_requests)
    }

    /// Sends sums in one pipeline; returns those to send again.
    async fn send_sums(&self, sum_requests: Vec<SumRequest>) -> Vec<SumRequest> {
        let deadline = self.client.deadline();
        let mut answers = Vec::with_capacity(sum_requests.len());
        for sum_request in &sum_requests {
            let SumRequest { name, sum, p, token, .. } = sum_request;
            answers.push(match p {
                None => self.client.send_add(name, sum.delta, token, deadline).await,
                Some(p) => self.client.send_sampled(name, (sum.delta, *p), token, deadline).await,
            });
        }
        let mut unsent = Vec::new();
        for (sum_request, answer) in sum_requests.into_iter().zip(answers) {
            let answer = match answer {
                Ok(answer) => await_reply(answer).await.and_then(reply_number).map(drop),
                Err(error) => Err(error),
            };
            unsent.extend(self.settle(sum_request, answer));
        }
        unsent
    }

    /// Counts the outcome of a sum, or returns it to be sent again.
    fn settle(&self, mut sum_request: SumRequest, answer: Result<(), Error>) -> Option<SumRequest> {
        let mut state = self.state();
        let adds = sum_request.sum.adds;
        match answer {
            Ok(()) => {
                state.stats.adds_acknowledged += adds;
                state.stats.requests += 1;
                state.trouble = None;
            }
            Err(Error::Refused { text }) if text.starts_with(TOKEN_TIME) && !sum_request.unanswered => {
                // Never applied, so it may get a new token. It waited longer than the server
                // remembers tokens, or a clock is wrong.
                state.trouble = Some(crate::Trouble::Refused(text));
                sum_request.token = self.client.token();
                return Some(sum_request);
            }
            Err(Error::Refused { text }) => {
                let text = format!("{:+} to \"{}\": {text}", sum_request.sum.delta, sum_request.name.escape_ascii());
                let error = if sum_request.unanswered {
                    state.stats.adds_unknown += adds;
                    Error::Unknown { attempts: 1, source: crate::Trouble::Refused(text) }
                } else {
                    state.stats.adds_refused += adds;
                    Error::Refused { text }
                };
                state.refusal.get_or_insert(error);
            }
            Err(error) => {
                if let Error::Unknown { source, .. } | Error::NotApplied { source, .. } = &error {
                    state.trouble = Some(source.clone());
                }
                sum_request.unanswered |= !error.is_known_not_applied();
                return Some(sum_request);
            }
        }
        state.stats.adds_pending -= adds;
        None
    }
}
