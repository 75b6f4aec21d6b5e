//! Compares everything this node says with the store: all own cells are put again.
//!
//! In: the ledger and the table. Out: every counter of which this node says something, on the list of the unsettled; the verdicts do the rest.
//!
//! A pass is made after joining, when the store was found to have lost something, when an older life can be acted for, when more than is
//! remembered has left memory unsettled, and every `audit_every`. It goes at the pace at which the store confirms.
//!
//! Invariant: a pass is over when all that it has listed was confirmed; only then are older lives that it covered retired.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;

use quipu_model::{LedgerError, NameBuf};

use super::Sharing;
use super::lease::Succession;
use super::own::{CONFIRMED_CELLS_MAX, NO_CELLS, OwnCell};
use super::settle::as_name;
use super::shared_counter::Authority;
use crate::sync::{Ordering, lock};
use crate::turn::Turn;

/// So many counters may be due to be put, or doubted and not confirmed, before the pass goes on. Counters that go on changing are
/// always unsettled, and most of them are not due: they hold up no pass.
const BACKLOG_MAX: usize = 4_096;

/// Whether everything was confirmed is looked at this often.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Default)]
pub(super) struct StoreAudit {
    /// Another pass is wanted.
    requested: bool,
    /// The store has lost something, and not everything was put again yet.
    pub has_loss: bool,
    /// How many passes have begun.
    passes_begun: u64,
    /// The next shard of the pass under way.
    next_shard: Option<usize>,
    /// Whether that pass makes up for what was lost.
    repairs_loss: bool,
    /// When it is looked again whether everything was confirmed.
    next_check_at: Duration,
    /// Everything was confirmed; this seal, or a later one, has that at rest.
    awaited_seal: Option<u32>,
    /// When the last one was over.
    ended_at: Option<Duration>,
    /// Whether drift was logged since.
    has_logged_drift: bool,
}

