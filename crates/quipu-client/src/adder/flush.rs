//! Takes sums, sends them under tokens, and sends again what was not answered.

use std::sync::Arc;

use tokio::time::{Instant, sleep_until, timeout};

use super::{Shared, Sum};
use crate::Error;
use crate::client::{ended, number};
use crate::token::Item;

/// How a server names a token whose time is over.
const TOKEN_TIME: &str = "TOKENTIME";

/// A sum on its way.
#[derive(Debug)]
struct Parcel {
    name: Box<[u8]>,
    sum: Sum,
    /// At which rate its events were taken; `None`: all were.
    p: Option<u32>,
    token: Item,
    /// Whether it was sent and not answered, in an earlier flush.
    unanswered: bool,
}

/// Goes on until the last handle is dropped.
pub(super) async fn run(shared: Arc<Shared>) {
    loop {
        if !shared.is_due().await {
            return;
        }
        let (number, mut parcels) = shared.take();
        loop {
            parcels = shared.send(parcels).await;
            if parcels.is_empty() {
                break;
            }
            // It took as long as a call may; the server is away or short of something.
            let _ = timeout(shared.client.options().pause_max, shared.wake.notified()).await;
            if shared.state().is_closed {
                return;
            }
        }
        shared.done.send_replace(number);
    }
}

impl Shared {
    /// Waits until sums are to be sent; false if nobody is left.
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
    fn take(&self) -> (u64, Vec<Parcel>) {
        let mut state = self.state();
        state.taken += 1;
        (state.adds, state.is_urgent) = (0, false);
        let p = state.thinner.p();
        let parcel = |(name, sum)| Parcel { name, sum, p, token: self.client.token(), unanswered: false };
        let parcels = state.sums.drain().map(parcel).collect();
        state.thinner.next(Instant::now());
        self.room.notify_waiters();
        (state.taken, parcels)
    }

    /// Sends parcels in one pipeline; gives back those that are to be sent again.
    async fn send(&self, parcels: Vec<Parcel>) -> Vec<Parcel> {
        let deadline = self.client.deadline();
        let mut answers = Vec::with_capacity(parcels.len());
        for parcel in &parcels {
            let Parcel { name, sum, p, token, .. } = parcel;
            answers.push(match p {
                None => self.client.send_add(name, sum.delta, token, deadline).await,
                Some(p) => self.client.send_thinned(name, (sum.delta, *p), token, deadline).await,
            });
        }
        let mut kept = Vec::new();
        for (parcel, answer) in parcels.into_iter().zip(answers) {
            let answer = match answer {
                Ok(answer) => ended(answer).await.and_then(number).map(drop),
                Err(error) => Err(error),
            };
            kept.extend(self.settle(parcel, answer));
        }
        kept
    }

    /// Accounts for a parcel, or gives it back to be sent again.
    fn settle(&self, mut parcel: Parcel, answer: Result<(), Error>) -> Option<Parcel> {
        let mut state = self.state();
        let adds = parcel.sum.adds;
        match answer {
            Ok(()) => {
                state.stats.adds_acknowledged += adds;
                state.stats.requests += 1;
                state.trouble = None;
            }
            Err(Error::Refused { text }) if text.starts_with(TOKEN_TIME) && !parcel.unanswered => {
                // Never applied, so it may have a new name. It waited for longer than tokens are remembered, or a clock is wrong.
                state.trouble = Some(crate::Trouble::Refused(text));
                parcel.token = self.client.token();
                return Some(parcel);
            }
            Err(Error::Refused { text }) => {
                let text = format!("{:+} to \"{}\": {text}", parcel.sum.delta, parcel.name.escape_ascii());
                let error = if parcel.unanswered {
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
                parcel.unanswered |= !error.is_known_not_applied();
                return Some(parcel);
            }
        }
        state.stats.adds_pending -= adds;
        None
    }
}
