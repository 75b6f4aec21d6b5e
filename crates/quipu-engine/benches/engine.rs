//! Benchmarks the engine alone: `cargo bench -p quipu-engine --bench engine`, with a filter behind
//! `--`.
//!
//! It measures:
//! - adds through a handle with one and two threads, beside atomics;
//! - adds by name;
//! - filling and committing the journal;
//! - a seal;
//! - recovery.
//!
//! At the end it prints the gain of two threads on one counter, from rounds in which both ran all
//! the time. On a busy machine the threads of the table's `t=2` take turns and do not meet. Without
//! `--bench` (as `cargo test` calls it) everything runs once, small.

#![allow(clippy::disallowed_methods, reason = "it measures how long things take on this machine")]

use std::cell::Cell;
use std::hint::black_box;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Instant;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use quipu_engine::{Engine, Environment, Handle, Options};
use quipu_model::{Command, Durability, Name};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

/// Adds in one sample: enough that reading the clock does not show.
const ADDS: usize = 10_000;

/// Commands of a turn.
const TURN: usize = 64;

/// Counters that names are drawn from.
const NAMES: usize = 10_000;

fn main() {
    divan::main();
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    if words.is_empty() || words.iter().any(|word| "ratio".contains(word.as_str())) {
        ratio();
    }
}

/// What to do: all of it, or once and small.
fn sized(full: usize, small: usize) -> usize {
    if std::env::args().any(|word| word == "--bench") { full } else { small }
}

/// An engine with namespaces of all modes, on a directory that goes with the process.
static ENGINE: LazyLock<(Engine, TempDir)> = LazyLock::new(|| {
    let directory = tempfile::tempdir().expect("a temporary directory");
    (Engine::open(options(&directory)).expect("it opens"), directory)
});

fn options(directory: &TempDir) -> Options {
    let modes = [("m", Durability::Memory), ("r", Durability::Relaxed), ("d", Durability::Durable)];
    let namespaces =
        modes.map(|(name, mode)| (Box::from(name.as_bytes()), quipu_model::Namespace::with_durability(mode))).to_vec();
    Options { namespaces, journal_bytes_max: 1 << 40, ..Options::new(directory.path()) }
}

fn handle(mode: &str) -> Handle {
    ENGINE.0.handle(format!("{mode}:hot")).expect("it is short")
}

static SHARED: AtomicI64 = AtomicI64::new(0);

#[derive(Default)]
#[repr(align(128))]
struct Padded(AtomicI64);

static PADDED: LazyLock<Vec<Padded>> = LazyLock::new(|| (0..64).map(|_| Padded::default()).collect());

/// An atomic of this thread's own.
fn own_atomic() -> &'static AtomicI64 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static OWN: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed)));
    &PADDED[OWN.get() % PADDED.len()].0
}

#[divan::bench_group(threads = [1, 2])]
mod one_counter {
    use super::*;

    fn adds(bencher: Bencher<'_, '_>, count: usize, add: impl Fn() + Sync) {
        let bench = || (0..count).for_each(|_| add());
        bencher.counter(ItemsCount::new(count)).bench(bench);
    }

    #[divan::bench]
    fn atomic_shared(bencher: Bencher<'_, '_>) {
        adds(bencher, ADDS, || {
            black_box(SHARED.fetch_add(1, Ordering::SeqCst));
        });
    }

    #[divan::bench]
    fn atomic_padded(bencher: Bencher<'_, '_>) {
        let bench = || {
            let own = own_atomic();
            (0..ADDS).for_each(|_| {
                black_box(own.fetch_add(1, Ordering::SeqCst));
            });
        };
        bencher.counter(ItemsCount::new(ADDS)).bench(bench);
    }

    #[divan::bench(args = ["m", "r", "d"])]
    fn handle_count(bencher: Bencher<'_, '_>, mode: &str) {
        let handle = handle(mode);
        adds(bencher, ADDS, || handle.count(1).expect("there is room"));
    }

    /// With the value after it, and what its mode makes it wait for.
    #[divan::bench(args = ["m", "r"])]
    fn handle_add(bencher: Bencher<'_, '_>, mode: &str) {
        let handle = handle(mode);
        adds(bencher, ADDS / 10, || {
            black_box(handle.add(1).expect("there is room"));
        });
    }
}

