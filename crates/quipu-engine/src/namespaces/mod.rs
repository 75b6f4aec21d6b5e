//! Holds the policies in force per namespace, and changes them at run time.
//!
//! In: the options, the earlier run-time settings from journal and ledger, and new changes. Out:
//! [`Policies`], an immutable value that every turn reads.
//!
//! A turn takes the policies in force when it begins. Under a shard's lock it checks that they
//! still are; a command admitted by older ones is admitted again. So once a change has passed every
//! shard's lock, no command is applied by the earlier policies.
//!
//! Invariants:
//! - a change is journaled and synced before it is in force, and it is in force when the call
//!   returns;
//! - except that a namespace leaving memory mode is journaled *before* that, and all its counters
//!   are sealed: a read after the reply is as durable as the new setting;
//! - the last change counts as a whole: it replaces the namespace's earlier run-time settings, and
//!   settings left open come from the options;
//! - a flush of all counters changes no settings.
//!
//! Not here: valid settings (`quipu_model::namespace`), their effects (`admission`, `apply`,
//! `tokens`, `sharing`).

mod census;
mod policy;
mod sampling;
mod settings_record;

use std::cell::Cell;
use std::ops::Deref;

use quipu_model::{AuxRecord, Durability, Millis, NAMESPACES_MAX, Namespace, Refusal, check_namespace_name};

pub use self::census::Census;
pub(crate) use self::census::CounterReservation;
pub use self::policy::{Limit, Policies, Policy, RuntimeSettings, RuntimeSettingsMap};
pub use self::sampling::{SAMPLING_RECORDS_MAX, SamplingPolicy, SamplingRecord, SamplingRecords};
pub(crate) use self::settings_record::{decode as decode_note, is_namespace_key};
use crate::base::failpoint::step;
use crate::base::options::Options;
use crate::base::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use crate::engine::{Inner, JournalFailure, block_on};
use crate::execute::turn::{LaneVisit, Turn};
use crate::journal::Wait;
use crate::journal::format::{Entry, Position};
use crate::seal::SealError;

/// The policies and their changes, see the module.
pub(crate) struct Namespaces {
    /// The policies at the start.
    initial: Policies,
    /// Generation of the policies in force.
    generation: AtomicU64,
    state: Mutex<NamespacesState>,
    /// Held during a change: one at a time.
    changing: Mutex<()>,
}

struct NamespacesState {
    /// The policies in force, if they have changed since the start.
    updated: Option<Arc<Policies>>,
    /// The settings in the journal, including a change not in force yet. An emptied entry stays
    /// until the ledger has its deletion.
    journaled_settings: RuntimeSettingsMap,
    /// The journaled sampling records of namespaces that are or were sampled.
    sampling_records: SamplingRecords,
    /// End of the newest journal record of a change.
    newest: Position,
    /// Number of changes, and the number that the ledger has.
    changes: u64,
    changes_sealed: u64,
}

/// Sampling records to journal before the start is complete.
pub type UnjournaledSampling = Vec<(Box<[u8]>, SamplingRecord)>;

