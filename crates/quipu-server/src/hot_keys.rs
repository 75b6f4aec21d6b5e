//! Tracks hot keys: the counters with the most reads and the most writes. Always on.
//!
//! In: commands that ran. One in [`SAMPLE`] is sampled, by geometric skips, so that each other
//! command costs a subtraction. Out: lists of the last one to two minutes, with estimates and
//! bounds. Also the few counters with a share of all writes that makes lanes worthwhile
//! (`connection/unreplied_adds`).
//!
//! Invariants:
//! - Memory is bounded: four lists of fixed size, and a few names.
//! - No list shows samples older than two generations, however low the traffic.
//! - A count lies within its bounds with a probability of at least 95 %.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use quipu_model::{Command, Millis, Name, NameBuf};
use quipu_sketch::sample::{Rate, Skip};
use quipu_sketch::{Edits, Key, Top};

/// One command in this many is sampled.
pub(crate) const SAMPLE: u32 = 64;

/// Most counters of a list.
pub(crate) const HOT_NAMES_MAX: u32 = 100;

/// Slots of a list, and cells for names without a slot: a few dozen kilobytes.
const SLOTS: u32 = 400;
const CELLS: u32 = 1_024;

/// Length of a generation; the previous generation is kept for the same time.
const GENERATION_MILLIS: u64 = 60_000;

/// Samples from which on a list's order is meaningful: about 6,400 commands. With fewer, chance
/// decides the order.
pub(crate) const SAMPLES_ENOUGH: u64 = 100;

/// Standard deviations to each side of 95 %.
const DEVIATIONS: f64 = 1.96;

/// Most counters reported as worth lanes. With the share below, at most twice as many could
/// qualify.
pub(crate) const HOTTEST_MAX: usize = 8;

/// A counter qualifies with at least one write in 16.
const HOTTEST_SHARE: u64 = 16;

/// Fewest samples of a qualifying counter within a generation: chance alone does not reach it.
const HOTTEST_SAMPLES_MIN: u64 = 256;

/// Samples of writes before a ranking; later a quarter of the generation's samples, if that is
/// more. A ranking reads a whole list, so it must be rare.
const RANKING_SAMPLES: u64 = 256;

/// Tracker of hot keys; see the module.
pub(crate) struct HotKeyTracker {
    key: Key,
    lists: Mutex<TrackerState>,
    /// Rises with every new list of hottest counters: a reader with the current version needs no
    /// new list.
    hottest_version: AtomicU64,
}

struct TrackerState {
    now: HotKeyGeneration,
    before: HotKeyGeneration,
    hottest: Arc<[NameBuf]>,
    /// Samples of writes since the last ranking.
    samples_since_ranking: u64,
    /// Change log that [`Top`] requires; not used here.
    edits: Edits,
}

struct HotKeyGeneration {
    since: Millis,
    writes: Top,
    reads: Top,
}

/// Report of hot keys.
pub(crate) struct HotKeyReport {
    /// Begin of the sampled period.
    pub since: Millis,
    pub writes: HotKeyList,
    pub reads: HotKeyList,
}

/// The counters with the most writes, or the most reads.
pub(crate) struct HotKeyList {
    pub rows: Vec<HotKey>,
    /// True if there were enough samples.
    pub enough: bool,
}

/// Estimated number of commands on a counter.
#[derive(Debug)]
pub(crate) struct HotKey {
    pub name: Box<[u8]>,
    /// The estimate.
    pub about: u64,
    /// Bounds that hold with a probability of 95 %.
    pub at_least: u64,
    pub at_most: u64,
}

impl HotKeyReport {
    /// Note for a report with too few samples.
    pub fn note(&self) -> Option<String> {
        let lacking = match (self.writes.enough, self.reads.enough) {
            (true, true) => return None,
            (false, true) => "writes",
            (true, false) => "reads",
            (false, false) => "writes and reads",
        };
        Some(format!("too little traffic to find hot {lacking}: fewer than {SAMPLES_ENOUGH} were sampled"))
    }
}

impl HotKey {
    /// Computes the estimate from the bounds of a counter's samples.
    fn new(name: Vec<u8>, samples_min: u64, samples_max: u64) -> HotKey {
        // Every sample was a command.
        let at_least = samples_min.max(lower_bound(samples_min));
        let about = u64::from(SAMPLE) * samples_min.midpoint(samples_max);
        HotKey { name: name.into(), about, at_least, at_most: upper_bound(samples_max) }
    }
}

