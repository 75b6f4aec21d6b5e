//! Namespaces: what is in force in each, and how that changes at run time.
//!
//! In: what the options say, what the journal and the ledger have of earlier changes, and changes. Out: [`Policies`], which every turn looks at and nobody changes.
//!
//! A turn takes what is in force when it begins, and looks again, under the lock of a shard, whether that still is: what was admitted by an older policy is admitted anew. So when a
//! change has passed every shard's lock, nothing is applied by what was in force before it.
//!
//! Invariants:
//! - a change is journaled and synced before it is in force, and it is in force when it is answered;
//! - but a namespace that is to be journaled from now on is so *before* that, and everything in it is sealed: what is read in it after the answer is as durable as it says;
//! - what was said last counts, whole: a change replaces what was said of the namespace at run time before, and what it leaves open is as the options say;
//! - nothing of it is touched by deleting all counters.
//!
//! Not here: what a setting may be (`quipu_model::namespace`), what it does (`admit`, `apply`, `tokens`, `sharing`).

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
use crate::engine::{Inner, JournalFailure, block_on};
use crate::failpoint::step;
use crate::journal::Wait;
use crate::journal::format::{Entry, Position};
use crate::options::Options;
use crate::seal::SealError;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use crate::turn::{LaneVisit, Turn};

/// See the module.
pub(crate) struct Namespaces {
    /// As the engine was opened.
    initial: Policies,
    /// Of what is in force.
    generation: AtomicU64,
    state: Mutex<NamespacesState>,
    /// Held by whoever changes something: one at a time.
    changing: Mutex<()>,
}

struct NamespacesState {
    /// What is in force, if that has changed since the start.
    updated: Option<Arc<Policies>>,
    /// What the journal says, what is not in force yet included; one that says nothing any more stays until the ledger knows that.
    journaled_settings: RuntimeSettingsMap,
    /// What the journal says of namespaces that are or were sampled.
    sampling_records: SamplingRecords,
    /// The end of the newest record of it.
    newest: Position,
    /// How often something was said, and how much of that the ledger knows.
    changes: u64,
    changes_sealed: u64,
}

/// What is to be remembered of namespaces that are or were sampled.
pub type UnjournaledSampling = Vec<(Box<[u8]>, SamplingRecord)>;

/// Why what was said of a namespace is not in force.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PutNamespaceError {
    /// It makes no sense; all that is wrong with it.
    #[error("{}", .0.join("; "))]
    Mistakes(Vec<String>),
    /// It could not be written down.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The journal failed before it was durable.
    #[error(transparent)]
    JournalFailed(#[from] JournalFailure),
}

/// What is in force for a turn.
pub(crate) struct PolicyRef<'e> {
    initial: &'e Policies,
    updated: Option<Arc<Policies>>,
}

impl Namespaces {
    /// Of an engine that was just opened, where so much was said at run time in earlier lives, and so much was thinned; and what has to be written down before anybody counts.
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
        // Whether the ledger knows all of it nobody has to know: the next seal tells it again.
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

    /// What is in force.
    #[inline]
    pub fn current(&self) -> PolicyRef<'_> {
        let updated = match self.generation.load(Ordering::Acquire) {
            0 => None,
            generation => self.load_updated(generation),
        };
        PolicyRef { initial: &self.initial, updated }
    }

    /// Whether that is in force still.
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

    /// Waits until nobody is changing anything.
    pub fn wait_for_change(&self) {
        drop(lock(&self.changing));
    }

    fn publish(&self, policies: Policies) {
        let mut state = lock(&self.state);
        let generation = policies.generation;
        state.updated = Some(Arc::new(policies));
        self.generation.store(generation, Ordering::Release);
    }

    // ---- seal -------------------------------------------------------------------------------------------------------------------

    /// Notes of all that the ledger may not know, and the end of the newest record that they are in; what the ledger knows then.
    pub fn collect_aux_records(&self, aux_records: &mut Vec<AuxRecord>) -> (Position, u64) {
        let state = lock(&self.state);
        if state.changes != state.changes_sealed {
            aux_records
                .extend(state.journaled_settings.iter().map(|(name, put)| settings_record::to_aux_record(name, put)));
            aux_records.extend(state.sampling_records.iter().map(|(name, sampling)| sampling.to_aux_record(name)));
        }
        (state.newest, state.changes)
    }

    /// Notes of all that was said, for a ledger that has forgotten everything.
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

    /// The ledger knows what was collected.
    pub fn finish_seal(&self, changes: u64) {
        let mut state = lock(&self.state);
        state.changes_sealed = state.changes_sealed.max(changes);
        if state.changes_sealed == state.changes {
            state.journaled_settings.retain(|_, put| !put.settings.is_empty());
        }
    }
}

