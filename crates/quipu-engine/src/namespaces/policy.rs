//! Computes the policy of each namespace from all its settings.
//!
//! In: the server's options, and the namespaces' settings from the file and from run time. Out: the
//! policy of any name, by one look-up.
//!
//! Invariant: a value never changes; a change creates another one, with another generation.

use std::collections::BTreeMap;
use std::time::Duration;

use quipu_model::{Durability, FailMode, Kind, Millis, Name, Namespace};
use quipu_sketch::window::Panes;

use super::census::Census;
use super::next_unique_id;
use super::sampling::{SamplingPolicy, SamplingRecord, SamplingRecords};
use crate::base::options::Options;
use crate::base::sharing_options::SharePolicy;
use crate::base::sync::Arc;

/// Run-time settings of a namespace, and their time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeSettings {
    /// The settings.
    pub settings: Namespace,
    /// Time of the change, by the engine's clock.
    pub changed_at: Millis,
}

/// Run-time settings by namespace.
pub type RuntimeSettingsMap = BTreeMap<Box<[u8]>, RuntimeSettings>;

/// Policy for the counters of a namespace.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Durability of an acknowledged command.
    pub durability: Durability,
    /// It has just left memory mode: neither journal nor ledger knows which of its counters existed
    /// before.
    pub existence_unknown: bool,
    /// The only kind of its counters; `None`: any kind.
    pub kind: Option<Kind>,
    /// Default expiry of a new counter.
    pub ttl: Option<Duration>,
    /// Window of new sketches.
    pub window: Option<Panes>,
    /// Half-life of new top-K sketches.
    pub decay: Option<Duration>,
    /// How long a token is remembered.
    pub token_window: Duration,
    /// Limit on the number of counters.
    pub limit: Option<Limit>,
    /// Settings for a shared store.
    pub share: SharePolicy,
    /// How its counts are or were sampled.
    pub sampling: Option<SamplingPolicy>,
}

/// A namespace's limit on counters, and their present number.
#[derive(Debug, Clone)]
pub struct Limit {
    /// Most counters.
    pub counters_max: u64,
    /// The present number of counters.
    pub census: Arc<Census>,
}

/// The policies of all namespaces.
#[derive(Debug, Clone)]
pub struct Policies {
    /// Unique in this process; 0: as at the start.
    pub(super) generation: u64,
    default: Policy,
    /// Namespaces with settings.
    namespaces: BTreeMap<Box<[u8]>, Policy>,
    /// Run-time settings.
    runtime_settings: RuntimeSettingsMap,
    /// Most shards of any counter, now or since the start.
    shards_max: u16,
    /// Sampling records of namespaces that are or were sampled.
    sampling_records: SamplingRecords,
    /// Rate of namespaces that sample under overload, one in N; 1: the journal keeps up.
    overload_p: u32,
}

impl Policies {
    /// The policies at the start: run-time settings override the options.
    pub fn new(options: &Options, runtime_settings: RuntimeSettingsMap) -> Policies {
        Policies::with_sampling(options, runtime_settings, SamplingRecords::new(), 1)
    }

    /// The same, with these sampling records, and this rate for namespaces that sample under
    /// overload.
    pub(crate) fn with_sampling(
        options: &Options,
        runtime_settings: RuntimeSettingsMap,
        sampling: SamplingRecords,
        overload_p: u32,
    ) -> Policies {
        let default = build_policy(options, &Namespace::default(), overload_p, None);
        let mut declared: BTreeMap<Box<[u8]>, Namespace> = options.namespaces.iter().cloned().collect();
        for (name, put) in &runtime_settings {
            let below = declared.remove(name).unwrap_or_default();
            declared.insert(name.clone(), put.settings.with_defaults(&below));
        }
        for name in sampling.keys() {
            declared.entry(name.clone()).or_default();
        }
        let with_policy = |(name, declared): (Box<[u8]>, Namespace)| {
            let policy = build_policy(options, &declared, overload_p, sampling.get(&name).copied());
            (name, policy)
        };
        let namespaces: BTreeMap<_, _> = declared.into_iter().map(with_policy).collect();
        let all = namespaces.values().chain([&default]);
        let shards_max = all.map(|policy| policy.share.shards).max().unwrap_or(1).clamp(1, quipu_model::SHARDS_MAX);
        Policies {
            generation: 0,
            default,
            namespaces,
            runtime_settings,
            shards_max,
            sampling_records: sampling,
            overload_p,
        }
    }

