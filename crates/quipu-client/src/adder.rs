//! Adds that are summed here and sent together: one request per counter and flush, however many adds it stands for.
//!
//! In: adds, which return at once. Out: tokened `INCRBY`s, or what was sampled as such, in one pipeline; acknowledgements, to whoever flushes.
//!
//! Invariants:
//! - a sum that was sent is never changed: what was not answered is sent again, the same under the same token; adds made meanwhile go into the next flush;
//! - what waits here is bounded: `counters_max` names that are summed, and as many that are on their way. Who adds to another one waits;
//! - each add ends in exactly one figure of [`AdderStats`];
//! - the dice are thrown once for an add, and after it is known to have a place: else what is refused would depend on them.
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

/// When sums are sent, and how many there may be.
#[derive(Debug, Clone)]
pub struct AdderOptions {
    /// How long an add may wait before it is sent. Each flush leaves a token per counter at the server for its `token_window`.
    pub interval: Duration,
    /// So many adds are sent before the interval is over. That bounds what a crash of this process loses.
    pub adds_max: u64,
    /// Most counters that are summed at once; when half of them are, they are sent. Beyond it, adds to further counters wait. Not 0.
    pub counters_max: usize,
    /// Which events are summed. What is sampled is an estimate, of which the counter's readings say how good it is; it needs a namespace that is sampled.
    pub sample: SampleMode,
}

impl AdderOptions {
    /// The same, with one event in so many summed, for all of them.
    #[must_use]
    pub fn sample(self, p: u32) -> AdderOptions {
        AdderOptions { sample: SampleMode::OneIn(p), ..self }
    }
}

impl Default for AdderOptions {
    fn default() -> AdderOptions {
        // A second is what people who look at a number do not notice; 8,192 names of the usual length take about a megabyte.
        let sample = SampleMode::All;
        AdderOptions { interval: Duration::from_secs(1), adds_max: 65_536, counters_max: 8_192, sample }
    }
}

/// What became of the adds of an [`Adder`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AdderStats {
    /// Summed, or on their way.
    pub adds_pending: u64,
    /// None of their events was taken: those that were count for them.
    pub adds_skipped: u64,
    /// Counted by the server.
    pub adds_acknowledged: u64,
    /// Refused by the server for good, and not counted.
    pub adds_refused: u64,
    /// Sent, and refused later than their token's time, or for another reason after a sending that was not answered: counted once or not at all.
    pub adds_unknown: u64,
    /// Requests that were acknowledged: one per counter and flush.
    pub requests: u64,
}

/// Sums adds and sends them together. Clones share the sums.
///
/// **Dropping the last clone without [`Adder::flush`] loses what is pending**; [`Client::adds_dropped`] counts it.
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
    /// There is something to be sent, or it is to be sent now, or everybody is gone.
    wake: Notify,
    /// There is room for further counters.
    room: Notify,
    /// The last taking of sums of which everything is answered.
    batches_done: watch::Sender<u64>,
}

#[derive(Debug)]
struct AdderState {
    /// At most `counters_max`.
    sums: HashMap<Box<[u8]>, PendingSum>,
    /// Adds in `sums`.
    adds: u64,
    /// How often `sums` were taken to be sent.
    batches_taken: u64,
    /// Whether they are to be sent before their time.
    is_urgent: bool,
    is_closed: bool,
    stats: AdderStats,
    /// What nobody has been told yet: the first of the refusals since the last flush.
    refusal: Option<Error>,
    /// Why what is on its way was not answered.
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

    /// Adds. Returns when the add is summed, which is at once unless too many counters wait to be sent; it is acknowledged by [`Adder::flush`].
    pub async fn add(&self, name: impl AsRef<[u8]>, delta: i64) -> Result<(), Error> {
        let (inner, name) = (self.inner(), name.as_ref());
        let deadline = inner.client.deadline();
        loop {
            let mut room = std::pin::pin!(inner.room.notified());
            // Before looking, so that room that is made in between is not missed.
            room.as_mut().enable();
            match self.try_add(name, delta) {
                Err(full @ Error::Full { .. }) => timeout_at(deadline, room).await.map_err(|_| full)?,
                outcome => return outcome,
            }
        }
    }

    /// Adds, or says that it would have to wait ([`Error::Full`]). Never waits.
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
                // A sum is looked for only where the events are so many that it matters.
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

    /// Sends what is summed and returns when everything that was added before is acknowledged.
    ///
    /// [`Error::Unflushed`]: not within the client's timeout; what is left is kept, and is sent again by itself under the same tokens. [`Error::Refused`] and [`Error::Unknown`] tell the first counter of
    /// which that is so since the last flush, when everything else is acknowledged; [`AdderStats`] has the figures.
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

    /// What became of the adds so far.
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
    /// The state. Nothing that is done under the lock can be left half done, so a panic elsewhere does not spoil it.
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
