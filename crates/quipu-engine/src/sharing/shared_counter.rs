//! Applies rows and verdicts to one counter under its lock: its own cells and its shown value.
//!
//! In: a row, or a verdict on a put. Out: own cells that carry, are settled or dropped; the shown
//! value; follow-ups that need a swap.
//!
//! Invariants:
//! - only the present incarnation carries; a cell of an older one with any verdict but `Newest` is
//!   settled late, by a swap;
//! - the shown value comes from one row and the own cells of the same moment.

use std::time::Duration;

use quipu_model::shared::{FetchedRow, NODE_INCARNATION, NextStep, OwnValue, Put, Verdict, read};
use quipu_model::{Cell, Incarnation};

use super::bodies::RowBodies;
use super::lease::Succession;
use crate::apply::shared_counter::SharedCounter;
use crate::bodies::own_cells::OwnCell;

/// Follow-up of a row or verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FollowUp {
    /// A swap must move the row, or settle an older incarnation's cell late.
    pub swap: bool,
    /// The present incarnation was retired.
    pub is_retired: bool,
    /// The bodies beside the row must be read.
    pub fetch: bool,
    /// Another process writes under this node's identity.
    pub has_duplicate: bool,
    /// An older incarnation owes something that cannot be settled any more.
    pub forgotten: Option<Incarnation>,
    /// The row lacks a confirmed cell of this older incarnation.
    pub missing_in_row: Option<Incarnation>,
    /// Number of cells carried into another epoch.
    pub carried: u64,
}

impl FollowUp {
    pub(super) fn merge(self, other: FollowUp) -> FollowUp {
        FollowUp {
            swap: self.swap || other.swap,
            is_retired: self.is_retired || other.is_retired,
            fetch: self.fetch || other.fetch,
            has_duplicate: self.has_duplicate || other.has_duplicate,
            forgotten: self.forgotten.or(other.forgotten),
            missing_in_row: self.missing_in_row.or(other.missing_in_row),
            carried: self.carried + other.carried,
        }
    }
}

