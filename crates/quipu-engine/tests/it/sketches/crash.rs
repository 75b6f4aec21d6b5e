//! Tests loss of power and kills in the middle of sketch updates.
//!
//! The recovered sketch is the one at the end of some record, no earlier than the last acknowledged
//! one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quipu_engine::{Engine, Error, Position, Seal, SealError, SealStep};
use quipu_model::{
    Command, Dialect, ExpiryCondition, ExpiryForm, ExpiryTime, FrequencySize, Identity, Kind, Reply, SetString,
    SketchCommand, TopSize,
};
use quipu_testkit::{CrashDisk, SeededRng};

use super::{ask, count_items, count_top, count_unique, name, observe, read_items, run};
use crate::world::{World, small_options};

/// Of each namespace one of each kind and form, and two that can be merged.
const NAMES: [&str; 16] =
    ["d:h", "d:g", "d:u", "d:v", "d:c", "d:e", "d:f", "d:t", "d:p", "r:h", "r:u", "r:c", "r:t", "m:h", "m:u", "m:c"];

const ITEMS: [&str; 10] =
    ["a", "b", "c", "d", "an item", "another", "a rather long item that needs more room in a list", "x", "y", ""];

/// Seeds that once failed stay here, in front of the others.
const KEPT_SEEDS: [u64; 2] = [36, 188];

/// What was counted, item by item.
type Truth = BTreeMap<&'static str, BTreeMap<String, u64>>;

/// What can be seen of a sketch, and when it expires; -1: never.
type Descriptions = BTreeMap<&'static str, (String, i64)>;

/// What there was at the end of a record.
#[derive(Clone, Default)]
struct State {
    descriptions: Descriptions,
    truth: Truth,
}

fn dialect(text: &str) -> Dialect {
    if text.ends_with(['h', 'g', 'c', 'e', 't']) { Dialect::Redis } else { Dialect::Native }
}

#[derive(Default)]
struct Tally {
    lives: usize,
    crashes: BTreeSet<u64>,
    operations: usize,
    seals: usize,
    evicted: usize,
    once: usize,
    torn: usize,
}