/// Lower bound of the number of commands for a number of samples; [`upper_bound`] is the other.
///
/// The number of samples of n commands is nearly Poisson with mean n / [`SAMPLE`]. These are the
/// limits of its mean by the score test, with a continuity correction so that they hold for few
/// samples, too: m ± ½, plus z² / 2, ± z √(m ± ½ + z² / 4).
fn lower_bound(samples: u64) -> u64 {
    let Some(m) = samples.checked_sub(1).map(|less| less as f64 + 0.5) else { return 0 };
    let mean = m + DEVIATIONS.powi(2) / 2.0 - DEVIATIONS * (m + DEVIATIONS.powi(2) / 4.0).sqrt();
    (mean * f64::from(SAMPLE)).floor() as u64
}

fn upper_bound(samples: u64) -> u64 {
    let m = samples as f64 + 0.5;
    let mean = m + DEVIATIONS.powi(2) / 2.0 + DEVIATIONS * (m + DEVIATIONS.powi(2) / 4.0).sqrt();
    (mean * f64::from(SAMPLE)).ceil() as u64
}

impl HotKeyGeneration {
    fn new(since: Millis) -> HotKeyGeneration {
        let top = || Top::new(HOT_NAMES_MAX, SLOTS, CELLS).expect("the sizes are ours");
        HotKeyGeneration { since, writes: top(), reads: top() }
    }
}

impl HotKeyTracker {
    /// Creates a tracker without samples.
    pub fn new(now: Millis) -> HotKeyTracker {
        // Secret, so that no client can choose names that collide.
        let mut key = [0; 16];
        key[..8].copy_from_slice(&random_seed().to_le_bytes());
        key[8..].copy_from_slice(&random_seed().to_le_bytes());
        HotKeyTracker::with_key(now, Key(key))
    }

    /// Creates a tracker with a key that is not secret, for a reproducible benchmark.
    pub fn with_seed(now: Millis, seed: u64) -> HotKeyTracker {
        HotKeyTracker::with_key(now, Key(u128::from(seed).to_le_bytes()))
    }

    fn with_key(now: Millis, key: Key) -> HotKeyTracker {
        let (now, before) = (HotKeyGeneration::new(now), HotKeyGeneration::new(now));
        let lists = TrackerState { now, before, hottest: [].into(), samples_since_ranking: 0, edits: Edits::default() };
        HotKeyTracker { key, lists: Mutex::new(lists), hottest_version: AtomicU64::new(0) }
    }

    /// Records commands that ran; `name_of` returns one command's counter, and true if it is a
    /// write.
    #[inline]
    pub fn record<'a>(&self, commands: usize, now: Millis, name_of: impl Fn(usize) -> Option<(Name<'a>, bool)>) {
        SAMPLER.with_borrow_mut(|sampler| {
            let mut at = 0;
            while sampler.skip.left < (commands - at) as u64 {
                at += sampler.skip.left as usize;
                if let Some((name, writes)) = name_of(at) {
                    self.record_sample(name, writes, now);
                }
                at += 1;
                let random = sampler.draw();
                sampler.skip = Skip::new(&sampler.rate, random);
            }
            sampler.skip.left -= (commands - at) as u64;
        });
    }

    /// Records one command that ran.
    #[inline]
    pub fn record_command(&self, command: &Command<'_>, now: Millis) {
        self.record(1, now, |_| first_target(command));
    }

    #[cold]
    fn record_sample(&self, name: Name<'_>, writes: bool, now: Millis) {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        lists.rotate(now);
        let TrackerState { now, edits, samples_since_ranking: unranked, .. } = &mut *lists;
        let top = if writes { &mut now.writes } else { &mut now.reads };
        // A list with a saturated sum stays unchanged until the next one.
        let _ = top.add(&self.key, name.bytes(), 1, edits);
        edits.clear();
        *unranked += u64::from(writes);
        if *unranked >= RANKING_SAMPLES.max(now.writes.n() / 4) {
            self.update_hottest(&mut lists);
        }
    }

    /// Finds the counters with the most writes.
    fn update_hottest(&self, lists: &mut TrackerState) {
        lists.samples_since_ranking = 0;
        let writes = &lists.now.writes;
        let least = (writes.n() / HOTTEST_SHARE).max(HOTTEST_SAMPLES_MIN);
        let rows = writes.list();
        let hottest = rows.iter().filter(|row| row.at_least >= least).take(HOTTEST_MAX);
        let hottest: Vec<&[u8]> = hottest.map(|row| &*row.item).collect();
        if hottest.iter().copied().ne(lists.hottest.iter().map(|name| &**name)) {
            lists.hottest = hottest.into_iter().map(NameBuf::from).collect();
            self.hottest_version.fetch_add(1, Ordering::Release);
        }
    }

    /// Version of the list that [`HotKeyTracker::hottest`] returns.
    pub fn hottest_version(&self) -> u64 {
        self.hottest_version.load(Ordering::Acquire)
    }

    /// The counters with a large share of all writes.
    pub fn hottest(&self) -> Arc<[NameBuf]> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner).hottest.clone()
    }

    /// The hottest counters, at most `count` of each list.
    pub fn list(&self, count: usize, now: Millis) -> HotKeyReport {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        lists.rotate(now);
        let list = |now: &Top, before: &Top| {
            let mut both = now.clone();
            let _ = both.merge(&self.key, &[before], &mut Edits::default());
            let rows = both.list().into_iter().take(count);
            let rows = rows.map(|row| HotKey::new(row.item, row.at_least, row.at_most)).collect();
            HotKeyList { rows, enough: both.n() >= SAMPLES_ENOUGH }
        };
        HotKeyReport {
            since: lists.before.since,
            writes: list(&lists.now.writes, &lists.before.writes),
            reads: list(&lists.now.reads, &lists.before.reads),
        }
    }

    /// Clears all samples.
    pub fn reset(&self, now: Millis) {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        (lists.now, lists.before) = (HotKeyGeneration::new(now), HotKeyGeneration::new(now));
    }
}

