//! Kill -9 during adds without replies (`CLIENT REPLY OFF`), in lanes.
//!
//! Adds before the next reply are acknowledged by it and are there. Later adds are there or not,
//! and nothing is there twice.

use std::thread;
use std::time::Duration;

use quipu_model::Durability;
use quipu_testkit::SeededRng;
use quipu_testkit::load::{Loss, UnrepliedAccount, count_split_counters};
use tempfile::TempDir;

use super::{KILLS_DEFAULT, print_line};
use crate::life::{connect, launch, number_from, seed};

#[test]
fn durable_keeps_what_a_reply_after_silent_adds_has_acknowledged() {
    run(Durability::Durable, Loss::Nothing);
}

#[test]
fn relaxed_keeps_what_a_reply_after_silent_adds_has_acknowledged() {
    run(Durability::Relaxed, Loss::Nothing);
}

#[test]
fn memory_never_has_more_than_was_added_silently() {
    run(Durability::Memory, Loss::Unsealed);
}

fn run(mode: Durability, loss: Loss) {
    let (kills, seed) = (number_from("QUIPU_KILLS", KILLS_DEFAULT), seed());
    let rng = SeededRng::new(seed);
    let data = TempDir::new().expect("a temporary directory can be made");
    let mut launch = launch(data.path(), mode);
    launch.arguments = ["--seal-every", "100ms", "--journal-bytes-max", "1MB"].map(Into::into).to_vec();
    let (mut account, mut split) = (UnrepliedAccount::default(), 0);
    for kill in 0..=kills {
        let program = launch.start().unwrap_or_else(|error| panic!("seed {seed}, kill {kill}: {error}"));
        let violations = account.judge(&mut connect(&program), loss);
        assert!(violations.is_empty(), "seed {seed}, kill {kill}, {mode}:\n{}", violations.join("\n"));
        if kill == kills {
            break;
        }
        let length = Duration::from_millis(rng.between(20..=300).unsigned_abs());
        let mut observer = connect(&program);
        account.load(program.address(), &rng, || {
            // Not to wait for anything: how long the program is left alone is what the dice decide.
            thread::sleep(length);
            split += usize::from(count_split_counters(&mut observer) > 0);
            program.kill9();
        });
    }
    let UnrepliedAccount { acked, unknown, missing, .. } = account;
    print_line(&format!(
        "proof: kill silent {mode}: kills {kills}, {split} of them with lanes open, added silently and acknowledged {acked}, \
         not acknowledged {unknown}, of all not there after it {missing}, violations 0, seed {seed}"
    ));
    assert!(split * 2 >= kills, "too few kills met lanes to prove anything: {split} of {kills}");
}
