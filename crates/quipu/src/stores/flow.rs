//! Carries a source into a store: one thread reads, several put.
//!
//! In: a source, and the writer that its import is. Out: how many counters are in, and which were skipped, and why.
//!
//! Invariants:
//! - a name is put once in a run, however often the source names it;
//! - what waits between reading and putting is bounded;
//! - after an error nothing more is read; what was put stays, and the next run goes on.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use quipu_model::{NAME_BYTES_MAX, PUTS_MAX};
use xxhash_rust::xxh3::xxh3_128;

use crate::backends::source::{Found, Source};
use crate::json::Json;
use crate::progress::Progress;
use crate::show;
use crate::stores::mover::{Moved, Mover};

/// Puts under way at the same time: while a store works on one, the next is on its way.
const LANES: usize = 4;

/// How many of the counters that were skipped are named.
const SKIPPED_SHOWN_MAX: usize = 100;

/// What a run came to.
#[derive(Default)]
pub struct Carried {
    pub moved: Moved,
    /// Some of those skipped, by name, and why.
    pub skipped: Vec<(Box<[u8]>, String)>,
    /// How many more there were.
    pub skipped_more: u64,
    pub took: Duration,
}

impl Carried {
    /// How many were skipped.
    pub fn skipped_count(&self) -> u64 {
        self.skipped.len() as u64 + self.skipped_more
    }

    /// Counters in a second.
    pub fn per_second(&self) -> f64 {
        self.moved.counters as f64 / self.took.as_secs_f64().max(f64::EPSILON)
    }

    /// What `--json` has of it.
    pub fn fields(&self) -> Vec<(&'static str, Json)> {
        let skipped = self
            .skipped
            .iter()
            .map(|(name, why)| Json::Object(vec![("name", Json::name(name)), ("why", Json::text(why))]));
        vec![
            ("counters", Json::count(self.moved.counters)),
            ("overtaken", Json::count(self.moved.overtaken)),
            ("skipped", Json::List(skipped.collect())),
            ("skipped_more", Json::count(self.skipped_more)),
            ("seconds", Json::Decimal(self.took.as_secs_f64())),
            ("per_second", Json::Decimal(self.per_second())),
        ]
    }

    /// Tells people what was skipped.
    pub fn tell_skipped(&self) {
        for (name, why) in &self.skipped {
            eprintln!("skipped {}: {why}", show::name(name));
        }
        if self.skipped_more > 0 {
            eprintln!("skipped {} more", self.skipped_more);
        }
    }

    fn skip(&mut self, name: Box<[u8]>, why: String) {
        match self.skipped.len() < SKIPPED_SHOWN_MAX {
            true => self.skipped.push((name, why)),
            false => self.skipped_more += 1,
        }
    }
}

/// Carries all of a source over.
pub fn carry(source: &mut dyn Source, mover: &Mover<'_>, what: &'static str) -> anyhow::Result<Carried> {
    let began = now();
    let progress = match source.size()? {
        Some(counters) => Progress::of_counters(what, counters),
        None => Progress::of_many(what),
    };
    let (sender, receiver) = mpsc::sync_channel::<Vec<Found>>(LANES);
    let receiver = Arc::new(Mutex::new(receiver));
    let failed = AtomicBool::new(false);
    let mut carried = Carried::default();
    let (read, put) = thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES)
            .map(|_| {
                let (receiver, failed, progress) = (receiver.clone(), &failed, &progress);
                scope.spawn(move || {
                    let done = lane(&receiver, mover, failed, progress);
                    if done.is_err() {
                        failed.store(true, Ordering::Relaxed);
                    }
                    done
                })
            })
            .collect();
        // With the last lane the receiver is gone, and nobody waits to send.
        drop(receiver);
        let read = read(source, &sender, &failed, &mut carried);
        drop(sender);
        let ends = lanes.into_iter().map(|lane| lane.join().unwrap_or_else(|_| Err(anyhow!("a thread failed"))));
        (read, ends.collect::<Vec<_>>())
    });
    for moved in put {
        let Moved { counters, overtaken } = moved?;
        carried.moved.counters += counters;
        carried.moved.overtaken += overtaken;
    }
    read?;
    carried.took = began.elapsed();
    Ok(carried)
}

fn read(
    source: &mut dyn Source,
    sender: &mpsc::SyncSender<Vec<Found>>,
    failed: &AtomicBool,
    carried: &mut Carried,
) -> anyhow::Result<()> {
    let mut met: HashSet<u128> = HashSet::new();
    let mut batch = Vec::with_capacity(PUTS_MAX);
    while let Some(page) = source.page()? {
        for found in page {
            if !met.insert(xxh3_128(&found.name)) {
                if !source.repeats() {
                    carried.skip(found.name, "it is named twice: add up what belongs to one counter".to_owned());
                }
                continue;
            }
            match &found.value {
                Err(why) => carried.skip(found.name, why.clone()),
                Ok(_) if found.name.len() > NAME_BYTES_MAX => {
                    carried.skip(found.name, format!("a name has at most {NAME_BYTES_MAX} bytes"));
                }
                Ok(_) => batch.push(found),
            }
            if batch.len() == PUTS_MAX {
                let full = std::mem::replace(&mut batch, Vec::with_capacity(PUTS_MAX));
                if failed.load(Ordering::Relaxed) || sender.send(full).is_err() {
                    // Whoever failed says why.
                    return Ok(());
                }
            }
        }
    }
    let _ = sender.send(batch);
    Ok(())
}

/// Puts what comes, until nothing more does or another has failed.
fn lane(
    receiver: &Mutex<mpsc::Receiver<Vec<Found>>>,
    mover: &Mover<'_>,
    failed: &AtomicBool,
    progress: &Progress,
) -> anyhow::Result<Moved> {
    let mut moved = Moved::default();
    while !failed.load(Ordering::Relaxed) {
        let next = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(batch) = next else { break };
        let Moved { counters, overtaken } = mover.put(&batch)?;
        for found in &batch {
            if let Some(at) = found.expires_at {
                mover.expire(found, at)?;
            }
        }
        moved.counters += counters;
        moved.overtaken += overtaken;
        progress.add(batch.len() as u64);
    }
    Ok(moved)
}

#[allow(clippy::disallowed_methods, reason = "how long a person waited for it")]
fn now() -> Instant {
    Instant::now()
}