impl TrackerState {
    /// Ends the generations that have expired. Each begins at the end of the previous one, so that
    /// their age does not depend on traffic.
    fn rotate(&mut self, now: Millis) {
        let ended = now.0.saturating_sub(self.now.since.0) / GENERATION_MILLIS;
        if ended == 0 {
            return;
        }
        let since = self.now.since.0 + ended * GENERATION_MILLIS;
        let last = std::mem::replace(&mut self.now, HotKeyGeneration::new(Millis(since)));
        self.before = if ended == 1 { last } else { HotKeyGeneration::new(Millis(since - GENERATION_MILLIS)) };
        // The hottest counters stay until this generation has enough samples.
        self.samples_since_ranking = 0;
    }
}

/// The counter of a command, and true if the command changes it. Of several counters the first, so
/// that each command counts once.
fn first_target<'a>(command: &Command<'a>) -> Option<(Name<'a>, bool)> {
    let facts = command.facts();
    Some((facts.targets.first()?, facts.writes))
}

/// A thread's sampling state.
struct Sampler {
    rate: Rate,
    skip: Skip,
    rng_state: u64,
}

impl Sampler {
    fn new(skip: u64, rng_state: u64) -> Sampler {
        // Never 0.
        let (rate, rng_state) = (Rate::one_in(SAMPLE), rng_state | 1);
        Sampler { rate, skip: Skip::new(&rate, skip), rng_state }
    }

