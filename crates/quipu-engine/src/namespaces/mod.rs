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
mod note;
mod policy;
mod thinned;

use std::cell::Cell;
use std::ops::Deref;

use quipu_model::{Durability, Millis, NAMESPACES_MAX, Namespace, Note, Refusal, check_namespace_name};

pub use self::census::Census;
pub(crate) use self::census::Places;
pub(crate) use self::note::{decode as decode_note, is_of_namespace};
pub use self::policy::{Limit, Policies, Policy, Put, Puts};
pub use self::thinned::{THINNED_MAX, Thinned, ThinnedBy, Thinning};
use crate::engine::{Dead, Inner, block_on};
use crate::failpoint::step;
use crate::journal::Wait;
use crate::journal::format::{Entry, Position};
use crate::options::Options;
use crate::seal::SealError;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use crate::turn::{Turn, Visit};

/// See the module.
pub(crate) struct Namespaces {
    /// As the engine was opened.
    first: Policies,
    /// Of what is in force.
    generation: AtomicU64,
    state: Mutex<State>,
    /// Held by whoever changes something: one at a time.
    changing: Mutex<()>,
}

struct State {
    /// What is in force, if that has changed since the start.
    later: Option<Arc<Policies>>,
    /// What the journal says, what is not in force yet included; one that says nothing any more stays until the ledger knows that.
    said: Puts,
    /// What the journal says of namespaces that are or were sampled.
    thinned: ThinnedBy,
    /// The end of the newest record of it.
    newest: Position,
    /// How often something was said, and how much of that the ledger knows.
    changes: u64,
    changes_sealed: u64,
}

/// What is to be remembered of namespaces that are or were sampled.
pub type Unwritten = Vec<(Box<[u8]>, Thinned)>;

/// Why what was said of a namespace is not in force.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// It makes no sense; all that is wrong with it.
    #[error("{}", .0.join("; "))]
    Mistakes(Vec<String>),
    /// It could not be written down.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The journal failed before it was durable.
    #[error(transparent)]
    Dead(#[from] Dead),
}

/// What is in force for a turn.
pub(crate) struct InForce<'e> {
    first: &'e Policies,
    later: Option<Arc<Policies>>,
}

impl Namespaces {
    /// Of an engine that was just opened, where so much was said at run time in earlier lives, and so much was thinned; and what has to be written down before anybody counts.
    pub fn new(options: &Options, said: Puts, thinned: ThinnedBy) -> (Namespaces, Unwritten) {
        let puts = said.iter().filter(|(_, put)| !put.settings.is_empty());
        let puts = puts.map(|(name, put)| (name.clone(), put.clone())).collect();
        let mut first = Policies::with_thinned(options, puts, thinned, 1);
        let unwritten = first.lacking();
        for (name, thinned) in &unwritten {
            first.remember(name, *thinned);
        }
        let thinned = first.thinned().clone();
        // Whether the ledger knows all of it nobody has to know: the next seal tells it again.
        let changes = u64::from(!said.is_empty() || !thinned.is_empty());
        let state = State { later: None, said, thinned, newest: Position(0), changes, changes_sealed: 0 };
        let (state, changing) = (Mutex::new(state), Mutex::new(()));
        (Namespaces { first, generation: AtomicU64::new(0), state, changing }, unwritten)
    }

    /// What is in force.
    #[inline]
    pub fn now(&self) -> InForce<'_> {
        let later = match self.generation.load(Ordering::Acquire) {
            0 => None,
            generation => self.later(generation),
        };
        InForce { first: &self.first, later }
    }

    /// Whether that is in force still.
    #[inline]
    pub fn is_now(&self, policies: &Policies) -> bool {
        self.generation.load(Ordering::Acquire) == policies.generation
    }

    fn later(&self, generation: u64) -> Option<Arc<Policies>> {
        match KEPT.take() {
            Some(kept) if kept.generation == generation => Some(kept),
            _ => lock(&self.state).later.clone(),
        }
    }

    /// Waits until nobody is changing anything.
    pub fn wait_for_change(&self) {
        drop(lock(&self.changing));
    }

    fn put_in_force(&self, policies: Policies) {
        let mut state = lock(&self.state);
        let generation = policies.generation;
        state.later = Some(Arc::new(policies));
        self.generation.store(generation, Ordering::Release);
    }

    // ---- seal -------------------------------------------------------------------------------------------------------------------

    /// Notes of all that the ledger may not know, and the end of the newest record that they are in; what the ledger knows then.
    pub fn collect(&self, notes: &mut Vec<Note>) -> (Position, u64) {
        let state = lock(&self.state);
        if state.changes != state.changes_sealed {
            notes.extend(state.said.iter().map(|(name, put)| note::note(name, put)));
            notes.extend(state.thinned.iter().map(|(name, thinned)| thinned.note(name)));
        }
        (state.newest, state.changes)
    }

    /// Notes of all that was said, for a ledger that has forgotten everything.
    pub fn all(&self, notes: &mut Vec<Note>) -> Position {
        let state = lock(&self.state);
        notes.extend(state.said.iter().map(|(name, put)| note::note(name, put)).filter(|note| note.value.is_some()));
        notes.extend(state.thinned.iter().map(|(name, thinned)| thinned.note(name)));
        state.newest
    }

    /// The ledger knows what was collected.
    pub fn sealed(&self, changes: u64) {
        let mut state = lock(&self.state);
        state.changes_sealed = state.changes_sealed.max(changes);
        if state.changes_sealed == state.changes {
            state.said.retain(|_, put| !put.settings.is_empty());
        }
    }
}

