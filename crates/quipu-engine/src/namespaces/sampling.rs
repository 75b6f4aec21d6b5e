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
//! ```text
//! sampling record   flags u8 (1: rate by value, too; 2: ended), p u32; if ended: the epoch's
//!                   millis u64, node u64 (all little-endian)
//! in the ledger     key 6, name of the namespace   value as above
//! ```

use std::collections::BTreeMap;

use quipu_model::{AuxRecord, Epoch, Kind, NAMESPACE_BYTES_MAX, Namespace, NodeId, Overload, SampleRate};
use quipu_sketch::sample::auto_p;

/// First byte of the key; `tokens`, `namespaces` and `sketches` use the lower ones.
const SAMPLING: u8 = 6;

const BY_VALUE: u8 = 1;
const ENDED: u8 = 2;

/// Most namespaces with a sampling record; beyond it, run-time settings that sample are refused.
pub const SAMPLING_RECORDS_MAX: usize = 4 * quipu_model::NAMESPACES_MAX;

/// Sampling record of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplingRecord {
    /// The sparsest rate independent of the value, one in p; 1: there was none.
    pub p: u32,
    /// The rate also depended on the value (`auto`).
    pub by_value: bool,
    /// Counters of a later epoch were not sampled; `None`: sampling goes on.
    pub until: Option<Epoch>,
}

/// Sampling records by namespace.
pub type SamplingRecords = BTreeMap<Box<[u8]>, SamplingRecord>;

impl SamplingRecord {
    /// The same, ended: counters of an epoch later than `until` were not sampled.
    #[must_use]
    pub fn ended_at(self, until: Epoch) -> SamplingRecord {
        SamplingRecord { until: Some(until), ..self }
    }

    /// Returns true if a counter of this epoch may have been sampled.
    pub fn covers(&self, epoch: Epoch) -> bool {
        self.until.is_none_or(|until| epoch <= until)
    }

    /// The sparsest rate of all events in this value.
    pub fn p_at(&self, value: i64) -> u32 {
        match u64::try_from(value) {
            // Counts below 0 are not sampled, and sampled counts are never decremented.
            Err(_) => 1,
            Ok(value) => self.p.max(if self.by_value { auto_p(value) } else { 1 }),
        }
    }

    /// Appends the encoded record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let by_value = if self.by_value { BY_VALUE } else { 0 };
        out.push(by_value | if self.until.is_some() { ENDED } else { 0 });
        out.extend_from_slice(&self.p.to_le_bytes());
        if let Some(until) = self.until {
            out.extend_from_slice(&until.millis.to_le_bytes());
            out.extend_from_slice(&until.node.0.to_le_bytes());
        }
    }

    /// Decodes a record from the first bytes and returns the rest; `None` if they are invalid.
    pub fn decode(bytes: &[u8]) -> Option<(SamplingRecord, &[u8])> {
        let (&flags, bytes) = bytes.split_first()?;
        let (p, bytes) = bytes.split_first_chunk::<4>()?;
        let p = u32::from_le_bytes(*p);
        if flags & !(BY_VALUE | ENDED) != 0 || p == 0 {
            return None;
        }
        let record = SamplingRecord { p, by_value: flags & BY_VALUE != 0, until: None };
        if flags & ENDED == 0 {
            return Some((record, bytes));
        }
        let (millis, bytes) = bytes.split_first_chunk::<8>()?;
        let (node, bytes) = bytes.split_first_chunk::<8>()?;
        let until = Epoch { millis: u64::from_le_bytes(*millis), node: NodeId(u64::from_le_bytes(*node)) };
        Some((SamplingRecord { until: Some(until), ..record }, bytes))
    }

    /// Returns true for the key of a sampling record.
    pub fn is_sampling_key(key: &[u8]) -> bool {
        key.first() == Some(&SAMPLING)
    }

    /// Encodes the auxiliary record for the ledger.
    pub fn to_aux_record(&self, name: &[u8]) -> AuxRecord {
        let mut value = Vec::new();
        self.encode(&mut value);
        AuxRecord { key: [&[SAMPLING], name].concat().into(), value: Some(value.into()) }
    }

    /// Decodes an auxiliary record's key and value; `None` if they are invalid.
    pub fn from_aux_record(key: &[u8], value: &[u8]) -> Option<(Box<[u8]>, SamplingRecord)> {
        let name = key.strip_prefix(&[SAMPLING]).filter(|name| name.len() <= NAMESPACE_BYTES_MAX)?;
        let (record, rest) = SamplingRecord::decode(value)?;
        rest.is_empty().then(|| (name.into(), record))
    }
}

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
    fn what_is_remembered_comes_back_from_its_bytes() {
        for until in [None, Some(epoch(9)), Some(Epoch::FIRST)] {
            for (p, by_value) in [(1, true), (100, false), (u32::MAX, true)] {
                let record = SamplingRecord { p, by_value, until };
                let AuxRecord { key, value } = record.to_aux_record(b"views");
                assert!(SamplingRecord::is_sampling_key(&key));
                let value = value.unwrap();
                assert_eq!(SamplingRecord::from_aux_record(&key, &value), Some((b"views"[..].into(), record)));
                for cut in 0..value.len() {
                    assert_eq!(SamplingRecord::from_aux_record(&key, &value[..cut]), None);
                }
                assert_eq!(SamplingRecord::from_aux_record(&key, &[&value[..], &[0]].concat()), None);
            }
        }
        assert_eq!(SamplingRecord::decode(&[4, 1, 0, 0, 0]), None, "a flag that nobody knows");
        assert_eq!(SamplingRecord::decode(&[0, 0, 0, 0, 0]), None, "no rate");
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
