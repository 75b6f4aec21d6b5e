//! Decodes a hundred thousand damaged sketches, from a seed. Each is a sketch or an error, never
//! causes a panic, and takes no more memory than its bytes justify.
//!
//! They begin as real bodies of every kind, form and size, so most damage lies behind the first
//! checks.

use std::panic::{AssertUnwindSafe, catch_unwind};

use quipu_sketch::count_min::Update;
use quipu_sketch::ring::RingMode;
use quipu_sketch::window::{Decay, Panes};
use quipu_sketch::{BYTES_MAX, CountMin, Edits, Hll, Ring, Sketch, SketchKind, SplitMix64, Top, Unique};

use crate::edits::{KEY, Step, ask, run};

/// How many inputs there are; more on request.
const INPUTS: u64 = 100_000;

/// What reading all of them may add to the memory that the process has asked for: some sketches of
/// the largest size, and what other tests take meanwhile.
const MEMORY_MAX: u64 = 512 << 20;

fn draw_below(rng: &mut SplitMix64, bound: usize) -> usize {
    (rng.draw() % bound.max(1) as u64) as usize
}

fn item(n: u64) -> [u8; 8] {
    n.to_le_bytes()
}

/// Real bodies: of each kind, nothing counted, little, as much as a list holds, and more.
fn bodies() -> Vec<(SketchKind, Vec<u8>)> {
    let (mut bodies, mut edits) = (Vec::new(), Edits::new());
    for count in [0u64, 1, 10, 300, 1_500, 1_990, 2_500, 50_000] {
        let (mut hll, mut unique) = (Hll::new(), Unique::new());
        for n in 0..count {
            hll.add(&item(n), &mut edits);
            unique.add(&KEY, &item(n), &mut edits);
        }
        edits.clear();
        bodies.push((SketchKind::Hll, hll.bytes().to_vec()));
        hll.end_history(&mut edits);
        unique.end_history(&mut edits);
        bodies.push((SketchKind::Hll, hll.bytes().to_vec()));
        bodies.push((SketchKind::Unique, unique.bytes().to_vec()));
    }
    for (width, depth) in [(1, 1), (50, 3), (2_000, 5), (7, 64)] {
        for (kind, update) in [(SketchKind::Cms, Update::Linear), (SketchKind::Frequency, Update::Conservative)] {
            let mut counts = CountMin::by_size(update, width, depth).expect("it is small");
            bodies.push((kind, counts.bytes().to_vec()));
            (0..500).for_each(|n| assert!(counts.add(&KEY, &item(n), n * n, &mut edits).is_ok()));
            bodies.push((kind, counts.bytes().to_vec()));
            edits.clear();
        }
    }
    // Weights that lead to cells of each width, and items of several lengths.
    for (weight, longer) in [(1u64, 0), (3, 0), (40, 60), (5_000, 0), (1 << 20, 9), (1 << 40, 0)] {
        for (kind, mut top) in [
            (SketchKind::TopK, Top::reserve(10, 8, 7, 0.9).expect("it is small")),
            (SketchKind::Top, Top::in_bytes(20, 4_096).expect("it is small")),
        ] {
            bodies.push((kind, top.bytes().to_vec()));
            for n in 0..400u64 {
                let mut item = item(n * n % 150).to_vec();
                item.resize(8 + (n as usize % 3) * longer, b'+');
                top.add(&KEY, &item, weight, &mut edits).expect("it is small");
            }
            bodies.push((kind, top.bytes().to_vec()));
            top.halve(5, &mut edits);
            bodies.push((kind, top.bytes().to_vec()));
            edits.clear();
        }
    }
    let panes = |text: &str| RingMode::Panes(Panes::parse(text).expect("it is a window"));
    let like = [
        Sketch::Hll(Hll::new()),
        Sketch::Frequency(CountMin::by_size(Update::Conservative, 50, 3).expect("it is small")),
        Sketch::Top(Top::reserve(10, 8, 7, 0.9).expect("it is small")),
    ];
    for (course, like) in
        [panes("1h/60"), panes("1d/1440"), panes("1s/1"), RingMode::Decay(Decay::new(60_000, 1 << 40))]
            .iter()
            .zip(like.iter().cycle())
    {
        let mut ring = Ring::new(*course, like).expect("it is small");
        bodies.push((SketchKind::Ring, ring.bytes().to_vec()));
        for time in (0..40u64).map(|n| (1 << 40) + n * 60_000) {
            if ring.locate(time, time).is_some_and(|(_, begins)| begins) {
                ring.begin(time, &mut edits);
            }
        }
        ring.add_late(7, &mut edits);
        bodies.push((SketchKind::Ring, ring.bytes().to_vec()));
        edits.clear();
    }
    bodies
}

/// Numbers that sizes and counts are near when something goes wrong.
const NUMBERS: [u64; 12] =
    [0, 1, 2, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 32, i64::MAX as u64, u64::MAX - 1, u64::MAX];