    /// xorshift64*: random enough for skips.
    fn draw(&mut self) -> u64 {
        self.rng_state ^= self.rng_state << 13;
        self.rng_state ^= self.rng_state >> 7;
        self.rng_state ^= self.rng_state << 17;
        self.rng_state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

thread_local! {
    static SAMPLER: RefCell<Sampler> = RefCell::new(Sampler::new(random_seed(), random_seed()));
}

/// Seeds this thread's sampler, for a reproducible benchmark.
pub(crate) fn seed_sampler(seed: u64) {
    SAMPLER.set(Sampler::new(seed, seed));
}

/// An unpredictable number: the key of the standard library's maps.
fn random_seed() -> u64 {
    RandomState::new().hash_one(0u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name<'_> {
        Name::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn the_most_frequent_key_is_at_the_top_and_reads_are_separate_from_writes() {
        let tracker = HotKeyTracker::new(Millis(0));
        let cold: Vec<String> = (0..2_000).map(|n| format!("cold:{n}")).collect();
        for round in 0..200_000usize {
            let (write, read) =
                if round % 4 == 0 { ("hot:w", "hot:r") } else { (&*cold[round % 2_000], &*cold[round % 1_999]) };
            tracker.record(3, Millis(1), |at| (at < 2).then(|| (name([write, read][at]), at == 0)));
        }
        let HotKeyReport { writes, reads, .. } = tracker.list(5, Millis(2));
        assert_eq!(&*writes.rows[0].name, b"hot:w");
        assert_eq!(&*reads.rows[0].name, b"hot:r");
        // 50,000 each, with one in 64 sampled: four standard deviations.
        for row in [&writes.rows[0], &reads.rows[0]] {
            assert!((42_900..=57_100).contains(&row.about), "{row:?}");
            assert!(row.at_least < row.about && row.about < row.at_most, "{row:?}");
        }
        assert!(writes.rows.len() == 5 && writes.rows[1].at_most < 10_000);
        assert!(writes.enough && reads.enough);
    }

    #[test]
    fn the_hottest_are_those_with_a_large_part_of_all_writes_and_they_change() {
        let tracker = HotKeyTracker::new(Millis(0));
        let run = |hot_names: [&str; 2], rounds: usize, now: u64| {
            for round in 0..rounds {
                let cold = format!("cold:{}", round % 5_000);
                let name = match round % 8 {
                    0 => hot_names[0],
                    1 => hot_names[1],
                    _ => &cold,
                };
                tracker
                    .record_command(&Command::Add { name: self::name(name), delta: 1, shard_key: None }, Millis(now));
                tracker.record_command(&Command::Read { name: self::name("read") }, Millis(now));
            }
        };
        let listed = || {
            let mut names: Vec<Vec<u8>> = tracker.hottest().iter().map(|name| name.to_vec()).collect();
            names.sort();
            names
        };
        run(["a", "b"], 10_000, 1);
        assert!(listed().is_empty(), "too few to say");
        run(["a", "b"], 400_000, 1);
        assert_eq!(listed(), [b"a", b"b"]);
        let version = tracker.hottest_version();
        run(["c", "b"], 600_000, GENERATION_MILLIS + 1);
        assert_eq!(listed(), [b"b", b"c"]);
        assert!(tracker.hottest_version() > version);
    }

    #[test]
    fn what_was_hot_is_forgotten_after_two_generations() {
        let tracker = HotKeyTracker::new(Millis(0));
        for _ in 0..10_000 {
            tracker.record_command(&Command::Read { name: name("a") }, Millis(1));
        }
        assert_eq!(
            tracker.list(10, Millis(GENERATION_MILLIS)).reads.rows.len(),
            1,
            "the minute before is still listed"
        );
        for _ in 0..10_000 {
            tracker.record_command(&Command::Read { name: name("b") }, Millis(GENERATION_MILLIS + 1));
        }
        let listed = tracker.list(10, Millis(2 * GENERATION_MILLIS));
        assert_eq!(listed.reads.rows.iter().map(|row| &*row.name).collect::<Vec<_>>(), [b"b"]);
        assert!(listed.writes.rows.is_empty());
        tracker.reset(Millis(2 * GENERATION_MILLIS));
        assert!(tracker.list(10, Millis(2 * GENERATION_MILLIS)).reads.rows.is_empty());
    }

    #[test]
    fn generations_end_by_time_without_traffic() {
        let run = |tracker: &HotKeyTracker, now: u64| {
            for _ in 0..10_000 {
                tracker.record_command(&Command::Read { name: name("a") }, Millis(now));
            }
        };
        let tracker = HotKeyTracker::new(Millis(0));
        run(&tracker, 1);
        let listed = tracker.list(10, Millis(2 * GENERATION_MILLIS));
        assert!(listed.reads.rows.is_empty() && !listed.reads.enough, "nobody asked for two minutes");
        assert_eq!(listed.since, Millis(GENERATION_MILLIS));

        // A sample late in a minute does not keep the previous minute longer.
        let tracker = HotKeyTracker::new(Millis(0));
        run(&tracker, 1);
        for _ in 0..10_000 {
            tracker.record_command(&Command::Read { name: name("b") }, Millis(2 * GENERATION_MILLIS - 1));
        }
        let listed = tracker.list(10, Millis(2 * GENERATION_MILLIS));
        assert_eq!(listed.reads.rows.iter().map(|row| &*row.name).collect::<Vec<_>>(), [b"b"]);
        assert_eq!(listed.since, Millis(GENERATION_MILLIS));
    }

    #[test]
    fn bounds_hold_with_the_stated_probability() {
        let p = 1.0 / f64::from(SAMPLE);
        for commands in (1..100).chain((100..20_000).step_by(97)) {
            // Probability of each number of samples in the binomial distribution, from 0 on.
            let (mut likely, mut outside, mut inside) = ((1.0 - p).powi(commands as i32), 0.0, 0.0);
            for samples in 0..=commands {
                let row = HotKey::new(Vec::new(), samples, samples);
                let holds = (row.at_least..=row.at_most).contains(&commands);
                *(if holds { &mut inside } else { &mut outside }) += likely;
                likely *= (commands - samples) as f64 / (samples + 1) as f64 * p / (1.0 - p);
                if inside + outside > 1.0 - 1e-9 {
                    break;
                }
            }
            assert!(inside >= 0.95, "{commands} commands: {inside}");
        }
    }

    #[test]
    fn one_sample_is_no_certainty() {
        let row = HotKey::new(b"a".to_vec(), 1, 1);
        assert_eq!((row.about, row.at_least, row.at_most), (64, 3, 416));
        let none = HotKey::new(b"a".to_vec(), 0, 0);
        assert_eq!((none.about, none.at_least), (0, 0));
        let tracker = HotKeyTracker::new(Millis(0));
        assert_eq!(
            tracker.list(10, Millis(1)).note().as_deref(),
            Some("too little traffic to find hot writes and reads: fewer than 100 were sampled")
        );
    }
}
