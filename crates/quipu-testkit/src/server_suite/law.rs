//! Compares the store with the model: for any puts and swaps, verdicts and rows are equal.

use std::time::Duration;

use quipu_model::shared::put::put;
use quipu_model::shared::{
    CellId, Change, FinalCell, NO_WRITERS, NextRow, Put, Seq, Shard, SwapContext, SwapId, SwapVerdict, Verdict,
    plan_swap,
};
use quipu_model::{Epoch, ExpiryCondition, ExpiryTime, Incarnation, Name, NodeId, SetExpiry, Store, Writer};

use super::puts::name;
use super::{StoreAdapter, TestServer};
use crate::SeededRng;
use crate::store_suite::block_on;

/// Steps of one schedule, and schedules.
const STEPS: usize = 400;
const SEEDS: u64 = 8;

/// Far from now, so that no answer hangs on when it is looked at.
const HOUR: i64 = 3_600_000;

/// Random puts and swaps, each compared with the model's.
pub fn verdicts_and_rows_are_those_of_the_model_whatever_is_put_and_swapped<A: StoreAdapter>() {
    let server = A::Server::start_fast().expect("the server starts");
    let store = A::open_fresh(&server.url());
    let mut verdict_counts = [0_u32; 5];
    for seed in 0..SEEDS {
        let rng = SeededRng::new(seed);
        let at = format!("law:{seed}");
        let at = name(at.as_bytes());
        let mut epochs = vec![Epoch::FIRST];
        for step in 0..STEPS {
            if rng.chance(80) {
                let verdicts = put_some::<A>(&store, at, &rng, &epochs, (seed, step));
                verdicts.iter().for_each(|verdict| verdict_counts[kind(verdict)] += 1);
            } else {
                swap_some::<A>(&store, at, &rng, &mut epochs, (seed, step));
            }
        }
    }
    assert!(verdict_counts.iter().all(|&times| times > 20), "every verdict was given: {verdict_counts:?}");
}

fn put_some<A: StoreAdapter>(
    store: &A::Store,
    at: Name<'_>,
    rng: &SeededRng,
    epochs: &[Epoch],
    (seed, step): (u64, usize),
) -> Vec<Verdict> {
    let before = block_on(store.read(at)).expect("the server answers");
    let mut row = Some(before.snapshot.clone()).filter(|row| row.version != Default::default());
    let made = row.is_none();
    let wanted: Vec<Put> = (0..1 + rng.below(3)).map(|_| any_put(rng, epochs)).collect();
    let expected: Vec<Verdict> = wanted.iter().map(|wanted| put(&mut row, wanted, before.at)).collect();
    let puts: Vec<_> = wanted.iter().map(|wanted| (at, *wanted)).collect();
    let verdicts = block_on(store.put_all(&puts)).expect("the server answers");
    assert_eq!(verdicts, expected, "seed {seed}, step {step}: {wanted:?} on {before:?}");
    let mut after = block_on(store.read(at)).expect("the server answers").snapshot;
    if made {
        // The one thing that the server's clock decides.
        after.version.born_at = before.at;
    }
    if let Some(row) = row.as_ref().filter(|_| !A::COUNTS_PUTS) {
        let moved = row.version.puts > before.snapshot.version.puts;
        assert_eq!(after.version.puts > before.snapshot.version.puts, moved, "seed {seed}, step {step}: {wanted:?}");
        // It rises with the model's, and by more.
        after.version.puts = row.version.puts;
    }
    assert_eq!(Some(after), row, "seed {seed}, step {step}: the row after {wanted:?}");
    verdicts
}

fn any_put(rng: &SeededRng, epochs: &[Epoch]) -> Put {
    let writer = Writer { node: NodeId(rng.below(3) as u64), incarnation: Incarnation(u64::MAX) };
    let cell = CellId { writer, shard: Shard(rng.below(2) as u16) };
    let newest = epochs[epochs.len() - 1];
    let epoch = match rng.below(10) {
        0 => epochs[rng.below(epochs.len())],
        1 => Epoch { millis: newest.millis + 1, ..newest },
        2 => epochs[epochs.len().saturating_sub(2)],
        _ => newest,
    };
    // Seqs around a place where the number of digits changes.
    let value = i128::from(rng.between(-5..=5)) * i128::from(i64::MAX);
    Put { cell, epoch, seq: Seq(95 + rng.below(12) as u64), value, total: value }
}

fn swap_some<A: StoreAdapter>(
    store: &A::Store,
    at: Name<'_>,
    rng: &SeededRng,
    epochs: &mut Vec<Epoch>,
    (seed, step): (u64, usize),
) {
    let seen = block_on(store.read(at)).expect("the server answers");
    let writer = Writer { node: NodeId(rng.below(3) as u64), incarnation: Incarnation(u64::MAX) };
    let expire = |by| Change::Expire { when: ExpiryTime::In(by), condition: ExpiryCondition::Always };
    let change = match rng.below(12) {
        0 => Change::Set { value: i64::MIN, expiry: SetExpiry::Keep, reply_old: false },
        1 => Change::Delete,
        2 => Change::Close(writer),
        3 => Change::Fold(writer),
        4 => expire(HOUR),
        5 => Change::Persist,
        6 => Change::Late(FinalCell { put: any_put(rng, epochs), expires_at: None, expired_seq: Seq(0) }),
        _ => Change::Set { value: 1, expiry: SetExpiry::Remove, reply_old: false },
    };
    let id = SwapId((u128::from(seed) << 64) + step as u128);
    let by = SwapContext { id, node: NodeId(9), grace: Duration::from_secs(3_600), registered: &NO_WRITERS };
    let Ok(computed) = plan_swap(&seen, &by, &change) else { return };
    let NextRow::Row(mut next) = computed.next else { return };
    // A row that is due, though nobody has moved it: no test waits for a clock.
    if rng.chance(10) && next.exists() {
        next.expires_at = Some(seen.at);
    }
    let verdict = block_on(store.swap(at, seen.snapshot.version, Some(&next))).expect("the server answers");
    assert_eq!(verdict, SwapVerdict::Swapped, "seed {seed}, step {step}: {change:?}");
    let mut after = block_on(store.read(at)).expect("the server answers").snapshot;
    if !A::COUNTS_PUTS {
        after.version.puts = next.version.puts;
    }
    assert_eq!(after, next, "seed {seed}, step {step}: {change:?}");
    if epochs[epochs.len() - 1] != next.epoch {
        epochs.push(next.epoch);
    }
}

fn kind(verdict: &Verdict) -> usize {
    match verdict {
        Verdict::Newest => 0,
        Verdict::Older => 1,
        Verdict::Closed { .. } => 2,
        Verdict::Stale { .. } => 3,
        Verdict::Behind { .. } => 4,
    }
}