/// Damages bytes, once or several times.
fn damage(bytes: &mut Vec<u8>, others: &[(SketchKind, Vec<u8>)], rng: &mut SplitMix64) {
    for _ in 0..1 + draw_below(rng, 4) {
        let len = bytes.len();
        // Half of it where the sizes are.
        let at = if draw_below(rng, 2) == 0 { draw_below(rng, len.min(64)) } else { draw_below(rng, len) };
        match draw_below(rng, 9) {
            0 | 1 if len > 0 => bytes[at] ^= 1 << draw_below(rng, 8),
            2 if len > 0 => bytes[at] = rng.draw() as u8,
            3 => bytes.truncate(at),
            4 => bytes.extend((0..1 + draw_below(rng, 40)).map(|_| rng.draw() as u8)),
            5 => {
                let number = NUMBERS[draw_below(rng, NUMBERS.len())].to_le_bytes();
                let width = [1, 2, 4, 8][draw_below(rng, 4)].min(len - at.min(len));
                bytes[at.min(len)..at.min(len) + width].copy_from_slice(&number[..width]);
            }
            6 => {
                let other = &others[draw_below(rng, others.len())].1;
                let (from, count) = (draw_below(rng, other.len()), draw_below(rng, 200));
                let part = &other[from..other.len().min(from + count)];
                let count = part.len().min(len - at.min(len));
                bytes[at.min(len)..at.min(len) + count].copy_from_slice(&part[..count]);
            }
            7 => {
                let end = len.min(at + draw_below(rng, 300));
                bytes[at.min(end)..end].fill([0, 0xff][draw_below(rng, 2)]);
            }
            _ if len > 1 => {
                let end = len.min(at + 1 + draw_below(rng, 20));
                bytes.drain(at.min(end)..end);
            }
            _ => {}
        }
    }
}

/// Kilobytes of address space that the process has had at most.
fn address_space_most() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse().ok()).unwrap_or(0)
}

#[test]
fn damaged_bodies_of_every_kind_are_refused_or_whole() {
    let seed: u64 = std::env::var("QUIPU_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let inputs: u64 = std::env::var("QUIPU_FUZZ_INPUTS").ok().and_then(|inputs| inputs.parse().ok()).unwrap_or(INPUTS);
    let bodies = bodies();
    for (kind, bytes) in &bodies {
        assert!(Sketch::from_bytes(*kind, bytes.clone()).is_ok(), "{kind:?} of {} bytes", bytes.len());
    }
    let (mut rng, before) = (SplitMix64(seed), address_space_most());
    let (mut refused, mut whole) = (0u64, 0u64);
    for input in 0..inputs {
        let (mut kind, mut bytes) = bodies[draw_below(&mut rng, bodies.len())].clone();
        match draw_below(&mut rng, 20) {
            // Of another kind.
            0 => kind = SketchKind::ALL[draw_below(&mut rng, SketchKind::ALL.len())],
            // Nothing but its beginning is real.
            1 => {
                let head = bytes.len().min(draw_below(&mut rng, 64));
                bytes[head..].iter_mut().for_each(|byte| *byte = rng.draw() as u8);
            }
            2 => bytes = (0..draw_below(&mut rng, 400)).map(|_| rng.draw() as u8).collect(),
            _ => {}
        }
        damage(&mut bytes, &bodies, &mut rng);
        let steps = [
            Step::Add(rng.draw() % 3_000, 3, NUMBERS[draw_below(&mut rng, 8)], 0),
            Step::Merge(0, 5),
            Step::EndHistory,
        ];
        let step = &steps[draw_below(&mut rng, steps.len())];
        let outcome = catch_unwind(AssertUnwindSafe(|| read(kind, bytes.clone(), step)));
        match outcome {
            Ok(true) => whole += 1,
            Ok(false) => refused += 1,
            Err(_) => panic!("seed {seed}, input {input}: {kind:?}, {step:?}: {:?}", &bytes[..bytes.len().min(200)]),
        }
    }
    println!(
        "proof: damaged sketches: {inputs} inputs from {} bodies, {refused} refused, {whole} whole, no panic",
        bodies.len()
    );
    assert!(refused > inputs / 5 && whole > inputs / 20, "{refused} refused, {whole} whole");
    let grown = (address_space_most() - before) << 10;
    assert!(grown <= MEMORY_MAX, "{grown} bytes more than before");
}

/// Reads bytes as everything that they may be; whether they are a sketch of the kind.
fn read(kind: SketchKind, bytes: Vec<u8>, step: &Step) -> bool {
    let len = bytes.len();
    // What SET, PFCOUNT and PFMERGE are given.
    if let Ok(hll) = Hll::from_redis_string(&bytes) {
        let mut merged = Hll::new();
        merged.merge(&[&hll, &hll], &mut Edits::new());
        assert!(hll.memory() <= 2 * len + 32_768 && merged.estimate().is_finite() && hll.estimate() >= 0.0);
        assert!(Hll::from_redis_string(hll.redis_string()).is_ok(), "what was taken can be given");
    }
    let Ok(mut sketch) = Sketch::from_bytes(kind, bytes) else { return false };
    assert_eq!((sketch.kind(), sketch.bytes().len()), (kind, len), "it is kept as it came");
    // A list has an index beside its bytes, of as many places as it has slots.
    assert!(sketch.memory() <= 8 * len + 65_536, "{} bytes for {len}", sketch.memory());
    ask(&sketch);
    let mut edits = Edits::new();
    // Merges of lists are with others of their size, which damage has none of.
    if !matches!(
        (step, &sketch),
        (Step::Merge(..), Sketch::Cms(_) | Sketch::Frequency(_) | Sketch::TopK(_) | Sketch::Top(_))
    ) {
        run(&mut sketch, step, &mut edits);
    }
    if let Sketch::TopK(list) | Sketch::Top(list) = &mut sketch {
        let other = list.clone();
        let _ = list.merge(&KEY, &[&other], &mut Edits::new());
    }
    if let Sketch::Ring(ring) = &mut sketch {
        ring.advance_landmark(u64::MAX, &mut edits);
        ring.expire(u64::MAX, &mut edits);
    }
    assert!(sketch.bytes().len() <= BYTES_MAX);
    ask(&sketch);
    let again = Sketch::from_bytes(kind, sketch.bytes().to_vec()).expect("what it has become is whole");
    assert_eq!(ask(&again), ask(&sketch));
    true
}
