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

use quipu_model::{KeptName, LedgerError};

use super::Sharing;
use super::lease::Heir;
use super::own::{KEPT_CELLS_MAX, OwnCell, SILENT};
use super::settle::named;
use super::share::Footing;
use crate::sync::{Ordering, lock};
use crate::turn::Turn;

/// So many counters may be due to be put, or doubted and not confirmed, before the pass goes on. Counters that go on changing are
/// always unsettled, and most of them are not due: they hold up no pass.
const BACKLOG_MAX: usize = 4_096;

/// Whether everything was confirmed is looked at this often.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Default)]
pub(super) struct Audit {
    /// Another pass is wanted.
    again: bool,
    /// The store has lost something, and not everything was put again yet.
    pub lost: bool,
    /// How many passes have begun.
    passes: u64,
    /// The next shard of the pass under way.
    pass: Option<usize>,
    /// Whether that pass makes up for what was lost.
    mends: bool,
    /// When it is looked again whether everything was confirmed.
    look_at: Duration,
    /// Everything was confirmed; this seal, or a later one, has that at rest.
    confirmed: Option<u32>,
    /// When the last one was over.
    over_at: Option<Duration>,
    /// Whether drift was logged since.
    has_logged_drift: bool,
}

impl Sharing<'_> {
    /// How many passes have begun.
    pub(super) fn passes(&self) -> u64 {
        lock(&self.shared.audit).passes
    }

    /// Wants another pass.
    pub(super) fn audit_again(&self, lost: bool) {
        let mut audit = lock(&self.shared.audit);
        audit.again = true;
        audit.lost |= lost;
        // The pass under way does not make up for a loss that came after it began.
        audit.mends &= !lost;
    }

    /// Whether the store has lost something that was not put again yet: nothing is folded meanwhile.
    pub(super) fn is_mending(&self) -> bool {
        lock(&self.shared.audit).lost
    }

    /// A row is older than an epoch that the store has shown before. Logged once a pass.
    pub(super) fn note_drift(&self, name: &[u8]) {
        if !std::mem::replace(&mut lock(&self.shared.audit).has_logged_drift, true) {
            let counter = String::from_utf8_lossy(name);
            tracing::warn!(%counter, "drift: the shared store has lost a set, reset, delete or expiry that it had confirmed");
        }
    }

    /// Asks for a pass now; for an operator.
    pub fn begin_audit(self) {
        self.audit_again(false);
    }

    /// Whether a pass is under way or wanted.
    pub fn is_auditing(self) -> bool {
        let audit = lock(&self.shared.audit);
        audit.again || audit.pass.is_some() || audit.over_at.is_none()
    }

    /// One piece of a pass: a shard; how many counters were listed.
    pub async fn audit(self) -> usize {
        let now = self.elapsed();
        if !self.shared.may_put(now) {
            return 0;
        }
        let shard = {
            let left = (0..self.inner.table.shard_count()).any(|shard| self.inner.table.lock(shard).left_unsettled);
            let mut audit = lock(&self.shared.audit);
            let audit = &mut *audit;
            let due = audit.over_at.is_none_or(|at| now.saturating_sub(at) >= self.shared.options.audit_every);
            if audit.pass.is_none() && (audit.again || due || left) {
                (audit.pass, audit.again, audit.mends) = (Some(0), false, audit.lost);
                audit.passes += 1;
            }
            match audit.pass {
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
        let listed = self.list(shard);
        if listed.is_some() {
            lock(&self.shared.audit).pass = Some(shard + 1);
        }
        listed.unwrap_or(0)
    }

    /// Whether few enough counters wait for the store. When it has confirmed all that the pass listed before, the pass goes on however
    /// many others are due: a store that takes no more than what changes must not keep the pass from its end.
    fn may_list(&self, now: Duration) -> bool {
        let table = &self.inner.table;
        let (mut doubted, mut due) = (0, 0);
        for shard in 0..table.shard_count() {
            let shard = table.lock(shard);
            // What the store does not take is tried again for as long as that lasts; the pass waits for it at its end.
            doubted += shard.unsettled.doubted_and_well();
            due += shard.unsettled.due(now).take(BACKLOG_MAX + 1 - due.min(BACKLOG_MAX)).count();
        }
        doubted == 0 || doubted + due <= BACKLOG_MAX
    }

    /// Lists what this node says in a shard, at rest or not; `None` if it could not, and is to try again.
    fn list(&self, index: usize) -> Option<usize> {
        // What leaves memory from here on is looked for again.
        self.inner.table.lock(index).left_unsettled = false;
        let names = self.said_names(index).ok()?;
        for name in &names {
            self.inner.loads.bring_back(self.inner, name).ok()?;
            if !self.doubt(name) {
                return None;
            }
        }
        Some(names.len())
    }

    /// All names of a shard of which this node says something, in memory and at rest.
    pub(super) fn said_names(&self, index: usize) -> Result<BTreeSet<KeptName>, LedgerError> {
        let table = &self.inner.table;
        let mut names: BTreeSet<KeptName> = {
            let shard = table.lock(index);
            shard.own_names().map(KeptName::from).collect()
        };
        let (ledger, mut silent) = (&self.inner.ledger, BTreeSet::new());
        let here =
            |hash| if table.shard_of(hash) == index { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        let visited = ledger.range_own(table.first_hash(index), &mut |hash, name, own| {
            here(hash)?;
            // Of some only what others say is known.
            if own == SILENT {
                silent.insert(KeptName::from(name))
            } else {
                names.insert(name.into())
            };
            ControlFlow::Continue(())
        });
        visited?;
        // Counters of the days before the store.
        let visited = ledger.range(table.first_hash(index), &mut |hash, name, _| {
            here(hash)?;
            let name = KeptName::from(name);
            if !silent.contains(&name) {
                names.insert(name);
            }
            ControlFlow::Continue(())
        });
        visited?;
        Ok(names)
    }

    /// What this node says of a counter is to be confirmed anew; false if there was no room to write down what that changes.
    pub(super) fn doubt(&self, name: &KeptName) -> bool {
        let (now, present) = (self.elapsed(), self.shared.present());
        let mut turn = Turn::new(self.inner);
        let lost = turn.share(named(name), |share| {
            let (mut lost, mut over) = (None, Vec::new());
            let is_kept = |cell: &OwnCell| {
                let former = cell.incarnation != present && cell.settled && !cell.is_body();
                former && self.shared.heir(cell.incarnation) == Heir::Over
            };
            // The oldest come first.
            let kept = share.owned.cells.iter().filter(|cell| is_kept(cell)).count();
            let mut surplus = kept.saturating_sub(KEPT_CELLS_MAX);
            share.owned.cells.retain_mut(|cell| {
                if is_kept(cell) {
                    let stays = surplus == 0;
                    surplus = surplus.saturating_sub(1);
                    share.changed |= !stays;
                    return stays;
                }
                let heir = (cell.incarnation != present).then(|| self.shared.heir(cell.incarnation));
                let footing = match heir {
                    None => Footing::Acts,
                    // All of it was confirmed, and it is about to be over.
                    Some(Heir::Done) => Footing::Waits,
                    Some(heir) => Footing::of(heir, now),
                };
                match footing {
                    Footing::Acts => cell.doubt(),
                    Footing::Waits | Footing::Theirs => {}
                    Footing::Kept | Footing::Over if cell.settled => {
                        share.changed = true;
                        over.extend(cell.is_body().then(|| cell.number()));
                        return false;
                    }
                    Footing::Kept | Footing::Over => lost = Some(cell.incarnation),
                }
                true
            });
            over.into_iter().for_each(|number| share.drop_body(number));
            (lost, kept > 0)
        });
        turn.finish();
        let Ok((lost, keeps)) = lost else { return false };
        if keeps {
            // Whether the store still has what is kept, its row tells.
            self.shared.fetch_ahead(name);
        }
        self.heed(name, super::share::Left { lost, ..Default::default() });
        self.enqueue(name);
        true
    }

    /// Whether something that was listed is not confirmed yet.
    fn has_doubts(&self) -> bool {
        let table = &self.inner.table;
        (0..table.shard_count()).any(|index| table.lock(index).unsettled.doubted() > 0)
    }

    /// Everything was listed: the pass is over once all of it is confirmed, and that is at rest.
    fn end_pass(&self) {
        let table = &self.inner.table;
        let left = (0..table.shard_count()).any(|shard| table.lock(shard).left_unsettled);
        let (now, sealed) = (self.elapsed(), self.inner.batch_sealed());
        let pass = {
            let mut audit = lock(&self.shared.audit);
            if now < audit.look_at {
                return;
            }
            audit.look_at = now + LOOK_EVERY;
            if left {
                // Something has left memory before it was confirmed: once more.
                (audit.pass, audit.confirmed) = (Some(0), None);
                audit.passes += 1;
                return;
            }
            if self.has_doubts() {
                audit.confirmed = None;
                return;
            }
            let next = self.inner.batch_next.load(Ordering::Acquire) + 1;
            if sealed < *audit.confirmed.get_or_insert(next) {
                return;
            }
            (audit.pass, audit.over_at, audit.confirmed) = (None, Some(now), None);
            audit.has_logged_drift = false;
            audit.lost &= !audit.mends;
            if audit.lost {
                // What it has found confirmed before the loss may be what was lost: the next pass decides.
                return;
            }
            audit.passes
        };
        for (incarnation, heir) in &mut lock(&self.shared.lease).heirs {
            match *heir {
                // Acted for since before the pass began, and all along: all of it was listed.
                Heir::Held { since, until } if since < pass && until > now => *heir = Heir::Done,
                Heir::Late { since, .. } if since < pass => *heir = Heir::Over,
                // Forgotten since before the pass began: its cells were dropped, and that is at rest.
                Heir::Lost { since } if since < pass => drop(lock(&self.inner.joined).remove(incarnation)),
                _ => {}
            }
        }
    }
}
