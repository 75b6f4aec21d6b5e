//! Holds the policies in force per namespace.
//!
//! In: the options, the earlier run-time settings from journal and ledger, and new changes. Out:
//! [`Policies`], an immutable value that every turn reads.
//!
//! A turn takes the policies in force when it begins. Under a shard's lock it checks that they
//! still are; a command admitted by older ones is admitted again. So once a change has passed every
//! shard's lock, no command is applied by the earlier policies.
//!
//! Invariants:
//! - the last change counts as a whole: it replaces the namespace's earlier run-time settings, and
//!   settings left open come from the options;
//! - a flush of all counters changes no settings.
//!
//! Not here: valid settings (`quipu_model::namespace`), a change of settings
//! (`engine::namespace_change`), their effects (`apply`, `tokens`, `sharing`).

mod census;
mod policy;
mod sampling;
mod settings_record;

use std::cell::Cell;
use std::ops::Deref;

use quipu_model::AuxRecord;

pub use self::census::Census;
pub use self::policy::{Limit, Policies, Policy, RuntimeSettings, RuntimeSettingsMap};
pub use self::sampling::{SAMPLING_RECORDS_MAX, SamplingPolicy, SamplingRecord, SamplingRecords};
pub(crate) use self::settings_record::{decode as decode_note, is_namespace_key};
use crate::base::options::Options;
use crate::base::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use crate::journal::format::Position;

/// The policies and their changes, see the module.
pub(crate) struct Namespaces {
    /// The policies at the start.
    initial: Policies,
    /// Generation of the policies in force.
    generation: AtomicU64,
    pub(crate) state: Mutex<NamespacesState>,
    /// Held during a change: one at a time.
    pub(crate) changing: Mutex<()>,
}

pub(crate) struct NamespacesState {
    /// The policies in force, if they have changed since the start.
    pub(crate) updated: Option<Arc<Policies>>,
    /// The settings in the journal, including a change not in force yet. An emptied entry stays
    /// until the ledger has its deletion.
    pub(crate) journaled_settings: RuntimeSettingsMap,
    /// The journaled sampling records of namespaces that are or were sampled.
    pub(crate) sampling_records: SamplingRecords,
    /// End of the newest journal record of a change.
    pub(crate) newest: Position,
    /// Number of changes, and the number that the ledger has.
    pub(crate) changes: u64,
    pub(crate) changes_sealed: u64,
}

/// Sampling records to journal before the start is complete.
pub type UnjournaledSampling = Vec<(Box<[u8]>, SamplingRecord)>;

/// The policies of a turn.
pub(crate) struct PolicyRef<'e> {
    initial: &'e Policies,
    updated: Option<Arc<Policies>>,
}

impl Namespaces {
    /// The state after a start, from the stored settings and sampling records. Also returns the
    /// sampling records to journal before the first command.
    pub fn new(
        options: &Options,
        declared: RuntimeSettingsMap,
        sampling: SamplingRecords,
    ) -> (Namespaces, UnjournaledSampling) {
        let runtime_settings = declared.iter().filter(|(_, put)| !put.settings.is_empty());
        let runtime_settings = runtime_settings.map(|(name, put)| (name.clone(), put.clone())).collect();
        let mut first = Policies::with_sampling(options, runtime_settings, sampling, 1);
        let unjournaled = first.missing_records();
        for (name, sampling) in &unjournaled {
            first.set_sampling_record(name, *sampling);
        }
        let sampling = first.sampling_records().clone();
        // The ledger may have all of it already; the next seal writes it again.
        let changes = u64::from(!declared.is_empty() || !sampling.is_empty());
        let state = NamespacesState {
            updated: None,
            journaled_settings: declared,
            sampling_records: sampling,
            newest: Position(0),
            changes,
            changes_sealed: 0,
        };
        let (state, changing) = (Mutex::new(state), Mutex::new(()));
        (Namespaces { initial: first, generation: AtomicU64::new(0), state, changing }, unjournaled)
    }

    /// The policies in force.
    #[inline]
    pub fn current(&self) -> PolicyRef<'_> {
        let updated = match self.generation.load(Ordering::Acquire) {
            0 => None,
            generation => self.load_updated(generation),
        };
        PolicyRef { initial: &self.initial, updated }
    }

    /// Returns true if these policies are still in force.
    #[inline]
    pub fn is_current(&self, policies: &Policies) -> bool {
        self.generation.load(Ordering::Acquire) == policies.generation
    }

    fn load_updated(&self, generation: u64) -> Option<Arc<Policies>> {
        match KEPT.take() {
            Some(cached) if cached.generation == generation => Some(cached),
            _ => lock(&self.state).updated.clone(),
        }
    }

    /// Waits for a running change to finish.
    pub fn wait_for_change(&self) {
        drop(lock(&self.changing));
    }

    /// Puts policies in force.
    pub(crate) fn publish(&self, policies: Policies) {
        let mut state = lock(&self.state);
        let generation = policies.generation;
        state.updated = Some(Arc::new(policies));
        self.generation.store(generation, Ordering::Release);
    }

    // ---- seal ----------------------------------------------------------------------------------

    /// Collects records that the ledger may lack. Returns the end of their newest journal record,
    /// and the change count for [`Namespaces::finish_seal`].
    pub fn collect_aux_records(&self, aux_records: &mut Vec<AuxRecord>) -> (Position, u64) {
        let state = lock(&self.state);
        if state.changes != state.changes_sealed {
            aux_records
                .extend(state.journaled_settings.iter().map(|(name, put)| settings_record::to_aux_record(name, put)));
            aux_records.extend(state.sampling_records.iter().map(|(name, sampling)| sampling.to_aux_record(name)));
        }
        (state.newest, state.changes)
    }

    /// Collects the records of all settings, for a cleared ledger.
    pub fn collect_all_aux_records(&self, aux_records: &mut Vec<AuxRecord>) -> Position {
        let state = lock(&self.state);
        aux_records.extend(
            state
                .journaled_settings
                .iter()
                .map(|(name, put)| settings_record::to_aux_record(name, put))
                .filter(|aux_record| aux_record.value.is_some()),
        );
        aux_records.extend(state.sampling_records.iter().map(|(name, sampling)| sampling.to_aux_record(name)));
        state.newest
    }

    /// The ledger has the collected records.
    pub fn finish_seal(&self, changes: u64) {
        let mut state = lock(&self.state);
        state.changes_sealed = state.changes_sealed.max(changes);
        if state.changes_sealed == state.changes {
            state.journaled_settings.retain(|_, put| !put.settings.is_empty());
        }
    }
}

thread_local! {
    /// The policies of this thread's last turn. A clone per turn would change the reference count
    /// that all threads share, at a higher cost than this check.
    static KEPT: Cell<Option<Arc<Policies>>> = const { Cell::new(None) };
}

impl Deref for PolicyRef<'_> {
    type Target = Policies;

    #[inline]
    fn deref(&self) -> &Policies {
        self.updated.as_deref().unwrap_or(self.initial)
    }
}

impl Drop for PolicyRef<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(updated) = self.updated.take() {
            // An ending thread keeps no policies.
            let _ = KEPT.try_with(|cached| cached.set(Some(updated)));
        }
    }
}

/// A number unique in this process.
pub(crate) fn next_unique_id() -> u64 {
    // Not through `sync`: only uniqueness matters, not the order.
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
