//! The book of a sketch: which items were asked to be observed or counted, how often, and what of that was acknowledged.
//!
//! Few enough items are observed that a sketch of our form counts them exactly; one of Redis's form is off by a few of them, and never shows one that is there as new.

use std::collections::BTreeMap;

use quipu_engine::Position;
use quipu_model::{Durability, Reply};

use super::{End, Stands};
use crate::act::{COUNTED_ITEMS, Items, item};
use crate::counters::Form;

/// Two of two hundred items may share a register of Redis's form, and so may others.
const HLL_ERROR: i128 = 6;

/// All observations of one sketch.
#[derive(Default)]
pub(super) struct Observed {
    all: Vec<Observation>,
}

struct Observation {
    node: usize,
    life: u64,
    item: usize,
    by: u64,
    asked_at: u64,
    acked_at: u64,
    position: Position,
    stands: Stands,
}

/// What a sketch shows: how many uniques, or for each item that is counted how often it came at least and at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shows {
    /// So many different items.
    Uniques(i128),
    /// So often.
    Counts(Vec<(u64, u64)>),
}

/// How often each item came.
type Counts = BTreeMap<usize, u64>;

impl Shows {
    /// By the reply to a reading.
    pub fn of(reply: &Reply) -> Option<Shows> {
        match reply {
            Reply::Estimate(estimate) => Some(Shows::Uniques(i128::from(estimate.value))),
            Reply::Frequencies(frequencies) => {
                Some(Shows::Counts(frequencies.rows.iter().map(|row| (row.at_most, row.at_most)).collect()))
            }
            Reply::Ranked(rows) => {
                let row = |number: usize| rows.iter().find(|row| *row.item == *item(number));
                let bounds = |number| row(number).map_or((0, 0), |row| (row.at_least, row.at_most));
                Some(Shows::Counts((0..COUNTED_ITEMS).map(bounds).collect()))
            }
            _ => None,
        }
    }

    /// Of one that does not exist.
    pub fn nothing(form: Form) -> Shows {
        match form {
            Form::Frequency | Form::Top => Shows::Counts(vec![(0, 0); COUNTED_ITEMS]),
            Form::Number | Form::Unique | Form::Hll => Shows::Uniques(0),
        }
    }

    /// Whether it may be the same sketch: of one in Redis's form those who have never merged it know a little better.
    fn is_like(&self, form: Form, other: &Shows) -> bool {
        match (self, other) {
            (Shows::Uniques(one), Shows::Uniques(other)) if form == Form::Hll => (one - other).abs() <= HLL_ERROR,
            _ => self == other,
        }
    }

    /// Whether it has this, and no more than that.
    fn is_within(&self, form: Form, least: &Counts, most: &Counts) -> bool {
        let error = if form == Form::Hll { HLL_ERROR } else { 0 };
        match self {
            Shows::Uniques(value) => (least.len() as i128 - error..=most.len() as i128 + error).contains(value),
            Shows::Counts(shown) => shown.iter().enumerate().all(|(item, (at_least, at_most))| {
                let of = |counts: &Counts| counts.get(&item).copied().unwrap_or(0);
                of(least) <= *at_most && *at_least <= of(most)
            }),
        }
    }
}

impl Observed {
    /// Enters one that is asked for; where.
    pub fn ask(&mut self, (node, life): (usize, u64), item: usize, by: u64, asked_at: u64) -> usize {
        let (acked_at, position, stands) = (0, Position(0), Stands::InDoubt);
        self.all.push(Observation { node, life, item, by, asked_at, acked_at, position, stands });
        self.all.len() - 1
    }

    pub fn answer(&mut self, entry: usize, position: Position, at: u64) {
        let one = &mut self.all[entry];
        (one.stands, one.position, one.acked_at) = (Stands::Acked, position, at);
    }

    pub fn refuse(&mut self, entry: usize) {
        self.all[entry].stands = Stands::Refused;
    }

    /// What was asked for.
    fn asked(&self) -> Counts {
        self.count(|one| one.stands != Stands::Refused)
    }

    /// All items that were asked for.
    pub fn asked_items(&self) -> Items {
        self.asked().into_keys().collect()
    }

    /// A node has ended.
    pub fn ended(&mut self, node: usize, end: End, durability: Durability) {
        let memory = durability == Durability::Memory;
        for one in self.all.iter_mut().filter(|one| one.node == node && one.stands == Stands::Acked) {
            let lost = match end {
                End::Clean => false,
                End::Killed => memory,
                End::PowerLoss(synced) => memory || durability == Durability::Relaxed && one.position > synced,
                End::DirectoryLost | End::Stranded => true,
                End::Restored(since) => memory || one.acked_at >= since,
            };
            if lost {
                one.stands = Stands::InDoubt;
            }
        }
    }

    /// A node shows this: it has what that node itself had acknowledged before then and did not lose, and nothing that nobody asked for.
    pub fn reading(&self, (node, before): (usize, u64), form: Form, shows: &Shows) -> Result<(), String> {
        let least = self.count(|one| one.node == node && one.stands == Stands::Acked && one.acked_at < before);
        self.judge(form, &least, shows)
    }

    /// What is certain to be there: what was acknowledged, and asked for after the last delete.
    fn certain(&self, deleted_at: u64, certain: impl Fn(usize, u64) -> bool) -> Counts {
        self.count(|one| one.stands == Stands::Acked && certain(one.node, one.life) && one.asked_at > deleted_at)
    }

    /// Items that are.
    pub fn certain_items(&self, deleted_at: u64, certain: impl Fn(usize, u64) -> bool) -> Items {
        self.certain(deleted_at, certain).into_keys().collect()
    }

    /// In the end: all nodes show the same.
    pub fn same(&self, form: Form, shown: &[(usize, Shows)]) -> Result<(), String> {
        match shown.iter().all(|(_, shows)| shown[0].1.is_like(form, shows)) {
            true => Ok(()),
            false => Err(format!("in the end nodes differ: {shown:?}")),
        }
    }

    /// In the end: what they show has everything that is certain, and nothing that nobody asked for.
    pub fn close(
        &self,
        form: Form,
        deleted_at: u64,
        certain: impl Fn(usize, u64) -> bool,
        shown: &[(usize, Shows)],
    ) -> Result<(), String> {
        let least = self.certain(deleted_at, certain);
        for (node, shows) in shown {
            self.judge(form, &least, shows).map_err(|what| format!("in the end node {node} {what}"))?;
        }
        Ok(())
    }

    fn judge(&self, form: Form, least: &Counts, shows: &Shows) -> Result<(), String> {
        let most = self.asked();
        match (shows.is_within(form, least, &most), shows) {
            (true, _) => Ok(()),
            (false, Shows::Uniques(_)) => {
                Err(format!("shows {shows:?}; it should be from {} to {}", least.len(), most.len()))
            }
            (false, Shows::Counts(_)) => Err(format!("shows {shows:?}; it should be from {least:?} to {most:?}")),
        }
    }

    fn count(&self, which: impl Fn(&Observation) -> bool) -> Counts {
        let mut counts = Counts::new();
        for one in self.all.iter().filter(|one| which(one)) {
            *counts.entry(one.item).or_default() += one.by;
        }
        counts
    }
}
