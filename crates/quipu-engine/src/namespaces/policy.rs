//! What is in force in each namespace, worked out from all that was said.
//!
//! In: the server's options, and what was said of namespaces in the file and at run time. Out: for every name what holds for it, by one look.
//!
//! Invariant: never changed; what is in force next is another one, with another generation.

use std::collections::BTreeMap;
use std::time::Duration;

use quipu_model::{Durability, FailMode, Kind, Millis, Name, Namespace};
use quipu_sketch::window::Panes;

use super::census::Census;
use super::next_unique_id;
use super::sampling::{SamplingPolicy, SamplingRecord, SamplingRecords};
use crate::options::Options;
use crate::sharing::SharePolicy;
use crate::sync::Arc;

/// What was said of a namespace at run time, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeSettings {
    /// What was said.
    pub settings: Namespace,
    /// When, by the engine's time.
    pub changed_at: Millis,
}

/// By namespace.
pub type RuntimeSettingsMap = BTreeMap<Box<[u8]>, RuntimeSettings>;

/// What holds for the counters of a namespace.
#[derive(Debug, Clone)]
pub struct Policy {
    /// What an ack means.
    pub durability: Durability,
    /// It was in memory mode a moment ago: the journal does not know which of its counters existed before what it tells of them, and nor does the ledger yet.
    pub existence_unknown: bool,
    /// The only kind that counters are made of.
    pub kind: Option<Kind>,
    /// A counter made without an expiry has one so much later.
    pub ttl: Option<Duration>,
    /// Sketches that are made are over time.
    pub window: Option<Panes>,
    /// Tops that are made decay by half in so long.
    pub decay: Option<Duration>,
    /// A token is remembered for so long.
    pub token_window: Duration,
    /// How many counters there may be.
    pub limit: Option<Limit>,
    /// On a shared store.
    pub share: SharePolicy,
    /// How its counts are sampled, or were.
    pub sampling: Option<SamplingPolicy>,
}

/// How many counters a namespace may have, and has.
#[derive(Debug, Clone)]
pub struct Limit {
    /// So many at most.
    pub counters_max: u64,
    /// How many there are.
    pub census: Arc<Census>,
}

/// What holds in all of them.
#[derive(Debug, Clone)]
pub struct Policies {
    /// No two of this process have the same but 0: as the engine was opened.
    pub(super) generation: u64,
    default: Policy,
    /// Of which something was said.
    namespaces: BTreeMap<Box<[u8]>, Policy>,
    /// What was said at run time.
    runtime_settings: RuntimeSettingsMap,
    /// Most shards that any counter has, or had in this life.
    shards_max: u16,
    /// What is remembered of namespaces that were sampled.
    sampling_records: SamplingRecords,
    /// How rarely namespaces are sampled that are while the journal cannot keep up; 1: it keeps up.
    overload_p: u32,
}

impl Policies {
    /// What holds when an engine is opened: what was said at run time goes before what the options say.
    pub fn new(options: &Options, runtime_settings: RuntimeSettingsMap) -> Policies {
        Policies::with_sampling(options, runtime_settings, SamplingRecords::new(), 1)
    }

    /// The same, where so much was sampled before, and namespaces that are sampled while the journal cannot keep up are so at this rate.
    pub(super) fn with_sampling(
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

    /// What holds next, after all this was said at run time.
    pub(super) fn with_runtime_settings(
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
            // What was counted is not counted again.
            if let (Some(limit), Some(before)) = (&mut policy.limit, &self.of_namespace(name).limit) {
                limit.census = before.census.clone();
            }
        }
        next
    }

    /// The same, but that namespaces which are sampled while the journal cannot keep up are so at another rate.
    pub(super) fn with_overload_rate(&self, options: &Options, p: u32, generation: u64) -> Policies {
        Policies { overload_p: p, ..self.clone() }.with_runtime_settings(
            options,
            self.runtime_settings.clone(),
            generation,
        )
    }

    /// How rarely they are; 1: they are not.
    pub fn overload_p(&self) -> u32 {
        self.overload_p
    }

    /// Whether there are any.
    pub fn has_overload(&self) -> bool {
        self.all_policies().any(|policy| policy.sampling.is_some_and(|sampling_policy| sampling_policy.has_overload()))
    }

    /// What is remembered of namespaces that were sampled.
    pub fn sampling_records(&self) -> &SamplingRecords {
        &self.sampling_records
    }

