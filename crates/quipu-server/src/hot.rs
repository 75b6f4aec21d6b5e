//! Hot keys: which counters are asked for most often, reads and writes apart. Always on.
//!
//! In: commands that were run, of which one in [`SAMPLE`] is looked at, by geometric skips, so that the others cost a subtraction. Out: lists with bounds, of the last minute or two.
//!
//! Invariants:
//! - memory is bounded: four lists of fixed size;
//! - a list never says that a counter was seen less often than it was among those that were looked at (`at_most`), nor more often (`at_least`).

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use quipu_model::{Command, Millis, Name, Ranked};
use quipu_sketch::sample::{Rate, Skip};
use quipu_sketch::{Edits, Key, Top};

/// One command in so many is looked at.
pub(crate) const SAMPLE: u32 = 64;

/// Counters of a list.
pub(crate) const HOT_NAMES_MAX: u32 = 100;

/// Places beside those of the list, and counters of what has none: a few dozen kilobytes.
const SLOTS: u32 = 400;
const CELLS: u32 = 1_024;

/// A list is of so much time, and the one before it is kept as long.
const GENERATION_MILLIS: u64 = 60_000;

/// See the module.
pub(crate) struct Hot {
    key: Key,
    lists: Mutex<Lists>,
}

struct Lists {
    now: Generation,
    before: Generation,
    /// What a change of a list would be written down as; nobody does.
    edits: Edits,
}

struct Generation {
    since: Millis,
    writes: Top,
    reads: Top,
}

/// What the lists say.
pub(crate) struct Seen {
    /// Since when.
    pub since: Millis,
    pub writes: Vec<Ranked>,
    pub reads: Vec<Ranked>,
}

impl Generation {
    fn new(since: Millis) -> Generation {
        let top = || Top::new(HOT_NAMES_MAX, SLOTS, CELLS).expect("the sizes are ours");
        Generation { since, writes: top(), reads: top() }
    }
}

impl Hot {
    /// Nothing was asked for yet.
    pub fn new(now: Millis) -> Hot {
        // Secret, so that nobody can choose names that collide.
        let mut key = [0; 16];
        key[..8].copy_from_slice(&chance().to_le_bytes());
        key[8..].copy_from_slice(&chance().to_le_bytes());
        let key = Key(key);
        let lists = Lists { now: Generation::new(now), before: Generation::new(now), edits: Edits::default() };
        Hot { key, lists: Mutex::new(lists) }
    }

    /// So many commands were run; `name_of` tells which counter one of them was about, and whether it was to change it.
    #[inline]
    pub fn ran<'a>(&self, commands: usize, now: Millis, name_of: impl Fn(usize) -> Option<(Name<'a>, bool)>) {
        SAMPLER.with_borrow_mut(|sampler| {
            let mut at = 0;
            while sampler.skip.left < (commands - at) as u64 {
                at += sampler.skip.left as usize;
                if let Some((name, writes)) = name_of(at) {
                    self.note(name, writes, now);
                }
                at += 1;
                let die = sampler.die();
                sampler.skip = Skip::new(&sampler.rate, die);
            }
            sampler.skip.left -= (commands - at) as u64;
        });
    }

    /// One command was run.
    #[inline]
    pub fn ran_one(&self, command: &Command<'_>, now: Millis) {
        self.ran(1, now, |_| about(command));
    }

    #[cold]
    fn note(&self, name: Name<'_>, writes: bool, now: Millis) {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        lists.turn_over(now);
        let Lists { now, edits, .. } = &mut *lists;
        let top = if writes { &mut now.writes } else { &mut now.reads };
        // A list whose sum is full stays as it is until the next one.
        let _ = top.add(&self.key, name.bytes(), SAMPLE.into(), edits);
        edits.clear();
    }

    /// What was asked for most often, so many of each at most.
    pub fn seen(&self, count: usize, now: Millis) -> Seen {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        lists.turn_over(now);
        let list = |of: fn(&mut Generation) -> &mut Top, lists: &mut Lists| {
            let mut both = of(&mut lists.now).clone();
            let mut edits = Edits::default();
            let _ = both.merge(&self.key, &[&*of(&mut lists.before)], &mut edits);
            let rows = both.list().into_iter().take(count);
            rows.map(|row| Ranked {
                item: row.item.into(),
                at_most: row.at_most,
                at_least: row.at_least,
                certain: row.certain,
            })
            .collect()
        };
        let writes = list(|generation| &mut generation.writes, &mut lists);
        let reads = list(|generation| &mut generation.reads, &mut lists);
        Seen { since: lists.before.since, writes, reads }
    }

    /// Forgets all that was seen.
    pub fn reset(&self, now: Millis) {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        (lists.now, lists.before) = (Generation::new(now), Generation::new(now));
    }
}