impl Inner {
    /// Says something of a namespace, in place of what was said of it at run time before. It is in force, and durable, when this returns. Blocks.
    pub(crate) fn put_namespace(&self, name: &[u8], settings: Namespace) -> Result<(), PutError> {
        let namespaces = &self.namespaces;
        let _one = lock(&namespaces.changing);
        let before = namespaces.now();
        self.check_open()?;
        let mistakes = self.check_namespace(name, &settings);
        if !mistakes.is_empty() {
            return Err(PutError::Mistakes(mistakes));
        }
        let mut puts = before.puts().clone();
        let put = Put { settings: settings.clone(), at: self.now() };
        match settings.is_empty() {
            true => drop(puts.remove(name)),
            false => drop(puts.insert(name.into(), put)),
        }
        let mut next = before.next(&self.options, puts, draw_number());
        let (is, will_be) = (before.of_namespace(name), next.of_namespace(name));
        let (old, new) = (is.durability, will_be.durability);
        let limited = is.limit.is_none() && will_be.limit.is_some();
        if new > old || limited {
            namespaces.put_in_force(before.at_least(name, will_be, draw_number()));
            self.pass_all_shards();
        }
        let counted = if limited { self.count_limited(name, &next) } else { Ok(()) };
        let journaled = counted
            .and_then(|()| self.settle_memory(old, new))
            .and_then(|()| self.remember_thinning(&mut next))
            .and_then(|()| self.journal_namespace(name, &settings));
        match journaled {
            Ok(at) => {
                next.said_at(name, at);
                namespaces.put_in_force(next);
                step!("namespace_put");
                self.pass_all_shards();
                self.end_thinning();
                Ok(())
            }
            Err(error) => {
                // As before, but for its generation; stricter for a moment was not told to anyone.
                namespaces.put_in_force(before.next(&self.options, before.puts().clone(), draw_number()));
                Err(error)
            }
        }
    }

    /// What is wrong with saying this of a namespace.
    pub(crate) fn check_namespace(&self, name: &[u8], settings: &Namespace) -> Vec<String> {
        let before = self.namespaces.now();
        let mut mistakes = Vec::from_iter(check_namespace_name(name).err());
        let is_new = !before.puts().contains_key(name) && !settings.is_empty();
        if is_new && before.puts().len() >= NAMESPACES_MAX {
            mistakes.push(format!("of {NAMESPACES_MAX} namespaces something was said at run time, which is the limit"));
        }
        let file = self.options.namespaces.iter().find(|(known, _)| **known == *name).map(|(_, said)| said);
        let both = file.map_or_else(|| settings.clone(), |file| settings.or(file));
        mistakes.extend(both.conflicts(self.shared.is_some()));
        let is_new = Thinning::new(&both, 1, None).is_some() && !before.thinned().contains_key(name);
        if is_new && before.thinned().len() >= THINNED_MAX {
            mistakes.push(format!("{THINNED_MAX} namespaces were sampled, which is as many as are remembered"));
        }
        mistakes
    }

    // ---- sampling ---------------------------------------------------------------------------------------------------------------

    /// Samples namespaces that are while the journal cannot keep up at another rate; 1: not any more. Blocks.
    pub(crate) fn put_overload(&self, p: u32) -> Result<(), PutError> {
        let namespaces = &self.namespaces;
        let _one = lock(&namespaces.changing);
        let before = namespaces.now();
        self.check_open()?;
        let mut next = before.overloaded(&self.options, p, draw_number());
        self.remember_thinning(&mut next)?;
        namespaces.put_in_force(next);
        step!("overload_put");
        self.pass_all_shards();
        self.end_thinning();
        Ok(())
    }

    /// Tries again to write down that sampling is over, where it is and that could not be. Blocks.
    pub(crate) fn settle_thinning(&self) {
        if self.namespaces.now().over().is_empty() {
            return;
        }
        let _one = lock(&self.namespaces.changing);
        self.end_thinning();
    }

    /// Writes down all that is to be thinned in these policies, durably, before they are in force.
    fn remember_thinning(&self, next: &mut Policies) -> Result<(), PutError> {
        for (name, thinned) in next.lacking() {
            self.journal_thinned(&name, thinned)?;
            next.remember(&name, thinned);
        }
        Ok(())
    }