/// Reason why settings of a namespace are not in force.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PutNamespaceError {
    /// The settings are invalid; all mistakes.
    #[error("{}", .0.join("; "))]
    Mistakes(Vec<String>),
    /// The change could not be journaled.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The journal failed before it was durable.
    #[error(transparent)]
    JournalFailed(#[from] JournalFailure),
}

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

    fn publish(&self, policies: Policies) {
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

impl Inner {
    /// Replaces a namespace's run-time settings. They are in force and durable on return. Blocks.
    pub(crate) fn put_namespace(&self, name: &[u8], settings: Namespace) -> Result<(), PutNamespaceError> {
        let namespaces = &self.namespaces;
        let _one = lock(&namespaces.changing);
        let before = namespaces.current();
        self.check_open()?;
        let mistakes = self.check_namespace(name, &settings);
        if !mistakes.is_empty() {
            return Err(PutNamespaceError::Mistakes(mistakes));
        }
        let mut runtime_settings = before.runtime_settings().clone();
        let put = RuntimeSettings { settings: settings.clone(), changed_at: self.now() };
        match settings.is_empty() {
            true => drop(runtime_settings.remove(name)),
            false => drop(runtime_settings.insert(name.into(), put)),
        }
        let mut next = before.with_runtime_settings(&self.options, runtime_settings, next_unique_id());
        let (old_policy, new_policy) = (before.of_namespace(name), next.of_namespace(name));
        let (old, new) = (old_policy.durability, new_policy.durability);
        let limited = old_policy.limit.is_none() && new_policy.limit.is_some();
        if new > old || limited {
            namespaces.publish(before.with_stricter(name, new_policy, next_unique_id()));
            self.wait_for_all_shards();
        }
        let counted = if limited { self.count_limited(name, &next) } else { Ok(()) };
        let journaled = counted
            .and_then(|()| self.seal_memory_counters(old, new))
            .and_then(|()| self.journal_missing_sampling(&mut next))
            .and_then(|()| self.journal_namespace(name, &settings));
        match journaled {
            Ok(at) => {
                next.set_changed_at(name, at);
                namespaces.publish(next);
                step!("namespace_put");
                self.wait_for_all_shards();
                self.end_sampling();
                Ok(())
            }
            Err(error) => {
                // The earlier settings under a new generation; no caller was told of the stricter
                // ones.
                namespaces.publish(before.with_runtime_settings(
                    &self.options,
                    before.runtime_settings().clone(),
                    next_unique_id(),
                ));
                Err(error)
            }
        }
    }

    /// Returns the problems of these settings for a namespace.
    pub(crate) fn check_namespace(&self, name: &[u8], settings: &Namespace) -> Vec<String> {
        let before = self.namespaces.current();
        let mut mistakes = Vec::from_iter(check_namespace_name(name).err());
        let is_new = !before.runtime_settings().contains_key(name) && !settings.is_empty();
        if is_new && before.runtime_settings().len() >= NAMESPACES_MAX {
            mistakes.push(format!("of {NAMESPACES_MAX} namespaces something was said at run time, which is the limit"));
        }
        let file = self.options.namespaces.iter().find(|(known, _)| **known == *name).map(|(_, declared)| declared);
        let both = file.map_or_else(|| settings.clone(), |file| settings.with_defaults(file));
        mistakes.extend(both.conflicts(self.shared.is_some()));
        let is_new = SamplingPolicy::new(&both, 1, None).is_some() && !before.sampling_records().contains_key(name);
        if is_new && before.sampling_records().len() >= SAMPLING_RECORDS_MAX {
            mistakes
                .push(format!("{SAMPLING_RECORDS_MAX} namespaces were sampled, which is as many as are remembered"));
        }
        mistakes
    }

    // ---- sampling ------------------------------------------------------------------------------

    /// Sets the rate of namespaces that sample under overload; 1: no sampling. Blocks.
    pub(crate) fn set_overload_rate(&self, p: u32) -> Result<(), PutNamespaceError> {
        let namespaces = &self.namespaces;
        let _one = lock(&namespaces.changing);
        let before = namespaces.current();
        self.check_open()?;
        let mut next = before.with_overload_rate(&self.options, p, next_unique_id());
        self.journal_missing_sampling(&mut next)?;
        namespaces.publish(next);
        step!("overload_put");
        self.wait_for_all_shards();
        self.end_sampling();
        Ok(())
    }

    /// Retries the journal entries for ended sampling that failed before. Blocks.
    pub(crate) fn retry_end_sampling(&self) {
        if self.namespaces.current().ended_records().is_empty() {
            return;
        }
        let _one = lock(&self.namespaces.changing);
        self.end_sampling();
    }

    /// Journals the sampling records that these policies need, durably, before they are in force.
    fn journal_missing_sampling(&self, next: &mut Policies) -> Result<(), PutNamespaceError> {
        for (name, sampling) in next.missing_records() {
            self.journal_sampling(&name, sampling)?;
            next.set_sampling_record(&name, sampling);
        }
        Ok(())
    }

    /// Where sampling has ended, counters created from now on are exact. Without journal room the
    /// old record stays, which promises less.
    fn end_sampling(&self) {
        let now = self.namespaces.current();
        let ended = now.ended_records();
        if ended.is_empty() {
            return;
        }
        // Every turn that sampled has finished: no sampled counter has a newer epoch.
        let until = self.table.epoch_newest();
        let mut next = now.with_runtime_settings(&self.options, now.runtime_settings().clone(), next_unique_id());
        for (name, sampling) in ended {
            let sampling = sampling.ended_at(until);
            if self.journal_sampling(&name, sampling).is_err() {
                break;
            }
            next.set_sampling_record(&name, sampling);
        }
        self.namespaces.publish(next);
    }

    fn journal_sampling(&self, name: &[u8], sampling: SamplingRecord) -> Result<(), PutNamespaceError> {
        let mut turn = Turn::new(self);
        let entry = Entry::Sampling { name, sampling };
        let (end, mut state) = turn.journal_entry_locked(&entry, || lock(&self.namespaces.state))?;
        state.sampling_records.insert(name.into(), sampling);
        (state.newest, state.changes) = (end, state.changes + 1);
        drop(state);
        let wait = turn.finish().and(Wait { written: end, synced: end });
        step!("thinned_journaled");
        block_on(self.commit_until(wait))?;
        Ok(())
    }

    /// Counts the counters of a namespace that is about to have a limit.
    fn count_limited(&self, name: &[u8], next: &Policies) -> Result<(), PutNamespaceError> {
        let new =
            next.censuses().filter(|(known, _)| *known == name).map(|(name, census)| (name.into(), census.clone()));
        let live: Vec<u64> = next.censuses().map(|(_, census)| census.id()).collect();
        let refused = |error: quipu_model::LedgerError| Refusal::AtRest { reason: error.to_string() };
        Ok(self.count_namespaces(&new.collect::<Vec<_>>(), &live).map_err(refused)?)
    }

    /// Counts the counters of all namespaces with a limit; once, when the engine is opened.
    pub(crate) fn count_all_limited(&self) -> Result<(), quipu_model::LedgerError> {
        let policies = self.namespaces.current();
        let all: Vec<_> = policies.censuses().map(|(name, census)| (name.into(), census.clone())).collect();
        if all.is_empty() { Ok(()) } else { self.count_namespaces(&all, &[]) }
    }

    /// Seals a namespace's memory-only counters, if it leaves memory mode.
    fn seal_memory_counters(&self, old: Durability, new: Durability) -> Result<(), PutNamespaceError> {
        if old > Durability::Memory || new == Durability::Memory {
            return Ok(());
        }
        loop {
            match self.seal_all() {
                Ok(()) => return Ok(()),
                // Deleted counters need no seal; later ones do.
                Err(SealError::Flushed) => {}
                Err(SealError::JournalFailed(dead)) => return Err(dead.into()),
                Err(SealError::Journal(error)) => {
                    self.journal.fail(&error);
                    return Err(JournalFailure { reason: error.to_string() }.into());
                }
                Err(SealError::Ledger(error)) => {
                    let reason = format!("what the namespace has in memory cannot be sealed: {error}");
                    return Err(Refusal::NoRoom { reason }.into());
                }
            }
        }
    }

    /// Journals the settings and waits until they are durable; returns the journaled time.
    fn journal_namespace(&self, name: &[u8], settings: &Namespace) -> Result<Millis, PutNamespaceError> {
        let mut turn = Turn::new(self);
        let entry = Entry::Namespace { name, settings: Box::new(settings.clone()) };
        // The lock is taken before the record's range is reserved: a seal that marks the journal
        // after the record finds the settings in the state.
        let (end, mut state) = turn.journal_entry_locked(&entry, || lock(&self.namespaces.state))?;
        let at = turn.now();
        state.journaled_settings.insert(name.into(), RuntimeSettings { settings: settings.clone(), changed_at: at });
        (state.newest, state.changes) = (end, state.changes + 1);
        drop(state);
        let wait = turn.finish().and(Wait { written: end, synced: end });
        step!("namespace_journaled");
        block_on(self.commit_until(wait))?;
        Ok(at)
    }

    /// Waits for all turns under the earlier policies, and closes the lanes that they opened.
    fn wait_for_all_shards(&self) {
        for shard in 0..self.table.shard_count() {
            drop(self.table.lock(shard));
        }
        self.visit_all_lanes(LaneVisit::Close);
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
fn next_unique_id() -> u64 {
    // Not through `sync`: only uniqueness matters, not the order.
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
