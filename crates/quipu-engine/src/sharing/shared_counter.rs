//! One counter under its lock: what this node says of it, what it shows, and what a row or a verdict means for both.
//!
//! In: a row, or a verdict on a put. Out: own cells that carry, are settled or dropped; the value shown; what is left to do by a swap.
//!
//! Invariants:
//! - only the present life carries; a cell of an older one that is told anything but `Newest` is settled late, by a swap;
//! - what is shown comes from one row and the own cells of the same moment.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quipu_model::shared::{FetchedRow, NODE_INCARNATION, NextStep, OwnValue, Put, Shard, Verdict, read};
use quipu_model::{Cell, Incarnation, Millis, NodeId};
use quipu_sketch::{Key, Sketch};

use super::bodies::{RowBodies, ShownBody};
use super::lease::Succession;
use super::own::{OwnCell, OwnCells};
use crate::sketches::Body;

/// A counter under its lock.
pub struct SharedCounter<'s> {
    /// What this node says.
    pub own_cells: &'s mut OwnCells,
    /// What it shows.
    pub shown: Option<Cell>,
    /// What it says has changed, and is to be written down.
    pub changed: bool,
    /// What the store knows has changed; worth knowing after a restart, and not worth a record.
    pub confirmed: bool,
    /// Which node this is.
    pub node: NodeId,
    /// Its present life.
    pub incarnation: Incarnation,
    /// Of a sketch: what this node says of it, by number.
    pub bodies: BTreeMap<u16, Box<Body>>,
    /// The one of them that is looked at, taken out of these.
    pub body: Option<Box<Body>>,
    /// Its number.
    pub body_number: u16,
    /// What it no longer says.
    pub dropped_bodies: Vec<(u16, Box<Body>)>,
    /// What lives have left that are over, for the present one to go on with.
    pub inherited: Vec<Sketch>,
    /// Of these bodies it says something else, and all of it is to be written down.
    pub rewritten_bodies: BTreeSet<u16>,
    /// When the counter was to expire, as far as was known before.
    pub known_expiry: Option<Millis>,
    /// Whether a sketch is shown.
    pub shows_sketch: bool,
    /// What is to be shown.
    pub shown_body: ShownBody,
    /// A number by chance.
    pub random: u64,
    /// Under which sketches hash what they count.
    pub key: &'s Key,
}

/// What a row or verdict left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FollowUp {
    /// The row has to move, or an older life's cell has to be settled late: by a swap.
    pub swap: bool,
    /// The present life was retired.
    pub is_retired: bool,
    /// Only the bodies beside the row tell what to do.
    pub fetch: bool,
    /// Somebody else writes under this node's identity.
    pub has_duplicate: bool,
    /// An older life owes something that nobody can settle any more.
    pub forgotten: Option<Incarnation>,
    /// The row does not know a cell of this older life any more, which the store had confirmed.
    pub missing_in_row: Option<Incarnation>,
    /// How many cells went on under another epoch.
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
    /// A row was read, asked for and here at those times: own cells hear what it means for them, and the counter shows it. `authority` says how this
    /// node stands to its older lives; none of those that it may act for, or waits for, may have been forgotten by then. `None`: what is shown is newer.
    pub fn apply_row(
        &mut self,
        fetched: &FetchedRow,
        row_bodies: Option<&RowBodies>,
        (asked_at, landed_at): (Duration, Duration),
        authority: &dyn Fn(Incarnation) -> Authority,
    ) -> Option<FollowUp> {
        // What was asked for after another had landed is newer, also if the store has lost something in between. Of two that were under way at once
        // the version tells.
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
        // What was added under an epoch that has ended is for whoever goes on with that life to carry, or to let expire. With one that was
        // closed nobody goes on: what this node knows more of it is settled late, and counts.
        let (row, node) = (&fetched.snapshot, self.node);
        let counts = |cell: &OwnCell| {
            matches!(cell.own.on_row(cell.id(node), cell.seq, row, fetched.at), NextStep::Keep | NextStep::Retired)
        };
        // What somebody else, on a copy of its directory, has put as this node is none of its own.
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

    /// What a row means for one cell; whether it stays.
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
            // Known of the expiry, and nothing that the store would have to hear.
            (cell.own, self.changed) = (informed, true);
        }
        let mut next_step = cell.own.on_row(id, cell.seq, row, at);
        if let (NextStep::Continue(decided), Some(_)) = (next_step, cell.own.pending_expiry) {
            match present {
                true => cell.update(decided),
                // It says nothing new by that: another heir with the same seq must not be outdone.
                false => cell.own = decided,
            }
            self.changed = true;
            next_step = cell.own.on_row(id, cell.seq, row, at);
        }
        let confirmed = row.newest(id) == Some(cell.seq);
        match next_step {
            NextStep::Keep => {
                let settled = cell.own.pending_expiry.is_none() && (!cell.own.has_value || confirmed);
                // A row that was read before a put was confirmed says nothing against that. The present life's cell is then put once more; an older one's
                // may be about to be over.
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
            // The store knows more of an older life than this node does, and may lose that.
            NextStep::Superseded => {
                self.confirmed |= cell.mark_settled();
                (true, FollowUp::default())
            }
            // Or as much.
            NextStep::Continue(_) | NextStep::Retired if confirmed => {
                self.confirmed |= cell.mark_settled();
                (true, FollowUp::default())
            }
            // It was confirmed once, and will be doubted if that was lost.
            NextStep::Continue(_) | NextStep::Retired | NextStep::Move if cell.settled => (true, FollowUp::default()),
            NextStep::Continue(_) | NextStep::Retired | NextStep::Move => {
                (true, FollowUp { swap: true, ..FollowUp::default() })
            }
        }
    }

    /// A verdict on a put.
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
                // A life that is over, of which the store knows more than its heir does, and may lose that.
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

/// How this node stands to one of its older lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authority {
    /// It may act for it.
    Granted,
    /// Not yet.
    Pending,
    /// Someone else goes on with it: what it has added is theirs to show.
    Elsewhere,
    /// Nobody has to: the store has confirmed all of it. Kept, and not shown, in case the store loses it.
    Confirmed,
    /// Nobody can any more.
    Forgotten,
}

impl Authority {
    /// By what the registry has told.
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

/// A counter of the days before the store: all of it is this node's, under an epoch that every store knows. When it would have expired nobody
/// there has been told.
pub fn own_from_unshared(cell: Option<Cell>, present: Incarnation) -> OwnCells {
    let mut own_cells = OwnCells::default();
    if let Some(Cell { value, .. }) = cell {
        let own = own_cells.open_cell(present, Shard(0), None);
        let value = i128::from(value);
        own.update(OwnValue { value, total: value, has_value: true, ..OwnValue::default() });
    }
    own_cells
}
