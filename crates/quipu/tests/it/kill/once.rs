//! Kill -9 during adds with tokens and sequence numbers: each add is there once, and every retry
//! gets the first reply.

use std::thread;
use std::time::Duration;

use quipu_model::Durability;
use quipu_testkit::SeededRng;
use quipu_testkit::load::OnceAccount;
use tempfile::TempDir;

use super::{KILLS_DEFAULT, print_line};
use crate::life::{connect, launch, number_from, seed};

/// Kills on one directory. All tokens of a day are remembered. Beyond their bound tokens are
/// refused, which no client here expects.
const KILLS_A_DIRECTORY: usize = 40;

#[test]
fn durable_applies_what_has_a_token_once() {
    run(Durability::Durable);
}

#[test]
fn relaxed_applies_what_has_a_token_once() {
    run(Durability::Relaxed);
}

fn run(mode: Durability) {
    let (kills, seed) = (number_from("QUIPU_KILLS", KILLS_DEFAULT), seed());
    let (rng, mut adds, mut retried, mut killed) = (SeededRng::new(seed), 0, 0, 0);
    while killed < kills {
        let account = kill(mode, KILLS_A_DIRECTORY.min(kills - killed), seed, &rng);
        (adds, retried) = (adds + account.adds(), retried + account.retried);
        killed += KILLS_A_DIRECTORY;
    }
    print_line(&format!(
        "proof: kill once {mode}: kills {kills}, adds with a name {adds}, retries compared {retried}, violations 0, seed {seed}"
    ));
    assert!(
        adds > 10 * kills && retried > adds / 10,
        "too little load to prove anything: {adds} adds, {retried} retries"
    );
}

fn kill(mode: Durability, kills: usize, seed: u64, rng: &SeededRng) -> OnceAccount {
    let data = TempDir::new().expect("a temporary directory can be made");
    let mut launch = launch(data.path(), mode);
    launch.arguments = ["--seal-every", "50ms", "--journal-bytes-max", "1MB"].map(Into::into).to_vec();
    let mut account = OnceAccount::default();
    for kill in 0..=kills {
        let program = launch.start().unwrap_or_else(|error| panic!("seed {seed}, kill {kill}: {error}"));
        let violations = account.judge(&mut connect(&program), rng);
        assert!(violations.is_empty(), "seed {seed}, kill {kill}, {mode}:\n{}", violations.join("\n"));
        if kill == kills {
            break;
        }
        let length = Duration::from_millis(rng.between(20..=300).unsigned_abs());
        account.load(program.address(), rng, || {
            // Not to wait for anything: how long the program is left alone is what the dice decide.
            thread::sleep(length);
            program.kill9();
        });
    }
    account
}