impl Lists {
    fn turn_over(&mut self, now: Millis) {
        if now.0.saturating_sub(self.now.since.0) >= GENERATION_MILLIS {
            self.before = std::mem::replace(&mut self.now, Generation::new(now));
        }
    }
}

/// The counter that a command is about, and whether it changes it. Of several the first, so that each command counts once.
fn about<'a>(command: &Command<'a>) -> Option<(Name<'a>, bool)> {
    Some(match command {
        Command::Add { name, .. }
        | Command::AddThinned { name, .. }
        | Command::Take { name }
        | Command::ReadAndExpire { name, .. }
        | Command::Reset { name }
        | Command::Expire { name, .. }
        | Command::Persist { name } => (*name, true),
        Command::AddWithin(add) => (add.name, true),
        Command::Set(set) => (set.name, true),
        Command::Delete { names } => (*names.first()?, true),
        Command::Read { name } | Command::KindOf { name } | Command::ExpiryOf { name, .. } => (*name, false),
        Command::ReadMany { names } | Command::Exists { names } => (*names.first()?, false),
        Command::Sketch(sketch) => (*sketch.names().first()?, sketch.writes()),
        Command::Scan(_) | Command::ListNames(_) | Command::CountNames | Command::Flush => return None,
    })
}

/// What a thread needs to look at one command in so many.
struct Sampler {
    rate: Rate,
    skip: Skip,
    dice: u64,
}

impl Sampler {
    /// xorshift64*: chance enough to skip by.
    fn die(&mut self) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

thread_local! {
    static SAMPLER: RefCell<Sampler> = RefCell::new({
        // Never 0.
        let (rate, dice) = (Rate::one_in(SAMPLE), chance() | 1);
        Sampler { rate, skip: Skip::new(&rate, chance()), dice }
    });
}

/// A number that nobody can guess: what the library's own maps are keyed with.
fn chance() -> u64 {
    RandomState::new().hash_one(0u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name<'_> {
        Name::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn what_is_asked_for_most_is_at_the_top_and_reads_are_apart_from_writes() {
        let hot = Hot::new(Millis(0));
        let cold: Vec<String> = (0..2_000).map(|n| format!("cold:{n}")).collect();
        for round in 0..200_000usize {
            let (write, read) =
                if round % 4 == 0 { ("hot:w", "hot:r") } else { (&*cold[round % 2_000], &*cold[round % 1_999]) };
            hot.ran(3, Millis(1), |at| (at < 2).then(|| (name([write, read][at]), at == 0)));
        }
        let seen = hot.seen(5, Millis(2));
        assert_eq!(&*seen.writes[0].item, b"hot:w");
        assert_eq!(&*seen.reads[0].item, b"hot:r");
        // 50,000 each, of which one in 64 is looked at: four standard deviations.
        for row in [&seen.writes[0], &seen.reads[0]] {
            assert!((42_900..=57_100).contains(&row.at_most), "{row:?}");
            assert!(row.at_least <= row.at_most);
        }
        assert!(seen.writes.len() == 5 && seen.writes[1].at_most < 10_000);
    }

    #[test]
    fn what_was_hot_is_forgotten_after_two_generations() {
        let hot = Hot::new(Millis(0));
        for _ in 0..10_000 {
            hot.ran_one(&Command::Read { name: name("a") }, Millis(1));
        }
        assert_eq!(hot.seen(10, Millis(GENERATION_MILLIS)).reads.len(), 1, "the minute before is still told");
        for _ in 0..10_000 {
            hot.ran_one(&Command::Read { name: name("b") }, Millis(GENERATION_MILLIS + 1));
        }
        let seen = hot.seen(10, Millis(2 * GENERATION_MILLIS));
        assert_eq!(seen.reads.iter().map(|row| &*row.item).collect::<Vec<_>>(), [b"b"]);
        assert!(seen.writes.is_empty());
        hot.reset(Millis(2 * GENERATION_MILLIS));
        assert!(hot.seen(10, Millis(2 * GENERATION_MILLIS)).reads.is_empty());
    }
}