#[test]
fn every_crash_leaves_sketches_as_they_were_and_keeps_what_was_acknowledged() {
    let seeds: u64 = std::env::var("QUIPU_CRASH_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let mut tally = Tally::default();
    KEPT_SEEDS.into_iter().chain(0..seeds).for_each(|seed| run_seed(seed, &mut tally));
    println!(
        "proof: sketches: {} distinct crash states from {seeds} seeds, {} lives, {} operations, {} under tokens, {} seals, {} evicted, {} torn tails cut",
        tally.crashes.len(),
        tally.lives,
        tally.operations,
        tally.once,
        tally.seals,
        tally.evicted,
        tally.torn
    );
    if seeds >= 50 {
        assert!(tally.crashes.len() > 1_000 && tally.seals > 100 && tally.evicted > 100 && tally.torn > 10);
    }
}

fn run_seed(seed: u64, tally: &mut Tally) {
    let rng = SeededRng::new(seed ^ 0x5ce7c4);
    let segment_bytes = *rng.pick(&[4096, 8192, 65536]);
    let (mut disk, mut state) = (CrashDisk::new(), State::default());
    for incarnation in 0..3 {
        let world = World::new(disk, rng.next_u64());
        let engine =
            world.open(small_options(segment_bytes)).unwrap_or_else(|e| panic!("seed {seed}, life {incarnation}: {e}"));
        let operations_at_start = world.disk.operations();
        let mut trace = Trace { states: BTreeMap::new(), ever: BTreeMap::new(), acked: Vec::new(), now: state };
        trace.note(&engine, engine.steps().reserved());
        run_incarnation(&world, &engine, &rng, &mut trace, tally);
        tally.lives += 1;
        let operations = world.disk.operations();
        for _ in 0..25 {
            let at = operations_at_start + rng.below(operations - operations_at_start + 1);
            judge(
                &world,
                &trace,
                (at, segment_bytes),
                &rng,
                tally,
                &format!("seed {seed}, life {incarnation}, crash at {at}"),
            );
        }
        let context = format!("seed {seed}, life {incarnation}, crash at its end");
        (disk, state) = judge(&world, &trace, (operations, segment_bytes), &rng, tally, &context);
    }
}

/// What happened in a life.
struct Trace {
    states: BTreeMap<Position, State>,
    /// What each name ever was: what is in memory alone comes back as any of it.
    ever: BTreeMap<&'static str, BTreeSet<Option<(String, i64)>>>,
    /// So many operations of the disk had returned when the record that ends there was
    /// acknowledged, as durable or not.
    acked: Vec<(usize, Position, bool)>,
    now: State,
}

impl Trace {
    /// Looks at everything. What has expired is noticed by that, record by record; at each of them
    /// the same is to be seen.
    fn note(&mut self, engine: &Engine, after: Position) {
        let mut positions = vec![after];
        self.now.descriptions.clear();
        for text in NAMES {
            let description = describe(engine, text);
            positions.push(engine.steps().reserved());
            self.ever.entry(text).or_default().insert(description.clone());
            match description {
                Some(description) => drop(self.now.descriptions.insert(text, description)),
                None => drop(self.now.truth.remove(text)),
            }
        }
        for position in positions {
            // The clock may have moved since, which no record says.
            self.states.entry(position).or_insert_with(|| self.now.clone());
        }
    }
}

/// All that can be asked of a name; `None` if there is nothing.
fn describe(engine: &Engine, text: &'static str) -> Option<(String, i64)> {
    let Reply::Kind(Some(known)) = run(engine, Command::KindOf { name: name(text) }) else { return None };
    let expiry = run(engine, Command::ExpiryOf { name: name(text), form: ExpiryForm::AtMillis });
    let Reply::Integer(expiry) = expiry else { panic!("{expiry:?}") };
    let shown = match known.kind {
        Kind::Count => format!("{:?}", run(engine, Command::Read { name: name(text) })),
        Kind::Unique if known.dialect == Dialect::Redis => format!(
            "{:?} {:?}",
            ask(engine, count_unique(&[text], Dialect::Native)),
            run(engine, Command::Read { name: name(text) })
        ),
        Kind::Unique => format!("{:?}", ask(engine, count_unique(&[text], Dialect::Native))),
        Kind::Frequency => format!("{:?}", ask(engine, read_items(text, &ITEMS, Dialect::Native))),
        Kind::Top => {
            format!("{:?}", ask(engine, SketchCommand::ListTop { name: name(text), dialect: Dialect::Native }))
        }
    };
    Some((format!("{known:?} {expiry} {shown}"), expiry))
}

fn run_incarnation(world: &World, engine: &Engine, rng: &SeededRng, trace: &mut Trace, tally: &mut Tally) {
    let mut seal: Option<Seal> = None;
    for step in 0..60 + rng.below(60) {
        match rng.below(100) {
            0..70 => act(world, engine, rng, trace, tally, step),
            70..90 => {
                for _ in 0..1 + rng.below(4) {
                    seal = advance(engine, seal, tally);
                }
            }
            90..96 => {
                // Once for those that were looked at, and once for all.
                let shards = (0..engine.steps().shard_count()).chain(0..engine.steps().shard_count());
                tally.evicted += shards.map(|shard| engine.steps().evict(shard)).sum::<usize>();
                trace.note(engine, engine.steps().reserved());
            }
            _ => {
                world.clock.advance(Duration::from_millis(rng.below(3_000) as u64));
                trace.note(engine, engine.steps().reserved());
            }
        }
    }
}

/// A step of a seal, or its beginning.
fn advance(engine: &Engine, seal: Option<Seal>, tally: &mut Tally) -> Option<Seal> {
    let steps = engine.steps();
    let mut seal = seal.unwrap_or_else(|| steps.begin_seal());
    match steps.step_seal(&mut seal) {
        Ok(SealStep::More) => Some(seal),
        Ok(SealStep::WaitFor(_)) => {
            steps.write_filled();
            steps.sync();
            Some(seal)
        }
        Ok(SealStep::Done) => {
            steps.finish_seal(seal).unwrap();
            tally.seals += 1;
            None
        }
        Err(SealError::Flushed) => None,
        Err(error) => panic!("{error}"),
    }
}

const SIZE: FrequencySize = FrequencySize::Dimensions { width: 500, depth: 3 };

fn act(world: &World, engine: &Engine, rng: &SeededRng, trace: &mut Trace, tally: &mut Tally, step: usize) {
    let text = *rng.pick(&NAMES);
    let dialect = dialect(text);
    let before = trace.now.truth.clone();
    let truth = &mut trace.now.truth;
    let mut items: Vec<(String, u64)> =
        (0..1 + rng.below(4)).map(|_| ((*rng.pick(&ITEMS)).to_owned(), 1 + rng.below(5) as u64)).collect();
    if rng.chance(6) {
        // Enough that lists become tables, and that a record is longer than a segment.
        let from = rng.below(1 << 20);
        items.extend((from..from + 100 + rng.below(2_500)).map(|n| (format!("item {n}"), 1)));
    }
    let observed = || items.iter().map(|(item, _)| item.as_str()).collect::<Vec<_>>();
    let counted = || items.iter().map(|(item, by)| (item.as_str(), *by)).collect::<Vec<_>>();
    let mut commands = Vec::new();
    match rng.below(100) {
        0..5 => {
            truth.remove(text);
            commands.push(Command::Delete { names: vec![name(text)] });
        }
        5..10 => {
            let when = ExpiryTime::In(rng.below(4_000) as i64);
            commands.push(Command::Expire { name: name(text), when, condition: ExpiryCondition::Always });
        }
        10 => {
            truth.clear();
            commands.push(Command::Flush);
        }
        11..16 => {
            // Only names of uniques of Redis are set to what another of them is.
            let string = match run(engine, Command::Read { name: name("d:h") }) {
                Reply::Bytes(bytes) => bytes,
                _ => return,
            };
            let of = truth.get("d:h").cloned().unwrap_or_default();
            truth.insert("d:g", of);
            let set = SetString {
                name: name("d:g"),
                bytes: &string,
                condition: quipu_model::SetCondition::Always,
                expiry: quipu_model::SetExpiry::Remove,
                reply_old: false,
            };
            let command = Command::Sketch(SketchCommand::SetString(set));
            return carry_out(world, engine, rng, trace, tally, step, vec![command], "d:g", before);
        }
        _ => {
            for _ in 0..if rng.chance(15) { 2 } else { 1 } {
                for (item, by) in &items {
                    *truth.entry(text).or_default().entry(item.clone()).or_default() += by;
                }
                commands.push(Command::Sketch(match &text[2..] {
                    "h" | "g" | "u" | "v" => observe(text, &observed(), dialect),
                    "c" | "e" | "f" => {
                        let SketchCommand::CountItems { name, items, dialect, .. } =
                            count_items(text, &counted(), dialect)
                        else {
                            unreachable!()
                        };
                        SketchCommand::CountItems { name, items, dialect, make: Some(SIZE) }
                    }
                    _ => count_top(text, &counted(), Some(TopSize::with_k(3)), dialect),
                }));
            }
            let merging = [("d:h", "d:g"), ("d:u", "d:v"), ("d:v", "r:u"), ("r:h", "d:h")];
            if let Some((into, from)) = merging.into_iter().find(|(into, _)| *into == text && rng.chance(25)) {
                commands.truncate(0);
                *truth = before.clone();
                let taken = truth.get(from).cloned().unwrap_or_default();
                let merged = truth.entry(into).or_default();
                taken.into_iter().for_each(|(item, by)| *merged.entry(item).or_default() += by);
                commands
                    .push(Command::Sketch(SketchCommand::MergeUnique { names: vec![name(into), name(from)], dialect }));
            }
            if text == "d:e" && truth.contains_key("d:c") && before.contains_key("d:e") && rng.chance(40) {
                commands.truncate(0);
                *truth = before.clone();
                let taken = truth["d:c"].clone();
                let merged = truth.entry("d:e").or_default();
                taken.into_iter().for_each(|(item, by)| *merged.entry(item).or_default() += by);
                let names = vec![name("d:e"), name("d:e"), name("d:c")];
                commands.push(Command::Sketch(SketchCommand::MergeFrequency { names, weights: vec![1, 1], dialect }));
            }
        }
    }
    carry_out(world, engine, rng, trace, tally, step, commands, text, before);
}

#[expect(clippy::too_many_arguments, reason = "an operation, and where it stands")]
fn carry_out(
    world: &World,
    engine: &Engine,
    rng: &SeededRng,
    trace: &mut Trace,
    tally: &mut Tally,
    step: usize,
    commands: Vec<Command<'_>>,
    text: &str,
    before: Truth,
) {
    tally.operations += 1;
    let (wait, refused) = if let ([command], true) = (&commands[..], rng.chance(15)) {
        tally.once += 1;
        let item = format!("{step} {}", rng.next_u64());
        let identity = Identity::token(b"p", item.as_bytes()).unwrap();
        let mut waits = None;
        let mut replies = Vec::new();
        for _ in 0..2 {
            loop {
                let mut turn = engine.turn();
                let ran = turn.run_once(&identity, std::slice::from_ref(command));
                let wait = turn.finish();
                match ran {
                    Ok(reply) => {
                        replies.push(reply);
                        waits.get_or_insert(wait);
                        break;
                    }
                    Err(load) => drop(pollster(engine, load)),
                }
            }
        }
        if !matches!(replies[0], Reply::Refused(_)) {
            assert_eq!(replies[0], replies[1], "a retry is answered as the first time was");
        }
        (waits.unwrap(), matches!(replies[0], Reply::Refused(_)))
    } else {
        loop {
            let mut turn = engine.turn();
            let ran = turn.run_transaction(&commands, &[]);
            let wait = turn.finish();
            match ran {
                Ok(replies) => break (wait, replies.unwrap().iter().any(|reply| matches!(reply, Reply::Refused(_)))),
                Err(quipu_engine::NotRun::Load(load)) => drop(pollster(engine, load)),
                Err(quipu_engine::NotRun::Refused(refusal)) => panic!("{refusal}"),
            }
        }
    };
    if refused {
        // Too long an answer for a token; nothing was applied.
        assert_eq!(commands.len(), 1);
        trace.now.truth = before;
    }
    let position = engine.steps().reserved();
    // Sometimes nobody commits before others come.
    if rng.chance(70) {
        engine.steps().write_filled();
        if text.starts_with('d') || rng.chance(30) {
            engine.steps().sync();
        }
        let (reached, operations) = (engine.steps().has_reached(wait), world.disk.operations());
        if reached && !text.starts_with('m') {
            trace.acked.push((operations, position, text.starts_with('d')));
        }
    }
    trace.note(engine, position);
}

/// Brings back what is at rest.
fn pollster(engine: &Engine, load: quipu_engine::Load) -> Result<(), Error> {
    drop(engine.load(load));
    Ok(())
}

fn judge(
    world: &World,
    trace: &Trace,
    (at, segment_bytes): (usize, u64),
    rng: &SeededRng,
    tally: &mut Tally,
    context: &str,
) -> (CrashDisk, State) {
    let power = rng.chance(80);
    let image = if power { world.disk.crash(at, rng) } else { world.disk.kill(at) };
    tally.crashes.insert(image.digest());
    let again = World::new(image.into_disk(), rng.next_u64());
    let engine = again.open(small_options(segment_bytes)).unwrap_or_else(|e| panic!("{context}: refused: {e}"));
    let recovery = engine.recovery();
    let tail = recovery.tail.position;
    tally.torn += usize::from(recovery.tail.torn.is_some());
    let first = *trace.states.keys().next().unwrap();
    let state = trace.states.get(&tail.max(first)).unwrap_or_else(|| panic!("{context}: no record ended at {tail}"));
    let shown = trace.acked.iter().filter(|(operations, _, durable)| *operations <= at && (*durable || !power));
    if let Some((_, position, _)) = shown.max_by_key(|(_, position, _)| *position) {
        assert!(*position <= tail, "{context}: taken back: {position} was acknowledged, {tail} is left");
    }
    let mut found = State::default();
    // A seal may have been the last that knew how late it was.
    let now = i64::try_from(engine.now().0).unwrap();
    for text in NAMES {
        let description = describe(&engine, text);
        if text.starts_with('m') {
            let expired =
                |was: &Option<(String, i64)>| was.as_ref().is_some_and(|(_, expiry)| (0..=now).contains(expiry));
            let ever = trace.ever[text].contains(&description)
                || description.is_none() && trace.ever[text].iter().any(expired);
            assert!(ever, "{context}: {text} never was {description:?}");
        } else {
            let expected = state.descriptions.get(text).filter(|(_, expiry)| *expiry == -1 || *expiry > now);
            assert_eq!(description.as_ref(), expected, "{context}: {text} at {tail}");
            if let (Some(description), Some(truth)) = (&description, state.truth.get(text)) {
                check(&engine, text, truth, &description.0, context);
                found.truth.insert(text, truth.clone());
            }
        }
        description.into_iter().for_each(|description| drop(found.descriptions.insert(text, description)));
    }
    drop(engine);
    (again.disk.kill(again.disk.operations()).into_disk(), found)
}

/// Whether a sketch says what was counted in it, no more and no less than it may.
fn check(engine: &Engine, text: &'static str, truth: &BTreeMap<String, u64>, description: &str, context: &str) {
    let total: u64 = truth.values().sum();
    match &text[2..] {
        "h" | "g" | "u" | "v" => {
            let Reply::Estimate(known) = ask(engine, count_unique(&[text], Dialect::Native)) else {
                panic!("{description}")
            };
            let (count, most) = (truth.len() as f64, 1.0 + truth.len() as f64 * 0.04);
            assert!((known.value as f64 - count).abs() <= most, "{context}: {text} says {known:?} of {count}");
        }
        "c" | "e" | "f" => {
            let items: Vec<&str> = truth.keys().map(String::as_str).collect();
            let Reply::Frequencies(known) = ask(engine, read_items(text, &items, Dialect::Native)) else {
                panic!("{description}")
            };
            assert_eq!(known.total, total, "{context}: {text}");
            for (row, (item, count)) in known.rows.iter().zip(truth) {
                assert!(row.at_most >= *count, "{context}: {text} says {row:?} of {item}, which came {count} times");
            }
        }
        _ => {
            let Reply::TopInfo(info) =
                ask(engine, SketchCommand::TopInfo { name: name(text), dialect: Dialect::Native })
            else {
                panic!("{description}")
            };
            assert_eq!(info.total, total, "{context}: {text}");
            let Reply::TopItems(rows) =
                ask(engine, SketchCommand::ListTop { name: name(text), dialect: Dialect::Native })
            else {
                panic!("{description}")
            };
            for row in rows {
                let count = truth.get(std::str::from_utf8(&row.item).unwrap()).copied().unwrap_or(0);
                assert!(
                    row.at_least <= count && count <= row.at_most,
                    "{context}: {text} says {row:?}, it came {count} times"
                );
            }
        }
    }
}
