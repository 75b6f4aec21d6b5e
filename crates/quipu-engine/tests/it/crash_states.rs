//! Tests loss of power at any moment, in any form: enumerates the disk's states, opens and judges
//! each.

use std::collections::BTreeSet;
use std::path::Path;

use quipu_engine::offline::{DirectoryAudit, audit};
use quipu_engine::{Engine, OpenError};
use quipu_model::{Command, Durability, ListNames, Pattern, Reply, Vfs};
use quipu_testkit::{CrashDisk, Image, SeededRng};

use crate::model::{State, view};
use crate::once::{TokenModel, retry_all};
use crate::sim::{Trace, all_names, durability, run_incarnation_after};
use crate::world::{DATA, World, ledger_opener, small_options};

/// Seeds that once failed stay here, in front of the others.
const KEPT_SEEDS: [u64; 0] = [];

/// So many of the crashes are followed by a retry of everything.
const RETRIED_PERCENT: usize = 40;

/// How much was tried.
#[derive(Default)]
pub struct Tally {
    pub distinct: BTreeSet<u64>,
    power: usize,
    killed: usize,
    in_recovery: usize,
    lives: usize,
    replies: usize,
    seals: usize,
    evicted: usize,
    loads: usize,
    in_lanes: usize,
    counted: usize,
    torn: usize,
    simple: usize,
    once: usize,
    again: usize,
    /// Retries after a crash: of what survived, and of what did not.
    retried: (usize, usize),
}

#[test]
fn every_crash_leaves_a_state_that_existed_and_keeps_what_was_shown() {
    let seeds: u64 = std::env::var("QUIPU_CRASH_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(120);
    let mut tally = Tally::default();
    for seed in KEPT_SEEDS.into_iter().chain(0..seeds) {
        run_seed(seed, &mut tally);
    }
    println!(
        "proof: crash states: {} distinct from {seeds} seeds, {} lives ({} after loss of power, {} after a kill, {} within recovery; \
         {} torn tails cut, {} replies left, {} adds and reads run many at a time, {} seals, {} evicted, {} loads, {} adds in lanes, {} beside them)\n\
         proof: tokens: {} mutations under tokens and numbers, {} retries of them; after crashes {} retries of what survived, {} of what did not",
        tally.distinct.len(),
        tally.lives,
        tally.power,
        tally.killed,
        tally.in_recovery,
        tally.torn,
        tally.replies,
        tally.simple,
        tally.seals,
        tally.evicted,
        tally.loads,
        tally.in_lanes,
        tally.counted,
        tally.once,
        tally.again,
        tally.retried.0,
        tally.retried.1,
    );
    if seeds >= 50 {
        assert!(tally.distinct.len() >= 10_000, "only {} distinct states", tally.distinct.len());
    }
}

fn run_seed(seed: u64, tally: &mut Tally) {
    let rng = SeededRng::new(seed ^ 0x51_6d);
    let segment_bytes = *rng.pick(&[4096, 4096, 8192, 65536]);
    let mut disk = CrashDisk::new();
    let (mut state, mut token_model) = (State::new(), TokenModel::new(seed));
    for incarnation in 0..3 {
        let context = format!("seed {seed}, life {incarnation}");
        let world = World::new(disk, rng.next_u64());
        let engine = world.open(small_options(segment_bytes)).unwrap_or_else(|e| panic!("{context}: {e}"));
        let operations_at_start = world.disk.operations();
        let steps = 150 + rng.below(250);
        let trace = run_incarnation_after(&world, &engine, &state, &token_model, 2 + rng.below(2), steps);
        tally.lives += 1;
        tally.replies += trace.counts.replies;
        tally.simple += trace.counts.simple;
        tally.seals += trace.counts.seals;
        tally.evicted += trace.counts.evicted;
        tally.once += trace.counts.once;
        tally.again += trace.counts.again;
        tally.loads += trace.counts.loads;
        tally.in_lanes += trace.counts.in_lanes;
        tally.counted += trace.counts.counted;
        let operations = world.disk.operations();
        for _ in 0..90 {
            // Before `operations_at_start` the start itself was under way: the state that was there must still be.
            let at = rng.below(operations + 1);
            let (image, least) = if rng.chance(85) {
                tally.power += 1;
                (world.disk.crash(at, &rng), Durability::Durable)
            } else {
                tally.killed += 1;
                (world.disk.kill(at), Durability::Relaxed)
            };
            let context = format!("{context}, crash after operation {at} of {operations}");
            if tally.distinct.insert(image.digest()) {
                judge_crash(
                    image,
                    &CrashCase { segment_bytes, trace: &trace, at, operations_at_start, least },
                    &rng,
                    tally,
                    &context,
                );
            }
        }
        // The next life begins on one of the disks that this one may have left.
        let image = world.disk.crash(operations, &rng);
        let case =
            CrashCase { segment_bytes, trace: &trace, at: operations, operations_at_start, least: Durability::Durable };
        drop(engine);
        (disk, state, token_model) = judge_crash(image, &case, &rng, tally, &context);
    }
}

/// A life, and the moment of a crash in it.
pub struct CrashCase<'a> {
    pub segment_bytes: u64,
    pub trace: &'a Trace,
    /// So many operations of the disk had returned.
    pub at: usize,
    /// So many when the life began to take commands.
    pub operations_at_start: usize,
    /// Replies of at least this durability must have survived.
    pub least: Durability,
}