/// Names of 20 bytes, in the order of no table.
fn names(mode: &str) -> Vec<String> {
    (0..NAMES).map(|index| format!("{mode}:{:018}", index.wrapping_mul(0x9e37_79b1) % NAMES)).collect()
}

mod by_name {
    use super::*;

    #[divan::bench(args = ["m", "r"])]
    fn engine_add(bencher: Bencher<'_, '_>, mode: &str) {
        let names = names(mode);
        bencher.counter(ItemsCount::new(names.len())).bench_local(|| {
            for name in &names {
                black_box(ENGINE.0.add(name, 1).expect("there is room"));
            }
        });
    }

    /// As a worker does with a pipeline; one commit for all of it.
    #[divan::bench(args = ["m", "r"])]
    fn turn_of_64(bencher: Bencher<'_, '_>, mode: &str) {
        let names = names(mode);
        bencher.counter(ItemsCount::new(names.len())).bench_local(|| {
            for names in names.chunks(TURN) {
                apply(&ENGINE.0, names);
                ENGINE.0.steps().write_filled();
            }
        });
    }
}

/// One turn.
fn apply(engine: &Engine, names: &[String]) {
    let mut turn = engine.turn();
    for name in names {
        let name = Name::new(name.as_bytes()).expect("it is short");
        black_box(turn.run(&Command::Add { name, delta: 1, shard_key: None }).expect("it is resident"));
    }
    turn.finish();
}

mod journal {
    use super::*;

    /// A turn of 64 adds to different counters, to where its records are filled.
    #[divan::bench]
    fn fill(bencher: Bencher<'_, '_>) {
        commit(bencher, |_| ());
    }

    #[divan::bench]
    fn fill_and_hand_over(bencher: Bencher<'_, '_>) {
        commit(bencher, |engine| engine.steps().write_filled());
    }

    #[divan::bench]
    fn fill_hand_over_and_sync(bencher: Bencher<'_, '_>) {
        commit(bencher, |engine| {
            engine.steps().write_filled();
            engine.steps().sync();
        });
    }

    fn commit(bencher: Bencher<'_, '_>, then: impl Fn(&Engine)) {
        let names = names("r");
        let mut turns = names.chunks(TURN).cycle();
        bencher.counter(ItemsCount::new(TURN)).bench_local(|| {
            apply(&ENGINE.0, turns.next().expect("it has no end"));
            then(&ENGINE.0);
        });
    }
}

mod rest {
    use super::*;

    #[divan::bench(sample_count = 10, sample_size = 1)]
    fn seal_of_100k(bencher: Bencher<'_, '_>) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let engine = Engine::open_with(options(&directory), Environment::system()).expect("it opens");
        let names: Vec<String> = (0..sized(100_000, 1_000)).map(|index| format!("r:{index:018}")).collect();
        let change = || {
            names.chunks(TURN).for_each(|names| apply(&engine, names));
            engine.steps().write_filled();
            engine.steps().sync();
            engine.steps().prepare_segments().expect("there is space");
        };
        let seal = |()| engine.steps().seal_all().expect("there is space");
        bencher.counter(ItemsCount::new(names.len())).with_inputs(change).bench_local_values(seal);
    }

    /// A start on a journal that was never sealed; per byte of it.
    #[divan::bench(sample_count = 10, sample_size = 1)]
    fn recovery(bencher: Bencher<'_, '_>) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        // Without a driver it is not closed when it is dropped: what is left is what a kill leaves.
        let open = || Engine::open_with(options(&directory), Environment::system()).expect("it opens");
        let engine = open();
        let names = names("r");
        let bytes = sized(32 << 20, 64 << 10) as u64;
        for names in names.chunks(TURN).cycle() {
            apply(&engine, names);
            engine.steps().write_filled();
            engine.steps().prepare_segments().expect("there is space");
            if engine.stats().journal_bytes >= bytes {
                break;
            }
        }
        engine.steps().sync();
        drop(engine);
        bencher.counter(BytesCount::new(bytes)).bench_local(|| {
            let engine = open();
            assert!(engine.recovery().records > 0);
            engine
        });
    }
}

