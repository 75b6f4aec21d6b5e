//! Derives a run's plan from its seed: node options, network quality, and the faults with their
//! times.

use std::time::Duration;

use quipu_engine::{ShardPick, SharingOptions};
use quipu_testkit::SeededRng;

/// Number of client acts in every run.
pub const ACTS: usize = 760;

/// Least and most faults in every run.
pub const FAULTS_MIN: usize = 5;
const FAULTS_MAX: usize = 10;

/// Number of nodes at the beginning.
pub const NODES: usize = 3;

/// Kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A process is killed and started again.
    Kill,
    /// A machine loses its power: torn tails, lost directory entries.
    PowerLoss,
    /// A node is closed and started again.
    Restart,
    /// A node is not scheduled for a while.
    Pause,
    /// A node is not scheduled for so long that it is retired.
    Absence,
    /// A node's wall clock jumps, by up to a year.
    ClockJump,
    /// A directory is lost, and the node begins anew.
    DirectoryLost,
    /// A second node starts on a copy of a directory, while the first continues.
    DirectoryCloned,
    /// The same with the whole machine: the copy is indistinguishable from the first.
    MachineCloned,
    /// An older copy of its directory takes a node's place.
    DirectoryRestored,
    /// The store is down for a while.
    StoreDown,
    /// The store takes seconds for every call, for a while.
    StoreSlow,
    /// The store loses its last commits.
    StoreLosesCommits,
    /// The store is restored from an older copy, or comes back empty.
    StoreRestored,
    /// The store's clock jumps ahead by a little.
    StoreClock,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 15] = [
        Fault::Kill,
        Fault::PowerLoss,
        Fault::Restart,
        Fault::Pause,
        Fault::Absence,
        Fault::ClockJump,
        Fault::DirectoryLost,
        Fault::DirectoryCloned,
        Fault::MachineCloned,
        Fault::DirectoryRestored,
        Fault::StoreDown,
        Fault::StoreSlow,
        Fault::StoreLosesCommits,
        Fault::StoreRestored,
        Fault::StoreClock,
    ];

    /// Returns true for faults after which less can be judged; most runs go without them.
    fn loses_store_data(self) -> bool {
        matches!(self, Fault::StoreLosesCommits | Fault::StoreRestored)
    }

    /// Returns the most acts between the copy that the fault needs and the fault, if it needs one.
    fn prepared(self) -> Option<usize> {
        match self {
            Fault::StoreLosesCommits => Some(30),
            Fault::DirectoryRestored | Fault::StoreRestored => Some(120),
            _ => None,
        }
    }
}

/// A planned fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedFault {
    /// Number of sent acts at which it comes.
    pub at: usize,
    /// Its kind.
    pub fault: Fault,
    /// Index of its node.
    pub node: usize,
    /// True for the earlier step that only makes the copy.
    pub prepares: bool,
}

/// A run's plan.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its seed.
    pub seed: u64,
    /// Number of client acts.
    pub acts: usize,
    /// Faults, the next one last.
    pub faults: Vec<PlannedFault>,
    /// Percentage of store calls that meet a fault.
    pub store_percent: usize,
    /// Workers of each node.
    pub workers: usize,
    /// Options of sharing counters.
    pub sharing: SharingOptions,
    /// Length of a journal segment.
    pub segment_bytes: u64,
    /// Longest time to live that a client sets.
    pub expiry_millis_max: i64,
    /// Longest time step, in milliseconds.
    pub stride_millis: usize,
    /// True if the store may lose data.
    pub store_may_lose_data: bool,
}

impl Plan {
    /// Derives the plan of a seed.
    pub fn new(seed: u64) -> Plan {
        Plan::limited(seed, ACTS, &[])
    }

    /// The same with fewer acts and without some faults, to shrink a violation.
    pub fn limited(seed: u64, acts: usize, without: &[Fault]) -> Plan {
        let rng = SeededRng::new(seed ^ 0x005e_ed0f_9a1e);
        let store_may_lose_data = rng.chance(20);
        let kinds: Vec<Fault> =
            Fault::ALL.into_iter().filter(|fault| store_may_lose_data || !fault.loses_store_data()).collect();
        let mut faults = Vec::new();
        for _ in 0..FAULTS_MIN + rng.below(FAULTS_MAX - FAULTS_MIN + 1) {
            let (at, fault, node) = (20 + rng.below(ACTS - 40), *rng.pick(&kinds), rng.below(NODES));
            let strike = PlannedFault { at, fault, node, prepares: false };
            if let Some(before) = fault.prepared() {
                faults.push(PlannedFault { at: at.saturating_sub(1 + rng.below(before)), prepares: true, ..strike });
            }
            faults.push(strike);
        }
        faults.sort_by_key(|planned| std::cmp::Reverse(planned.at));
        faults.retain(|planned| planned.at < acts && !without.contains(&planned.fault));
        let sharing = draw_sharing_options(&rng);
        Plan {
            seed,
            acts,
            faults,
            store_percent: *rng.pick(&[0, 5, 10, 25]),
            workers: 2 + rng.below(2),
            expiry_millis_max: *rng.pick(&[200, 3_000, 20_000]),
            segment_bytes: *rng.pick(&[4_096, 8_192, 65_536]),
            stride_millis: *rng.pick(&[5, 20, 60]),
            sharing,
            store_may_lose_data,
        }
    }
}

/// Draws one of three time scales: writers are retired within a run, rarely, or never.
fn draw_sharing_options(rng: &SeededRng) -> SharingOptions {
    let seconds = Duration::from_secs;
    let (lease, retire_after, grace, audit_every) = match rng.below(3) {
        0 => (seconds(4), seconds(6), seconds(90), seconds(6)),
        1 => (seconds(6), seconds(20), seconds(240), seconds(20)),
        _ => (seconds(30), seconds(24 * 3_600), seconds(7 * 24 * 3_600), seconds(3_600)),
    };
    let pick = *rng.pick(&[ShardPick::Writer, ShardPick::Random, ShardPick::Time]);
    SharingOptions {
        settle_every: Duration::from_millis(*rng.pick(&[0, 100, 1_000])),
        freshness: Duration::from_millis(*rng.pick(&[0, 100, 1_000])),
        shards: *rng.pick(&[1, 1, 3]),
        pick,
        lease,
        retire_after,
        grace,
        audit_every,
        ..SharingOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_seed_has_enough_faults_and_all_kinds_come_up() {
        let mut drawn = BTreeSet::new();
        for seed in 0..200 {
            let plan = Plan::new(seed);
            let strikes = plan.faults.iter().filter(|planned| !planned.prepares).count();
            assert!(strikes >= FAULTS_MIN && plan.acts >= 500);
            assert!(plan.faults.is_sorted_by_key(|planned| std::cmp::Reverse(planned.at)));
            drawn.extend(plan.faults.iter().map(|planned| planned.fault));
            // The protocol assumes that no node with a lease sleeps for half of `grace`.
            let SharingOptions { lease, retire_after, grace, audit_every, .. } = plan.sharing;
            assert!(lease + retire_after + audit_every <= grace / 2);
        }
        assert_eq!(drawn.len(), Fault::ALL.len(), "{drawn:?}");
        let fewer = Plan::limited(7, 100, &[Plan::new(7).faults[0].fault]);
        assert!(fewer.acts == 100 && fewer.faults.len() < Plan::new(7).faults.len());
    }
}