impl Inner {
    /// Says something of a namespace, in place of what was said of it at run time before. It is in force, and durable, when this returns. Blocks.
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
                // As before, but for its generation; stricter for a moment was not told to anyone.
                namespaces.publish(before.with_runtime_settings(
                    &self.options,
                    before.runtime_settings().clone(),
                    next_unique_id(),
                ));
                Err(error)
            }
        }
    }

    /// What is wrong with saying this of a namespace.
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

    // ---- sampling ---------------------------------------------------------------------------------------------------------------

    /// Samples namespaces that are while the journal cannot keep up at another rate; 1: not any more. Blocks.
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

    /// Tries again to write down that sampling is over, where it is and that could not be. Blocks.
    pub(crate) fn retry_end_sampling(&self) {
        if self.namespaces.current().ended_records().is_empty() {
            return;
        }
        let _one = lock(&self.namespaces.changing);
        self.end_sampling();
    }

    /// Writes down all that is to be thinned in these policies, durably, before they are in force.
    fn journal_missing_sampling(&self, next: &mut Policies) -> Result<(), PutNamespaceError> {
        for (name, sampling) in next.missing_records() {
            self.journal_sampling(&name, sampling)?;
            next.set_sampling_record(&name, sampling);
        }
        Ok(())
    }

    /// Where sampling is over, counters that begin from here on are exact. Without room for that it is left as it is, which promises less.
    fn end_sampling(&self) {
        let now = self.namespaces.current();
        let ended = now.ended_records();
        if ended.is_empty() {
            return;
        }
        // Everyone who thinned is through: no counter that was thinned has a newer epoch.
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

    /// Counts the counters of a namespace that is to have a limit.
    fn count_limited(&self, name: &[u8], next: &Policies) -> Result<(), PutNamespaceError> {
        let new =
            next.censuses().filter(|(known, _)| *known == name).map(|(name, census)| (name.into(), census.clone()));
        let live: Vec<u64> = next.censuses().map(|(_, census)| census.id()).collect();
        let refused = |error: quipu_model::LedgerError| Refusal::AtRest { reason: error.to_string() };
        Ok(self.count_namespaces(&new.collect::<Vec<_>>(), &live).map_err(refused)?)
    }

    /// Counts the counters of all namespaces that have a limit; once, when the engine is opened.
    pub(crate) fn count_all_limited(&self) -> Result<(), quipu_model::LedgerError> {
        let policies = self.namespaces.current();
        let all: Vec<_> = policies.censuses().map(|(name, census)| (name.into(), census.clone())).collect();
        if all.is_empty() { Ok(()) } else { self.count_namespaces(&all, &[]) }
    }

    /// What a namespace has in memory alone goes to the ledger, if it is to be as durable as others from now on.
    fn seal_memory_counters(&self, old: Durability, new: Durability) -> Result<(), PutNamespaceError> {
        if old > Durability::Memory || new == Durability::Memory {
            return Ok(());
        }
        loop {
            match self.seal_all() {
                Ok(()) => return Ok(()),
                // What was deleted need not be sealed; what came after it does.
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

    /// Writes it down, and waits until that is durable; the time that it was written down with.
    fn journal_namespace(&self, name: &[u8], settings: &Namespace) -> Result<Millis, PutNamespaceError> {
        let mut turn = Turn::new(self);
        let entry = Entry::Namespace { name, settings: Box::new(settings.clone()) };
        // The lock is held from before the record has its place: a seal that marks the journal behind it finds it said.
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

    /// Waits for everyone who works by what was in force before, and closes lanes, which were opened by it.
    fn wait_for_all_shards(&self) {
        for shard in 0..self.table.shard_count() {
            drop(self.table.lock(shard));
        }
        self.visit_all_lanes(LaneVisit::Close);
    }
}

thread_local! {
    /// What this thread's last turn looked at: counting its holders, which all threads share, would cost more than looking.
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
            // A thread that is ending keeps nothing.
            let _ = KEPT.try_with(|cached| cached.set(Some(updated)));
        }
    }
}

/// A number that is drawn once in this process.
fn next_unique_id() -> u64 {
    // Not through `sync`: nothing but their difference matters, in whatever order they are drawn.
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
