//! Settles bodies of sketches: puts this node's own, reads the others, and merges all for the shown
//! sketch.
//!
//! In: changed own bodies of a counter; a row with its bodies. Out: puts of changed pages; own
//! bodies under the row's epoch; the shown sketch.
//!
//! A body of uniques belongs to the node. For other sketches each incarnation has a body of its
//! own. It follows the rules of a cell: the newest state counts, regardless of the node that puts
//! it. Only the present incarnation changes its body. An authorised successor puts an ended
//! incarnation's body, under that incarnation's name and seq, until the store is known to have it.
//!
//! Invariants:
//! - a body is synced before its put, as with cells, under the cell that holds the body's version;
//! - at the end of an epoch, the part of an own body that the store did not keep is carried; it is
//!   journaled before its put;
//! - the shown sketch comes from one reading of the store, and from the own body of the same
//!   moment;
//! - the store may have a node body that this node never put, after a loss here or from a copy of
//!   its directory. Then the node continues from that body and merges all of its own into it.
//!
//! Not here: how often the store is read and written (`settle`, `fetch`), the meaning of a cell's
//! verdict (`quipu_model::shared`).

use std::cmp::Ordering;

use quipu_model::shared::body::{BodyShape, StoredBody as Beside};
use quipu_model::shared::{
    BodyPut, BodyVerdict, CellId, FetchedRow, NODE_INCARNATION, OwnValue, RowWithBodies, Seq, Shard, Snapshot, Verdict,
    is_body_cell, node_cell,
};
use quipu_model::{Cell, Epoch, Incarnation, NameBuf, NodeId, Refusal, StoreError, Writer};
use quipu_sketch::{Key, Sketch, SketchKind};

use super::settle::as_name;
use super::shared_counter::{Authority, FollowUp};
use super::{ResidencyPin, Sharing};
use crate::apply::bodies::{is_idempotent, key_print, take_in};
use crate::apply::shared_counter::{SharedCounter, ShownBody};
use crate::base::failpoint::step;
use crate::base::sync::Ordering as Sync;
use crate::bodies::body_map::Body;
use crate::bodies::own_cells::OwnCell;
use crate::bodies::unsettled_changes::{CarriedDelta, UnsettledChanges};
use crate::execute::turn::Turn;
use crate::journal::Wait;

/// Immediate retries of a put that does not continue from the store's state.
const PUT_TRIES: usize = 3;

/// The bodies beside a row in the store.
pub struct RowBodies {
    /// The bodies of other nodes, merged; refused if they cannot be merged.
    others: Result<Option<Sketch>, Refusal>,
    /// The bodies of this node and its incarnations; refused if one is invalid.
    ours: Vec<(Writer, Result<Sketch, Refusal>)>,
}

impl RowBodies {
    /// No bodies beside the row.
    pub const NONE: RowBodies = RowBodies { others: Ok(None), ours: Vec::new() };

    /// Most bytes that this node's own body may grow to by merging the store's.
    pub fn own_bytes_max(&self) -> usize {
        let own = self.ours.iter().filter(|(writer, _)| writer.incarnation == NODE_INCARNATION);
        own.map(|(_, own)| own.as_ref().map_or(0, |own| own.bytes().len() * 4)).sum()
    }

    /// Sorts and merges the bodies of a read.
    pub fn from_store(fetched: &RowWithBodies, node: NodeId, key: &Key) -> RowBodies {
        if fetched.row.snapshot.is_due(fetched.row.at) {
            return RowBodies::NONE;
        }
        let (mut others, mut ours) = (Ok(None), Vec::new());
        for (writer, body) in &fetched.bodies {
            match writer.node == node {
                true => ours.push((*writer, decode_sketch(body, key))),
                false => others = others.and_then(|others| merge_sketch(others, decode_sketch(body, key)?, key)),
            }
        }
        RowBodies { others, ours }
    }

    fn own_body(&self, incarnation: Incarnation) -> Option<&Result<Sketch, Refusal>> {
        self.ours.iter().find(|(writer, _)| writer.incarnation == incarnation).map(|(_, own)| own)
    }
}

