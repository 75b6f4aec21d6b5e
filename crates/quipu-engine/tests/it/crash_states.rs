//! Loss of power at any moment, in any of its forms: the disk's states are enumerated, each is opened and judged.

use std::collections::BTreeSet;
use std::path::Path;

use quipu_engine::survey::{Audit, audit};
use quipu_engine::{Engine, OpenError};
use quipu_model::{Command, Durability, ListNames, Pattern, Reply, Vfs};
use quipu_testkit::{CrashDisk, Dice, Image};

use crate::model::{State, view};
use crate::once::{Book, retry_all};
use crate::sim::{Trace, all_names, durability, live_on};
use crate::world::{DATA, World, look, small};

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
    laid: usize,
    counted: usize,
    torn: usize,
    briefs: usize,
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
        tally.briefs,
        tally.seals,
        tally.evicted,
        tally.loads,
        tally.laid,
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
    let dice = Dice::new(seed ^ 0x51_6d);
    let segment_bytes = *dice.pick(&[4096, 4096, 8192, 65536]);
    let mut disk = CrashDisk::new();
    let (mut state, mut book) = (State::new(), Book::new(seed));
    for life in 0..3 {
        let context = format!("seed {seed}, life {life}");
        let world = World::new(disk, dice.roll());
        let engine = world.open(small(segment_bytes)).unwrap_or_else(|e| panic!("{context}: {e}"));
        let before_life = world.disk.operations();
        let steps = 150 + dice.below(250);
        let trace = live_on(&world, &engine, &state, &book, 2 + dice.below(2), steps);
        tally.lives += 1;
        tally.replies += trace.counts.replies;
        tally.briefs += trace.counts.briefs;
        tally.seals += trace.counts.seals;
        tally.evicted += trace.counts.evicted;
        tally.once += trace.counts.once;
        tally.again += trace.counts.again;
        tally.loads += trace.counts.loads;
        tally.laid += trace.counts.laid;
        tally.counted += trace.counts.counted;
        let operations = world.disk.operations();
        for _ in 0..90 {
            // Before `before_life` the start itself was under way: the state that was there must still be.
            let at = dice.below(operations + 1);
            let (image, least) = if dice.chance(85) {
                tally.power += 1;
                (world.disk.crash(at, &dice), Durability::Durable)
            } else {
                tally.killed += 1;
                (world.disk.kill(at), Durability::Relaxed)
            };
            let context = format!("{context}, crash after operation {at} of {operations}");
            if tally.distinct.insert(image.digest()) {
                judge(image, &Judged { segment_bytes, trace: &trace, at, before_life, least }, &dice, tally, &context);
            }
        }
        // The next life begins on one of the disks that this one may have left.
        let image = world.disk.crash(operations, &dice);
        let judged = Judged { segment_bytes, trace: &trace, at: operations, before_life, least: Durability::Durable };
        drop(engine);
        (disk, state, book) = judge(image, &judged, &dice, tally, &context);
    }
}

/// A life, and the moment of a crash in it.
pub struct Judged<'a> {
    pub segment_bytes: u64,
    pub trace: &'a Trace,
    /// So many operations of the disk had returned.
    pub at: usize,
    /// So many when the life began to take commands.
    pub before_life: usize,
    /// Replies of at least this durability must have survived.
    pub least: Durability,
}

/// Opens an image, compares it with what existed, then crashes the opening itself a few times. Returns a disk to live on.
pub fn judge(
    image: Image,
    judged: &Judged<'_>,
    dice: &Dice,
    tally: &mut Tally,
    context: &str,
) -> (CrashDisk, State, Book) {
    // In a world of its own: what did not survive is applied there.
    let retrying = dice.chance(RETRIED_PERCENT).then(|| World::new(image.clone().into_disk(), dice.roll()));
    let audited = audit_of(&image.clone().into_disk());
    let world = World::new(image.into_disk(), dice.roll());
    let engine = world.open(small(judged.segment_bytes)).unwrap_or_else(|e| panic!("{context}: refused: {e}"));
    if let Some(audited) = audited.unwrap_or_else(|e| panic!("{context}: not audited: {e}")) {
        assert!(audited.is_clean(), "{context}: {audited:?}");
        assert_eq!(audited.counters, engine.stats().counters, "{context}: the number of counters that an audit found");
    }
    let recovery = engine.recovery().clone();
    tally.torn += usize::from(recovery.tail.torn.is_some());
    let tail = recovery.tail.position;
    let (first, _) = judged.trace.states.first_key_value().expect("a life notes its beginning");
    // The opening of this life writes a record of its own; a crash within it leaves the journal as the life before did.
    let expected = match judged.trace.states.get(&tail) {
        Some(state) => state.clone(),
        None if judged.at < judged.before_life && tail < *first => judged.trace.states[first].clone(),
        None => panic!("{context}: recovered to position {tail}, where no record ended"),
    };
    let book = &judged.trace.books[if judged.trace.states.contains_key(&tail) { &tail } else { first }];
    if let Some(world) = retrying {
        let engine = world.open(small(judged.segment_bytes)).unwrap_or_else(|e| panic!("{context}: refused: {e}"));
        let (_, ever) = judged.trace.books.last_key_value().expect("a life notes its end");
        let (survived, lost) = retry_all(&engine, &expected, book, ever, context);
        tally.retried = (tally.retried.0 + survived, tally.retried.1 + lost);
    }
    let found = read_all(&engine, Durability::Durable);
    assert_eq!(found, view(&expected, engine.now()), "{context}: not the state that was at position {tail}");
    if let Some(shown) = judged.trace.promised(judged.at, judged.least) {
        assert!(
            shown.position <= tail,
            "{context}: taken back: recovered to {tail}, but this had been shown, up to {}: {}",
            shown.position,
            shown.what
        );
    }
    let memory = read_all(&engine, Durability::Memory);
    for (name, (value, _)) in &memory {
        let had = judged.trace.memory.get(name);
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
        let at = dice.below(operations + 1);
        let again = if dice.chance(70) { world.disk.crash(at, dice) } else { world.disk.kill(at) };
        if tally.distinct.insert(again.digest()) {
            tally.in_recovery += 1;
            let world = World::new(again.into_disk(), dice.roll());
            let engine = world.open(small(judged.segment_bytes));
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
    (disk, expected.into_iter().chain(memory).collect(), book.clone())
}

/// What an audit finds on a disk.
fn audit_of(disk: &CrashDisk) -> Result<Option<Audit>, OpenError> {
    let dir = Path::new(DATA);
    if disk.list(dir).is_err() {
        return Ok(None);
    }
    audit(disk, dir, &mut || look(disk, dir)(), &mut |_, _| ())
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