    /// The policies after a change of run-time settings.
    pub(crate) fn with_runtime_settings(
        &self,
        options: &Options,
        runtime_settings: RuntimeSettingsMap,
        generation: u64,
    ) -> Policies {
        let policies =
            Policies::with_sampling(options, runtime_settings, self.sampling_records.clone(), self.overload_p);
        let mut next = Policies { generation, ..policies };
        next.shards_max = next.shards_max.max(self.shards_max);
        for (name, policy) in &mut next.namespaces {
            // Keeps the census of an unchanged limit.
            if let (Some(limit), Some(before)) = (&mut policy.limit, &self.of_namespace(name).limit) {
                limit.census = before.census.clone();
            }
        }
        next
    }

    /// The same with another rate for namespaces that sample under overload.
    pub(crate) fn with_overload_rate(&self, options: &Options, p: u32, generation: u64) -> Policies {
        Policies { overload_p: p, ..self.clone() }.with_runtime_settings(
            options,
            self.runtime_settings.clone(),
            generation,
        )
    }

    /// The rate of sampling under overload, one in N; 1: none.
    pub fn overload_p(&self) -> u32 {
        self.overload_p
    }

    /// Returns true if any namespace samples under overload.
    pub fn has_overload(&self) -> bool {
        self.all_policies().any(|policy| policy.sampling.is_some_and(|sampling_policy| sampling_policy.has_overload()))
    }

    /// The sampling records of all namespaces.
    pub fn sampling_records(&self) -> &SamplingRecords {
        &self.sampling_records
    }

    /// The sampling records that must be journaled before these policies may be in force.
    pub(crate) fn missing_records(&self) -> Vec<(Box<[u8]>, SamplingRecord)> {
        self.sampling_policies()
            .filter_map(|(name, sampling_policy)| Some((name.into(), sampling_policy.missing_record()?)))
            .collect()
    }

    /// The open sampling records of namespaces where sampling has ended.
    pub(crate) fn ended_records(&self) -> Vec<(Box<[u8]>, SamplingRecord)> {
        let ended = self.sampling_policies().filter(|(_, sampling_policy)| sampling_policy.has_ended());
        ended.filter_map(|(name, sampling_policy)| Some((name.into(), sampling_policy.record?))).collect()
    }

    /// Sets a namespace's sampling record, which is durable.
    pub(crate) fn set_sampling_record(&mut self, name: &[u8], sampling: SamplingRecord) {
        self.sampling_records.insert(name.into(), sampling);
        if let Some(sampling_policy) = self.namespaces.get_mut(name).and_then(|policy| policy.sampling.as_mut()) {
            sampling_policy.record = Some(sampling);
        }
    }

    fn sampling_policies(&self) -> impl Iterator<Item = (&[u8], &SamplingPolicy)> {
        self.namespaces.iter().filter_map(|(name, policy)| Some((&**name, policy.sampling.as_ref()?)))
    }

    /// Sets the time of a namespace's last change.
    pub(crate) fn set_changed_at(&mut self, name: &[u8], at: Millis) {
        if let Some(put) = self.runtime_settings.get_mut(name) {
            put.changed_at = at;
        }
    }