/// Decodes a sketch from the store.
pub(super) fn decode_sketch(body: &Beside, key: &Key) -> Result<Sketch, Refusal> {
    let kind = SketchKind::from_code(body.shape.kind).ok_or(Refusal::WrongKind)?;
    if body.shape.key != key_print(key, kind) {
        return Err(Refusal::NotOffered {
            reason: "another node hashes what sketches count by another secret: give all nodes the same one",
        });
    }
    Sketch::from_bytes(kind, body.bytes.clone())
        .map_err(|_| Refusal::NotOffered { reason: "the store has a sketch of another node that makes no sense" })
}

pub(super) fn merge_sketch(into: Option<Sketch>, other: Sketch, key: &Key) -> Result<Option<Sketch>, Refusal> {
    match into {
        None => Ok(Some(other)),
        Some(mut into) => take_in(&mut into, &other, key).map(|()| Some(into)),
    }
}

/// The part of an incarnation's body that is not in its folded body.
#[expect(clippy::large_enum_variant, reason = "it is taken apart where it is returned")]
enum FoldRemainder {
    /// The part cannot be told from the folded one.
    Unknown,
    /// The folded body includes the whole body, or there is none.
    Nothing,
    /// This part.
    Part(Sketch),
}

impl FoldRemainder {
    fn into_part(self) -> Option<Sketch> {
        match self {
            FoldRemainder::Part(part) => Some(part),
            FoldRemainder::Nothing | FoldRemainder::Unknown => None,
        }
    }
}

