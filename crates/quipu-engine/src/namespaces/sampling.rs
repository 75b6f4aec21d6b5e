//! Computes sampling rates of counts, and keeps a record of them while counts may be inexact.
//!
//! In: the settings `sample` and `overload`, the journal's load, and earlier sampling. Out: the
//! rate for a counter's value, and the accuracy of that value.
//!
//! A count has no room for its history, and nearly all counts need none. So the **namespace**
//! records the sparsest rate ever used in it, and the epoch until which it applied. The engine
//! journals this record before the first event is sampled. So even after a crash, an inexact value
//! is never reported as exact. A counter of a later epoch is exact.
//!
//! Invariants:
//! - events are never sampled at a sparser rate than that of the open, durable record;
//! - only values that are not negative are sampled, and a counter that may have been sampled is
//!   never decremented: so its sampled part is at most its value, and its variance at most (p − 1)
//!   times its value;
//! - a sampling record is never deleted; once ended, it does not cover counters that are created,
//!   set, or reset later.
//!
//! Not here: the encoded record (`journal::sampling_record`).

use std::collections::BTreeMap;

use quipu_model::{Epoch, Kind, Namespace, Overload, SampleRate};
use quipu_sketch::sample::auto_p;

pub use crate::journal::sampling_record::SamplingRecord;

/// Most namespaces with a sampling record; beyond it, run-time settings that sample are refused.
pub const SAMPLING_RECORDS_MAX: usize = 4 * quipu_model::NAMESPACES_MAX;

/// Sampling records by namespace.
pub type SamplingRecords = BTreeMap<Box<[u8]>, SamplingRecord>;

/// Sampling policy of a namespace that is, may become, or was sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplingPolicy {
    sample: Option<SampleRate>,
    /// The present rate under overload; `None`: overload does not cause sampling.
    overload: Option<u32>,
    /// The durable sampling record.
    pub record: Option<SamplingRecord>,
}

impl SamplingPolicy {
    /// `None`: the namespace is not, cannot become, and was not sampled.
    pub fn new(settings: &Namespace, overload_p: u32, record: Option<SamplingRecord>) -> Option<SamplingPolicy> {
        // The file may have changed since the run-time settings; then a conflicting kind is not
        // sampled.
        let counts = settings.kind.is_none_or(|kind| kind == Kind::Count);
        let sample = settings.sample.filter(|_| counts);
        let overload = (counts && settings.overload == Some(Overload::Sample)).then_some(overload_p);
        let policy = SamplingPolicy { sample, overload, record };
        (policy.is_declared() || record.is_some()).then_some(policy)
    }

    /// Returns true if the settings sample counts, always or under overload.
    pub fn is_declared(&self) -> bool {
        self.sample.is_some() || self.overload.is_some()
    }

    /// Returns true if overload causes sampling.
    pub fn has_overload(&self) -> bool {
        self.overload.is_some()
    }

    /// Rate for a counter of this value, one in N; 1: every event counts.
    #[inline]
    pub fn p_at(&self, value: i64) -> u32 {
        let Ok(value) = u64::try_from(value) else { return 1 };
        let declared = match self.sample {
            None => 1,
            Some(SampleRate::OneIn(p)) => p,
            Some(SampleRate::Auto) => auto_p(value),
        };
        declared.max(self.overload.unwrap_or(1))
    }

    /// Returns true if clients may send events sampled at this rate.
    pub fn accepts_sampled_at(&self, p: u32) -> bool {
        p <= 1 || matches!(self.sample, Some(SampleRate::OneIn(declared)) if p <= declared)
    }

    /// Returns true if a counter of this epoch may have been sampled.
    pub fn covers(&self, epoch: Epoch) -> bool {
        self.record.is_some_and(|record| record.covers(epoch))
    }

    /// Returns true if a counter of this epoch refuses commands that need exactness.
    pub fn refuses_exactness(&self, epoch: Option<Epoch>) -> bool {
        self.is_declared() || epoch.is_some_and(|epoch| self.covers(epoch))
    }

    /// The epoch, raised to the end of sampling: every epoch above the result is exact.
    pub fn past_sampling(&self, epoch: Epoch) -> Epoch {
        self.record.and_then(|record| record.until).map_or(epoch, |until| until.max(epoch))
    }

