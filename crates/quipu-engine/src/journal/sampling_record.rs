//! Encodes the sampling record of a namespace, for the journal and for the ledger.
//!
//! ```text
//! sampling record   flags u8 (1: rate by value, too; 2: ended), p u32; if ended: the epoch's
//!                   millis u64, node u64 (all little-endian)
//! in the ledger     key 6, name of the namespace   value as above
//! ```
//!
//! Not here: what is sampled, and when a record begins and ends (`namespaces::sampling`).

use quipu_model::{AuxRecord, Epoch, NAMESPACE_BYTES_MAX, NodeId};
use quipu_sketch::sample::auto_p;

/// First byte of the key; `tokens`, `namespaces` and `sketches` use the lower ones.
const SAMPLING: u8 = 6;

const BY_VALUE: u8 = 1;

const ENDED: u8 = 2;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
