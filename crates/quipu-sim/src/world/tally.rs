//! Tallies the events of one run or many.

use std::fmt;

use crate::plan::Fault;
use crate::store::{Fates, StoreEvents};

/// Tally of events.
#[derive(Debug, Clone, Default)]
pub struct RunTally {
    /// Number of runs.
    pub runs: u64,
    /// Number of scheduler steps.
    pub steps: u64,
    /// Number of acts that clients sent.
    pub acts: u64,
    /// Number of them answered.
    pub answered: u64,
    /// Number of them refused.
    pub refused: u64,
    /// Number of injected faults, by kind.
    pub faults: [u64; Fault::ALL.len()],
    /// Number of processes that ended without a clean close.
    pub crashes: u64,
    /// Number of fenced nodes.
    pub fenced: u64,
    /// Number of readings judged by their lag.
    pub fresh: u64,
    /// Events at the store.
    pub store_events: StoreEvents,
    /// Fates of calls to the store.
    pub fates: Fates,
}

impl RunTally {
    /// Number of all faults.
    pub fn faults_all(&self) -> u64 {
        self.faults.iter().sum()
    }

    /// Adds another run's tally.
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

/// One line for the proof.
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
