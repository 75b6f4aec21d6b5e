//! One request on its way: its attempts, its state, and its waiting caller.
//!
//! Invariant: a job that ended as [`Error::Refused`] or [`Error::NotApplied`] was never sent
//! without an answer. After an unanswered attempt, a later refusal proves nothing: that attempt may
//! still be on its way.

use quipu_protocol::resp::Value;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use crate::{Error, Trouble};

/// Codes of transient refusals: nothing was applied, and the same request may be sent again.
const TRANSIENT_REFUSALS: [&str; 7] = ["TRYAGAIN", "NOROOM", "OOM", "TOKENSFULL", "STOREDOWN", "LOADING", "BUSY"];

/// Receives the outcome of a job.
pub(crate) type ReplyReceiver = oneshot::Receiver<Result<Value, Error>>;

/// A request on its way.
#[derive(Debug)]
pub(crate) struct Job {
    pub request: Vec<u8>,
    pub deadline: Instant,
    /// Number of times it was sent.
    pub attempts: u32,
    /// Offset of its first byte in the bytes of its connection.
    pub start_offset: u64,
    answer: Option<oneshot::Sender<Result<Value, Error>>>,
    unanswered: bool,
    trouble: Trouble,
    _permit: OwnedSemaphorePermit,
}

impl Job {
    pub fn new(request: Vec<u8>, deadline: Instant, permit: OwnedSemaphorePermit) -> (Job, ReplyReceiver) {
        let (answer, receiver) = oneshot::channel();
        let job = Job {
            request,
            deadline,
            attempts: 0,
            start_offset: 0,
            answer: Some(answer),
            unanswered: false,
            trouble: Trouble::Late,
            _permit: permit,
        };
        (job, receiver)
    }

    /// Returns true if no caller waits any longer. Such a job need not be sent, or sent again.
    pub fn is_cancelled(&self) -> bool {
        self.answer.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Records a failed attempt.
    pub fn record_failure(&mut self, trouble: &Trouble) {
        self.trouble = trouble.clone();
    }

    /// Records that its connection was lost after `written` bytes.
    pub fn lost(&mut self, written: u64, trouble: &Trouble) {
        if self.start_offset < written {
            self.unanswered = true;
        } else {
            self.attempts -= 1;
        }
        self.record_failure(trouble);
    }

    /// Takes the reply; returns the job if it is to be sent again.
    pub fn on_reply(mut self, reply: Value) -> Option<Job> {
        let outcome = match reply {
            Value::Error(text) => {
                self.trouble = Trouble::Refused(text.clone());
                let code = text.split(' ').next().unwrap_or_default();
                if TRANSIENT_REFUSALS.contains(&code) && !self.is_cancelled() {
                    return Some(self);
                }
                if self.unanswered { Err(self.unknown_outcome()) } else { Err(Error::Refused { text }) }
            }
            value => Ok(value),
        };
        self.finish(outcome);
        None
    }

    /// Ends a job that is past its deadline and not in flight.
    pub fn expired(mut self) {
        let (attempts, source) = (self.attempts, self.trouble.clone());
        let error = if self.unanswered { self.unknown_outcome() } else { Error::NotApplied { attempts, source } };
        self.finish(Err(error));
    }

    /// Ends a job that is past its deadline while in flight. It keeps its place, for the reply.
    pub fn abandon(&mut self) {
        self.trouble = Trouble::Late;
        let error = self.unknown_outcome();
        self.finish(Err(error));
    }

    fn unknown_outcome(&self) -> Error {
        Error::Unknown { attempts: self.attempts, source: self.trouble.clone() }
    }

    fn finish(&mut self, outcome: Result<Value, Error>) {
        if let Some(answer) = self.answer.take() {
            // A caller that has stopped waiting gets nothing.
            let _ = answer.send(outcome);
        }
    }
}
