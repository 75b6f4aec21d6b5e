//! Kill -9 of the real program under load, again and again on the same directory: every acknowledged operation is there, once,
//! and no number that anyone was shown has been taken back.
//!
//! `QUIPU_KILLS` sets how many kills each mode gets, `QUIPU_SEED` the seed. A seed decides the load and the moment of each kill,
//! not how threads meet: it finds the same kind of run again, not the same run.

use std::io::Write;
use std::time::Duration;

use quipu_model::Durability;
use quipu_testkit::Dice;
use quipu_testkit::judge::Violation;
use quipu_testkit::load::{Account, Loss, Tally};
use quipu_testkit::program::Program;
use tempfile::TempDir;

use crate::life::{judge, launch, load, seed};

/// Kills of each mode unless `QUIPU_KILLS` says otherwise: a few seconds.
const KILLS_DEFAULT: usize = 12;

/// How many lives a directory has: enough to rotate and recycle its segments, few enough that fresh ones are seen often.
const LIVES_PER_DIRECTORY: usize = 25;

/// How many acks a life has on average, at least: fewer, and the suite would prove little.
const ACKS_PER_LIFE_MIN: usize = 20;

/// How many kills pass between two lines of progress.
const PROGRESS_EVERY: usize = 50;

#[test]
fn durable_loses_and_takes_back_nothing_acknowledged_or_shown() {
    run(Durability::Durable, Loss::Nothing);
}

#[test]
fn relaxed_loses_and_takes_back_nothing_while_the_machine_stays_up() {
    run(Durability::Relaxed, Loss::Nothing);
}

#[test]
fn memory_comes_back_to_a_value_it_could_have_had() {
    run(Durability::Memory, Loss::Unsealed);
}

fn run(mode: Durability, loss: Loss) {
    let kills_asked =
        std::env::var("QUIPU_KILLS").map_or(KILLS_DEFAULT, |text| text.parse().expect("QUIPU_KILLS is a number"));
    let seed = seed();
    let dice = Dice::new(seed);
    let mut total = Total { mode, seed, ..Total::default() };
    while total.kills < kills_asked {
        let lives = LIVES_PER_DIRECTORY.min(kills_asked - total.kills);
        run_directory(mode, loss, lives, &dice, &mut total);
        total.directories += 1;
    }
    say(&format!("proof: {total}, violations 0"));
    assert!(total.tally.acked >= ACKS_PER_LIFE_MIN * total.lives, "too little load to prove anything: {total}");
}

/// Lives on one directory, each judged by the start after it.
fn run_directory(mode: Durability, loss: Loss, kills: usize, dice: &Dice, total: &mut Total) {
    let data = TempDir::new().expect("a temporary directory can be made");
    let launch = launch(data.path(), mode);
    let mut account = Account::new();
    let until = total.kills + kills;
    let mut heard = String::new(); // what the program said in the life before
    loop {
        // Some starts are killed too, at any moment of recovery; the next one must not mind.
        while total.kills < until && dice.chance(15) {
            let length = Duration::from_micros(dice.below(20_000) as u64);
            launch.start_and_kill(length).expect("the program can be run");
            total.count_kill();
        }
        let program = match launch.start() {
            Ok(program) => program,
            Err(error) => fail(total, data, &[], &format!("{error}\nin the life before it said:\n{heard}")),
        };
        let violations = judge(&program, &mut account, loss);
        if !violations.is_empty() {
            fail(total, data, &violations, &heard);
        }
        if total.kills >= until {
            break;
        }
        let length = Duration::from_millis(dice.between(20..=150).unsigned_abs());
        let (stderr, logs) = load(program, length, dice, Program::kill9);
        heard = stderr;
        logs.into_iter().for_each(|log| account.take(log));
        total.lives += 1;
        total.count_kill();
    }
    total.tally += account.tally();
}

/// Ends the test with all that helps to find out why; the directory stays.
fn fail(total: &Total, data: TempDir, violations: &[Violation], heard: &str) -> ! {
    let kept = data.keep();
    let told: Vec<String> = violations.iter().map(Violation::to_string).collect();
    panic!("{total}, violations {}\ndirectory kept: {}\n{}\n{heard}", told.len(), kept.display(), told.join("\n"));
}

/// What was done so far.
#[derive(Debug, Default)]
struct Total {
    mode: Durability,
    seed: u64,
    kills: usize,
    lives: usize,
    directories: usize,
    tally: Tally, // of finished directories
}

impl Total {
    fn count_kill(&mut self) {
        self.kills += 1;
        if self.kills.is_multiple_of(PROGRESS_EVERY) {
            say(&format!("{self} …"));
        }
    }
}

impl std::fmt::Display for Total {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Total { mode, seed, kills, lives, directories, tally: Tally { acked, unknown, refused } } = self;
        write!(
            f,
            "kill {mode}: kills {kills} ({lives} under load, {directories} directories done), \
             acked {acked}, unknown {unknown}, refused {refused}, seed {seed}"
        )
    }
}

/// Tells it also when the test harness keeps what tests print to itself: the figures are the point of this suite.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
