//! Keeps the history of a sketch: sent observations with item and count, and their acks.
//!
//! The items are few enough that a native sketch counts them exactly. One in Redis's format is off
//! by a few, and never reports a present item as new.

use std::collections::BTreeMap;

use quipu_engine::Position;
use quipu_model::{Durability, Reply};

use super::{AckState, NodeEnd};
use crate::act::{COUNTED_ITEMS, Items, item_name};
use crate::counters::CounterForm;

/// Largest error in Redis's format: two of two hundred items may share a register, and so may
/// others.
const HLL_ERROR: i128 = 6;

/// All observations of one sketch.
#[derive(Default)]
pub(super) struct SketchHistory {
    all: Vec<Observation>,
}

struct Observation {
    node: usize,
    incarnation: u64,
    item: usize,
    by: u64,
    asked_at: u64,
    acked_at: u64,
    position: Position,
    ack_state: AckState,
}

/// Reading of a sketch: the number of uniques, or the least and largest count of each counted item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SketchReading {
    /// Number of different items.
    Uniques(i128),
    /// Least and largest count of each item.
    Counts(Vec<(u64, u64)>),
}

/// Count of each item.
type ItemCounts = BTreeMap<usize, u64>;

impl SketchReading {
    /// Converts the reply to a reading.
    pub fn from_reply(reply: &Reply) -> Option<SketchReading> {
        match reply {
            Reply::Estimate(estimate) => Some(SketchReading::Uniques(i128::from(estimate.value))),
            Reply::Frequencies(frequencies) => {
                Some(SketchReading::Counts(frequencies.rows.iter().map(|row| (row.at_most, row.at_most)).collect()))
            }
            Reply::TopItems(rows) => {
                let row = |number: usize| rows.iter().find(|row| *row.item == *item_name(number));
                let bounds = |number| row(number).map_or((0, 0), |row| (row.at_least, row.at_most));
                Some(SketchReading::Counts((0..COUNTED_ITEMS).map(bounds).collect()))
            }
            _ => None,
        }
    }

    /// Reading of a sketch that does not exist.
    pub fn nothing(form: CounterForm) -> SketchReading {
        match form {
            CounterForm::Frequency | CounterForm::Top => SketchReading::Counts(vec![(0, 0); COUNTED_ITEMS]),
            CounterForm::Number | CounterForm::Unique | CounterForm::Hll => SketchReading::Uniques(0),
        }
    }

    /// Returns true if both may be readings of the same sketch. In Redis's format, nodes that never
    /// merged it are slightly more exact.
    fn is_like(&self, form: CounterForm, other: &SketchReading) -> bool {
        match (self, other) {
            (SketchReading::Uniques(one), SketchReading::Uniques(other)) if form == CounterForm::Hll => {
                (one - other).abs() <= HLL_ERROR
            }
            _ => self == other,
        }
    }

    /// Returns true if the reading lies within these bounds.
    fn is_within(&self, form: CounterForm, least: &ItemCounts, most: &ItemCounts) -> bool {
        let error = if form == CounterForm::Hll { HLL_ERROR } else { 0 };
        match self {
            SketchReading::Uniques(value) => (least.len() as i128 - error..=most.len() as i128 + error).contains(value),
            SketchReading::Counts(shown) => shown.iter().enumerate().all(|(item, (at_least, at_most))| {
                let count_of = |counts: &ItemCounts| counts.get(&item).copied().unwrap_or(0);
                count_of(least) <= *at_most && *at_least <= count_of(most)
            }),
        }
    }
}

impl SketchHistory {
    /// Records a sent observation; returns its index.
    pub fn push(&mut self, (node, incarnation): (usize, u64), item: usize, by: u64, asked_at: u64) -> usize {
        let (acked_at, position, ack_state) = (0, Position(0), AckState::InDoubt);
        self.all.push(Observation { node, incarnation, item, by, asked_at, acked_at, position, ack_state });
        self.all.len() - 1
    }

    pub fn acknowledge(&mut self, entry: usize, position: Position, at: u64) {
        let one = &mut self.all[entry];
        (one.ack_state, one.position, one.acked_at) = (AckState::Acked, position, at);
    }