    /// The same with a namespace that is at least as durable as it will be. Meanwhile its
    /// memory-only counters are sealed, and its counters are counted.
    pub(crate) fn with_stricter(&self, name: &[u8], after: &Policy, generation: u64) -> Policies {
        let mut next = Policies { generation, ..self.clone() };
        let before = self.of_namespace(name).clone();
        let unsure = before.durability == Durability::Memory;
        // A new limit is not enforced until all counters are counted.
        let counted =
            || after.limit.as_ref().map(|limit| Limit { counters_max: u64::MAX, census: limit.census.clone() });
        let limit = before.limit.clone().or_else(counted);
        let policy =
            Policy { durability: before.durability.max(after.durability), existence_unknown: unsure, limit, ..before };
        next.namespaces.insert(name.into(), policy);
        next
    }

    /// The policy of a counter.
    #[inline]
    pub fn policy(&self, name: Name<'_>) -> &Policy {
        // Most servers configure no namespace; then the name need not be searched for one.
        if self.namespaces.is_empty() {
            return &self.default;
        }
        self.of_namespace(name.namespace())
    }

    /// The policy of a namespace.
    pub fn of_namespace(&self, namespace: &[u8]) -> &Policy {
        self.namespaces.get(namespace).unwrap_or(&self.default)
    }

    /// Durability of an acknowledged command on this counter.
    #[inline]
    pub fn durability(&self, name: Name<'_>) -> Durability {
        self.policy(name).durability
    }

    /// The strictest durability of all namespaces: a command over all names waits for it.
    pub fn strictest(&self) -> Durability {
        self.all_policies().map(|policy| policy.durability).fold(self.default.durability, Durability::max)
    }

    /// Returns true if any namespace is in memory mode.
    pub fn has_memory(&self) -> bool {
        self.all_policies().any(|policy| policy.durability == Durability::Memory)
    }

    /// The server's default durability.
    pub fn default_durability(&self) -> Durability {
        self.default.durability
    }

    /// The longest token window.
    pub fn token_window_max(&self) -> Duration {
        self.all_policies().map(|policy| policy.token_window).fold(Duration::ZERO, Duration::max)
    }

    /// The shortest settle interval.
    pub fn settle_every_min(&self) -> Duration {
        self.all_policies().map(|policy| policy.share.settle_every).fold(self.default.share.settle_every, Duration::min)
    }

    /// Most shards of any counter, now or since the start: an own cell exists until the store has
    /// it.
    pub fn shards_max(&self) -> u16 {
        self.shards_max
    }

    /// The run-time settings.
    pub fn runtime_settings(&self) -> &RuntimeSettingsMap {
        &self.runtime_settings
    }

    /// Namespaces with a limit, and their censuses.
    pub(crate) fn censuses(&self) -> impl Iterator<Item = (&[u8], &Arc<Census>)> {
        self.namespaces.iter().filter_map(|(name, policy)| Some((&**name, &policy.limit.as_ref()?.census)))
    }

    fn all_policies(&self) -> impl Iterator<Item = &Policy> {
        self.namespaces.values().chain([&self.default])
    }
}

fn build_policy(options: &Options, declared: &Namespace, overload_p: u32, sampling: Option<SamplingRecord>) -> Policy {
    let sharing = &options.sharing;
    Policy {
        durability: declared.durability.unwrap_or(options.durability),
        existence_unknown: false,
        kind: declared.kind,
        sampling: SamplingPolicy::new(declared, overload_p, sampling),
        ttl: declared.ttl,
        window: declared.window,
        decay: declared.decay,
        token_window: declared.token_window.unwrap_or(options.token_window),
        limit: declared
            .max_counters
            .map(|counters_max| Limit { counters_max, census: Arc::new(Census::new(next_unique_id())) }),
        share: SharePolicy {
            settle_every: declared.settle_every.unwrap_or(sharing.settle_every),
            freshness: declared.freshness.unwrap_or(sharing.freshness),
            shards: declared.shards.map_or(sharing.shards, |shards| shards.get()),
            pick: declared.pick.unwrap_or(sharing.pick),
            fail_mode: declared.fail_mode.unwrap_or(FailMode::Local),
        },
    }
}
