//! Audits this node's own cells against the store: puts all of them again.
//!
//! In: the ledger and the table. Out: every counter with own cells, listed as unsettled; the
//! verdicts do the rest.
//!
//! A pass runs:
//! - after joining;
//! - after a detected loss in the store;
//! - when this node may act for an older incarnation;
//! - when more unsettled counters have left memory than the list can remember;
//! - every `audit_every`.
//!
//! The store's confirmations set its pace.
//!
//! Invariant: a pass ends when everything that it listed is confirmed. Only then are the older
//! incarnations that it covered retired.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;

use quipu_model::{LedgerError, NameBuf};

use super::Sharing;
use super::lease::Succession;
use super::settle::as_name;
use super::shared_counter::Authority;
use crate::base::sync::{Ordering, lock};
use crate::bodies::own_cells::{CONFIRMED_CELLS_MAX, NO_CELLS, OwnCell};
use crate::execute::turn::Turn;

/// Most counters due for a put, or doubted and unconfirmed, before the pass goes on. Counters that
/// keep changing are always unsettled, but most of them are not due and hold up no pass.
const BACKLOG_MAX: usize = 4_096;

/// Interval between checks that everything is confirmed.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// State of the audit passes.
#[derive(Default)]
pub(crate) struct StoreAudit {
    /// Another pass is requested.
    requested: bool,
    /// The store has lost data, and not everything was put again yet.
    pub has_loss: bool,
    /// Number of passes begun.
    passes_begun: u64,
    /// The next shard of the pass in progress.
    next_shard: Option<usize>,
    /// True if that pass repairs the loss.
    repairs_loss: bool,
    /// Time of the next check that everything is confirmed.
    next_check_at: Duration,
    /// Everything is confirmed; this seal, or a later one, has that at rest.
    awaited_seal: Option<u32>,
    /// End of the last pass.
    ended_at: Option<Duration>,
    /// True if drift was logged since.
    has_logged_drift: bool,
}

