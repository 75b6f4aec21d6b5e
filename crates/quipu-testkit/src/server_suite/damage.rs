//! Tests rows with foreign data: an error for that counter alone, bounded work, and never a wrong
//! number.

use std::error::Error;
use std::time::{Duration, Instant};

use quipu_model::shared::body::StoredBody;
use quipu_model::shared::put::put;
use quipu_model::shared::{BodyVerdict, RowVersion, Snapshot, SwapId, SwapVerdict, Verdict};
use quipu_model::{Millis, Store, StoreError};

use super::puts::{make_body_put, make_put, name, writer};
use super::{StoreAdapter, TestServer};
use crate::SeededRng;
use crate::store_suite::block_on;

/// Longer than any call on a small row takes, and shorter than the time-out of a reply.
const PROMPT: Duration = Duration::from_secs(3);

/// The default prefix of every store.
const PREFIX: &str = "quipu";

/// A store whose rows tests can damage.
pub trait DamageableStore: StoreAdapter {
    /// Schedules, and rows of each.
    const SEEDS: u64;
    /// Rows that are damaged in one schedule.
    const ROWS: usize;
    /// Fewest rows of all schedules that cannot be read afterwards.
    const REFUSED_MIN: u32;

    /// Damages the row of this name, of the store with the default prefix; returns what was done.
    fn damage_row(server: &Self::Server, at: &str, rng: &SeededRng) -> String;
}

/// An error and its causes, in one line.
pub fn join_causes(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Returns a call's answer, which must not take long.
#[allow(clippy::disallowed_methods, reason = "real servers are waited for")]
pub fn promptly<T>(what: &str, call: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let answer = call();
    assert!(begun.elapsed() < PROMPT, "{what} took {:?}", begun.elapsed());
    answer
}

/// Puts into a hundred counters and into `bad` among them; returns the outcome for `bad` if all
/// others succeeded.
pub fn put_among_others(store: &impl Store, seq: u64, what: &str) -> Result<Verdict, StoreError> {
    let names: Vec<String> = (0..100).map(|n| format!("n{n}")).collect();
    let mut puts: Vec<_> = names.iter().map(|at| (name(at.as_bytes()), make_put(seq, 5))).collect();
    puts.insert(50, (name(b"bad"), make_put(seq, 5)));
    let mut results = block_on(store.put(&puts)).expect(what);
    let bad = results.remove(50);
    assert!(results.iter().all(|result| matches!(result, Ok(Verdict::Newest))), "{what}: {results:?}");
    bad
}

/// Makes a row of several writers, often with an expiry, and with a body.
fn fill(store: &impl Store, at: &str, rng: &SeededRng) {
    let at = name(at.as_bytes());
    block_on(store.put_body(at, &make_body_put(1, None))).expect("an empty row takes a body");
    let mut row = block_on(store.read(at)).expect("it was written by us").snapshot;
    let version = row.version;
    row.version.swaps += 1;
    row.base = Some(7);
    row.swaps = vec![SwapId(9)];
    if rng.chance(50) {
        row.expires_at = Some(Millis(block_on(store.clock()).expect("it answers").0 + 3_600_000));
    }
    assert_eq!(block_on(store.swap(at, version, Some(&row))).expect("it answers"), SwapVerdict::Swapped);
    for node in 2..4 {
        let mut put = make_put(10, 5);
        put.cell.writer = writer(node);
        block_on(store.put_all(&[(at, put)])).expect("it answers");
    }
}

/// Rows are damaged by chance, and every call on them is made.
pub fn rows_of_garbage_stop_nobody_else_and_are_never_taken_for_numbers<A: DamageableStore>() {
    let server = A::Server::start_fast().expect("the server starts");
    let store = A::open(&server.url(), PREFIX.to_owned(), None);
    let mut read_anyway = 0;
    let mut refused = 0;
    for seed in 0..A::SEEDS {
        let rng = SeededRng::new(seed);
        for n in 0..A::ROWS {
            let at = format!("fuzz:{seed}:{n}");
            fill(&store, &at, &rng);
            let what = format!("seed {seed}, row {n}: {}", A::damage_row(&server, &at, &rng));
            let here = name(at.as_bytes());
            let before = promptly(&what, || block_on(store.read(here))).ok();
            match &before {
                Some(_) => read_anyway += 1,
                None => refused += 1,
            }
            put_as_the_model_does(&store, &at, before.map(|seen| (seen.snapshot, seen.at)), &rng, &what);
            let body = promptly(&what, || block_on(store.put_body(here, &make_body_put(2, Some(1)))));
            let held = promptly(&what, || block_on(store.read_bodies(here)));
            if let (Ok(BodyVerdict::Cell(Verdict::Newest)), Ok(held)) = (body, held) {
                assert_eq!(held.bodies.get(&writer(1)), Some(&expected_body()), "{what}");
            }
            if let Ok(seen) = promptly(&what, || block_on(store.read(here))) {
                let next = Snapshot { base: Some(1), ..seen.snapshot.clone() };
                let version = seen.snapshot.version;
                drop(promptly(&what, || block_on(store.swap(here, version, Some(&next)))));
                drop(promptly(&what, || block_on(store.swap_bodies(here, version, &next, &[(writer(1), None)]))));
            }
            drop(promptly(&what, || block_on(store.swap(here, RowVersion::ABSENT, None))));
            let fine = promptly(&what, || block_on(store.put_all(&[(name(b"fine"), make_put(n as u64 + 1, 1))])));
            assert!(fine.is_ok(), "{what}: {fine:?}");
        }
    }
    assert!(read_anyway > 10 && refused > A::REFUSED_MIN, "{read_anyway} were read, {refused} refused");
}

/// The body after [`make_body_put`].
fn expected_body() -> StoredBody {
    let mut body = StoredBody::new(make_body_put(2, None).shape).expect("it is short");
    body.write_page(1, b"page").expect("it is within the body");
    body
}

/// Puts: what the row was to a reader, the model says what must become of it, or there is an error.
fn put_as_the_model_does(
    store: &impl Store,
    at: &str,
    before: Option<(Snapshot, Millis)>,
    rng: &SeededRng,
    what: &str,
) {
    let mut wanted = make_put(9 + rng.below(4) as u64, 6);
    wanted.cell.writer = writer(2 + rng.below(3) as u64);
    let results = promptly(what, || block_on(store.put(&[(name(at.as_bytes()), wanted)])));
    let Ok(verdict) = &results.expect("the store itself is well")[0] else { return };
    let Some((row, time)) = before else { return };
    let mut row = Some(row).filter(|row| row.version != RowVersion::ABSENT);
    let was_there = row.is_some();
    assert_eq!(*verdict, put(&mut row, &wanted, time), "{what}: {wanted:?}");
    if let (Ok(after), Some(mut row), true) = (block_on(store.read(name(at.as_bytes()))), row, was_there) {
        row.version.puts = after.snapshot.version.puts;
        assert_eq!(after.snapshot, row, "{what}: {wanted:?}");
    }
}