    pub fn refuse(&mut self, entry: usize) {
        self.all[entry].ack_state = AckState::Refused;
    }

    /// Counts of all observations that were not refused.
    fn requested_counts(&self) -> ItemCounts {
        self.count_items(|one| one.ack_state != AckState::Refused)
    }

    /// Items of all observations that were not refused.
    pub fn requested_items(&self) -> Items {
        self.requested_counts().into_keys().collect()
    }

    /// Records the end of a node.
    pub fn end_node(&mut self, node: usize, end: NodeEnd, durability: Durability) {
        let memory = durability == Durability::Memory;
        for one in self.all.iter_mut().filter(|one| one.node == node && one.ack_state == AckState::Acked) {
            let lost = match end {
                NodeEnd::Clean => false,
                NodeEnd::Killed => memory,
                NodeEnd::PowerLoss(synced) => memory || durability == Durability::Relaxed && one.position > synced,
                NodeEnd::DirectoryLost | NodeEnd::Stranded => true,
                NodeEnd::Restored(since) => memory || one.acked_at >= since,
            };
            if lost {
                one.ack_state = AckState::InDoubt;
            }
        }
    }

    /// Judges a node's reading: it includes the node's own observations, acknowledged before
    /// `before` and not lost, and none that no client sent.
    pub fn judge_reading(
        &self,
        (node, before): (usize, u64),
        form: CounterForm,
        reading: &SketchReading,
    ) -> Result<(), String> {
        let least =
            self.count_items(|one| one.node == node && one.ack_state == AckState::Acked && one.acked_at < before);
        self.judge_within(form, &least, reading)
    }

    /// Counts of the certain observations: acknowledged, and sent after the last delete.
    fn certain_counts(&self, deleted_at: u64, certain: impl Fn(usize, u64) -> bool) -> ItemCounts {
        self.count_items(|one| {
            one.ack_state == AckState::Acked && certain(one.node, one.incarnation) && one.asked_at > deleted_at
        })
    }

    /// Items of the certain observations.
    pub fn certain_items(&self, deleted_at: u64, certain: impl Fn(usize, u64) -> bool) -> Items {
        self.certain_counts(deleted_at, certain).into_keys().collect()
    }

    /// Checks that in the end all nodes show the same.
    pub fn same(&self, form: CounterForm, shown: &[(usize, SketchReading)]) -> Result<(), String> {
        match shown.iter().all(|(_, reading)| shown[0].1.is_like(form, reading)) {
            true => Ok(()),
            false => Err(format!("in the end nodes differ: {shown:?}")),
        }
    }

    /// Checks that in the end the readings include every certain observation, and none that no
    /// client sent.
    pub fn judge_end(
        &self,
        form: CounterForm,
        deleted_at: u64,
        certain: impl Fn(usize, u64) -> bool,
        shown: &[(usize, SketchReading)],
    ) -> Result<(), String> {
        let least = self.certain_counts(deleted_at, certain);
        for (node, reading) in shown {
            self.judge_within(form, &least, reading).map_err(|what| format!("in the end node {node} {what}"))?;
        }
        Ok(())
    }

    fn judge_within(&self, form: CounterForm, least: &ItemCounts, reading: &SketchReading) -> Result<(), String> {
        let most = self.requested_counts();
        match (reading.is_within(form, least, &most), reading) {
            (true, _) => Ok(()),
            (false, SketchReading::Uniques(_)) => {
                Err(format!("shows {reading:?}; it should be from {} to {}", least.len(), most.len()))
            }
            (false, SketchReading::Counts(_)) => {
                Err(format!("shows {reading:?}; it should be from {least:?} to {most:?}"))
            }
        }
    }

    fn count_items(&self, which: impl Fn(&Observation) -> bool) -> ItemCounts {
        let mut counts = ItemCounts::new();
        for one in self.all.iter().filter(|one| which(one)) {
            *counts.entry(one.item).or_default() += one.by;
        }
        counts
    }
}
