//! One request on its way: how often it was sent, what is known of it, and who waits.
//!
//! Invariant: a job that ended as [`Error::Refused`] or [`Error::NotApplied`] was never sent without being answered. Once it was, a later refusal says nothing of that sending, which may still be on its way.

use quipu_protocol::resp::Value;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use crate::{Error, Trouble};

/// First words of refusals that go away by themselves: nothing was applied, and the same may be asked again.
const PASSING: [&str; 7] = ["TRYAGAIN", "NOROOM", "OOM", "TOKENSFULL", "STOREDOWN", "LOADING", "BUSY"];

/// Who waits for the end of a job.
pub(crate) type Answer = oneshot::Receiver<Result<Value, Error>>;

/// A request on its way.
#[derive(Debug)]
pub(crate) struct Job {
    pub request: Vec<u8>,
    pub deadline: Instant,
    /// How often it was sent.
    pub attempts: u32,
    /// Where in the bytes of its connection it began.
    pub began: u64,
    answer: Option<oneshot::Sender<Result<Value, Error>>>,
    unanswered: bool,
    trouble: Trouble,
    _place: OwnedSemaphorePermit,
}

impl Job {
    pub fn new(request: Vec<u8>, deadline: Instant, place: OwnedSemaphorePermit) -> (Job, Answer) {
        let (answer, waits) = oneshot::channel();
        let job = Job {
            request,
            deadline,
            attempts: 0,
            began: 0,
            answer: Some(answer),
            unanswered: false,
            trouble: Trouble::Late,
            _place: place,
        };
        (job, waits)
    }

    /// Whether nobody waits for it, or not for any longer. What was never sent, and what would be sent again, need not be.
    pub fn is_over(&self) -> bool {
        self.answer.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Notes that an attempt has failed.
    pub fn note(&mut self, trouble: &Trouble) {
        self.trouble = trouble.clone();
    }

    /// Notes that its connection was lost after so many bytes.
    pub fn lost(&mut self, written: u64, trouble: &Trouble) {
        if self.began < written {
            self.unanswered = true;
        } else {
            self.attempts -= 1;
        }
        self.note(trouble);
    }

    /// Takes the reply; gives the job back if it is to be sent again.
    pub fn answered(mut self, reply: Value) -> Option<Job> {
        let end = match reply {
            Value::Error(text) => {
                self.trouble = Trouble::Refused(text.clone());
                let word = text.split(' ').next().unwrap_or_default();
                if PASSING.contains(&word) && !self.is_over() {
                    return Some(self);
                }
                if self.unanswered { Err(self.unknown()) } else { Err(Error::Refused { text }) }
            }
            value => Ok(value),
        };
        self.end(end);
        None
    }

    /// Its time is over, and it is not on its way.
    pub fn expired(mut self) {
        let (attempts, source) = (self.attempts, self.trouble.clone());
        let error = if self.unanswered { self.unknown() } else { Error::NotApplied { attempts, source } };
        self.end(Err(error));
    }

    /// Its time is over while it is on its way; its place stays, for the reply.
    pub fn abandon(&mut self) {
        self.trouble = Trouble::Late;
        let error = self.unknown();
        self.end(Err(error));
    }

    fn unknown(&self) -> Error {
        Error::Unknown { attempts: self.attempts, source: self.trouble.clone() }
    }

    fn end(&mut self, end: Result<Value, Error>) {
        if let Some(answer) = self.answer.take() {
            // Who has stopped waiting is not told.
            let _ = answer.send(end);
        }
    }
}