/// Adds of each thread in one round: about a millisecond, which two threads often have to
/// themselves on a machine that does something else, too.
const ROUND_ADDS: usize = 200_000;

/// A round counts if each thread had a core for so much of its time, and was beside the other for
/// so much of it: else it did not meet the other.
const RAN_MIN: f64 = 0.9;
const BESIDE_MIN: f64 = 0.8;

/// Prints what two threads gain on one counter: medians of rounds in turn, shared atomic and
/// handle, in which both threads ran all the time.
fn ratio() {
    let (rounds, adds) = (sized(400, 1), sized(ROUND_ADDS, 1_000));
    let kinds: [(&str, Adds); 4] = [
        ("shared atomic", Box::new(|adds| add_to(&SHARED, adds))),
        ("padded atomics", Box::new(|adds| add_to(own_atomic(), adds))),
        ("handle, memory", counting("m")),
        ("handle, relaxed", counting("r")),
    ];
    let mut took: Vec<[Vec<f64>; 2]> = kinds.iter().map(|_| [Vec::new(), Vec::new()]).collect();
    for _ in 0..rounds {
        for ((_, work), took) in kinds.iter().zip(&mut took) {
            for (threads, took) in [1, 2].into_iter().zip(took) {
                took.extend(round(threads, adds, work));
            }
        }
    }
    if took.iter().flatten().any(Vec::is_empty) {
        println!("two threads on one counter: too few rounds in which both ran to tell");
        return;
    }
    println!();
    let mut median = |kind: usize, threads: usize| {
        let took = &mut took[kind][threads - 1];
        took.sort_by(f64::total_cmp);
        (took[took.len() / 2], took.len())
    };
    for (kind, (what, _)) in kinds.iter().enumerate() {
        let ((alone, alone_rounds), (both, rounds)) = (median(kind, 1), median(kind, 2));
        println!(
            "{what:<16} {alone:5.2} ns an add alone ({alone_rounds} rounds), {both:5.2} ns with two threads ({rounds} rounds)"
        );
    }
    let shared = median(0, 2).0;
    let (memory, relaxed) = (shared / median(2, 2).0, shared / median(3, 2).0);
    println!("two threads on one counter, handle ÷ shared atomic: {memory:.1} in memory, {relaxed:.1} relaxed");
}

/// So many adds, by one thread.
type Adds = Box<dyn Fn(usize) + Sync>;

fn add_to(atomic: &AtomicI64, adds: usize) {
    for _ in 0..adds {
        black_box(atomic.fetch_add(1, Ordering::SeqCst));
    }
}

fn counting(mode: &str) -> Adds {
    let handle = handle(mode);
    Box::new(move |adds| (0..adds).for_each(|_| handle.count(1).expect("there is room")))
}

/// Nanoseconds an add, of all threads together; `None` if they did not run side by side.
fn round(threads: usize, adds: usize, work: &Adds) -> Option<f64> {
    let ready = AtomicUsize::new(0);
    let timed = || {
        ready.fetch_add(1, Ordering::SeqCst);
        while ready.load(Ordering::SeqCst) < threads {
            std::hint::spin_loop();
        }
        let (began, ran) = (Instant::now(), thread_time());
        work(adds);
        (began, Instant::now(), thread_time() - ran)
    };
    let spans: Vec<(Instant, Instant, f64)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(timed)).collect();
        threads.into_iter().map(|thread| thread.join().expect("adding does not panic")).collect()
    });
    let (last_began, first_ended) = (spans.iter().map(|span| span.0).max()?, spans.iter().map(|span| span.1).min()?);
    let beside = first_ended.saturating_duration_since(last_began).as_nanos() as f64;
    let mut rate = 0.0;
    for (began, ended, ran) in spans {
        let took = (ended - began).as_nanos() as f64;
        if ran < RAN_MIN * took || beside < BESIDE_MIN * took {
            return None;
        }
        rate += adds as f64 / took;
    }
    Some(1.0 / rate)
}

/// Nanoseconds for which this thread has run.
fn thread_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