impl SharedCounter<'_> {
    /// Applies a row to the own cells and shows it. The two times are those of its request and its
    /// arrival. `authority` gives this node's authority over its older incarnations. None that it
    /// may act for, or waits for, may have been forgotten by then. `None`: the shown row is newer.
    pub fn apply_row(
        &mut self,
        fetched: &FetchedRow,
        row_bodies: Option<&RowBodies>,
        (asked_at, landed_at): (Duration, Duration),
        authority: &dyn Fn(Incarnation) -> Authority,
    ) -> Option<FollowUp> {
        // A row requested after another had arrived is newer, even if the store has lost data in
        // between. For two rows in flight at once, the version decides.
        if asked_at <= self.own_cells.received_at && fetched.snapshot.version.is_before(&self.own_cells.row_version) {
            self.own_cells.requested_at = self.own_cells.requested_at.map(|at| at.max(asked_at));
            return None;
        }
        (self.own_cells.row_version, self.own_cells.received_at) = (fetched.snapshot.version, landed_at);
        self.recover_node_cell(fetched);
        let mut follow_up = FollowUp::default();
        let mut cells = std::mem::take(&mut self.own_cells.cells);
        cells.retain_mut(|cell| {
            let (stays, cell_follow_up) = match cell.is_body() {
                true => self.with_body(cell.body_number(), |counter| match cell.incarnation {
                    NODE_INCARNATION => (true, counter.apply_row_to_node_body(cell, fetched, row_bodies)),
                    _ => counter.apply_row_to_incarnation(cell, fetched, authority),
                }),
                false => self.apply_row_to_cell(cell, fetched, authority),
            };
            follow_up = follow_up.merge(cell_follow_up);
            self.changed |= !stays;
            if !stays && cell.is_body() {
                self.drop_body(cell.body_number());
            }
            stays
        });
        self.own_cells.cells = cells;
        self.own_cells.epoch = fetched.snapshot.as_of(fetched.at).epoch;
        (self.own_cells.requested_at, self.own_cells.serve_stale_until) = (Some(asked_at), None);
        follow_up.carried += self.merge_inherited();
        // Adds under an ended epoch are carried, or expire, by the node that continues the
        // incarnation. A closed incarnation has no such node. This node's further knowledge of it
        // is settled late, and counts.
        let (row, node) = (&fetched.snapshot, self.node);
        let counts = |cell: &OwnCell| {
            matches!(cell.own.on_row(cell.id(node), cell.seq, row, fetched.at), NextStep::Keep | NextStep::Retired)
        };
        // A put by another process, on a copy of the directory, is not this process's own.
        let is_unpublished = |cell: &OwnCell| cell.is_body() && !cell.own.has_value;
        let is_confirmed = |cell: &OwnCell| cell.settled && authority(cell.incarnation) == Authority::Confirmed;
        let ours = |cell: &OwnCell| {
            if cell.incarnation != self.incarnation && is_confirmed(cell) {
                return false;
            }
            let acts = cell.incarnation == self.incarnation
                || authority(cell.incarnation) != Authority::Elsewhere
                || counts(cell);
            acts && !is_unpublished(cell)
        };
        let total = read(fetched, fetched.at, &self.own_cells.list_cells(self.node, ours));
        self.own_cells.wide_sum = total.value().err().map(|wide| Box::new(wide.sum));
        follow_up.swap |= total.behind;
        let (epoch, value, expires_at) = (total.epoch, total.nearest(), total.expires_at);
        self.shown = total.exists.then_some(Cell { epoch, value, expires_at });
        Some(follow_up.merge(self.update_shown_body(fetched, row_bodies, authority)))
    }

    /// Applies a row to one cell; returns false first if the cell is to be dropped.
    fn apply_row_to_cell(
        &mut self,
        cell: &mut OwnCell,
        fetched: &FetchedRow,
        authority: &dyn Fn(Incarnation) -> Authority,
    ) -> (bool, FollowUp) {
        let (row, at, id) = (&fetched.snapshot, fetched.at, cell.id(self.node));
        let present = cell.incarnation == self.incarnation;
        if !present {
            match authority(cell.incarnation) {
                Authority::Granted => {}
                Authority::Pending | Authority::Elsewhere => return (true, FollowUp::default()),
                Authority::Confirmed if cell.settled => {
                    let is_lost = cell.own.has_value && row.newest(id).is_none_or(|newest| newest < cell.seq);
                    let row_lost = is_lost.then_some(cell.incarnation);
                    return (true, FollowUp { missing_in_row: row_lost, ..FollowUp::default() });
                }
                Authority::Forgotten if cell.settled => return (false, FollowUp::default()),
                Authority::Confirmed | Authority::Forgotten => {
                    return (true, FollowUp { forgotten: Some(cell.incarnation), ..FollowUp::default() });
                }
            }
        }
        let informed = cell.own.with_row_expiry(row);
        if informed != cell.own {
            // Information about the expiry, which the store need not get.
            (cell.own, self.changed) = (informed, true);
        }
        let mut next_step = cell.own.on_row(id, cell.seq, row, at);
        if let (NextStep::Continue(decided), Some(_)) = (next_step, cell.own.pending_expiry) {
            match present {
                true => cell.update(decided),
                // It adds nothing new by that: another successor with the same seq must not be
                // superseded.
                false => cell.own = decided,
            }
            self.changed = true;
            next_step = cell.own.on_row(id, cell.seq, row, at);
        }
        let confirmed = row.newest(id) == Some(cell.seq);
        match next_step {
            NextStep::Keep => {
                let settled = cell.own.pending_expiry.is_none() && (!cell.own.has_value || confirmed);
                // A row read before the confirmation of a put does not contradict it. The present
                // incarnation's cell is then put once more; an older one may be about to end.
                let settled = settled || !present && cell.settled;
                self.confirmed |= settled != cell.settled;
                cell.settled = settled;
                cell.doubted &= !settled;
                if confirmed {
                    cell.confirmed = cell.own.total;
                }
                (true, FollowUp::default())
            }
            NextStep::Continue(own) if present => {
                self.carry(cell, own);
                (true, FollowUp { carried: 1, ..FollowUp::default() })
            }
            NextStep::Retired if present => (true, FollowUp { is_retired: true, ..FollowUp::default() }),
            NextStep::Superseded if present => (true, FollowUp { has_duplicate: true, ..FollowUp::default() }),
            NextStep::Superseded | NextStep::Continue(_) | NextStep::Retired if !cell.own.has_value => {
                (false, FollowUp::default())
            }
            // The store knows more of an older incarnation than this node does, and may lose that.
            NextStep::Superseded => {
                self.confirmed |= cell.mark_settled();
                (true, FollowUp::default())
            }
            // Or as much.
            NextStep::Continue(_) | NextStep::Retired if confirmed => {
                self.confirmed |= cell.mark_settled();
                (true, FollowUp::default())
            }
            // It was confirmed once, and is doubted again if that was lost.
            NextStep::Continue(_) | NextStep::Retired | NextStep::Move if cell.settled => (true, FollowUp::default()),
            NextStep::Continue(_) | NextStep::Retired | NextStep::Move => {
                (true, FollowUp { swap: true, ..FollowUp::default() })
            }
        }
    }

    /// Applies a verdict on a put.
    pub fn on_verdict(
        &mut self,
        put: &Put,
        verdict: &Verdict,
        authority: &dyn Fn(Incarnation) -> Authority,
    ) -> FollowUp {
        let (incarnation, shard) = (put.cell.writer.incarnation, put.cell.shard);
        let present = incarnation == self.incarnation;
        let Some(at) = self.own_cells.cells.iter().position(|c| c.incarnation == incarnation && c.shard == shard)
        else {
            return FollowUp::default();
        };
        let mut cell = self.own_cells.cells[at];
        if !present && authority(incarnation) != Authority::Granted {
            return FollowUp::default();
        }
        let newest = put.seq == cell.seq;
        match (cell.own.on_verdict(put, verdict, cell.seq), verdict) {
            (_, Verdict::Newest) => {
                self.confirmed |= newest && !cell.settled;
                cell.settled |= newest;
                (cell.doubted, cell.confirmed) = (false, put.total);
            }
            (_, Verdict::Older) if newest && present => return FollowUp { has_duplicate: true, ..FollowUp::default() },
            (_, Verdict::Older) if newest => {
                // The store knows more of an ended incarnation than its successor does, and may
                // lose that.
                self.confirmed |= cell.mark_settled();
            }
            (NextStep::Continue(own), _) if present => {
                self.carry(&mut cell, own);
                self.own_cells.invalidate_row();
                self.own_cells.cells[at] = cell;
                return FollowUp { carried: 1, ..FollowUp::default() };
            }
            (NextStep::Retired, _) if present => return FollowUp { is_retired: true, ..FollowUp::default() },
            (NextStep::Continue(_) | NextStep::Retired | NextStep::Move, _) => {
                return FollowUp { swap: true, ..FollowUp::default() };
            }
            (NextStep::Keep | NextStep::Superseded, _) => {}
        }
        self.own_cells.cells[at] = cell;
        FollowUp::default()
    }

    fn carry(&mut self, cell: &mut OwnCell, own: OwnValue) {
        cell.update(own);
        self.changed = true;
    }
}

/// This node's authority over one of its older incarnations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authority {
    /// This node may act for it.
    Granted,
    /// Not yet decided.
    Pending,
    /// Another process continues it, and shows its adds.
    Elsewhere,
    /// No action is needed: the store has confirmed all of it. Kept, and not shown, in case the
    /// store loses it.
    Confirmed,
    /// The store has forgotten it: no node can act for it.
    Forgotten,
}

impl Authority {
    /// Derives the authority from the registry's state.
    pub fn from_succession(authority: Succession, now: Duration) -> Authority {
        match authority {
            _ if authority.may_act(now) => Authority::Granted,
            Succession::Finished => Authority::Confirmed,
            Succession::Forgotten { .. } => Authority::Forgotten,
            Succession::Elsewhere { alive: true, .. } => Authority::Elsewhere,
            _ => Authority::Pending,
        }
    }
}
