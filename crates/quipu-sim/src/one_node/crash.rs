//! Judges a disk after a crash: opens its image and compares the engine with the trace.
//!
//! An image is opened up to three times: as it is, to retry every mutation with a name, and after
//! further crashes within the recovery.

use std::collections::BTreeSet;
use std::path::Path;

use quipu_engine::offline::{DirectoryAudit, audit};
use quipu_engine::{Engine, OpenError};
use quipu_model::{Command, Durability, ListNames, Pattern, Reply, Vfs};
use quipu_testkit::machine::{DATA, open_ledger};
use quipu_testkit::{CrashDisk, Image, SeededRng, SimMachine};

use super::commands::{all_names, durability_of};
use super::model::{ModelState, live_part};
use super::tokens::{RetryTally, TokenModel, retry_all};
use super::trace::Trace;
use super::{node_options, open_alone};

/// Percentage of crashes with a retry of every mutation.
const RETRY_PERCENT: usize = 40;

/// Amount of judged crashes.
#[derive(Default)]
pub struct CrashTally {
    /// Digests of all opened images: each is opened once.
    pub distinct: BTreeSet<u64>,
    /// Images within a recovery.
    pub in_recovery: usize,
    /// Torn tails that were cut.
    pub torn: usize,
    /// Retries after a crash.
    pub retried: RetryTally,
}

/// An incarnation, and the moment of a crash in it.
pub struct CrashCase<'a> {
    /// Length of a journal segment.
    pub segment_bytes: u64,
    /// Record of the incarnation.
    pub trace: &'a Trace,
    /// Number of operations of the disk that had returned.
    pub at: usize,
    /// The same number when the incarnation began to take commands.
    pub operations_at_start: usize,
    /// Replies of at least this durability must have survived.
    pub least: Durability,
}

/// A disk on which the next incarnation can begin.
pub struct RecoveredDisk {
    /// The disk.
    pub disk: CrashDisk,
    /// State that an engine finds on it.
    pub state: ModelState,
    /// Tokens that it remembers.
    pub token_model: TokenModel,
}

/// Opens an image, compares it with the states that existed, and crashes the recovery a few times.
/// Panics at a difference. Returns the recovered disk.
pub fn judge_crash(
    image: Image,
    case: &CrashCase<'_>,
    rng: &SeededRng,
    tally: &mut CrashTally,
    context: &str,
) -> RecoveredDisk {
    // On a machine of its own: the retries change it.
    let retrying = rng.chance(RETRY_PERCENT).then(|| SimMachine::new(image.clone().into_disk(), rng.next_u64()));
    let audited = audit_of(&image.clone().into_disk());
    let machine = SimMachine::new(image.into_disk(), rng.next_u64());
    let engine = open_image(&machine, case, context);
    if let Some(audited) = audited.unwrap_or_else(|e| panic!("{context}: not audited: {e}")) {
        assert!(audited.is_clean(), "{context}: {audited:?}");
        assert_eq!(audited.counters, engine.stats().counters, "{context}: the number of counters that an audit found");
    }
    let recovery = engine.recovery().clone();
    tally.torn += usize::from(recovery.tail.torn.is_some());
    let tail = recovery.tail.position;
    let (first, _) = case.trace.states.first_key_value().expect("an incarnation notes its beginning");
    // A start writes a record of its own. A crash within it leaves the journal of the incarnation
    // before.
    let expected = match case.trace.states.get(&tail) {
        Some(state) => state.clone(),
        None if case.at < case.operations_at_start && tail < *first => case.trace.states[first].clone(),
        None => panic!("{context}: recovered to position {tail}, where no record ended"),
    };
    let token_model = &case.trace.token_models[if case.trace.states.contains_key(&tail) { &tail } else { first }];
    if let Some(machine) = retrying {
        let engine = open_image(&machine, case, context);
        let RetryTally { survived, lost } = retry_all(&engine, &expected, token_model, case.trace.tokens(), context);
        tally.retried.survived += survived;
        tally.retried.lost += lost;
    }
    if let Some(reply) = case.trace.furthest_reply(case.at, case.least) {
        assert!(
            reply.position <= tail,
            "{context}: taken back: recovered to {tail}, but this had been shown, up to {}: {}",
            reply.position,
            reply.what
        );
    }
    let memory = judge_state(&engine, case.trace, &expected, context);
    crash_recovery(&machine, case, &expected, rng, tally, context);
    drop(engine);
    RecoveredDisk {
        disk: machine.disk.kill(machine.disk.operations()).into_disk(),
        state: expected.into_iter().chain(memory).collect(),
        token_model: token_model.clone(),
    }
}