impl Sharing<'_> {
    /// Number of passes begun.
    pub(super) fn audit_passes(&self) -> u64 {
        lock(&self.link.audit).passes_begun
    }

    /// Requests another pass.
    pub(super) fn request_audit(&self, lost: bool) {
        let mut audit = lock(&self.link.audit);
        audit.requested = true;
        audit.has_loss |= lost;
        // The pass in progress does not repair a loss that came after it began.
        audit.repairs_loss &= !lost;
    }

    /// Returns true while a loss of the store is not repaired. Nothing is folded meanwhile.
    pub(super) fn is_repairing_loss(&self) -> bool {
        lock(&self.link.audit).has_loss
    }

    /// Logs a row older than an epoch that the store has shown before. Logs once per pass.
    pub(super) fn log_drift(&self, name: &[u8]) {
        if !std::mem::replace(&mut lock(&self.link.audit).has_logged_drift, true) {
            let counter = String::from_utf8_lossy(name);
            tracing::warn!(%counter, "drift: the shared store has lost a set, reset, delete or expiry that it had confirmed");
        }
    }

    /// Requests a pass now, for an operator.
    pub fn begin_audit(self) {
        self.request_audit(false);
    }

    /// Returns true if a pass is in progress or requested.
    pub fn is_auditing(self) -> bool {
        let audit = lock(&self.link.audit);
        audit.requested || audit.next_shard.is_some() || audit.ended_at.is_none()
    }

    /// Runs one piece of a pass, a shard; returns the number of counters listed.
    pub async fn audit(self) -> usize {
        let now = self.elapsed();
        if !self.link.may_put(now) {
            return 0;
        }
        let shard = {
            let left = (0..self.core.table.shard_count()).any(|shard| self.core.table.lock(shard).evicted_unsettled);
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
        if shard == self.core.table.shard_count() {
            self.end_pass();
            return 0;
        }
        if !self.may_list(now) || self.core.memory_is_full() {
            return 0;
        }
        let listed = self.list_shard(shard);
        if listed.is_some() {
            lock(&self.link.audit).next_shard = Some(shard + 1);
        }
        listed.unwrap_or(0)
    }

    /// Returns true if few enough counters wait for the store. Once the store has confirmed
    /// everything listed, the pass goes on regardless of other due counters. A store that can take
    /// only the changes must not block the end of the pass.
    fn may_list(&self, now: Duration) -> bool {
        let table = &self.core.table;
        let (mut unconfirmed, mut due) = (0, 0);
        for shard in 0..table.shard_count() {
            let shard = table.lock(shard);
            // Failing puts are retried as long as they fail; the pass waits for them at its end.
            unconfirmed += shard.unsettled.unconfirmed_not_failing();
            due += shard.unsettled.due(now).take(BACKLOG_MAX + 1 - due.min(BACKLOG_MAX)).count();
        }
        unconfirmed == 0 || unconfirmed + due <= BACKLOG_MAX
    }

    /// Lists the own cells of a shard, in memory and at rest. `None`: it failed and must be
    /// retried.
    fn list_shard(&self, index: usize) -> Option<usize> {
        // Counters that leave memory from here on are looked for again.
        self.core.table.lock(index).evicted_unsettled = false;
        let names = self.list_own_names(index).ok()?;
        for name in &names {
            self.core.load_counter(name).ok()?;
            if !self.mark_unconfirmed(name) {
                return None;
            }
        }
        Some(names.len())
    }

    /// All names of a shard with own cells of this node, in memory and at rest.
    pub(super) fn list_own_names(&self, index: usize) -> Result<BTreeSet<NameBuf>, LedgerError> {
        let table = &self.core.table;
        let mut names: BTreeSet<NameBuf> = {
            let shard = table.lock(index);
            shard.own_names().map(NameBuf::from).collect()
        };
        let (ledger, mut names_without_own) = (&self.core.ledger, BTreeSet::new());
        let here =
            |hash| if table.shard_of(hash) == index { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        let visited = ledger.range_own_cells(table.first_hash(index), &mut |hash, name, own| {
            here(hash)?;
            // Counters with an empty record: this node has no cells, only the value of others.
            if own == NO_CELLS {
                names_without_own.insert(NameBuf::from(name))
            } else {
                names.insert(name.into())
            };
            ControlFlow::Continue(())
        });
        visited?;
        // Counters from before the shared store.
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

    /// Marks the own cells of a counter as unconfirmed. Returns false if the journal had no room
    /// for the change.
    pub(super) fn mark_unconfirmed(&self, name: &NameBuf) -> bool {
        let (now, present) = (self.elapsed(), self.link.incarnation());
        let mut turn = Turn::new(self.core);
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
                    // All of it was confirmed, and it is about to be retired.
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
            // The row shows whether the store still has the kept cells.
            self.link.queue_refresh(name);
        }
        self.follow_up(name, super::shared_counter::FollowUp { forgotten: lost, ..Default::default() });
        self.enqueue(name);
        true
    }

    /// Returns true if a listed counter is not confirmed yet.
    fn has_unconfirmed(&self) -> bool {
        let table = &self.core.table;
        (0..table.shard_count()).any(|index| table.lock(index).unsettled.unconfirmed() > 0)
    }

    /// Ends the pass once everything listed is confirmed, and the confirmations are at rest.
    fn end_pass(&self) {
        let table = &self.core.table;
        let left = (0..table.shard_count()).any(|shard| table.lock(shard).evicted_unsettled);
        let (now, sealed) = (self.elapsed(), self.core.batch_sealed());
        let pass = {
            let mut audit = lock(&self.link.audit);
            if now < audit.next_check_at {
                return;
            }
            audit.next_check_at = now + CHECK_EVERY;
            if left {
                // A counter left memory before it was confirmed: another pass.
                (audit.next_shard, audit.awaited_seal) = (Some(0), None);
                audit.passes_begun += 1;
                return;
            }
            if self.has_unconfirmed() {
                audit.awaited_seal = None;
                return;
            }
            let next = self.core.batch_next.load(Ordering::Acquire) + 1;
            if sealed < *audit.awaited_seal.get_or_insert(next) {
                return;
            }
            (audit.next_shard, audit.ended_at, audit.awaited_seal) = (None, Some(now), None);
            audit.has_logged_drift = false;
            audit.has_loss &= !audit.repairs_loss;
            if audit.has_loss {
                // A cell confirmed before the loss may be a lost one: the next pass decides.
                return;
            }
            audit.passes_begun
        };
        for (incarnation, succession) in &mut lock(&self.link.lease).successions {
            match *succession {
                // This node has acted for it since before the pass began, without a break: all of
                // it was listed.
                Succession::Held { since, until } if since < pass && until > now => *succession = Succession::Settled,
                Succession::Late { since, .. } if since < pass => *succession = Succession::Finished,
                // Forgotten since before the pass began: its cells were dropped, and that is at
                // rest.
                Succession::Forgotten { since } if since < pass => drop(lock(&self.core.joined).remove(incarnation)),
                _ => {}
            }
        }
    }
}