impl Sharing<'_> {
    /// How many passes have begun.
    pub(super) fn audit_passes(&self) -> u64 {
        lock(&self.link.audit).passes_begun
    }

    /// Wants another pass.
    pub(super) fn request_audit(&self, lost: bool) {
        let mut audit = lock(&self.link.audit);
        audit.requested = true;
        audit.has_loss |= lost;
        // The pass under way does not make up for a loss that came after it began.
        audit.repairs_loss &= !lost;
    }

    /// Whether the store has lost something that was not put again yet: nothing is folded meanwhile.
    pub(super) fn is_repairing_loss(&self) -> bool {
        lock(&self.link.audit).has_loss
    }

    /// A row is older than an epoch that the store has shown before. Logged once a pass.
    pub(super) fn log_drift(&self, name: &[u8]) {
        if !std::mem::replace(&mut lock(&self.link.audit).has_logged_drift, true) {
            let counter = String::from_utf8_lossy(name);
            tracing::warn!(%counter, "drift: the shared store has lost a set, reset, delete or expiry that it had confirmed");
        }
    }

    /// Asks for a pass now; for an operator.
    pub fn begin_audit(self) {
        self.request_audit(false);
    }

    /// Whether a pass is under way or wanted.
    pub fn is_auditing(self) -> bool {
        let audit = lock(&self.link.audit);
        audit.requested || audit.next_shard.is_some() || audit.ended_at.is_none()
    }

    /// One piece of a pass: a shard; how many counters were listed.
    pub async fn audit(self) -> usize {
        let now = self.elapsed();
        if !self.link.may_put(now) {
            return 0;
        }
        let shard = {
            let left = (0..self.inner.table.shard_count()).any(|shard| self.inner.table.lock(shard).evicted_unsettled);
            let mut audit = lock(&self.link.audit);
            let audit = &mut *audit;
            let due = audit.ended_at.is_none_or(|at| now.saturating_sub(at) >= self.link.options.audit_every);
            if audit.next_shard.is_none() && (audit.requested || due || left) {
                (audit.next_shard, audit.requested, audit.repairs_loss) = (Some(0), false, audit.has_loss);
                audit.passes_begun += 1;
            }
            match audit.next_shard {
                Some(shard) => shard,
                None => return 0,
            }
        };
        if shard == self.inner.table.shard_count() {
            self.end_pass();
            return 0;
        }
        if !self.may_list(now) || self.inner.memory_is_full() {
            return 0;
        }
        let listed = self.list_shard(shard);
        if listed.is_some() {
            lock(&self.link.audit).next_shard = Some(shard + 1);
        }
        listed.unwrap_or(0)
    }

    /// Whether few enough counters wait for the store. When it has confirmed all that the pass listed before, the pass goes on however
    /// many others are due: a store that takes no more than what changes must not keep the pass from its end.
    fn may_list(&self, now: Duration) -> bool {
        let table = &self.inner.table;
        let (mut unconfirmed, mut due) = (0, 0);
        for shard in 0..table.shard_count() {
            let shard = table.lock(shard);
            // What the store does not take is tried again for as long as that lasts; the pass waits for it at its end.
            unconfirmed += shard.unsettled.unconfirmed_not_failing();
            due += shard.unsettled.due(now).take(BACKLOG_MAX + 1 - due.min(BACKLOG_MAX)).count();
        }
        unconfirmed == 0 || unconfirmed + due <= BACKLOG_MAX
    }

    /// Lists what this node says in a shard, at rest or not; `None` if it could not, and is to try again.
    fn list_shard(&self, index: usize) -> Option<usize> {
        // What leaves memory from here on is looked for again.
        self.inner.table.lock(index).evicted_unsettled = false;
        let names = self.list_own_names(index).ok()?;
        for name in &names {
            self.inner.loads.load_counter(self.inner, name).ok()?;
            if !self.mark_unconfirmed(name) {
                return None;
            }
        }
        Some(names.len())
    }

    /// All names of a shard of which this node says something, in memory and at rest.
    pub(super) fn list_own_names(&self, index: usize) -> Result<BTreeSet<NameBuf>, LedgerError> {
        let table = &self.inner.table;
        let mut names: BTreeSet<NameBuf> = {
            let shard = table.lock(index);
            shard.own_names().map(NameBuf::from).collect()
        };
        let (ledger, mut names_without_own) = (&self.inner.ledger, BTreeSet::new());
        let here =
            |hash| if table.shard_of(hash) == index { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        let visited = ledger.range_own_cells(table.first_hash(index), &mut |hash, name, own| {
            here(hash)?;
            // Of some only what others say is known.
            if own == NO_CELLS {
                names_without_own.insert(NameBuf::from(name))
            } else {
                names.insert(name.into())
            };
            ControlFlow::Continue(())
        });
        visited?;
        // Counters of the days before the store.
        let visited = ledger.range(table.first_hash(index), &mut |hash, name, _| {
            here(hash)?;
            let name = NameBuf::from(name);
            if !names_without_own.contains(&name) {
                names.insert(name);
            }
            ControlFlow::Continue(())
        });
        visited?;
        Ok(names)
    }

    /// What this node says of a counter is to be confirmed anew; false if there was no room to write down what that changes.
    pub(super) fn mark_unconfirmed(&self, name: &NameBuf) -> bool {
        let (now, present) = (self.elapsed(), self.link.incarnation());
        let mut turn = Turn::new(self.inner);
        let lost = turn.with_shared_counter(as_name(name), |counter| {
            let (mut lost, mut dropped_bodies) = (None, Vec::new());
            let is_kept = |cell: &OwnCell| {
                let former = cell.incarnation != present && cell.settled && !cell.is_body();
                former && self.link.succession(cell.incarnation) == Succession::Finished
            };
            // The oldest come first.
            let kept = counter.own_cells.cells.iter().filter(|cell| is_kept(cell)).count();
            let mut surplus = kept.saturating_sub(CONFIRMED_CELLS_MAX);
            counter.own_cells.cells.retain_mut(|cell| {
                if is_kept(cell) {
                    let stays = surplus == 0;
                    surplus = surplus.saturating_sub(1);
                    counter.changed |= !stays;
                    return stays;
                }
                let succession = (cell.incarnation != present).then(|| self.link.succession(cell.incarnation));
                let authority = match succession {
                    None => Authority::Granted,
                    // All of it was confirmed, and it is about to be over.
                    Some(Succession::Settled) => Authority::Pending,
                    Some(succession) => Authority::from_succession(succession, now),
                };
                match authority {
                    Authority::Granted => cell.mark_unconfirmed(),
                    Authority::Pending | Authority::Elsewhere => {}
                    Authority::Confirmed | Authority::Forgotten if cell.settled => {
                        counter.changed = true;
                        dropped_bodies.extend(cell.is_body().then(|| cell.body_number()));
                        return false;
                    }
                    Authority::Confirmed | Authority::Forgotten => lost = Some(cell.incarnation),
                }
                true
            });
            dropped_bodies.into_iter().for_each(|number| counter.drop_body(number));
            (lost, kept > 0)
        });
        turn.finish();
        let Ok((lost, keeps)) = lost else { return false };
        if keeps {
            // Whether the store still has what is kept, its row tells.
            self.link.queue_refresh(name);
        }
        self.follow_up(name, super::shared_counter::FollowUp { forgotten: lost, ..Default::default() });
        self.enqueue(name);
        true
    }

    /// Whether something that was listed is not confirmed yet.
    fn has_unconfirmed(&self) -> bool {
        let table = &self.inner.table;
        (0..table.shard_count()).any(|index| table.lock(index).unsettled.unconfirmed() > 0)
    }

    /// Everything was listed: the pass is over once all of it is confirmed, and that is at rest.
    fn end_pass(&self) {
        let table = &self.inner.table;
        let left = (0..table.shard_count()).any(|shard| table.lock(shard).evicted_unsettled);
        let (now, sealed) = (self.elapsed(), self.inner.batch_sealed());
        let pass = {
            let mut audit = lock(&self.link.audit);
            if now < audit.next_check_at {
                return;
            }
            audit.next_check_at = now + CHECK_EVERY;
            if left {
                // Something has left memory before it was confirmed: once more.
                (audit.next_shard, audit.awaited_seal) = (Some(0), None);
                audit.passes_begun += 1;
                return;
            }
            if self.has_unconfirmed() {
                audit.awaited_seal = None;
                return;
            }
            let next = self.inner.batch_next.load(Ordering::Acquire) + 1;
            if sealed < *audit.awaited_seal.get_or_insert(next) {
                return;
            }
            (audit.next_shard, audit.ended_at, audit.awaited_seal) = (None, Some(now), None);
            audit.has_logged_drift = false;
            audit.has_loss &= !audit.repairs_loss;
            if audit.has_loss {
                // What it has found confirmed before the loss may be what was lost: the next pass decides.
                return;
            }
            audit.passes_begun
        };
        for (incarnation, succession) in &mut lock(&self.link.lease).successions {
            match *succession {
                // Acted for since before the pass began, and all along: all of it was listed.
                Succession::Held { since, until } if since < pass && until > now => *succession = Succession::Settled,
                Succession::Late { since, .. } if since < pass => *succession = Succession::Finished,
                // Forgotten since before the pass began: its cells were dropped, and that is at rest.
                Succession::Forgotten { since } if since < pass => drop(lock(&self.inner.joined).remove(incarnation)),
                _ => {}
            }
        }
    }
}
