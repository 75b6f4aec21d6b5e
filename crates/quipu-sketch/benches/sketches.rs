//! Benchmarks of the sketches: `cargo bench -p quipu-sketch`, with a filter behind `--`.
//!
//! They measure:
//! - adds of 16-byte items to resident sketches, with the edits recorded and dropped every 64 adds;
//! - counts;
//! - the union of three dense sketches;
//! - events that a sample skips.
//!
//! Without `--bench` (as `cargo test` calls it) everything runs once.

use std::hint::black_box;

use divan::Bencher;
use divan::counter::ItemsCount;
use quipu_sketch::count_min::Update;
use quipu_sketch::sample::{Rate, Skip};
use quipu_sketch::{CountMin, Edits, Hll, Key, SplitMix64, Top, Unique};

const KEY: Key = Key(*b"a key of a bench");

/// Items of one round.
const ITEMS: usize = 1 << 14;

/// Adds per turn, which share their edits.
const TURN: usize = 64;

fn main() {
    divan::main();
}

fn items(seed: u64) -> Vec<[u8; 16]> {
    let mut rng = SplitMix64(seed);
    (0..ITEMS).map(|_| (u128::from(rng.draw()) << 64 | u128::from(rng.draw())).to_le_bytes()).collect()
}

/// Runs over all items, clearing edits as an engine does after each turn.
fn each(bencher: Bencher, items: &[[u8; 16]], mut add: impl FnMut(&[u8], &mut Edits)) {
    let mut edits = Edits::new();
    bencher.counter(ItemsCount::new(items.len())).bench_local(|| {
        for turn in items.chunks(TURN) {
            for item in turn {
                add(item, &mut edits);
            }
            edits.clear();
        }
    });
}

fn hll(seed: u64) -> Hll {
    let mut sketch = Hll::new();
    for round in 0..16 {
        for item in items(seed * 100 + round) {
            sketch.add(&item, &mut Edits::new());
        }
    }
    sketch
}

fn unique(seed: u64) -> Unique {
    let mut sketch = Unique::new();
    for round in 0..16 {
        for item in items(seed * 100 + round) {
            sketch.add(&KEY, &item, &mut Edits::new());
        }
    }
    sketch
}

#[divan::bench]
fn hll_add(bencher: Bencher) {
    let mut sketch = hll(1);
    each(bencher, &items(7), |item, edits| {
        black_box(sketch.add(item, edits));
    });
}

#[divan::bench]
fn hll_count(bencher: Bencher) {
    let mut sketch = hll(1);
    sketch.end_history(&mut Edits::new());
    bencher.bench_local(|| black_box(&sketch).count());
}

#[divan::bench]
fn hll_union_of_three(bencher: Bencher) {
    let (a, b, c) = (hll(1), hll(2), hll(3));
    bencher.bench_local(|| Hll::union_count(black_box(&[&a, &b, &c])));
}

#[divan::bench]
fn hll_merge(bencher: Bencher) {
    let (a, b) = (hll(1), hll(2));
    let mut edits = Edits::new();
    bencher.with_inputs(|| a.clone()).bench_local_refs(|sketch| {
        edits.clear();
        sketch.merge(&[&b], &mut edits);
    });
}

#[divan::bench]
fn unique_add(bencher: Bencher) {
    let mut sketch = unique(1);
    each(bencher, &items(7), |item, edits| {
        black_box(sketch.add(&KEY, item, edits));
    });
}

#[divan::bench]
fn unique_add_to_a_list(bencher: Bencher) {
    let items: Vec<[u8; 16]> = items(7).into_iter().take(2000).collect();
    let mut edits = Edits::new();
    bencher.counter(ItemsCount::new(items.len())).bench_local(|| {
        let mut sketch = Unique::new();
        for item in &items {
            edits.clear();
            sketch.add(&KEY, item, &mut edits);
        }
        sketch
    });
}

#[divan::bench]
fn unique_count_merged(bencher: Bencher) {
    let mut sketch = unique(1);
    sketch.end_history(&mut Edits::new());
    bencher.bench_local(|| black_box(&sketch).count());
}

#[divan::bench]
fn unique_union_of_three(bencher: Bencher) {
    let (a, b, c) = (unique(1), unique(2), unique(3));
    bencher.bench_local(|| Unique::union(black_box(&[&a, &b, &c])));
}

#[divan::bench]
fn cms_add(bencher: Bencher) {
    let mut sketch = CountMin::by_size(Update::Linear, 1 << 14, 4).expect("it is small");
    each(bencher, &items(7), |item, edits| {
        let _ = black_box(sketch.add(&KEY, item, 1, edits));
    });
}

#[divan::bench]
fn frequency_add(bencher: Bencher) {
    let mut sketch = CountMin::by_size(Update::Conservative, 1 << 14, 4).expect("it is small");
    each(bencher, &items(7), |item, edits| {
        let _ = black_box(sketch.add(&KEY, item, 1, edits));
    });
}

#[divan::bench]
fn top_add_of_strangers(bencher: Bencher) {
    let mut top = Top::in_bytes(100, 64 << 10).expect("it is small");
    each(bencher, &items(7), |item, edits| {
        let _ = black_box(top.add(&KEY, item, 1, edits));
    });
}

#[divan::bench]
fn top_add_of_the_listed(bencher: Bencher) {
    let mut top = Top::in_bytes(100, 64 << 10).expect("it is small");
    let few = items(7);
    let items: Vec<[u8; 16]> = (0..ITEMS).map(|n| few[n % 100]).collect();
    each(bencher, &items, |item, edits| {
        let _ = black_box(top.add(&KEY, item, 1000, edits));
    });
}

#[divan::bench]
fn sample_skips(bencher: Bencher) {
    let rate = Rate::one_in(100);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut skip = Skip::new(&rate, random);
    bencher.counter(ItemsCount::new(ITEMS)).bench_local(|| {
        let mut taken = 0;
        for _ in 0..ITEMS {
            taken += u64::from(black_box(&mut skip).take(&rate, || {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random
            }));
        }
        taken
    });
}
