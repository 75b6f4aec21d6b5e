//! Sums adds in the client and sends the sums: one request per counter and flush, for any number of
//! adds.
//!
//! In: adds, which return at once. Out: `INCRBY`s with tokens, or their sampled form, in one
//! pipeline; acknowledgements for the callers of `flush`.
//!
//! Invariants:
//! - A sum never changes after it was sent. An unanswered sum is sent again, unchanged and under
//!   the same token; adds made meanwhile go into the next flush.
//! - Memory is bounded: at most `counters_max` names are summed, and as many are on their way. An
//!   add to a further counter waits.
//! - Each add ends in exactly one figure of [`AdderStats`].
//! - Each add draws one random number, and only once it is known to be accepted: otherwise the
//!   refusals would depend on the draws.
//!
//! Not here: sending (`flush`), retrying within a flush (`driver`).

mod flush;
mod sampling;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quipu_model::Name;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use self::sampling::AddSampler;
pub use self::sampling::SampleMode;

use crate::client::spawn;
use crate::{Client, Error, Trouble};

/// When an adder sends its sums, and the bounds of these.
#[derive(Debug, Clone)]
pub struct AdderOptions {
    /// Longest time that an add waits before it is sent; default 1 s. Each flush leaves a token per
    /// counter at the server for its `token_window`.
    pub interval: Duration,
    /// Number of adds that starts a flush before the interval is over; default 65,536. It bounds
    /// the loss of a crash of this process.
    pub adds_max: u64,
    /// Most counters summed at once; default 8,192, not 0. A flush starts when half of them are in
    /// use. Beyond the bound, adds to further counters wait.
    pub counters_max: usize,
    /// Which events are summed; default all. Sampled sums are estimates, with their quality in the
    /// counter's readings. They need a sampled namespace.
    pub sample: SampleMode,
}

impl AdderOptions {
    /// The same options, with one event in `p` summed, for `p` events.
    #[must_use]
    pub fn sample(self, p: u32) -> AdderOptions {
        AdderOptions { sample: SampleMode::OneIn(p), ..self }
    }
}

impl Default for AdderOptions {
    fn default() -> AdderOptions {
        // People who watch a number do not notice a second. 8,192 names of the usual length take
        // about a megabyte.
        let sample = SampleMode::All;
        AdderOptions { interval: Duration::from_secs(1), adds_max: 65_536, counters_max: 8_192, sample }
    }
}

/// The outcomes of the adds of an [`Adder`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AdderStats {
    /// Summed, or on their way.
    pub adds_pending: u64,
    /// Adds of which the sampling took no event: the sampled events count for them.
    pub adds_skipped: u64,
    /// Counted by the server.
    pub adds_acknowledged: u64,
    /// Refused by the server for good, and not counted.
    pub adds_refused: u64,
    /// Counted once or not at all. A request was unanswered, and a later attempt was refused: after
    /// its token's time, or for another reason.
    pub adds_unknown: u64,
    /// Acknowledged requests: one per counter and flush.
    pub requests: u64,
}

/// Sums adds and sends the sums. Clones share the sums.
///
/// **Dropping the last clone without [`Adder::flush`] loses the pending adds**;
/// [`Client::adds_dropped`] counts them.
#[derive(Debug, Clone)]
pub struct Adder {
    handle: Arc<Handle>,
}

/// One counter of an [`Adder`].
#[derive(Debug, Clone)]
pub struct Counter {
    adder: Adder,
    name: Arc<[u8]>,
}

#[derive(Debug)]
struct Handle {
    inner: Arc<AdderInner>,
}

#[derive(Debug)]
struct AdderInner {
    client: Client,
    options: AdderOptions,
    state: Mutex<AdderState>,
    /// Wakes the flush task: there are sums to send, a flush is urgent, or the last handle is gone.
    wake: Notify,
    /// Wakes waiting adds: there is room for further counters.
    room: Notify,
    /// The last batch of sums that is answered completely.
    batches_done: watch::Sender<u64>,
}

#[derive(Debug)]
struct AdderState {
    /// At most `counters_max`.
    sums: HashMap<Box<[u8]>, PendingSum>,
    /// Adds in `sums`.
    adds: u64,
    /// Number of times that `sums` was taken for sending.
    batches_taken: u64,
    /// True if the sums are to be sent before the interval is over.
    is_urgent: bool,
    is_closed: bool,
    stats: AdderStats,
    /// The first refusal since the last flush, not yet returned to a caller.
    refusal: Option<Error>,
    /// Why the requests in flight were not answered.
    trouble: Option<Trouble>,
    sampler: AddSampler,
}

#[derive(Debug, Clone, Copy, Default)]
struct PendingSum {
    delta: i64,
    adds: u64,
}

impl Adder {
    pub(crate) fn new(client: Client, options: AdderOptions) -> Adder {
        let state = AdderState {
            sums: HashMap::new(),
            adds: 0,
            batches_taken: 0,
            is_urgent: false,
            is_closed: false,
            stats: AdderStats::default(),
            refusal: None,
            trouble: None,
            sampler: AddSampler::new(options.sample, client.seed(), Instant::now()),
        };
        let inner = Arc::new(AdderInner {
            client,
            options,
            state: Mutex::new(state),
            wake: Notify::new(),
            room: Notify::new(),
            batches_done: watch::Sender::new(0),
        });
        spawn(flush::run(inner.clone()));
        Adder { handle: Arc::new(Handle { inner }) }
    }