impl SharedCounter<'_> {
    /// Takes out the own body with this number for the duration of `work`.
    pub(super) fn with_body<T>(&mut self, number: u16, work: impl FnOnce(&mut Self) -> T) -> T {
        (self.body, self.body_number) = (self.bodies.remove(&number), number);
        let result = work(self);
        self.bodies.extend(self.body.take().map(|body| (number, body)));
        result
    }

    /// Drops the body of a removed cell.
    pub(super) fn drop_body(&mut self, number: u16) {
        self.dropped_bodies.extend(self.bodies.remove_entry(&number));
        self.rewritten_bodies.remove(&number);
    }

    /// Drops the body of an incarnation's removed cell. With `goes_on`, the present incarnation
    /// takes over its content.
    pub(super) fn remove_body(&mut self, number: u16, goes_on: bool) {
        self.inherited.extend(self.bodies.get(&number).map(|body| body.sketch().clone()).filter(|_| goes_on));
        self.drop_body(number);
        self.merge_inherited();
    }

    /// Merges the bodies of ended incarnations into the present one's. Returns their number.
    pub(super) fn merge_inherited(&mut self) -> u64 {
        let inherited = std::mem::take(&mut self.inherited);
        let moved = inherited.len() as u64;
        for remainder in inherited {
            let Some((incarnation, shard)) = self.own_cells.observed_cell(false, self.incarnation) else { continue };
            let mut cell = *self.own_cells.open_cell(incarnation, shard, None);
            self.with_body(cell.body_number(), |counter| {
                let mut all = counter.body.as_ref().map_or_else(|| remainder.clone(), |body| body.sketch().clone());
                // A body recreated since then in another kind or size cannot take it.
                if counter.body.is_none() || take_in(&mut all, &remainder, counter.key).is_ok() {
                    cell.update(OwnValue { value: cell.own.value.saturating_add(1), has_value: true, ..cell.own });
                    let seq_range = counter
                        .replace_body(&cell, Some(all), |changes, version| changes.add_delta(version, remainder));
                    cell.set_seq_range(seq_range);
                }
            });
            *self.own_cells.open_cell(incarnation, shard, None) = cell;
        }
        moved
    }

    /// The part of an incarnation's body that is not in its folded body.
    fn delta_since_fold(&self, cell: &OwnCell, row: &Snapshot) -> FoldRemainder {
        let Some(spent) = row.spent.get(&cell.id(self.node)) else { return FoldRemainder::Unknown };
        let Some(body) = self.body.as_ref().filter(|_| cell.own.has_value && spent.seq < cell.seq) else {
            return FoldRemainder::Nothing;
        };
        let folded = match spent.epoch.cmp(&cell.own.epoch) {
            Ordering::Equal => u64::try_from(spent.value).unwrap_or(0),
            // The whole body was counted under an epoch that the store did not know then.
            Ordering::Less => 0,
            Ordering::Greater => return FoldRemainder::Unknown,
        };
        // A successor may have put a state from the middle of an unsettled delta.
        let changes = body.unsettled().filter(|changes| changes.has_boundary(folded));
        match changes.map(|changes| changes.delta_after(folded, body.version)) {
            _ if folded >= body.version => FoldRemainder::Nothing,
            _ if folded == 0 => FoldRemainder::Part(body.sketch().clone()),
            Some(CarriedDelta::Since(deltas)) => {
                self.merge_deltas(deltas).map_or(FoldRemainder::Nothing, FoldRemainder::Part)
            }
            _ => FoldRemainder::Unknown,
        }
    }

    /// Prepares the put of an own body.
    fn prepare_body_put(&mut self, (incarnation, shard): (Incarnation, Shard)) -> Option<BodyPut> {
        let cell = *self.own_cells.cell_mut(incarnation, shard).filter(|cell| !cell.settled)?;
        let (put, key) = (cell.pending_put(self.node)?, self.key);
        let body = self.bodies.get_mut(&cell.body_number())?;
        let (seq, version) = (cell.seq, body.version);
        let merge = |into: &mut Sketch, other: &Sketch| take_in(into, other, key).is_ok();
        let contents =
            body.unsettled_mut(|| UnsettledChanges::from_cell(&cell, version)).prepare_put(seq, version, merge);
        let kind = body.sketch().kind();
        let shape = BodyShape { kind: kind.code(), key: key_print(key, kind), length: body.bytes().len() as u32 };
        let pages = body.put_pages(Some(&contents.pages).filter(|_| !contents.whole));
        Some(BodyPut { put, from: contents.from, whole: contents.whole, shape, pages })
    }

    /// Applies a verdict on a put of an own body. Returns true first if the put is to be retried at
    /// once.
    fn on_body_verdict(&mut self, put: &BodyPut, verdict: &BodyVerdict) -> (bool, FollowUp) {
        let nothing = (false, FollowUp::default());
        let CellId { writer, shard } = put.put.cell;
        let is_it = |cell: &OwnCell| cell.incarnation == writer.incarnation && cell.shard == shard;
        let Some(at) = self.own_cells.cells.iter().position(is_it) else { return nothing };
        let cell = &mut self.own_cells.cells[at];
        let body = self.bodies.get_mut(&cell.body_number());
        let Some(body) = body.filter(|_| cell.own.epoch == put.put.epoch) else { return nothing };
        let (newest, version) = (cell.seq == put.put.seq, body.version);
        let changes = body.unsettled_mut(|| UnsettledChanges::from_cell(cell, version));
        let needs_fetch = match *verdict {
            BodyVerdict::Cell(Verdict::Newest) => {
                changes.confirm(put.put.seq, u64::try_from(put.put.value).unwrap_or(0));
                cell.confirmed = cell.confirmed.max(i128::from(put.put.seq.0));
                self.confirmed |= newest && !cell.settled;
                cell.settled |= newest;
                cell.doubted = false;
                false
            }
            BodyVerdict::Gap { held } if changes.resolve_gap(held) => return (true, FollowUp::default()),
            BodyVerdict::Cell(Verdict::Behind { .. }) => {
                return (false, FollowUp { swap: true, ..FollowUp::default() });
            }
            // Overtaken by the node's own next put.
            BodyVerdict::Cell(Verdict::Older) if !newest => false,
            // The row and its bodies show the outcome. That includes a body that the row has under
            // a later epoch: a successor with an older state may have brought it there.
            BodyVerdict::Gap { .. } | BodyVerdict::Cell(_) => true,
        };
        if needs_fetch {
            self.own_cells.invalidate_row();
        }
        (false, FollowUp { fetch: needs_fetch, ..FollowUp::default() })
    }

    /// Opens the cell of a node body that the row has and this node has lost.
    pub(super) fn recover_node_cell(&mut self, fetched: &FetchedRow) {
        if self.own_cells.node_cell().is_none() && fetched.snapshot.cells.contains_key(&node_cell(self.node)) {
            self.own_cells.open_cell(NODE_INCARNATION, Shard(0), None);
        }
    }

    /// Applies a row to the body of an incarnation. Returns false first if the cell is to be
    /// dropped.
    pub(super) fn apply_row_to_incarnation(
        &mut self,
        cell: &mut OwnCell,
        fetched: &FetchedRow,
        authority: &dyn Fn(Incarnation) -> Authority,
    ) -> (bool, FollowUp) {
        let (row, id, present) = (&fetched.snapshot, cell.id(self.node), cell.incarnation == self.incarnation);
        let nothing = FollowUp::default();
        let after_fold = is_folded(row, id).then(|| self.delta_since_fold(cell, row));
        if let Some(FoldRemainder::Unknown) = &after_fold {
            // A fold cannot be undone, and it includes some of this body. So it is, for every
            // authorised successor, and nothing of the body can be shown.
            return (true, FollowUp { forgotten: Some(cell.incarnation), ..nothing });
        }
        if !present {
            match authority(cell.incarnation) {
                Authority::Granted => {}
                Authority::Pending | Authority::Elsewhere => return (true, nothing),
                Authority::Confirmed | Authority::Forgotten if cell.settled => return (false, nothing),
                Authority::Confirmed | Authority::Forgotten => {
                    return (true, FollowUp { forgotten: Some(cell.incarnation), ..nothing });
                }
            }
        }
        let (held, newest) = (row.cells.get(&id).map(|held| held.seq), row.newest(id).unwrap_or_default());
        if newest > cell.seq {
            // The store knows a newer state: there is a duplicate instance, or a successor has put
            // it.
            return (present, FollowUp { has_duplicate: present, ..nothing });
        }
        if let Some(remainder) = after_fold {
            if present {
                return (true, FollowUp { is_retired: true, ..nothing });
            }
            self.inherited.extend(remainder.into_part());
            return (false, nothing);
        }
        if row.is_due(fetched.at) || row.epoch < cell.own.epoch {
            // It was confirmed once, and is doubted again if that was lost.
            return (true, FollowUp { swap: present || !cell.settled, ..nothing });
        }
        if row.epoch > cell.own.epoch {
            let confirmed = newest == cell.seq;
            if !present && (confirmed || !cell.own.has_value) {
                return (false, nothing);
            }
            if !present && cell.settled {
                return (true, nothing);
            }
            let stays = self.carry_body(cell, row) || present;
            return (stays, FollowUp { carried: 1, ..nothing });
        }
        // As with any cell: the present incarnation puts again, an older one may be about to end.
        let settled = !present && cell.settled;
        self.settle_by_row(cell, held, settled);
        (true, nothing)
    }

    /// Applies a row, and its bodies if they were read, to the body of the node itself.
    pub(super) fn apply_row_to_node_body(
        &mut self,
        cell: &mut OwnCell,
        fetched: &FetchedRow,
        row_bodies: Option<&RowBodies>,
    ) -> FollowUp {
        let (row, id) = (&fetched.snapshot, node_cell(self.node));
        let (held, newest) = (row.cells.get(&id).map(|held| held.seq), row.newest(id).unwrap_or_default());
        if row.is_due(fetched.at) || row.epoch < cell.own.epoch {
            self.raise_seq(cell, newest);
            return FollowUp { swap: true, ..FollowUp::default() };
        }
        let same_epoch = row.epoch == cell.own.epoch;
        if held.is_some_and(|held| !same_epoch || !self.contains_put(cell, held)) {
            let Some(row_bodies) = row_bodies else { return FollowUp { fetch: true, ..FollowUp::default() } };
            let own = row_bodies.own_body(NODE_INCARNATION).map(|own| own.as_ref().ok());
            let Some(own) = own.unwrap_or_default() else { return FollowUp::default() };
            self.adopt_stored_body(cell, row, own);
            return FollowUp { carried: 1, ..FollowUp::default() };
        }
        if !same_epoch {
            self.carry_body(cell, row);
            return FollowUp { carried: 1, ..FollowUp::default() };
        }
        self.raise_seq(cell, newest);
        self.settle_by_row(cell, held, false);
        FollowUp::default()
    }

    /// Marks a cell as settled if the row has its newest put. `is_known`: it is settled in any
    /// case.
    fn settle_by_row(&mut self, cell: &mut OwnCell, held: Option<Seq>, is_known: bool) {
        let held = held.filter(|held| *held == cell.seq);
        if let (Some(held), Some(body)) = (held, &mut self.body) {
            let version = body.version;
            body.unsettled_mut(|| UnsettledChanges::from_cell(cell, version)).confirm(held, version);
            cell.confirmed = i128::from(held.0);
        }
        let settled = is_known || !cell.own.has_value || held.is_some();
        self.confirmed |= settled != cell.settled;
        cell.settled = settled;
        cell.doubted &= !settled;
    }

    /// Returns true if the own body contains a put that the row has. A cell without a value has put
    /// nothing; then another process with the same directory has.
    fn contains_put(&self, cell: &OwnCell, held: Seq) -> bool {
        let has = |body: &Body| match body.unsettled() {
            Some(changes) => changes.contains(held),
            None => UnsettledChanges::from_cell(cell, body.version).contains(held),
        };
        held <= cell.seq && cell.own.has_value && self.body.as_deref().is_some_and(has)
    }

    /// Raises the cell's seq above any seq that the row knows, in any epoch and from any process.
    fn raise_seq(&mut self, cell: &mut OwnCell, newest: Seq) {
        if newest <= cell.seq {
            return;
        }
        match &mut self.body {
            Some(body) => {
                let version = body.version;
                let changes = body.unsettled_mut(|| UnsettledChanges::from_cell(cell, version));
                cell.seq = changes.advance_seq_over(cell.seq, newest, self.random);
                cell.update(cell.own);
                cell.set_seq_range(changes.seq_range());
            }
            None => cell.seq = newest,
        }
        self.changed = true;
    }

    /// The version up to which the body's content ended with the cell's epoch. That is the content
    /// that the store kept or has when the epoch ends, and the content expired to this node's
    /// knowledge.
    fn epoch_end_version(&self, cell: &OwnCell, row: &Snapshot) -> u64 {
        let id = cell.id(self.node);
        let (kept, expired) = match (row.cells.get(&id), row.spent.get(&id)) {
            (Some(held), _) if row.epoch == cell.own.epoch => (Some((held.seq, held.value)), row.expires_at),
            (None, _) if row.epoch == cell.own.epoch => (None, row.expires_at),
            (_, Some(spent)) if spent.epoch == cell.own.epoch => (Some((spent.seq, spent.value)), spent.expired),
            // Another process has written since: the part kept of this epoch is unknown.
            (_, Some(spent)) if spent.epoch > cell.own.epoch => (Some((Seq(u64::MAX), 0)), None),
            _ => (None, None),
        };
        let kept = match (kept, &self.body) {
            // A version of another process's body is no version of this one: only confirmed content
            // is known to be in.
            (Some((seq, _)), Some(body)) if !self.contains_put(cell, seq) => {
                let confirmed_version = |changes: &UnsettledChanges| changes.confirmed_version();
                let found = || UnsettledChanges::from_cell(cell, body.version).confirmed_version();
                body.unsettled().map_or_else(found, confirmed_version).unwrap_or(0)
            }
            (Some((_, value)), _) => u64::try_from(value).unwrap_or(0),
            (None, _) => 0,
        };
        let Some(expired) = expired else { return kept };
        let lapsed = self.body.as_ref().and_then(|body| body.unsettled()?.expired_version(expired));
        let knew = self.known_expiry == Some(expired);
        let all = u64::try_from(cell.own.value).unwrap_or(0);
        lapsed.or(knew.then_some(all)).map_or(kept, |end_version| end_version.max(kept))
    }

    /// Content counted in the own body after a version.
    fn delta_after(&self, after: u64) -> Option<Sketch> {
        let body = self.body.as_ref()?;
        let remainder = match body.unsettled() {
            Some(changes) => changes.delta_after(after, body.version),
            None if after >= body.version => CarriedDelta::Nothing,
            None => CarriedDelta::All,
        };
        match remainder {
            CarriedDelta::Nothing => None,
            CarriedDelta::All => Some(body.sketch().clone()),
            CarriedDelta::Since(deltas) => self.merge_deltas(deltas),
        }
    }

    /// Merges unsettled deltas of the own body.
    fn merge_deltas(&self, deltas: Vec<&Sketch>) -> Option<Sketch> {
        let body = self.body.as_ref()?;
        let mut deltas = deltas.into_iter();
        let mut remainder = deltas.next()?.clone();
        // A single delta is no larger than the whole body.
        match deltas.try_for_each(|delta| take_in(&mut remainder, delta, self.key)) {
            Ok(()) => Some(remainder),
            Err(_) => Some(body.sketch().clone()),
        }
    }

    /// Carries the own body into the next epoch: the content that the store has not kept. Returns
    /// true if there is any.
    fn carry_body(&mut self, cell: &mut OwnCell, row: &Snapshot) -> bool {
        let end_version = self.epoch_end_version(cell, row);
        // A change that set the counter to a number ended the sketch.
        let remainder = self.delta_after(end_version).filter(|_| row.base.is_none());
        let value = match &remainder {
            Some(_) => cell.own.value.saturating_sub(i128::from(end_version)).max(1),
            None => 0,
        };
        let own = OwnValue {
            epoch: row.epoch,
            value,
            total: cell.own.total,
            has_value: remainder.is_some(),
            ..OwnValue::default()
        };
        if cell.incarnation == NODE_INCARNATION || cell.incarnation == self.incarnation {
            let newest = row.newest(cell.id(self.node)).unwrap_or_default();
            // Another process with the same directory may carry something else from the same state.
            cell.seq = match &mut self.body {
                Some(body) => {
                    let version = body.version;
                    body.unsettled_mut(|| UnsettledChanges::from_cell(cell, version)).advance_seq_over(
                        cell.seq,
                        newest,
                        self.random,
                    )
                }
                None => cell.seq.max(newest),
            };
            cell.update(own);
        } else {
            // An ended incarnation gets no new seq: another successor with the same seq must not be
            // superseded.
            (cell.own, cell.settled) = (own, !own.has_value);
        }
        let published = remainder.is_some();
        let seq_range =
            self.replace_body(cell, remainder.clone(), |changes, version| changes.begin_epoch(version, remainder));
        cell.set_seq_range(seq_range);
        published
    }

    /// Adopts a node body in the store that this node does not know. The node continues from it and
    /// merges all of its own content; a part may be there already.
    fn adopt_stored_body(&mut self, cell: &mut OwnCell, row: &Snapshot, own: &Sketch) {
        let id = node_cell(self.node);
        let Some(held) = row.cells.get(&id).copied() else { return };
        let same_epoch = row.epoch == cell.own.epoch;
        let remainder = if same_epoch { None } else { self.delta_after(self.epoch_end_version(cell, row)) };
        let whole = self.body.as_ref().map(|body| body.sketch()).filter(|_| same_epoch);
        let mut all = own.clone();
        let news = whole.or(remainder.as_ref()).filter(|news| row.base.is_none() && is_idempotent(news)).cloned();
        // A body of another kind: the store's stays.
        let taken = news.as_ref().is_some_and(|news| take_in(&mut all, news, self.key).is_ok());
        let is_news = taken && all.bytes() != own.bytes();
        let value = held.value.max(0).saturating_add(i128::from(is_news));
        let total = cell.own.total.saturating_add(1);
        cell.seq = cell.seq.max(row.newest(id).unwrap_or_default());
        let (mut seq, random, held_value) = (cell.seq, self.random, u64::try_from(held.value).unwrap_or(0));
        let published = OwnValue { epoch: row.epoch, value, total, has_value: true, ..OwnValue::default() };
        let seq_range = self.replace_body(&OwnCell { own: published, ..*cell }, Some(all), |changes, version| {
            changes.begin_epoch(version, news.filter(|_| is_news));
            changes.adopt(held.seq, held_value);
            if is_news {
                seq = changes.advance_seq(seq, random);
            } else {
                changes.confirm(held.seq, version);
            }
        });
        if is_news {
            cell.seq = seq;
            cell.update(published);
        } else {
            // It equals the store's body.
            (cell.own, cell.seq, cell.settled, cell.doubted) = (published, held.seq, true, false);
        }
        cell.set_seq_range(seq_range);
    }

    /// Replaces or removes the own body; returns the seqs to journal with the cell.
    fn replace_body(
        &mut self,
        cell: &OwnCell,
        sketch: Option<Sketch>,
        settle: impl FnOnce(&mut UnsettledChanges, u64),
    ) -> (Seq, Seq) {
        self.changed = true;
        let Some(sketch) = sketch else {
            self.dropped_bodies.extend(self.body.take().map(|body| (self.body_number, body)));
            return (Seq(0), Seq(0));
        };
        let (epoch, version) = (cell.own.epoch, u64::try_from(cell.own.value).unwrap_or(0));
        let body = match &mut self.body {
            Some(body) => {
                body.replace(sketch, epoch, version);
                body
            }
            None => self.body.insert(Box::new(Body::new(sketch, epoch, version))),
        };
        let changes = body.unsettled_mut(|| UnsettledChanges::new(cell, version));
        settle(changes, version);
        self.rewritten_bodies.insert(self.body_number);
        changes.seq_range()
    }

    /// This node's part of a sketch under a row, and the row's cells that it covers. Content of an
    /// epoch that the row has left, or does not know, is shown by the node that continues it.
    fn own_parts(
        &mut self,
        fetched: &FetchedRow,
        row: &Snapshot,
        authority: &dyn Fn(Incarnation) -> Authority,
    ) -> OwnParts {
        let mut parts = OwnParts::default();
        let cells: Vec<OwnCell> = self.own_cells.body_cells().filter(|cell| cell.own.has_value).copied().collect();
        for cell in cells {
            let (id, goes_on) = (cell.id(self.node), [NODE_INCARNATION, self.incarnation].contains(&cell.incarnation));
            if is_folded(row, id) {
                let remainder = self.with_body(cell.body_number(), |counter| counter.delta_since_fold(&cell, row));
                parts.sketches.extend(remainder.into_part().map(|remainder| (remainder, row.epoch)));
                continue;
            }
            let is_superseded = !goes_on && row.newest(id).is_some_and(|newest| newest > cell.seq);
            let acts = goes_on || !is_superseded && authority(cell.incarnation) == Authority::Granted;
            let body = |counter: &Self| counter.bodies.get(&cell.body_number()).map(|body| body.sketch().clone());
            let (part, epoch) = match cell.own.epoch.cmp(&row.epoch) {
                Ordering::Equal if !is_superseded => {
                    parts.covered_cells.push(id);
                    (body(self), row.epoch)
                }
                Ordering::Greater if acts => (body(self), cell.own.epoch),
                // The row moves before the carried part is decided.
                Ordering::Less if acts && !row.is_sketch() => {
                    let remainder = self.with_body(cell.body_number(), |counter| {
                        counter.delta_after(counter.epoch_end_version(&cell, &fetched.snapshot))
                    });
                    (remainder, row.epoch)
                }
                _ => (None, row.epoch),
            };
            parts.sketches.extend(part.map(|part| (part, epoch)));
        }
        parts
    }

    /// Computes the sketch to show, after the row was applied to the own bodies. The counter's
    /// shown cell may change with it.
    pub(super) fn update_shown_body(
        &mut self,
        fetched: &FetchedRow,
        row_bodies: Option<&RowBodies>,
        authority: &dyn Fn(Incarnation) -> Authority,
    ) -> FollowUp {
        let row = fetched.snapshot.as_of(fetched.at);
        self.own_cells.has_body_conflict = false;
        if !row.is_sketch() && !self.own_cells.body_cells().any(|cell| cell.own.has_value) {
            self.shown_body = ShownBody::NoSketch;
            return FollowUp::default();
        }
        let OwnParts { sketches, covered_cells } = self.own_parts(fetched, &row, authority);
        let epoch = sketches.iter().map(|(_, epoch)| *epoch).fold(row.epoch, Ord::max);
        let own = sketches.into_iter().filter(|(_, of)| *of == epoch).map(|(sketch, _)| sketch);
        let mixed = row.base.is_some() || row.cells.keys().any(|id| !is_body_cell(id));
        let unknown = row.cells.keys().any(|id| is_body_cell(id) && !covered_cells.contains(id));
        // A row that does not know the epoch yet contributes nothing.
        let is_behind = epoch > row.epoch;
        if !mixed && !is_behind && unknown && row_bodies.is_none() {
            // Only the row was read. A sketch shown for the same epoch stays; anything else needs
            // the bodies.
            self.own_cells.invalidate_row();
            let same = self.shows_sketch && self.shown.is_some_and(|shown| shown.epoch == row.epoch);
            if !same {
                self.shown = None;
            }
            self.shown_body = if same { ShownBody::Unchanged } else { ShownBody::NoSketch };
            return FollowUp { fetch: true, ..FollowUp::default() };
        }
        let mut shown = if mixed { Err(Refusal::WrongKind) } else { Ok(None) };
        for row_bodies in row_bodies.into_iter().filter(|_| !is_behind) {
            let others = row_bodies.others.clone();
            shown = shown.and(others);
            let is_known = |writer: &Writer| covered_cells.iter().any(|id| id.writer == *writer);
            for (writer, body) in &row_bodies.ours {
                shown = match body {
                    Err(refusal) => Err(refusal.clone()),
                    Ok(_) if is_known(writer) => shown,
                    Ok(body) => shown.and_then(|shown| merge_sketch(shown, body.clone(), self.key)),
                };
            }
        }
        for own in own {
            shown = shown.and_then(|shown| merge_sketch(shown, own, self.key));
        }
        match shown {
            Ok(Some(sketch)) => {
                // The sum of its cells, less the kept values of others, may be zero.
                self.shown.get_or_insert(Cell { epoch, value: 1, expires_at: None });
                self.shown_body = ShownBody::Sketch(Box::new(sketch));
            }
            Ok(None) => (self.shown, self.shown_body) = (None, ShownBody::NoSketch),
            Err(_) => (self.own_cells.has_body_conflict, self.shown_body) = (true, ShownBody::NoSketch),
        }
        FollowUp::default()
    }
}