/// Opens an image, compares it with what existed, then crashes the opening itself a few times. Returns a disk to live on.
pub fn judge_crash(
    image: Image,
    case: &CrashCase<'_>,
    rng: &SeededRng,
    tally: &mut Tally,
    context: &str,
) -> (CrashDisk, State, TokenModel) {
    // In a world of its own: what did not survive is applied there.
    let retrying = rng.chance(RETRIED_PERCENT).then(|| World::new(image.clone().into_disk(), rng.next_u64()));
    let audited = audit_of(&image.clone().into_disk());
    let world = World::new(image.into_disk(), rng.next_u64());
    let engine = world.open(small_options(case.segment_bytes)).unwrap_or_else(|e| panic!("{context}: refused: {e}"));
    if let Some(audited) = audited.unwrap_or_else(|e| panic!("{context}: not audited: {e}")) {
        assert!(audited.is_clean(), "{context}: {audited:?}");
        assert_eq!(audited.counters, engine.stats().counters, "{context}: the number of counters that an audit found");
    }
    let recovery = engine.recovery().clone();
    tally.torn += usize::from(recovery.tail.torn.is_some());
    let tail = recovery.tail.position;
    let (first, _) = case.trace.states.first_key_value().expect("a life notes its beginning");
    // The opening of this life writes a record of its own; a crash within it leaves the journal as the life before did.
    let expected = match case.trace.states.get(&tail) {
        Some(state) => state.clone(),
        None if case.at < case.operations_at_start && tail < *first => case.trace.states[first].clone(),
        None => panic!("{context}: recovered to position {tail}, where no record ended"),
    };
    let token_model = &case.trace.token_models[if case.trace.states.contains_key(&tail) { &tail } else { first }];
    if let Some(world) = retrying {
        let engine =
            world.open(small_options(case.segment_bytes)).unwrap_or_else(|e| panic!("{context}: refused: {e}"));
        let (_, ever) = case.trace.token_models.last_key_value().expect("a life notes its end");
        let (survived, lost) = retry_all(&engine, &expected, token_model, ever, context);
        tally.retried = (tally.retried.0 + survived, tally.retried.1 + lost);
    }
    let found = read_all(&engine, Durability::Durable);
    assert_eq!(found, view(&expected, engine.now()), "{context}: not the state that was at position {tail}");
    if let Some(shown) = case.trace.promised(case.at, case.least) {
        assert!(
            shown.position <= tail,
            "{context}: taken back: recovered to {tail}, but this had been shown, up to {}: {}",
            shown.position,
            shown.what
        );
    }
    let memory = read_all(&engine, Durability::Memory);
    for (name, (value, _)) in &memory {
        let had = case.trace.memory.get(name);
        assert!(had.is_some_and(|had| had.contains(value)), "{context}: {name:?} never was {value}");
    }
    // After every name was looked at, none that has expired is counted any more.
    assert_eq!(engine.stats().counters as usize, found.len() + memory.len(), "{context}: the number of counters");
    let walked = engine.execute(&Command::ListNames(ListNames { pattern: Pattern(b"*"), bytes_max: 1 << 20 }));
    let Ok(Reply::Names(mut walked)) = walked else { panic!("{context}: {walked:?}") };
    walked.sort_unstable();
    assert!(
        walked.iter().map(|name| &**name).eq(found
            .keys()
            .chain(memory.keys())
            .map(|name| &**name)
            .collect::<BTreeSet<_>>()),
        "{context}: {walked:?}"
    );
    // Again, in the middle of recovery: it converges.
    let operations = world.disk.operations();
    for _ in 0..2 {
        let at = rng.below(operations + 1);
        let again = if rng.chance(70) { world.disk.crash(at, rng) } else { world.disk.kill(at) };
        if tally.distinct.insert(again.digest()) {
            tally.in_recovery += 1;
            let world = World::new(again.into_disk(), rng.next_u64());
            let engine = world.open(small_options(case.segment_bytes));
            let engine = engine.unwrap_or_else(|e| panic!("{context}: refused after a crash in recovery: {e}"));
            assert_eq!(
                read_all(&engine, Durability::Durable),
                view(&expected, engine.now()),
                "{context}: a crash in recovery at {at}"
            );
        }
    }
    drop(engine);
    let disk = world.disk.kill(world.disk.operations()).into_disk();
    (disk, expected.into_iter().chain(memory).collect(), token_model.clone())
}

/// What an audit finds on a disk.
fn audit_of(disk: &CrashDisk) -> Result<Option<DirectoryAudit>, OpenError> {
    let dir = Path::new(DATA);
    if disk.list(dir).is_err() {
        return Ok(None);
    }
    audit(disk, dir, &mut || ledger_opener(disk, dir)(), &mut |_, _| ())
}

/// Everything there is of one durability, or of all but memory.
pub fn read_all(engine: &Engine, which: Durability) -> State {
    let wanted = |name: &&[u8]| (durability(name) == Durability::Memory) == (which == Durability::Memory);
    let readings = all_names().filter(wanted).map(|name| (name, engine.read(name).unwrap()));
    readings
        .filter(|(_, reading)| reading.exists)
        .map(|(name, reading)| (name.to_vec(), (reading.value, reading.expires_at.map(|at| at.0))))
        .collect()
}
