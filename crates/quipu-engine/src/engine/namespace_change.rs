//! Changes the settings of namespaces at run time.
//!
//! In: new settings, or a new rate of sampling under overload. Out: policies in force, durable on
//! return.
//!
//! Invariants:
//! - a change is journaled and synced before it is in force, and it is in force when the call
//!   returns;
//! - except that a namespace leaving memory mode is journaled *before* that, and all its counters
//!   are sealed: a read after the reply is as durable as the new setting.
//!
//! Not here: valid settings (`quipu_model::namespace`), the policies themselves (`namespaces`).

use quipu_model::{Durability, Millis, NAMESPACES_MAX, Namespace, Refusal, check_namespace_name};

use crate::base::failpoint::step;
use crate::base::sync::lock;
use crate::core::Core;
use crate::core::commit::{JournalFailure, block_on};
use crate::execute::turn::{LaneVisit, Turn};
use crate::journal::Wait;
use crate::journal::format::Entry;
use crate::namespaces::{
    Policies, RuntimeSettings, SAMPLING_RECORDS_MAX, SamplingPolicy, SamplingRecord, next_unique_id,
};
use crate::seal::SealError;

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

impl Core {
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
