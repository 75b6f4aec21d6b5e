//! How much was met, over one run or many.

use std::fmt;

use crate::plan::Fault;
use crate::store::{Fates, StoreEvents};

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct RunTally {
    /// Runs.
    pub runs: u64,
    /// Steps of the scheduler.
    pub steps: u64,
    /// Acts that clients asked for.
    pub acts: u64,
    /// Of those, answered.
    pub answered: u64,
    /// Of those, refused.
    pub refused: u64,
    /// Faults that came, by kind.
    pub faults: [u64; Fault::ALL.len()],
    /// Processes that ended other than in good order.
    pub crashes: u64,
    /// Nodes that were fenced.
    pub fenced: u64,
    /// Readings that were judged by how far they lag.
    pub fresh: u64,
    /// What happened at the store.
    pub store_events: StoreEvents,
    /// What calls to it met.
    pub fates: Fates,
}

impl RunTally {
    /// All faults.
    pub fn faults_all(&self) -> u64 {
        self.faults.iter().sum()
    }

    /// Adds what another run met.
    pub fn add(&mut self, other: &RunTally) {
        self.runs += other.runs;
        self.steps += other.steps;
        self.acts += other.acts;
        self.answered += other.answered;
        self.refused += other.refused;
        self.crashes += other.crashes;
        self.fenced += other.fenced;
        self.fresh += other.fresh;
        self.faults.iter_mut().zip(other.faults).for_each(|(own, other)| *own += other);
        self.store_events.add(&other.store_events);
        self.fates.add(&other.fates);
    }
}

/// One line, for the proof.
impl fmt::Display for RunTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RunTally { steps, acts, answered, refused, crashes, fenced, fresh, store_events, fates, .. } = self;
        write!(
            f,
            "{acts} operations ({answered} answered, {refused} of them refused, {fresh} judged for their lag) in {steps} steps; "
        )?;
        write!(f, "{} faults (", self.faults_all())?;
        for (at, (fault, count)) in Fault::ALL.iter().zip(self.faults).enumerate() {
            write!(f, "{}{fault:?} {count}", if at == 0 { "" } else { ", " })?;
        }
        write!(f, "), {crashes} crashes, {fenced} fenced; ")?;
        let Fates { answered, answered_late, not_applied, lost, silent, late } = fates;
        write!(
            f,
            "calls answered {answered}, answered late {answered_late}, not applied {not_applied}, lost {lost}, "
        )?;
        write!(f, "applied silently {silent}, applied late {late}; ")?;
        let StoreEvents { puts, swaps, carries, closes, folds, late, lapses, forgotten, retired } = store_events;
        write!(f, "{puts} puts, {swaps} swaps, {carries} carries, {lapses} lapses, {closes} closes, {folds} folds, ")?;
        write!(f, "{late} settled late, {forgotten} rows forgotten, {retired} retirements")
    }
}
