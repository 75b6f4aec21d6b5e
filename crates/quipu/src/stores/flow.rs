//! Carries a source into a store: one thread reads, several put.
//!
//! In: a source, and the writer that its import is. Out: how many counters and sketches are in, and which keys were skipped, and why.
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

use crate::backends::source::{Content, Found, Source};
use crate::json::Json;
use crate::progress::Progress;
use crate::stores::mover::{Moved, Mover};
use crate::stores::skipped::Skipped;

/// Puts under way at the same time: while a store works on one, the next is on its way.
const LANES: usize = 4;

/// Bytes of sketches that one batch may have, but for the last of them: what waits between reading and putting is bounded by this, too.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// What a run came to.
#[derive(Default)]
pub struct Carried {
    pub moved: Moved,
    pub skipped: Skipped,
    pub took: Duration,
}

impl Carried {
    /// Counters in a second.
    pub fn per_second(&self) -> f64 {
        self.moved.counters as f64 / self.took.as_secs_f64().max(f64::EPSILON)
    }

    /// What `--json` has of it.
    pub fn fields(&self) -> Vec<(&'static str, Json)> {
        let mut fields = vec![
            ("counters", Json::count(self.moved.counters)),
            ("sketches", Json::count(self.moved.sketches)),
            ("overtaken", Json::count(self.moved.overtaken)),
        ];
        fields.extend(self.skipped.fields(["skipped", "skipped_more", "skipped_reasons"]));
        fields.push(("seconds", Json::Decimal(self.took.as_secs_f64())));
        fields.push(("per_second", Json::Decimal(self.per_second())));
        fields
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
    for end in put {
        let LaneEnd { moved, skipped } = end?;
        carried.moved += moved;
        carried.skipped.extend(skipped);
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
    let mut bytes = 0;
    while let Some(page) = source.page()? {
        for found in page {
            if !met.insert(xxh3_128(&found.name)) {
                if !source.repeats() {
                    carried.skipped.add(found.name, "it is named twice: add up what belongs to one counter".into());
                }
                continue;
            }
            match &found.value {
                Err(why) => {
                    let why = why.clone();
                    carried.skipped.add(found.name, why);
                    continue;
                }
                Ok(_) if found.name.len() > NAME_BYTES_MAX => {
                    carried.skipped.add(found.name, "its name is longer than that of a counter may be".into());
                    continue;
                }
                Ok(Content::Count(_)) => {}
                Ok(Content::Sketch(sketch)) => bytes += sketch.bytes.len(),
            }
            batch.push(found);
            if batch.len() == PUTS_MAX || bytes > BATCH_BYTES_MAX {
                bytes = 0;
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

/// What one lane has put.
#[derive(Default)]
struct LaneEnd {
    moved: Moved,
    skipped: Skipped,
}

/// Puts what comes, until nothing more does or another has failed.
fn lane(
    receiver: &Mutex<mpsc::Receiver<Vec<Found>>>,
    mover: &Mover<'_>,
    failed: &AtomicBool,
    progress: &Progress,
) -> anyhow::Result<LaneEnd> {
    let mut end = LaneEnd::default();
    while !failed.load(Ordering::Relaxed) {
        let next = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(batch) = next else { break };
        end.moved += mover.put(&batch)?;
        for found in &batch {
            if let Ok(Content::Sketch(sketch)) = &found.value
                && let Some(reason) = mover.put_sketch(found, sketch, &mut end.moved)?
            {
                end.skipped.add(found.name.clone(), reason);
                continue;
            }
            if let Some(at) = found.expires_at {
                mover.expire(found, at)?;
            }
        }
        progress.add(batch.len() as u64);
    }
    Ok(end)
}

#[allow(clippy::disallowed_methods, reason = "how long a person waited for it")]
fn now() -> Instant {
    Instant::now()
}