    /// What has to be written down before all this may be in force.
    pub(super) fn missing_records(&self) -> Vec<(Box<[u8]>, SamplingRecord)> {
        self.sampling_policies()
            .filter_map(|(name, sampling_policy)| Some((name.into(), sampling_policy.missing_record()?)))
            .collect()
    }

    /// What is remembered as going on and does not any more.
    pub(super) fn ended_records(&self) -> Vec<(Box<[u8]>, SamplingRecord)> {
        let ended = self.sampling_policies().filter(|(_, sampling_policy)| sampling_policy.has_ended());
        ended.filter_map(|(name, sampling_policy)| Some((name.into(), sampling_policy.record?))).collect()
    }

    /// This is remembered of a namespace, durably.
    pub(super) fn set_sampling_record(&mut self, name: &[u8], sampling: SamplingRecord) {
        self.sampling_records.insert(name.into(), sampling);
        if let Some(sampling_policy) = self.namespaces.get_mut(name).and_then(|policy| policy.sampling.as_mut()) {
            sampling_policy.record = Some(sampling);
        }
    }

    fn sampling_policies(&self) -> impl Iterator<Item = (&[u8], &SamplingPolicy)> {
        self.namespaces.iter().filter_map(|(name, policy)| Some((&**name, policy.sampling.as_ref()?)))
    }

    /// What was said last of a namespace was said then.
    pub(super) fn set_changed_at(&mut self, name: &[u8], at: Millis) {
        if let Some(put) = self.runtime_settings.get_mut(name) {
            put.changed_at = at;
        }
    }

    /// The same, but that a namespace is at least so durable as it will be, while what it has in memory alone is on its way to the ledger and its counters are counted.
    pub(super) fn with_stricter(&self, name: &[u8], after: &Policy, generation: u64) -> Policies {
        let mut next = Policies { generation, ..self.clone() };
        let before = self.of_namespace(name).clone();
        let unsure = before.durability == Durability::Memory;
        // A limit that is new is kept by nobody before all are counted.
        let counted =
            || after.limit.as_ref().map(|limit| Limit { counters_max: u64::MAX, census: limit.census.clone() });
        let limit = before.limit.clone().or_else(counted);
        let policy =
            Policy { durability: before.durability.max(after.durability), existence_unknown: unsure, limit, ..before };
        next.namespaces.insert(name.into(), policy);
        next
    }

    /// What holds for a counter.
    #[inline]
    pub fn policy(&self, name: Name<'_>) -> &Policy {
        // Most servers name no namespace; then there is nothing to look for in the name either.
        if self.namespaces.is_empty() {
            return &self.default;
        }
        self.of_namespace(name.namespace())
    }

    /// What holds in a namespace.
    pub fn of_namespace(&self, namespace: &[u8]) -> &Policy {
        self.namespaces.get(namespace).unwrap_or(&self.default)
    }

    /// How safe operations on this counter are when they are acknowledged.
    #[inline]
    pub fn durability(&self, name: Name<'_>) -> Durability {
        self.policy(name).durability
    }

    /// The strictest that any namespace asks for: what a command over all names waits for.
    pub fn strictest(&self) -> Durability {
        self.all_policies().map(|policy| policy.durability).fold(self.default.durability, Durability::max)
    }

    /// Whether any namespace is in memory mode.
    pub fn has_memory(&self) -> bool {
        self.all_policies().any(|policy| policy.durability == Durability::Memory)
    }

    /// The server's default.
    pub fn default_durability(&self) -> Durability {
        self.default.durability
    }

    /// The longest that any token is remembered.
    pub fn token_window_max(&self) -> Duration {
        self.all_policies().map(|policy| policy.token_window).fold(Duration::ZERO, Duration::max)
    }

    /// The shortest time in which anything is put to a shared store.
    pub fn settle_every_min(&self) -> Duration {
        self.all_policies().map(|policy| policy.share.settle_every).fold(self.default.share.settle_every, Duration::min)
    }

    /// Most shards that any counter has, or had in this life: what was said of it once is said until the store has it.
    pub fn shards_max(&self) -> u16 {
        self.shards_max
    }

    /// What was said at run time.
    pub fn runtime_settings(&self) -> &RuntimeSettingsMap {
        &self.runtime_settings
    }

    /// Namespaces that have a limit, and their numbers.
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
