//! Tests backups beside any concurrent work, on every disk that a crash may leave: a backup is a
//! state that existed, or it is refused. `QUIPU_BACKUP_SEEDS` is the number of seeds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::BTreeSet;
use std::path::Path;

use quipu_engine::{Engine, Options};
use quipu_model::Durability;
use quipu_sim::one_node::{
    BackupTrace, IncarnationPlan, ModelState, TokenModel, Trace, judge_state, node_options, open_alone, read_all,
    retry_all, run_incarnation,
};
use quipu_testkit::{CrashDisk, Image, SeededRng, SimMachine};

/// Length of a journal segment.
const SEGMENT_BYTES: u64 = 4096;

/// Seeds that once failed stay here, in front of the others.
const KEPT_SEEDS: [u64; 0] = [];

fn options(dir: &Path) -> Options {
    Options { data: dir.to_owned(), ..node_options(SEGMENT_BYTES) }
}

fn files_in(image: &Image, dir: &Path) -> Vec<String> {
    image.files().filter(|file| file.starts_with(dir)).map(|file| file.display().to_string()).collect()
}

/// Amount of work of all seeds.
#[derive(Default)]
struct Tally {
    distinct: BTreeSet<u64>,
    done: usize,
    moved_on: usize,
    absent: usize,
    refused: usize,
    whole: usize,
    seals: usize,
}

#[test]
fn a_backup_is_a_state_that_existed_with_all_that_was_shown_before_it_and_an_unfinished_one_is_refused() {
    let seeds: u64 = std::env::var("QUIPU_BACKUP_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(80);
    let mut tally = Tally::default();
    for seed in KEPT_SEEDS.into_iter().chain(0..seeds) {
        run_seed(seed, &mut tally);
    }
    let Tally { distinct, done, moved_on, absent, refused, whole, seals } = &tally;
    println!(
        "proof: backups: {done} from {seeds} seeds, {seals} seals meanwhile, {moved_on} with records behind what they began with; crash states: \
         {} distinct, {absent} without one, {refused} refused as unfinished, {whole} whole",
        distinct.len()
    );
    if seeds >= 50 {
        assert!(*done > 100 && *moved_on > 20 && *refused > 100 && *whole > 100 && *seals > 100);
    }
}

fn run_seed(seed: u64, tally: &mut Tally) {
    let rng = SeededRng::new(seed ^ 0xbac0);
    let mut disk = CrashDisk::new();
    let mut state = ModelState::new();
    for incarnation in 0..2 {
        let context = format!("seed {seed}, life {incarnation}");
        let machine = SimMachine::new(disk, rng.next_u64());
        let engine = open_alone(&machine, node_options(SEGMENT_BYTES)).unwrap();
        let plan = IncarnationPlan {
            state: &state,
            token_model: &TokenModel::new(machine.rng.next_u64()),
            workers: 2 + rng.below(2),
            steps: 300 + rng.below(300),
            backups: true,
        };
        let trace = run_incarnation(&machine, &engine, plan);
        assert!(!machine.has_failed(), "{context}: the engine failed");
        tally.seals += trace.tally.seals;
        let operations = machine.disk.operations();
        let end = machine.disk.kill(operations);
        for backup_trace in &trace.backups {
            if let Some((_, position)) = backup_trace.done {
                tally.done += 1;
                tally.moved_on += usize::from(position > backup_trace.least);
                judge(&end, backup_trace, &trace, &engine, operations, &mut Tally::default(), &context);
            } else {
                assert_eq!(
                    files_in(&end, &backup_trace.dir),
                    Vec::<String>::new(),
                    "{context}: a backup given up leaves nothing"
                );
            }
        }
        for _ in 0..40 {
            let at = rng.below(operations + 1);
            let image = if rng.chance(85) { machine.disk.crash(at, &rng) } else { machine.disk.kill(at) };
            if tally.distinct.insert(image.digest()) {
                for backup_trace in &trace.backups {
                    let context = format!("{context}, crash after operation {at} of {operations}");
                    judge(&image, backup_trace, &trace, &engine, at, tally, &context);
                }
            }
        }
        // The next incarnation continues from the recovered state, without the backups of this one.
        drop(engine);
        let mut image = machine.disk.kill(operations);
        for file in
            trace.backups.iter().flat_map(|backup_trace| files_in(&image, &backup_trace.dir)).collect::<Vec<_>>()
        {
            image.remove(file);
        }
        disk = image.into_disk();
        let engine = open_alone(&SimMachine::new(disk.clone(), 1), node_options(SEGMENT_BYTES)).unwrap();
        state = read_all(&engine, Durability::Durable);
        state.extend(read_all(&engine, Durability::Memory));
        drop(engine);
    }
}

/// Opens a backup as a crash left it.
fn judge(
    image: &Image,
    backup_trace: &BackupTrace,
    trace: &Trace,
    source: &Engine,
    at: usize,
    tally: &mut Tally,
    context: &str,
) {
    let context = format!("{context}, {}", backup_trace.dir.display());
    let promised = backup_trace.done.filter(|(done, _)| *done <= at);
    if files_in(image, &backup_trace.dir).is_empty() {
        assert!(promised.is_none(), "{context}: a backup that was done is gone");
        tally.absent += 1;
        return;
    }
    let machine = SimMachine::new(image.clone().into_disk(), 7);
    let engine = match open_alone(&machine, options(&backup_trace.dir)) {
        Ok(engine) => engine,
        Err(error) => {
            assert!(promised.is_none(), "{context}: a backup that was done is refused: {error}");
            assert!(error.to_string().contains("did not finish"), "{context}: {error}");
            tally.refused += 1;
            return;
        }
    };
    tally.whole += 1;
    let (_, position) =
        backup_trace.done.unwrap_or_else(|| panic!("{context}: a backup that was never finished opens"));
    assert_eq!(engine.recovery().tail.position, position, "{context}");
    assert!(engine.recovery().tail.torn.is_none() && engine.recovery().copied, "{context}: {:?}", engine.recovery());
    assert!(position >= backup_trace.least, "{context}: less than there was when it began");
    let shown = trace.sent.iter().filter(|reply| reply.operations <= backup_trace.begun).map(|reply| reply.position);
    assert!(shown.max().is_none_or(|shown| shown <= position), "{context}: something shown before is not in it");
    let expected = trace.states.get(&position).unwrap_or_else(|| panic!("{context}: no record ended at {position}"));
    judge_state(&engine, trace, expected, &context);
    let writer = engine.stats().writer;
    let original = source.stats().writer;
    // On a machine of its own: mutations after the backup are applied there.
    let retrying = SimMachine::new(image.clone().into_disk(), 8);
    let retried = open_alone(&retrying, options(&backup_trace.dir)).unwrap();
    retry_all(&retried, expected, &trace.token_models[&position], trace.tokens(), &context);
    assert_eq!(writer.node, original.node, "{context}");
    assert_ne!(writer.incarnation, original.incarnation, "{context}");
    // It lives on its own.
    let before = engine.read("plain").unwrap().value;
    if before < i64::MAX - 100 {
        assert_eq!(engine.add("plain", 1), Ok(before + 1), "{context}");
    }
    engine.steps().seal_all().unwrap();
    engine.close().unwrap();
}