/// Returns true if an incarnation's body was merged into the folded body.
fn is_folded(row: &Snapshot, id: CellId) -> bool {
    !row.cells.contains_key(&id) && row.spent.get(&id).is_some_and(|spent| spent.closed)
}

/// This node's own part of a shown sketch.
#[derive(Default)]
struct OwnParts {
    /// The sketches, each with its epoch.
    sketches: Vec<(Sketch, Epoch)>,
    /// The cells of the row that they cover.
    covered_cells: Vec<CellId>,
}

impl Sharing<'_> {
    /// Puts the changes in a counter's own bodies, if there are any; returns the number of pages.
    pub(super) async fn settle_body(&self, name: &NameBuf) -> Result<usize, StoreError> {
        let _pin = ResidencyPin::acquire(self.core, name);
        let now = self.elapsed();
        let mut turn = Turn::new(self.core);
        let present = self.link.incarnation();
        let acts = |cell: &&OwnCell| cell.incarnation == present || self.link.succession(cell.incarnation).may_act(now);
        let due = turn.with_shared_counter(as_name(name), |counter| {
            let unsettled = counter.own_cells.body_cells().filter(|cell| !cell.settled).filter(acts);
            unsettled.map(|cell| (cell.incarnation, cell.shard)).collect::<Vec<_>>()
        });
        turn.finish();
        let mut pages = 0;
        for which in due.unwrap_or_default() {
            pages += self.settle_one_body(name, which).await?;
        }
        Ok(pages)
    }

    async fn settle_one_body(&self, name: &NameBuf, which: (Incarnation, Shard)) -> Result<usize, StoreError> {
        let mut pages = 0;
        for _ in 0..PUT_TRIES {
            let now = self.elapsed();
            let mut turn = Turn::new(self.core);
            let put = turn.with_shared_counter(as_name(name), |counter| counter.prepare_body_put(which));
            turn.finish();
            let Ok(Some(put)) = put else { break };
            let end = self.core.journal.reserved();
            if self.core.commit_until(Wait { written: end, synced: end }).await.is_err()
                || !self.link.may_put(self.elapsed())
                || !self.may_send(now)
            {
                break;
            }
            step!("settling a body");
            let verdict = self.link.store.put_body(as_name(name), &put).await?;
            step!("put a body");
            let metrics = &self.link.metrics;
            let bytes: usize = put.pages.iter().map(|(_, bytes)| bytes.len()).sum();
            metrics.bodies.fetch_add(1, Sync::Relaxed);
            metrics.pages.fetch_add(put.pages.len() as u64, Sync::Relaxed);
            metrics.pages_bytes.fetch_add(bytes as u64, Sync::Relaxed);
            pages += put.pages.len().max(1);
            let mut turn = Turn::new(self.core);
            let outcome = turn.with_shared_counter(as_name(name), |counter| counter.on_body_verdict(&put, &verdict));
            turn.finish();
            let Ok((again, follow_up)) = outcome else { break };
            self.follow_up(name, follow_up);
            if !again {
                break;
            }
        }
        Ok(pages)
    }
}
