//! Tests the shared-store protocol under every fault at once, on seeded schedules.
//!
//! Three nodes add to one counter and put their cells. The faults and changes, at any time:
//! - any client resets, sets, takes and expires the counter;
//! - any writer is retired; a registered writer may be away for any time;
//! - any node crashes, or goes back to a backup;
//! - any node is duplicated from then on, in its present or an older state, and the original may go
//!   on or not;
//! - every message is lost, repeated, delayed or overtaken, and so is its reply.
//!
//! In the end this holds:
//!
//! > sum of adds + sum of sets = values returned by swaps + expired values + the final value
//!
//! While nothing expires, it also holds at every step in between, with the uncounted values of the
//! writers included. Of a restored node's adds since its backup, those that reached the store
//! count, once.

mod account;
mod client;
mod node;
mod rng;
mod world;

use self::world::{Faults, World};

/// Each is a schedule of its own. Most wrong protocols are found within the first ten of them, the
/// rarest took nearly all.
const SEEDS: u64 = 20_000;

/// All schedules have crashes, and these.
const CALM: Faults = Faults { retire: false, expire: false, short_grace: false, copies: false, restore: false };

fn run(name: &str, seeds: std::ops::Range<u64>, faults: impl Fn(u64) -> Faults) {
    let (mut swaps, mut carries, mut late, mut lapses, mut copies, mut restored, mut forgotten) = (0, 0, 0, 0, 0, 0, 0);
    for seed in seeds {
        let world = World::run(seed, faults(seed), false);
        if let Err(violation) = world.verdict() {
            let again = World::run(seed, faults(seed), true);
            panic!("{name}, seed {seed}: {violation}\n{}", again.log());
        }
        swaps += world.account.swaps;
        carries += world.account.carries;
        late += world.account.late;
        lapses += world.account.lapses;
        copies += world.account.copies;
        restored += world.account.restored;
        forgotten += world.account.forgotten;
    }
    println!(
        "{name}: {swaps} swaps, {carries} carries, {late} settled late, {lapses} lapses, {copies} heirs, {restored} restored, {forgotten} rows forgotten"
    );
    assert!(swaps > 0 && carries > 0 && late > 0, "{name}: the schedules exercise what they are meant to");
}

#[test]
fn every_add_is_counted_once_over_any_schedule_of_puts_and_swaps() {
    run("swaps", 0..SEEDS, |_| CALM);
}

#[test]
fn retiring_any_writer_at_any_time_changes_no_sum() {
    run("retire", 0..SEEDS, |seed| Faults { retire: true, short_grace: seed % 5 < 3, ..CALM });
}

#[test]
fn what_expires_is_what_the_row_held_and_what_was_added_in_the_knowledge_of_it() {
    run("expire", 0..SEEDS, |seed| Faults { retire: seed % 3 == 0, expire: true, short_grace: seed % 5 < 3, ..CALM });
}

#[test]
fn what_a_life_owes_is_counted_once_by_two_heirs() {
    run("heirs", 0..SEEDS, |seed| Faults {
        retire: seed % 3 != 0,
        expire: seed % 4 < 2,
        short_grace: seed % 5 < 3,
        copies: true,
        ..CALM
    });
}

#[test]
fn a_node_that_went_back_to_a_backup_takes_nothing_back_and_counts_nothing_twice() {
    run("restored", 0..SEEDS, |seed| Faults {
        retire: seed % 3 != 0,
        expire: seed % 4 < 2,
        short_grace: seed % 5 < 3,
        copies: seed % 7 < 3,
        restore: true,
    });
}
