//! Measures the ledger: `cargo run --release -p quipu-ledger --example measure -- COUNTERS
//! [CACHE_MB] [DIR]`.
//!
//! Names have 20 bytes. Every figure is of one thread, with the files in the page cache; ingestion
//! includes its fsyncs. `cpu` is the thread's running time, which other work on the machine does
//! not change; `wall` is the elapsed time.

#![allow(clippy::disallowed_methods, reason = "it measures how long things take on this machine")]

use std::ops::{AddAssign, Sub};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use quipu_ledger::{Ledger, LedgerError, LedgerOptions};
use quipu_model::{Cell, Epoch};
use quipu_testkit::SeededRng;
use xxhash_rust::xxh3::xxh3_64;

const GETS: usize = 200_000;
const CHECKPOINTS: usize = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let counters: usize = args.next().unwrap_or("1000000".into()).parse()?;
    let cache_bytes = args.next().unwrap_or("64".into()).parse::<u64>()? << 20;
    let options = LedgerOptions { cache_bytes };
    let temporary = tempfile::tempdir()?;
    let dir = args.next().map_or(temporary.path().join("ledger"), |dir| PathBuf::from(dir).join("ledger"));

    let mut sorted: Vec<(u64, u32)> = (0..counters as u32).map(|i| (xxh3_64(name(i).as_bytes()), i)).collect();
    sorted.sort_unstable();
    let batch = |round: i64, part: usize| {
        let take = move |(hash, _): &&(u64, u32)| (*hash as usize).wrapping_add(round as usize).is_multiple_of(part);
        sorted.iter().filter(take).map(move |&(hash, i)| (hash, name(i), Some(cell(i64::from(i) * 1000 + round))))
    };
    println!("{counters} counters, cache of {} MB", cache_bytes >> 20);

    let rss_before = rss();
    let ledger = Ledger::open(&dir, options)?;
    let (ingested, took) = timed(|| ledger.ingest(batch(0, 1), b"0"))?;
    per("ingest, all in order", took, counters);
    row("  at rest", format!("{:.1} bytes a counter", ingested.bytes as f64 / counters as f64));
    compact_all(&ledger)?;
    drop(ledger);

    let (ledger, took) = timed(|| Ledger::open(&dir, options))?;
    row("reopen", format!("{:.1} ms", took.wall.as_secs_f64() * 1e3));
    let stats = ledger.stats();
    row("  memory besides the cache", format!("{} KB in {} tables", stats.memory_bytes / 1024, stats.tables));
    let (_, took) = timed(|| Ledger::verify(&dir, |_, _| ()))?;
    row("verify", format!("{:.0} MB/s", stats.disk_bytes as f64 / took.cpu.as_secs_f64() / 1e6));
    gets(&ledger, counters)?;
    row(
        "memory grown so far",
        format!("{} MB, cache holds {} MB", (rss() - rss_before) >> 20, ledger.stats().cache_bytes >> 20),
    );

    for part in [1, 10, 100] {
        let (mut cells, mut ingested, mut compacted, mut disk_max) = (0, 0, 0, 0);
        let (mut ingestion, mut compaction) = (Took::default(), Took::default());
        let mut piece_max = Duration::ZERO;
        for round in 1..=CHECKPOINTS as i64 {
            let (written, took) = timed(|| ledger.ingest(batch(round, part), &round.to_le_bytes()))?;
            ingestion += took;
            cells += written.cells;
            ingested += written.bytes;
            disk_max = disk_max.max(ledger.stats().disk_bytes);
            let (bytes, took, longest) = compact_all(&ledger)?;
            compacted += bytes;
            compaction += took;
            piece_max = piece_max.max(longest);
        }
        println!("{CHECKPOINTS} checkpoints of every {part}th counter");
        per("  ingest", ingestion, cells as usize);
        per("  compaction", compaction, cells as usize);
        row("  write amplification", format!("{:.2}", (ingested + compacted) as f64 / ingested as f64));
        row("  longest piece of compaction", format!("{:.0} ms cpu", piece_max.as_secs_f64() * 1e3));
        let stats = ledger.stats();
        row("  at rest, most", format!("{:.1} bytes a counter", disk_max as f64 / counters as f64));
        row(
            "  at rest, at the end",
            format!("{:.1} bytes a counter, {} runs", stats.disk_bytes as f64 / counters as f64, stats.runs),
        );
        gets(&ledger, counters)?;
    }
    let (_, took) = timed(|| ledger.range(0).try_fold((), |(), cell| cell.map(|_| ())))?;
    per("range over all", took, counters);
    let (_, took) = timed(|| ledger.clear(b"clear"))?;
    row("clear", format!("{:.1} ms", took.wall.as_secs_f64() * 1e3));
    row("memory grown", format!("{} MB", (rss() - rss_before) >> 20));
    Ok(())
}

fn gets(ledger: &Ledger, counters: usize) -> Result<(), LedgerError> {
    let rng = SeededRng::new(1);
    let (found, took) = timed(|| {
        (0..GETS).try_fold(0, |found, _| {
            let name = name(rng.below(counters) as u32);
            ledger.get(xxh3_64(name.as_bytes()), name.as_bytes()).map(|cell| found + usize::from(cell.is_some()))
        })
    })?;
    assert_eq!(found, GETS);
    per("  get, at rest", took, GETS);
    let (found, took) = timed(|| {
        (0..GETS as u32).try_fold(0, |found, i| {
            let name = name(u32::MAX - i);
            ledger.get(xxh3_64(name.as_bytes()), name.as_bytes()).map(|cell| found + usize::from(cell.is_some()))
        })
    })?;
    assert_eq!(found, 0);
    per("  get, not at rest", took, GETS);
    Ok(())
}

fn compact_all(ledger: &Ledger) -> Result<(u64, Took, Duration), LedgerError> {
    let (mut bytes, mut all, mut longest) = (0, Took::default(), Duration::ZERO);
    loop {
        let (compacted, took) = timed(|| ledger.compact())?;
        bytes += compacted.bytes_written;
        all += took;
        longest = longest.max(took.cpu);
        if !compacted.more {
            return Ok((bytes, all, longest));
        }
    }
}

fn name(i: u32) -> String {
    format!("likes:{i:014}")
}

fn cell(value: i64) -> Cell {
    Cell { epoch: Epoch::FIRST, value, expires_at: None }
}

/// How long something took.
#[derive(Clone, Copy, Default)]
struct Took {
    wall: Duration,
    cpu: Duration,
}

impl AddAssign for Took {
    fn add_assign(&mut self, other: Took) {
        self.wall += other.wall;
        self.cpu += other.cpu;
    }
}

fn timed<T, E>(call: impl FnOnce() -> Result<T, E>) -> Result<(T, Took), E> {
    let (start, start_cpu) = (Instant::now(), cpu());
    let result = call()?;
    Ok((result, Took { wall: start.elapsed(), cpu: cpu().sub(start_cpu) }))
}

/// How long this thread ran.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(stat.split_whitespace().next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0))
}

fn per(what: &str, took: Took, count: usize) {
    let each = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
    row(what, format!("{:.2} µs each cpu, {:.2} wall", each(took.cpu), each(took.wall)));
}

fn row(what: &str, figure: String) {
    println!("{what:<32}{figure}");
}

/// Bytes of this process in memory.
fn rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}
