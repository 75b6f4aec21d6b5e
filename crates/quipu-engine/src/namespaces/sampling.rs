//! Sampled counts: how rarely a namespace's events are counted, and what is remembered of that for as long as a count may be off by it.
//!
//! In: what a namespace says of `sample` and `overload`, whether the journal keeps up, and what was thinned before. Out: the rate for a counter's value, and how far to trust that value.
//!
//! A count has no place for how it came about, and nearly all of them need none. So the **namespace** remembers the rarest rate at which anything was ever thinned in it, and until which epoch. That is
//! written down before the first event is thinned, so whatever is lost by a crash, a value that may be off is never taken for an exact one. A counter of a later epoch is exact.
//!
//! Invariants:
//! - nothing is thinned at a rarer rate than is remembered, durably, as going on;
//! - from a value that is not negative, and nothing is ever taken away from a counter that may have been thinned: so what was thinned of it is not more than its value, and neither is its variance more than (p − 1) times that;
//! - what was thinned is never forgotten; it is over for counters that are made, set, or reset later.
//!
//! ```text
//! thinned, as bytes   flags u8 (1: by the value, too; 2: over), p u32; if it is over: the epoch's millis u64, node u64 (all little-endian)
//! note in the ledger  key 6, name of the namespace   value as above
//! ```

use std::collections::BTreeMap;

use quipu_model::{AuxRecord, Epoch, Kind, NAMESPACE_BYTES_MAX, Namespace, NodeId, Overload, SampleRate};
use quipu_sketch::sample::auto_p;

/// The first byte of the key; those before it are of `tokens`, `namespaces` and `sketches`.
const SAMPLING: u8 = 6;

const BY_VALUE: u8 = 1;
const ENDED: u8 = 2;

/// Namespaces of which it is remembered that they were thinned; nobody declares more of them at run time.
pub const SAMPLING_RECORDS_MAX: usize = 4 * quipu_model::NAMESPACES_MAX;

/// What is remembered of a namespace that was sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplingRecord {
    /// The rarest rate that held for whatever value; 1: there was none.
    pub p: u32,
    /// Whether the value itself has asked for a rate, too (`auto`).
    pub by_value: bool,
    /// Counters of a later epoch were not thinned; `None`: it goes on.
    pub until: Option<Epoch>,
}

/// By namespace.
pub type SamplingRecords = BTreeMap<Box<[u8]>, SamplingRecord>;

impl SamplingRecord {
    /// The same, over: counters of a later epoch than this were not thinned.
    #[must_use]
    pub fn ended_at(self, until: Epoch) -> SamplingRecord {
        SamplingRecord { until: Some(until), ..self }
    }

    /// Whether a counter of this epoch may have been thinned.
    pub fn covers(&self, epoch: Epoch) -> bool {
        self.until.is_none_or(|until| epoch <= until)
    }

    /// The rarest rate at which anything was thinned that is in this value.
    pub fn p_at(&self, value: i64) -> u32 {
        match u64::try_from(value) {
            // Nothing is thinned below 0, and nothing is taken away since.
            Err(_) => 1,
            Ok(value) => self.p.max(if self.by_value { auto_p(value) } else { 1 }),
        }
    }

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let by_value = if self.by_value { BY_VALUE } else { 0 };
        out.push(by_value | if self.until.is_some() { ENDED } else { 0 });
        out.extend_from_slice(&self.p.to_le_bytes());
        if let Some(until) = self.until {
            out.extend_from_slice(&until.millis.to_le_bytes());
            out.extend_from_slice(&until.node.0.to_le_bytes());
        }
    }

    /// From the first of these bytes, and what is behind them; `None` if they make no sense.
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

    /// Whether a note is one of these.
    pub fn is_sampling_key(key: &[u8]) -> bool {
        key.first() == Some(&SAMPLING)
    }

    /// As a note of the ledger.
    pub fn to_aux_record(&self, name: &[u8]) -> AuxRecord {
        let mut value = Vec::new();
        self.encode(&mut value);
        AuxRecord { key: [&[SAMPLING], name].concat().into(), value: Some(value.into()) }
    }

    /// From key and value of a note; `None` if they make no sense.
    pub fn from_aux_record(key: &[u8], value: &[u8]) -> Option<(Box<[u8]>, SamplingRecord)> {
        let name = key.strip_prefix(&[SAMPLING]).filter(|name| name.len() <= NAMESPACE_BYTES_MAX)?;
        let (record, rest) = SamplingRecord::decode(value)?;
        rest.is_empty().then(|| (name.into(), record))
    }
}

/// What holds for the counts of a namespace that is sampled, may come to be, or was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplingPolicy {
    sample: Option<SampleRate>,
    /// Whether it is sampled while the journal cannot keep up, and how rarely it is at the moment.
    overload: Option<u32>,
    /// What is remembered, durably.
    pub record: Option<SamplingRecord>,
}

impl SamplingPolicy {
    /// `None`: nobody ever thins anything there, nor has.
    pub fn new(settings: &Namespace, overload_p: u32, record: Option<SamplingRecord>) -> Option<SamplingPolicy> {
        // A file may have changed since something was said at run time; then what cannot be together is not sampled.
        let counts = settings.kind.is_none_or(|kind| kind == Kind::Count);
        let sample = settings.sample.filter(|_| counts);
        let overload = (counts && settings.overload == Some(Overload::Sample)).then_some(overload_p);
        let policy = SamplingPolicy { sample, overload, record };
        (policy.is_declared() || record.is_some()).then_some(policy)
    }

    /// Whether the namespace says that its counts are, or may come to be, sampled.
    pub fn is_declared(&self) -> bool {
        self.sample.is_some() || self.overload.is_some()
    }

    /// Whether it may be sampled when the journal cannot keep up.
    pub fn has_overload(&self) -> bool {
        self.overload.is_some()
    }

    /// Events to one that is taken of a counter that has this value; 1: all are.
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

    /// Whether events may come that were thinned at this rate before.
    pub fn accepts_sampled_at(&self, p: u32) -> bool {
        p <= 1 || matches!(self.sample, Some(SampleRate::OneIn(declared)) if p <= declared)
    }

    /// Whether a counter has to be taken for one that was thinned.
    pub fn covers(&self, epoch: Epoch) -> bool {
        self.record.is_some_and(|record| record.covers(epoch))
    }

    /// Whether what needs exactness is refused by a counter.
    pub fn refuses_exactness(&self, epoch: Option<Epoch>) -> bool {
        self.is_declared() || epoch.is_some_and(|epoch| self.covers(epoch))
    }

    /// An epoch that no counter has that was thinned, if this one may be that of one: what comes after it is exact.
    pub fn past_sampling(&self, epoch: Epoch) -> Epoch {
        self.record.and_then(|record| record.until).map_or(epoch, |until| until.max(epoch))
    }

    /// What has to be written down before this may be in force, if it is not yet.
    pub fn missing_record(&self) -> Option<SamplingRecord> {
        let p = if let Some(SampleRate::OneIn(p)) = self.sample { p } else { 1 };
        let (p, by_value) = (p.max(self.overload.unwrap_or(1)), self.sample == Some(SampleRate::Auto));
        let needed = p > 1 || by_value;
        let there = self.record.unwrap_or(SamplingRecord { p: 1, by_value: false, until: Some(Epoch::FIRST) });
        let lacks = needed && (there.until.is_some() || there.p < p || by_value && !there.by_value);
        lacks.then_some(SamplingRecord { p: p.max(there.p), by_value: by_value || there.by_value, until: None })
    }

    /// Whether what is remembered as going on does not any more.
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
