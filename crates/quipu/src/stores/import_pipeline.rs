//! Imports a source into a store: one thread reads, several put.
//!
//! In: a source, and the import's writer. Out: the numbers of imported counters and sketches, and
//! the skipped keys with their reasons.
//!
//! Invariants:
//! - a name is put once in a run, even if the source repeats it;
//! - the queue between reading and putting is bounded;
//! - after an error the import reads no more; what it has put stays, and the next run continues.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use quipu_model::{NAME_BYTES_MAX, PUTS_MAX};
use xxhash_rust::xxh3::xxh3_128;

use crate::backends::source::{Source, SourceContent, SourceKey};
use crate::json::Json;
use crate::progress::Progress;
use crate::stores::importer::{ImportCounts, Importer};
use crate::stores::skip_list::SkipList;

/// Puts in flight at the same time: while a store works on one, the next is on its way.
const PUT_THREADS: usize = 4;

/// Bytes of sketches in one batch, except its last sketch. This also bounds the queue between
/// reading and putting.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// The outcome of a run.
#[derive(Default)]
pub struct ImportReport {
    pub counts: ImportCounts,
    pub skipped: SkipList,
    pub elapsed: Duration,
}

impl ImportReport {
    /// Counters per second.
    pub fn per_second(&self) -> f64 {
        self.counts.counters as f64 / self.elapsed.as_secs_f64().max(f64::EPSILON)
    }

    /// The fields for `--json`.
    pub fn fields(&self) -> Vec<(&'static str, Json)> {
        let mut fields = vec![
            ("counters", Json::count(self.counts.counters)),
            ("sketches", Json::count(self.counts.sketches)),
            ("overtaken", Json::count(self.counts.overtaken)),
        ];
        fields.extend(self.skipped.fields(["skipped", "skipped_more", "skipped_reasons"]));
        fields.push(("seconds", Json::Decimal(self.elapsed.as_secs_f64())));
        fields.push(("per_second", Json::Decimal(self.per_second())));
        fields
    }
}

/// Imports all of a source.
pub fn import_all(
    source: &mut dyn Source,
    importer: &Importer<'_>,
    message: &'static str,
) -> anyhow::Result<ImportReport> {
    let began = now();
    let progress = match source.approximate_size()? {
        Some(counters) => Progress::for_counters(message, counters),
        None => Progress::for_unknown_count(message),
    };
    let (sender, receiver) = mpsc::sync_channel::<Vec<SourceKey>>(PUT_THREADS);
    let receiver = Arc::new(Mutex::new(receiver));
    let failed = AtomicBool::new(false);
    let mut report = ImportReport::default();
    let (read, put) = thread::scope(|scope| {
        let put_threads: Vec<_> = (0..PUT_THREADS)
            .map(|_| {
                let (receiver, failed, progress) = (receiver.clone(), &failed, &progress);
                scope.spawn(move || {
                    let done = put_batches(&receiver, importer, failed, progress);
                    if done.is_err() {
                        failed.store(true, Ordering::Relaxed);
                    }
                    done
                })
            })
            .collect();
        // With the last put thread the receiver is gone, so that no sender blocks.
        drop(receiver);
        let read = read_source(source, &sender, &failed, &mut report);
        drop(sender);
        let thread_reports = put_threads
            .into_iter()
            .map(|put_thread| put_thread.join().unwrap_or_else(|_| Err(anyhow!("a thread failed"))));
        (read, thread_reports.collect::<Vec<_>>())
    });
    for thread_report in put {
        let PutThreadReport { counts, skipped } = thread_report?;
        report.counts += counts;
        report.skipped.extend(skipped);
    }
    read?;
    report.elapsed = began.elapsed();
    Ok(report)
}

fn read_source(
    source: &mut dyn Source,
    sender: &mpsc::SyncSender<Vec<SourceKey>>,
    failed: &AtomicBool,
    report: &mut ImportReport,
) -> anyhow::Result<()> {
    let mut visited: HashSet<u128> = HashSet::new();
    let mut batch = Vec::with_capacity(PUTS_MAX);
    let mut bytes = 0;
    while let Some(page) = source.next_page()? {
        for found in page {
            if !visited.insert(xxh3_128(&found.name)) {
                if !source.may_repeat_keys() {
                    report.skipped.add(found.name, "it is named twice: add up what belongs to one counter".into());
                }
                continue;
            }
            match &found.value {
                Err(why) => {
                    let why = why.clone();
                    report.skipped.add(found.name, why);
                    continue;
                }
                Ok(_) if found.name.len() > NAME_BYTES_MAX => {
                    report.skipped.add(found.name, "its name is longer than that of a counter may be".into());
                    continue;
                }
                Ok(SourceContent::Count(_)) => {}
                Ok(SourceContent::Sketch(sketch)) => bytes += sketch.bytes.len(),
            }
            batch.push(found);
            if batch.len() == PUTS_MAX || bytes > BATCH_BYTES_MAX {
                bytes = 0;
                let full = std::mem::replace(&mut batch, Vec::with_capacity(PUTS_MAX));
                if failed.load(Ordering::Relaxed) || sender.send(full).is_err() {
                    // The failed thread reports the reason.
                    return Ok(());
                }
            }
        }
    }
    let _ = sender.send(batch);
    Ok(())
}

/// The results of one put thread.
#[derive(Default)]
struct PutThreadReport {
    counts: ImportCounts,
    skipped: SkipList,
}

/// Puts batches until there are no more, or another thread has failed.
fn put_batches(
    receiver: &Mutex<mpsc::Receiver<Vec<SourceKey>>>,
    importer: &Importer<'_>,
    failed: &AtomicBool,
    progress: &Progress,
) -> anyhow::Result<PutThreadReport> {
    let mut thread_report = PutThreadReport::default();
    while !failed.load(Ordering::Relaxed) {
        let next = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(batch) = next else { break };
        thread_report.counts += importer.put(&batch)?;
        for found in &batch {
            if let Ok(SourceContent::Sketch(sketch)) = &found.value
                && let Some(reason) = importer.put_sketch(found, sketch, &mut thread_report.counts)?
            {
                thread_report.skipped.add(found.name.clone(), reason);
                continue;
            }
            if let Some(at) = found.expires_at {
                importer.expire(found, at)?;
            }
        }
        progress.add(batch.len() as u64);
    }
    Ok(thread_report)
}

#[allow(clippy::disallowed_methods, reason = "how long a person waited for it")]
fn now() -> Instant {
    Instant::now()
}