    /// A counter, named once and added to often.
    pub fn counter(&self, name: impl AsRef<[u8]>) -> Counter {
        Counter { adder: self.clone(), name: name.as_ref().into() }
    }

    /// Adds. Returns when the add is summed: at once, unless too many counters wait for sending.
    /// [`Adder::flush`] returns when it is acknowledged.
    pub async fn add(&self, name: impl AsRef<[u8]>, delta: i64) -> Result<(), Error> {
        let (inner, name) = (self.inner(), name.as_ref());
        let deadline = inner.client.deadline();
        loop {
            let mut room = std::pin::pin!(inner.room.notified());
            // Before `try_add`, so that a wake-up in between is not missed.
            room.as_mut().enable();
            match self.try_add(name, delta) {
                Err(full @ Error::Full { .. }) => timeout_at(deadline, room).await.map_err(|_| full)?,
                outcome => return outcome,
            }
        }
    }

    /// Adds, or returns [`Error::Full`] if it would have to wait. Never waits.
    pub fn try_add(&self, name: impl AsRef<[u8]>, delta: i64) -> Result<(), Error> {
        let (inner, name) = (self.inner(), Name::new(name.as_ref())?.bytes());
        let counters_max = inner.options.counters_max.max(1);
        let mut state = inner.state();
        let (was_empty, counters) = (state.sums.is_empty(), state.sums.len());
        let delta = match state.sampler.p() {
            None => delta,
            Some(p) => {
                if counters >= counters_max && !state.sums.contains_key(name) {
                    return Err(Error::Full { counters_max });
                }
                let events = u64::try_from(delta).map_err(|_| Error::Sampled)?;
                let fits = |sum: i64| sum.checked_add(delta)?.checked_add(p.into());
                // The present sum matters only for a very large number of events.
                let sum =
                    if fits(i64::MAX / 2).is_some() { 0 } else { state.sums.get(name).map_or(0, |sum| sum.delta) };
                fits(sum).ok_or(Error::Overflow)?;
                match state.sampler.sample(events) {
                    0 => {
                        state.stats.adds_skipped += 1;
                        return Ok(());
                    }
                    taken => taken,
                }
            }
        };
        match state.sums.get_mut(name) {
            Some(sum) => {
                sum.delta = sum.delta.checked_add(delta).ok_or(Error::Overflow)?;
                sum.adds += 1;
            }
            None if counters >= counters_max => return Err(Error::Full { counters_max }),
            None => drop(state.sums.insert(name.into(), PendingSum { delta, adds: 1 })),
        }
        state.adds += 1;
        state.stats.adds_pending += 1;
        let is_urgent = state.adds >= inner.options.adds_max || state.sums.len() * 2 > counters_max;
        if was_empty || is_urgent && !state.is_urgent {
            state.is_urgent |= is_urgent;
            inner.wake.notify_one();
        }
        Ok(())
    }

    /// Sends the sums and returns when every earlier add is acknowledged.
    ///
    /// - [`Error::Unflushed`]: some adds are not acknowledged within the client's timeout. The
    ///   adder keeps them and sends them again by itself, under the same tokens.
    /// - [`Error::Refused`] and [`Error::Unknown`]: the first counter with this outcome since the
    ///   last flush. Everything else is acknowledged; [`AdderStats`] has the figures.
    pub async fn flush(&self) -> Result<(), Error> {
        let inner = self.inner();
        let deadline = inner.client.deadline();
        let mut outcome = inner.batches_done.subscribe();
        let target = {
            let mut state = inner.state();
            state.is_urgent |= !state.sums.is_empty();
            state.batches_taken + u64::from(!state.sums.is_empty())
        };
        inner.wake.notify_one();
        let flushed = timeout_at(deadline, outcome.wait_for(|outcome| *outcome >= target)).await;
        let mut state = inner.state();
        match flushed {
            Ok(Ok(_)) => state.refusal.take().map_or(Ok(()), Err),
            Ok(Err(_)) => Err(Error::Closed),
            Err(_) => Err(Error::Unflushed { adds: state.stats.adds_pending, source: state.trouble.clone() }),
        }
    }

    /// The outcomes of the adds so far.
    pub fn stats(&self) -> AdderStats {
        self.inner().state().stats
    }

    fn inner(&self) -> &AdderInner {
        &self.handle.inner
    }
}

impl Counter {
    /// See [`Adder::add`].
    pub async fn add(&self, delta: i64) -> Result<(), Error> {
        self.adder.add(&self.name, delta).await
    }

    /// See [`Adder::try_add`].
    pub fn try_add(&self, delta: i64) -> Result<(), Error> {
        self.adder.try_add(&self.name, delta)
    }

    /// Its name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }
}

impl AdderInner {
    /// Locks the state. No operation under the lock can stop halfway, so a panic elsewhere leaves
    /// the state valid.
    fn state(&self) -> MutexGuard<'_, AdderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut state = self.inner.state();
        state.is_closed = true;
        self.inner.client.record_dropped_adds(state.stats.adds_pending);
        drop(state);
        self.inner.wake.notify_one();
    }
}