    /// The record to journal before this policy may be in force; `None` if it exists already.
    pub fn missing_record(&self) -> Option<SamplingRecord> {
        let p = if let Some(SampleRate::OneIn(p)) = self.sample { p } else { 1 };
        let (p, by_value) = (p.max(self.overload.unwrap_or(1)), self.sample == Some(SampleRate::Auto));
        let needed = p > 1 || by_value;
        let there = self.record.unwrap_or(SamplingRecord { p: 1, by_value: false, until: Some(Epoch::FIRST) });
        let lacks = needed && (there.until.is_some() || there.p < p || by_value && !there.by_value);
        lacks.then_some(SamplingRecord { p: p.max(there.p), by_value: by_value || there.by_value, until: None })
    }

    /// Returns true if the record is open but sampling has ended.
    pub fn has_ended(&self) -> bool {
        let goes_on = self.record.is_some_and(|record| record.until.is_none());
        goes_on && self.sample.is_none() && self.overload.unwrap_or(1) == 1
    }
}

#[cfg(test)]
mod tests {
    use quipu_model::NodeId;

    use super::*;

    const SAMPLED: Namespace = Namespace { sample: Some(SampleRate::OneIn(100)), ..NOTHING };
    const NOTHING: Namespace = Namespace {
        kind: None,
        durability: None,
        ttl: None,
        window: None,
        decay: None,
        freshness: None,
        settle_every: None,
        shards: None,
        pick: None,
        token_window: None,
        max_counters: None,
        fail_mode: None,
        sample: None,
        overload: None,
    };

    fn epoch(millis: u64) -> Epoch {
        Epoch { millis, node: NodeId(7) }
    }

    #[test]
    fn nothing_is_in_force_that_is_not_written_down() {
        let open = |p, by_value| SamplingRecord { p, by_value, until: None };
        let policy =
            |settings: &Namespace, overload_p, record| SamplingPolicy::new(settings, overload_p, record).unwrap();
        assert_eq!(SamplingPolicy::new(&NOTHING, 8, None), None);
        assert_eq!(policy(&SAMPLED, 1, None).missing_record(), Some(open(100, false)));
        assert_eq!(policy(&SAMPLED, 1, Some(open(100, true))).missing_record(), None);
        assert_eq!(policy(&SAMPLED, 1, Some(open(50, true))).missing_record(), Some(open(100, true)));
        let over = SamplingRecord { until: Some(epoch(3)), ..open(1_000, false) };
        assert_eq!(policy(&SAMPLED, 1, Some(over)).missing_record(), Some(open(1_000, false)), "it goes on again");
        let auto = Namespace { sample: Some(SampleRate::Auto), ..NOTHING };
        assert_eq!(policy(&auto, 1, None).missing_record(), Some(open(1, true)));
        let overload = Namespace { overload: Some(Overload::Sample), ..NOTHING };
        assert_eq!(
            (policy(&overload, 1, None).missing_record(), policy(&overload, 1, None).has_ended()),
            (None, false)
        );
        assert_eq!(policy(&overload, 4, None).missing_record(), Some(open(4, false)));
        assert!(policy(&overload, 1, Some(open(4, false))).has_ended());
        assert!(!policy(&overload, 2, Some(open(4, false))).has_ended());
        assert!(policy(&NOTHING, 8, Some(open(4, false))).has_ended());
        assert!(!policy(&NOTHING, 8, Some(over)).has_ended(), "it is over already");
    }

    #[test]
    fn a_counter_of_a_later_epoch_is_exact() {
        let record = Some(SamplingRecord { p: 10, by_value: false, until: Some(epoch(5)) });
        let ended_policy = SamplingPolicy::new(&NOTHING, 1, record).unwrap();
        assert!(ended_policy.covers(epoch(5)) && ended_policy.covers(Epoch::FIRST) && !ended_policy.covers(epoch(6)));
        assert!(ended_policy.refuses_exactness(Some(epoch(5))) && !ended_policy.refuses_exactness(Some(epoch(6))));
        assert!(!ended_policy.refuses_exactness(None));
        assert_eq!(
            (ended_policy.p_at(1_000_000), ended_policy.past_sampling(epoch(2)), ended_policy.past_sampling(epoch(8))),
            (1, epoch(5), epoch(8))
        );
        let active_policy = SamplingPolicy::new(&SAMPLED, 1, record).unwrap();
        assert!(active_policy.refuses_exactness(None));
        assert_eq!((active_policy.p_at(0), active_policy.p_at(-1)), (100, 1));
        assert!(
            active_policy.accepts_sampled_at(100)
                && !active_policy.accepts_sampled_at(101)
                && ended_policy.accepts_sampled_at(1)
                && !ended_policy.accepts_sampled_at(2)
        );
    }

    #[test]
    fn approximate_kinds_are_not_sampled() {
        let settings = Namespace { kind: Some(Kind::Top), ..SAMPLED };
        assert_eq!(SamplingPolicy::new(&settings, 1, None), None);
    }
}
