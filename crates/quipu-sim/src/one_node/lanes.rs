//! Adds without a reply, in lanes and beside them, and the joins of lanes.
//!
//! A join writes one record for each counter with adds in lanes, and a crash may come between any
//! two records. So that the states in between are known, a join meets the lanes of one counter.

use quipu_engine::Turn;
use quipu_model::{Command, Reply};

use super::commands::{all_names, durability_of, short_name};
use super::incarnation::{IncarnationRun, PendingReply};
use super::model;

impl IncarnationRun<'_, '_> {
    /// Adds a few times without a reply.
    pub(super) fn count_adds(&mut self) {
        // Lanes of one counter at a time: a join of several writes a record for each, and the model
        // knows only the end of the last.
        let picked = self.rng.pick(&self.handles);
        let holding = self.handles.iter().find(|handle| self.lane_totals.contains_key(handle.name()));
        let handle = holding.unwrap_or(picked).clone();
        for _ in 0..1 + self.rng.below(5) {
            let delta = self.rng.between(-3..=9);
            let name = handle.name().to_vec();
            let in_lanes = handle.is_split();
            if handle.count(delta).is_err() {
                assert!(!in_lanes, "lanes take everything that is small");
                self.trace.tally.refused += 1;
                continue;
            }
            if in_lanes {
                self.trace.tally.in_lanes += 1;
                *self.lane_totals.entry(name).or_default() += delta;
                continue;
            }
            self.trace.tally.counted += 1;
            self.merge_lanes(&name);
            let add = Command::Add { name: short_name(&name), delta, shard_key: None };
            let expected = model::apply(&mut self.state, &add, self.engine.now());
            assert!(matches!(expected, Reply::Integer(_)), "{add:?} -> {expected:?}");
            self.newest.insert(name, self.engine.steps().reserved());
            self.record_boundary();
        }
    }

    /// Joins the lanes of a counter, and waits for the durability of its adds.
    pub(super) fn flush(&mut self, turn: &mut Turn<'_>) -> Vec<PendingReply> {
        let handle = self.rng.pick(&self.handles).clone();
        match turn.flush(&handle) {
            Ok(()) => {}
            other => panic!("lanes hold the room they need: {other:?}"),
        }
        turn.end_run();
        let name = handle.name();
        self.merge_lanes(name);
        self.record_boundary();
        let position = self.newest.get(name).copied().unwrap_or_default();
        vec![PendingReply {
            position,
            durability: durability_of(name),
            what: format!("flush of {:?}", name.escape_ascii()),
        }]
    }

    /// Moves the adds in a counter's lanes to its value, after a command on the counter. They are
    /// in the newest record.
    pub(super) fn merge_lanes(&mut self, name: &[u8]) {
        let in_lanes = self.lane_totals.remove(name).unwrap_or(0);
        if in_lanes != 0 {
            let (value, expiry) = self.state.get(name).copied().expect("only a counter that exists has lanes");
            self.state.insert(name.to_vec(), (value + in_lanes, expiry));
            self.newest.insert(name.to_vec(), self.engine.steps().reserved());
        }
    }

    /// Joins the lanes of all counters but one, each with a boundary of its own. The one is left to
    /// a join of all lanes.
    pub(super) fn flush_all_but_one(&mut self) {
        let in_lanes: Vec<Vec<u8>> =
            self.lane_totals.iter().filter(|(_, in_lanes)| **in_lanes != 0).map(|(name, _)| name.clone()).collect();
        for name in in_lanes.iter().skip(1) {
            let handle = self.handles.iter().find(|handle| handle.name() == name).expect("all have one").clone();
            let mut turn = self.engine.turn();
            assert_eq!(turn.flush(&handle), Ok(()));
            turn.finish();
            self.merge_lanes(name);
            self.record_boundary();
        }
    }

    /// Moves the adds in all lanes to their values, after a join of all lanes.
    pub(super) fn merge_all_lanes(&mut self) {
        for name in all_names() {
            self.merge_lanes(name);
        }
    }
}