    /// Where sampling is over, counters that begin from here on are exact. Without room for that it is left as it is, which promises less.
    fn end_thinning(&self) {
        let now = self.namespaces.now();
        let over = now.over();
        if over.is_empty() {
            return;
        }
        // Everyone who thinned is through: no counter that was thinned has a newer epoch.
        let until = self.table.epoch_newest();
        let mut next = now.next(&self.options, now.puts().clone(), draw_number());
        for (name, thinned) in over {
            let thinned = thinned.over(until);
            if self.journal_thinned(&name, thinned).is_err() {
                break;
            }
            next.remember(&name, thinned);
        }
        self.namespaces.put_in_force(next);
    }

    fn journal_thinned(&self, name: &[u8], thinned: Thinned) -> Result<(), PutError> {
        let mut turn = Turn::new(self);
        let entry = Entry::Thinned { name, thinned };
        let (end, mut state) = turn.note_under(&entry, || lock(&self.namespaces.state))?;
        state.thinned.insert(name.into(), thinned);
        (state.newest, state.changes) = (end, state.changes + 1);
        drop(state);
        let wait = turn.finish().and(Wait { written: end, synced: end });
        step!("thinned_journaled");
        block_on(self.committed(wait))?;
        Ok(())
    }

    /// Counts the counters of a namespace that is to have a limit.
    fn count_limited(&self, name: &[u8], next: &Policies) -> Result<(), PutError> {
        let new =
            next.censuses().filter(|(known, _)| *known == name).map(|(name, census)| (name.into(), census.clone()));
        let live: Vec<u64> = next.censuses().map(|(_, census)| census.id()).collect();
        let refused = |error: quipu_model::LedgerError| Refusal::AtRest { reason: error.to_string() };
        Ok(self.count_namespaces(&new.collect::<Vec<_>>(), &live).map_err(refused)?)
    }

    /// Counts the counters of all namespaces that have a limit; once, when the engine is opened.
    pub(crate) fn count_all_limited(&self) -> Result<(), quipu_model::LedgerError> {
        let policies = self.namespaces.now();
        let all: Vec<_> = policies.censuses().map(|(name, census)| (name.into(), census.clone())).collect();
        if all.is_empty() { Ok(()) } else { self.count_namespaces(&all, &[]) }
    }

    /// What a namespace has in memory alone goes to the ledger, if it is to be as durable as others from now on.
    fn settle_memory(&self, old: Durability, new: Durability) -> Result<(), PutError> {
        if old > Durability::Memory || new == Durability::Memory {
            return Ok(());
        }
        loop {
            match self.seal_all() {
                Ok(()) => return Ok(()),
                // What was deleted need not be sealed; what came after it does.
                Err(SealError::Flushed) => {}
                Err(SealError::Dead(dead)) => return Err(dead.into()),
                Err(SealError::Journal(error)) => {
                    self.journal.fail(&error);
                    return Err(Dead { reason: error.to_string() }.into());
                }
                Err(SealError::Ledger(error)) => {
                    let reason = format!("what the namespace has in memory cannot be sealed: {error}");
                    return Err(Refusal::NoRoom { reason }.into());
                }
            }
        }
    }

    /// Writes it down, and waits until that is durable; the time that it was written down with.
    fn journal_namespace(&self, name: &[u8], settings: &Namespace) -> Result<Millis, PutError> {
        let mut turn = Turn::new(self);
        let entry = Entry::Namespace { name, settings: Box::new(settings.clone()) };
        // The lock is held from before the record has its place: a seal that marks the journal behind it finds it said.
        let (end, mut state) = turn.note_under(&entry, || lock(&self.namespaces.state))?;
        let at = turn.now();
        state.said.insert(name.into(), Put { settings: settings.clone(), at });
        (state.newest, state.changes) = (end, state.changes + 1);
        drop(state);
        let wait = turn.finish().and(Wait { written: end, synced: end });
        step!("namespace_journaled");
        block_on(self.committed(wait))?;
        Ok(at)
    }

    /// Waits for everyone who works by what was in force before, and closes lanes, which were opened by it.
    fn pass_all_shards(&self) {
        for shard in 0..self.table.shard_count() {
            drop(self.table.lock(shard));
        }
        self.visit_splits(Visit::Close);
    }
}

thread_local! {
    /// What this thread's last turn looked at: counting its holders, which all threads share, would cost more than looking.
    static KEPT: Cell<Option<Arc<Policies>>> = const { Cell::new(None) };
}

impl Deref for InForce<'_> {
    type Target = Policies;

    #[inline]
    fn deref(&self) -> &Policies {
        self.later.as_deref().unwrap_or(self.first)
    }
}

impl Drop for InForce<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(later) = self.later.take() {
            // A thread that is ending keeps nothing.
            let _ = KEPT.try_with(|kept| kept.set(Some(later)));
        }
    }
}

/// A number that is drawn once in this process.
fn draw_number() -> u64 {
    // Not through `sync`: nothing but their difference matters, in whatever order they are drawn.
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