/// Compares an engine with the state that it must have recovered. Panics at a difference. Returns
/// the counters in memory.
pub fn judge_state(engine: &Engine, trace: &Trace, expected: &ModelState, context: &str) -> ModelState {
    let found = read_all(engine, Durability::Durable);
    let tail = engine.recovery().tail.position;
    assert_eq!(found, live_part(expected, engine.now()), "{context}: not the state that was at position {tail}");
    let memory = read_all(engine, Durability::Memory);
    for (name, (value, _)) in &memory {
        let had = trace.memory.get(name);
        assert!(had.is_some_and(|had| had.contains(value)), "{context}: {name:?} never was {value}");
    }
    // Every name was read, so no expired counter is counted any more.
    assert_eq!(engine.stats().counters as usize, found.len() + memory.len(), "{context}: the number of counters");
    let walked = engine.execute(&Command::ListNames(ListNames { pattern: Pattern(b"*"), bytes_max: 1 << 20 }));
    let Ok(Reply::Names(mut walked)) = walked else { panic!("{context}: {walked:?}") };
    walked.sort_unstable();
    let names: BTreeSet<&[u8]> = found.keys().chain(memory.keys()).map(|name| &**name).collect();
    assert!(walked.iter().map(|name| &**name).eq(names), "{context}: {walked:?}");
    memory
}

/// Crashes a recovery a few times: the next one converges to the same state.
fn crash_recovery(
    machine: &SimMachine,
    case: &CrashCase<'_>,
    expected: &ModelState,
    rng: &SeededRng,
    tally: &mut CrashTally,
    context: &str,
) {
    let operations = machine.disk.operations();
    for _ in 0..2 {
        let at = rng.below(operations + 1);
        let image = if rng.chance(70) { machine.disk.crash(at, rng) } else { machine.disk.kill(at) };
        if tally.distinct.insert(image.digest()) {
            tally.in_recovery += 1;
            let context = format!("{context}, a crash in recovery at {at}");
            let engine = open_image(&SimMachine::new(image.into_disk(), rng.next_u64()), case, &context);
            let found = read_all(&engine, Durability::Durable);
            assert_eq!(found, live_part(expected, engine.now()), "{context}");
        }
    }
}

fn open_image(machine: &SimMachine, case: &CrashCase<'_>, context: &str) -> Engine {
    let engine = open_alone(machine, node_options(case.segment_bytes));
    engine.unwrap_or_else(|error| panic!("{context}: refused: {error}"))
}

/// Audits a disk, if it has a directory.
fn audit_of(disk: &CrashDisk) -> Result<Option<DirectoryAudit>, OpenError> {
    let dir = Path::new(DATA);
    if disk.list(dir).is_err() {
        return Ok(None);
    }
    audit(disk, dir, &mut || open_ledger(disk, dir), &mut |_, _| ())
}

/// Reads every counter in memory, or every other one.
pub fn read_all(engine: &Engine, which: Durability) -> ModelState {
    let wanted = |name: &&[u8]| (durability_of(name) == Durability::Memory) == (which == Durability::Memory);
    let readings = all_names().filter(wanted).map(|name| (name, engine.read(name).expect("it is a count")));
    readings
        .filter(|(_, reading)| reading.exists)
        .map(|(name, reading)| (name.to_vec(), (reading.value, reading.expires_at.map(|at| at.0))))
        .collect()
}
