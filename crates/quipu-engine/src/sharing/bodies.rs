//! Bodies of sketches: this node's own go to the store, those of the others come back, and what is shown is all of them laid together.
//!
//! In: a counter's own bodies that changed; a row and the bodies beside it. Out: puts of changed pages; the own bodies under the epoch that the row has; the sketch that is shown.
//!
//! A body of uniques is the node's. Of other sketches each life has a body of its own, and what becomes of it is what becomes of any cell of that life: the newest that it said counts, whoever brings it; only the present life goes on with it; one
//! that is over is put by whoever may act for it, under its own name and seq, until it is known to be there.
//!
//! Invariants:
//! - what is put is synced first, as with cells, and under the cell that says how often the body has changed;
//! - an own body that the store kept less of when its epoch ended goes on with what was counted since, and is written down before it is put;
//! - what is shown is of one reading of the store, and of the own body of the same moment;
//! - where the store has a body of the node itself that this node never put, which is so after a loss here, and where somebody else runs on a copy of its directory, that one is gone on with, and all of the own body is taken in.
//!
//! Not here: how often the store is asked (`settle`, `fetch`), what a cell's verdict means (`quipu_model::shared`).

use std::cmp::Ordering;

use quipu_model::shared::body::{Body as Beside, Shape};
use quipu_model::shared::{
    BodyPut, BodyVerdict, CellId, NODE, Own, Seen, SeenBodies, Seq, Shard, Snapshot, Verdict, is_body_cell, node_cell,
};
use quipu_model::{Cell, Epoch, Incarnation, KeptName, NodeId, Refusal, StoreError, Writer};
use quipu_sketch::{Key, Kind, Sketch};

use super::own::OwnCell;
use super::settle::named;
use super::share::{Footing, Left, Share};
use super::{Busy, Sharing};
use crate::failpoint::step;
use crate::journal::Wait;
use crate::sketches::{Body, Rest, Settling, is_idempotent, key_print, take_in};
use crate::sync::Ordering as Sync;
use crate::turn::Turn;

/// A put that does not go on from what the store has is made anew so often at once.
const TRIES: usize = 3;

/// What the store has beside a row.
pub struct Foreign {
    /// The bodies of other nodes, laid together; refused if that cannot be.
    others: Result<Option<Sketch>, Refusal>,
    /// Those of this node and its lives; refused if one makes no sense to it.
    ours: Vec<(Writer, Result<Sketch, Refusal>)>,
}

/// What is to be shown of a counter.
#[derive(Debug)]
pub enum Shows {
    /// What is shown already.
    AsBefore,
    /// No sketch.
    NoSketch,
    /// This one.
    Sketch(Box<Sketch>),
}

impl Foreign {
    /// Beside a row without bodies.
    pub const NONE: Foreign = Foreign { others: Ok(None), ours: Vec::new() };

    /// Most bytes that this node's own body may come to by hearing of it.
    pub fn bytes_max(&self) -> usize {
        let own = self.ours.iter().filter(|(writer, _)| writer.incarnation == NODE);
        own.map(|(_, own)| own.as_ref().map_or(0, |own| own.bytes().len() * 4)).sum()
    }

    /// From what was read.
    pub fn of(seen: &SeenBodies, node: NodeId, key: &Key) -> Foreign {
        if seen.seen.snapshot.due(seen.seen.at) {
            return Foreign::NONE;
        }
        let (mut others, mut ours) = (Ok(None), Vec::new());
        for (writer, body) in &seen.bodies {
            match writer.node == node {
                true => ours.push((*writer, sketch(body, key))),
                false => others = others.and_then(|others| laid(others, sketch(body, key)?, key)),
            }
        }
        Foreign { others, ours }
    }

    fn own(&self, incarnation: Incarnation) -> Option<&Result<Sketch, Refusal>> {
        self.ours.iter().find(|(writer, _)| writer.incarnation == incarnation).map(|(_, own)| own)
    }
}

/// A sketch from the store.
pub(super) fn sketch(body: &Beside, key: &Key) -> Result<Sketch, Refusal> {
    let kind = Kind::from_code(body.shape.kind).ok_or(Refusal::WrongKind)?;
    if body.shape.key != key_print(key, kind) {
        return Err(Refusal::NotOffered {
            reason: "another node hashes what sketches count by another secret: give all nodes the same one",
        });
    }
    Sketch::from_bytes(kind, body.bytes.clone())
        .map_err(|_| Refusal::NotOffered { reason: "the store has a sketch of another node that makes no sense" })
}

pub(super) fn laid(into: Option<Sketch>, other: Sketch, key: &Key) -> Result<Option<Sketch>, Refusal> {
    match into {
        None => Ok(Some(other)),
        Some(mut into) => take_in(&mut into, &other, key).map(|()| Some(into)),
    }
}

impl Share<'_> {
    /// Looks at the own body with this number.
    pub(super) fn with_body<T>(&mut self, number: u16, work: impl FnOnce(&mut Self) -> T) -> T {
        (self.body, self.number) = (self.bodies.remove(&number), number);
        let worked = work(self);
        self.bodies.extend(self.body.take().map(|body| (number, body)));
        worked
    }

    /// A cell of a body is no longer there, and so is its body.
    pub(super) fn drop_body(&mut self, number: u16) {
        self.dropped.extend(self.bodies.remove_entry(&number));
        self.says_anew.remove(&number);
    }

    /// The cell of a life's body is no longer there; the present life goes on with all that is in it, or nobody does.
    pub(super) fn give_up_body(&mut self, number: u16, goes_on: bool) {
        self.moves.extend(self.bodies.get(&number).map(|body| body.sketch().clone()).filter(|_| goes_on));
        self.drop_body(number);
        self.take_over();
    }

    /// What lives have left that are over is gone on with by the present one; how many there were.
    pub(super) fn take_over(&mut self) -> u64 {
        let moves = std::mem::take(&mut self.moves);
        let moved = moves.len() as u64;
        for rest in moves {
            let Some((incarnation, shard)) = self.owned.observing(false, self.present) else { continue };
            let mut cell = *self.owned.open(incarnation, shard, None);
            self.with_body(cell.number(), |share| {
                let mut all = share.body.as_ref().map_or_else(|| rest.clone(), |body| body.sketch().clone());
                // What was made in another kind or size since then cannot have it.
                if share.body.is_none() || take_in(&mut all, &rest, share.key).is_ok() {
                    cell.say(Own { value: cell.own.value.saturating_add(1), said: true, ..cell.own });
                    let line = share.replace_body(&cell, Some(all), |settling, version| settling.took(version, rest));
                    cell.note_line(line);
                }
            });
            *self.owned.open(incarnation, shard, None) = cell;
        }
        moved
    }

    /// What a life has counted that is not in what was folded of it; none if nobody knows.
    fn after_fold(&self, cell: &OwnCell, row: &Snapshot) -> Option<Option<Sketch>> {
        let spent = row.spent.get(&cell.id(self.node))?;
        let Some(body) = self.body.as_ref().filter(|_| cell.own.said && spent.seq < cell.seq) else {
            return Some(None);
        };
        let folded = match spent.epoch.cmp(&cell.own.epoch) {
            Ordering::Equal => u64::try_from(spent.value).unwrap_or(0),
            // All of it was counted under an epoch that the store knew nothing of then.
            Ordering::Less => 0,
            Ordering::Greater => return None,
        };
        // An heir may have put a state from the middle of a stretch.
        let settling = body.known_settling().filter(|settling| settling.has_boundary(folded));
        match settling.map(|settling| settling.rest(folded, body.version)) {
            _ if folded >= body.version => Some(None),
            _ if folded == 0 => Some(Some(body.sketch().clone())),
            Some(Rest::Since(stretches)) => Some(self.together(stretches)),
            _ => None,
        }
    }

    /// What there is to put of an own body.
    fn body_put(&mut self, (incarnation, shard): (Incarnation, Shard)) -> Option<BodyPut> {
        let cell = *self.owned.cell(incarnation, shard).filter(|cell| !cell.settled)?;
        let (put, key) = (cell.put(self.node)?, self.key);
        let body = self.bodies.get_mut(&cell.number())?;
        let (seq, version) = (cell.seq, body.version);
        let merge = |into: &mut Sketch, other: &Sketch| take_in(into, other, key).is_ok();
        let sending = body.settling(|| Settling::of(&cell, version)).send(seq, version, merge);
        let kind = body.sketch().kind();
        let shape = Shape { kind: kind.code(), key: key_print(key, kind), length: body.bytes().len() as u32 };
        let pages = body.pages(Some(&sending.pages).filter(|_| !sending.whole));
        Some(BodyPut { put, from: sending.from, whole: sending.whole, shape, pages })
    }

    /// A verdict on a put of an own body; whether it is to be put anew at once.
    fn told_body(&mut self, put: &BodyPut, verdict: &BodyVerdict) -> (bool, Left) {
        let nothing = (false, Left::default());
        let CellId { writer, shard } = put.put.cell;
        let is_it = |cell: &OwnCell| cell.incarnation == writer.incarnation && cell.shard == shard;
        let Some(at) = self.owned.cells.iter().position(is_it) else { return nothing };
        let cell = &mut self.owned.cells[at];
        let body = self.bodies.get_mut(&cell.number());
        let Some(body) = body.filter(|_| cell.own.epoch == put.put.epoch) else { return nothing };
        let (newest, version) = (cell.seq == put.put.seq, body.version);
        let settling = body.settling(|| Settling::of(cell, version));
        let looks = match *verdict {
            BodyVerdict::Told(Verdict::Newest) => {
                settling.confirmed(put.put.seq, u64::try_from(put.put.value).unwrap_or(0));
                cell.confirmed = cell.confirmed.max(i128::from(put.put.seq.0));
                self.confirmed |= newest && !cell.settled;
                cell.settled |= newest;
                cell.doubted = false;
                false
            }
            BodyVerdict::Gap { held } if settling.gap(held) => return (true, Left::default()),
            BodyVerdict::Told(Verdict::Behind { .. }) => return (false, Left { swap: true, ..Left::default() }),
            // Overtaken by its own next one.
            BodyVerdict::Told(Verdict::Older) if !newest => false,
            // What became of it, the row and the bodies beside it tell. Also of one that the row knows under a later epoch: an heir that knows less may have brought it there.
            BodyVerdict::Gap { .. } | BodyVerdict::Told(_) => true,
        };
        if looks {
            self.owned.outdate();
        }
        (false, Left { fetch: looks, ..Left::default() })
    }

    /// The row has a body of this node itself, and this node has none: it has lost it, and is to hear of it.
    pub(super) fn find_body(&mut self, seen: &Seen) {
        if self.owned.node().is_none() && seen.snapshot.cells.contains_key(&node_cell(self.node)) {
            self.owned.open(NODE, Shard(0), None);
        }
    }

    /// What a row means for the body of a life; whether it stays.
    pub(super) fn hear_life(
        &mut self,
        cell: &mut OwnCell,
        seen: &Seen,
        heir: &dyn Fn(Incarnation) -> Footing,
    ) -> (bool, Left) {
        let (row, id, present) = (&seen.snapshot, cell.id(self.node), cell.incarnation == self.present);
        let nothing = Left::default();
        let after_fold = is_folded(row, id).then(|| self.after_fold(cell, row));
        if let Some(None) = &after_fold {
            // What was folded cannot be taken out again, and some of this is in it. So it is whoever may act for it, and nothing of it can be shown.
            return (true, Left { lost: Some(cell.incarnation), ..nothing });
        }
        if !present {
            match heir(cell.incarnation) {
                Footing::Acts => {}
                Footing::Waits | Footing::Theirs => return (true, nothing),
                Footing::Kept | Footing::Over if cell.settled => return (false, nothing),
                Footing::Kept | Footing::Over => return (true, Left { lost: Some(cell.incarnation), ..nothing }),
            }
        }
        let (held, newest) = (row.cells.get(&id).map(|held| held.seq), row.newest(id).unwrap_or_default());
        if newest > cell.seq {
            // The store knows more of it: it has a twin, or an heir that has.
            return (present, Left { twin: present, ..nothing });
        }
        if let Some(rest) = after_fold {
            if present {
                return (true, Left { over: true, ..nothing });
            }
            self.moves.extend(rest.flatten());
            return (false, nothing);
        }
        if row.due(seen.at) || row.epoch < cell.own.epoch {
            // It was confirmed once, and will be doubted if that was lost.
            return (true, Left { swap: present || !cell.settled, ..nothing });
        }
        if row.epoch > cell.own.epoch {
            let confirmed = newest == cell.seq;
            if !present && (confirmed || !cell.own.said) {
                return (false, nothing);
            }
            if !present && cell.settled {
                return (true, nothing);
            }
            let stays = self.carry_body(cell, row) || present;
            return (stays, Left { carried: 1, ..nothing });
        }
        // As with any cell: the present life's is put once more, an older one's may be about to be over.
        let settled = !present && cell.settled;
        self.settle_by(cell, held, settled);
        (true, nothing)
    }

    /// What a row, and the bodies beside it if they were read, mean for the body of the node itself.
    pub(super) fn hear_body(&mut self, cell: &mut OwnCell, seen: &Seen, foreign: Option<&Foreign>) -> Left {
        let (row, id) = (&seen.snapshot, node_cell(self.node));
        let (held, newest) = (row.cells.get(&id).map(|held| held.seq), row.newest(id).unwrap_or_default());
        if row.due(seen.at) || row.epoch < cell.own.epoch {
            self.say_above(cell, newest);
            return Left { swap: true, ..Left::default() };
        }
        let same_epoch = row.epoch == cell.own.epoch;
        if held.is_some_and(|held| !same_epoch || !self.has_put(cell, held)) {
            let Some(foreign) = foreign else { return Left { fetch: true, ..Left::default() } };
            let own = foreign.own(NODE).map(|own| own.as_ref().ok());
            let Some(own) = own.unwrap_or_default() else { return Left::default() };
            self.adopt(cell, row, own);
            return Left { carried: 1, ..Left::default() };
        }
        if !same_epoch {
            self.carry_body(cell, row);
            return Left { carried: 1, ..Left::default() };
        }
        self.say_above(cell, newest);
        self.settle_by(cell, held, false);
        Left::default()
    }

    /// Whether a cell is settled, by what the row has of it; it may be known to be all the same.
    fn settle_by(&mut self, cell: &mut OwnCell, held: Option<Seq>, is_known: bool) {
        let held = held.filter(|held| *held == cell.seq);
        if let (Some(held), Some(body)) = (held, &mut self.body) {
            let version = body.version;
            body.settling(|| Settling::of(cell, version)).confirmed(held, version);
            cell.confirmed = i128::from(held.0);
        }
        let settled = is_known || !cell.own.said || held.is_some();
        self.confirmed |= settled != cell.settled;
        cell.settled = settled;
        cell.doubted &= !settled;
    }

    /// Whether a put that the row has is in the own body. Who says nothing has put nothing: another who has the same directory has.
    fn has_put(&self, cell: &OwnCell, held: Seq) -> bool {
        let has = |body: &Body| match body.known_settling() {
            Some(settling) => settling.has(held),
            None => Settling::of(cell, body.version).has(held),
        };
        held <= cell.seq && cell.own.said && self.body.as_deref().is_some_and(has)
    }

    /// What is said has a greater seq than any that the row knows, of whatever epoch and by whomever.
    fn say_above(&mut self, cell: &mut OwnCell, newest: Seq) {
        if newest <= cell.seq {
            return;
        }
        match &mut self.body {
            Some(body) => {
                let version = body.version;
                let settling = body.settling(|| Settling::of(cell, version));
                cell.seq = settling.leap_over(cell.seq, newest, self.random);
                cell.say(cell.own);
                cell.note_line(settling.line());
            }
            None => cell.seq = newest,
        }
        self.changed = true;
    }

    /// The version up to which what was counted under the cell's epoch is over with it: what the store had of it when it ended, or has, if it is due to end; and what expired in this node's knowledge.
    fn over_at(&self, cell: &OwnCell, row: &Snapshot) -> u64 {
        let id = cell.id(self.node);
        let (kept, expired) = match (row.cells.get(&id), row.spent.get(&id)) {
            (Some(held), _) if row.epoch == cell.own.epoch => (Some((held.seq, held.value)), row.expires_at),
            (None, _) if row.epoch == cell.own.epoch => (None, row.expires_at),
            (_, Some(spent)) if spent.epoch == cell.own.epoch => (Some((spent.seq, spent.value)), spent.expired),
            // Somebody else was there since: what was kept of this epoch nobody knows any more.
            (_, Some(spent)) if spent.epoch > cell.own.epoch => (Some((Seq(u64::MAX), 0)), None),
            _ => (None, None),
        };
        let kept = match (kept, &self.body) {
            // A version of another's body is no version of this one: what is known to be in is.
            (Some((seq, _)), Some(body)) if !self.has_put(cell, seq) => {
                let surely = |settling: &Settling| settling.surely_in();
                let found = || Settling::of(cell, body.version).surely_in();
                body.known_settling().map_or_else(found, surely).unwrap_or(0)
            }
            (Some((_, value)), _) => u64::try_from(value).unwrap_or(0),
            (None, _) => 0,
        };
        let Some(expired) = expired else { return kept };
        let lapsed = self.body.as_ref().and_then(|body| body.known_settling()?.lapsed(expired));
        let knew = self.known_expiry == Some(expired);
        let all = u64::try_from(cell.own.value).unwrap_or(0);
        lapsed.or(knew.then_some(all)).map_or(kept, |over| over.max(kept))
    }

    /// What was counted in the own body after a version.
    fn rest(&self, after: u64) -> Option<Sketch> {
        let body = self.body.as_ref()?;
        let rest = match body.known_settling() {
            Some(settling) => settling.rest(after, body.version),
            None if after >= body.version => Rest::Nothing,
            None => Rest::All,
        };
        match rest {
            Rest::Nothing => None,
            Rest::All => Some(body.sketch().clone()),
            Rest::Since(stretches) => self.together(stretches),
        }
    }

    /// Stretches of the own body in one.
    fn together(&self, stretches: Vec<&Sketch>) -> Option<Sketch> {
        let body = self.body.as_ref()?;
        let mut stretches = stretches.into_iter();
        let mut rest = stretches.next()?.clone();
        // One by itself is no larger than the body that has them all.
        match stretches.try_for_each(|stretch| take_in(&mut rest, stretch, self.key)) {
            Ok(()) => Some(rest),
            Err(_) => Some(body.sketch().clone()),
        }
    }

    /// The epoch has ended: the own body goes on with what the store has not kept of it, under the next one; whether there is anything.
    fn carry_body(&mut self, cell: &mut OwnCell, row: &Snapshot) -> bool {
        let over = self.over_at(cell, row);
        // Who set it to a number wanted no sketch.
        let rest = self.rest(over).filter(|_| row.base.is_none());
        let value = match &rest {
            Some(_) => cell.own.value.saturating_sub(i128::from(over)).max(1),
            None => 0,
        };
        let own = Own { epoch: row.epoch, value, total: cell.own.total, said: rest.is_some(), ..Own::default() };
        if cell.incarnation == NODE || cell.incarnation == self.present {
            let newest = row.newest(cell.id(self.node)).unwrap_or_default();
            // Another who has the same directory may carry something else from the same state.
            cell.seq = match &mut self.body {
                Some(body) => {
                    let version = body.version;
                    body.settling(|| Settling::of(cell, version)).leap_over(cell.seq, newest, self.random)
                }
                None => cell.seq.max(newest),
            };
            cell.say(own);
        } else {
            // A life that is over gives no seq: another heir with the same one must not be outdone.
            (cell.own, cell.settled) = (own, !own.said);
        }
        let said = rest.is_some();
        let line = self.replace_body(cell, rest.clone(), |settling, version| settling.begin_epoch(version, rest));
        cell.note_line(line);
        said
    }

    /// The store has a body of the node itself that this node does not know: it goes on with that, and takes in all that it has itself, some of which may be there already.
    fn adopt(&mut self, cell: &mut OwnCell, row: &Snapshot, own: &Sketch) {
        let id = node_cell(self.node);
        let Some(held) = row.cells.get(&id).copied() else { return };
        let same_epoch = row.epoch == cell.own.epoch;
        let rest = if same_epoch { None } else { self.rest(self.over_at(cell, row)) };
        let whole = self.body.as_ref().map(|body| body.sketch()).filter(|_| same_epoch);
        let mut all = own.clone();
        let news = whole.or(rest.as_ref()).filter(|news| row.base.is_none() && is_idempotent(news)).cloned();
        // Of another kind: what the store has stays.
        let taken = news.as_ref().is_some_and(|news| take_in(&mut all, news, self.key).is_ok());
        let is_news = taken && all.bytes() != own.bytes();
        let value = held.value.max(0).saturating_add(i128::from(is_news));
        let total = cell.own.total.saturating_add(1);
        cell.seq = cell.seq.max(row.newest(id).unwrap_or_default());
        let (mut seq, random, held_value) = (cell.seq, self.random, u64::try_from(held.value).unwrap_or(0));
        let said = Own { epoch: row.epoch, value, total, said: true, ..Own::default() };
        let line = self.replace_body(&OwnCell { own: said, ..*cell }, Some(all), |settling, version| {
            settling.begin_epoch(version, news.filter(|_| is_news));
            settling.adopted(held.seq, held_value);
            if is_news {
                seq = settling.leap(seq, random);
            } else {
                settling.confirmed(held.seq, version);
            }
        });
        if is_news {
            cell.seq = seq;
            cell.say(said);
        } else {
            // It is what the store has.
            (cell.own, cell.seq, cell.settled, cell.doubted) = (said, held.seq, true, false);
        }
        cell.note_line(line);
    }

    /// Another own body, or none, in place of the one that is there; what is written down of whose puts are whose.
    fn replace_body(
        &mut self,
        cell: &OwnCell,
        sketch: Option<Sketch>,
        settle: impl FnOnce(&mut Settling, u64),
    ) -> (Seq, Seq) {
        self.changed = true;
        let Some(sketch) = sketch else {
            self.dropped.extend(self.body.take().map(|body| (self.number, body)));
            return (Seq(0), Seq(0));
        };
        let (epoch, version) = (cell.own.epoch, u64::try_from(cell.own.value).unwrap_or(0));
        let body = match &mut self.body {
            Some(body) => {
                body.become_other(sketch, epoch, version);
                body
            }
            None => self.body.insert(Box::new(Body::new(sketch, epoch, version))),
        };
        let settling = body.settling(|| Settling::begun(cell, version));
        settle(settling, version);
        self.says_anew.insert(self.number);
        settling.line()
    }

    /// What this node itself has to show of a sketch under a row, and which of the row's bodies that stands for. What is of an epoch that the row has left, or does not know, is shown by whoever goes on with it.
    fn own_parts(&mut self, seen: &Seen, row: &Snapshot, heir: &dyn Fn(Incarnation) -> Footing) -> OwnParts {
        let mut parts = OwnParts::default();
        let cells: Vec<OwnCell> = self.owned.bodies().filter(|cell| cell.own.said).copied().collect();
        for cell in cells {
            let (id, goes_on) = (cell.id(self.node), [NODE, self.present].contains(&cell.incarnation));
            if is_folded(row, id) {
                let rest = self.with_body(cell.number(), |share| share.after_fold(&cell, row));
                parts.sketches.extend(rest.flatten().map(|rest| (rest, row.epoch)));
                continue;
            }
            let outdone = !goes_on && row.newest(id).is_some_and(|newest| newest > cell.seq);
            let acts = goes_on || !outdone && heir(cell.incarnation) == Footing::Acts;
            let body = |share: &Self| share.bodies.get(&cell.number()).map(|body| body.sketch().clone());
            let (part, epoch) = match cell.own.epoch.cmp(&row.epoch) {
                Ordering::Equal if !outdone => {
                    parts.known.push(id);
                    (body(self), row.epoch)
                }
                Ordering::Greater if acts => (body(self), cell.own.epoch),
                // The row moves before it is known what of it goes on.
                Ordering::Less if acts && !row.is_sketch() => {
                    let rest = self.with_body(cell.number(), |share| share.rest(share.over_at(&cell, &seen.snapshot)));
                    (rest, row.epoch)
                }
                _ => (None, row.epoch),
            };
            parts.sketches.extend(part.map(|part| (part, epoch)));
        }
        parts
    }

    /// What is to be shown, now that the own bodies have heard of the row. What is shown of the counter's cell may have to go with it.
    pub(super) fn show_bodies(
        &mut self,
        seen: &Seen,
        foreign: Option<&Foreign>,
        heir: &dyn Fn(Incarnation) -> Footing,
    ) -> Left {
        let row = seen.snapshot.as_of(seen.at);
        self.owned.at_odds = false;
        if !row.is_sketch() && !self.owned.bodies().any(|cell| cell.own.said) {
            self.shows = Shows::NoSketch;
            return Left::default();
        }
        let OwnParts { sketches, known } = self.own_parts(seen, &row, heir);
        let epoch = sketches.iter().map(|(_, epoch)| *epoch).fold(row.epoch, Ord::max);
        let own = sketches.into_iter().filter(|(_, of)| *of == epoch).map(|(sketch, _)| sketch);
        let mixed = row.base.is_some() || row.cells.keys().any(|id| !is_body_cell(id));
        let unknown = row.cells.keys().any(|id| is_body_cell(id) && !known.contains(id));
        // A row that has yet to hear of an epoch has nothing to say of it.
        let is_behind = epoch > row.epoch;
        if !mixed && !is_behind && unknown && foreign.is_none() {
            // Only the row was read: what was shown of the same epoch goes on being shown, and anything else is asked for.
            self.owned.outdate();
            let same = self.has_shown_body && self.shown.is_some_and(|shown| shown.epoch == row.epoch);
            if !same {
                self.shown = None;
            }
            self.shows = if same { Shows::AsBefore } else { Shows::NoSketch };
            return Left { fetch: true, ..Left::default() };
        }
        let mut shown = if mixed { Err(Refusal::WrongKind) } else { Ok(None) };
        for foreign in foreign.into_iter().filter(|_| !is_behind) {
            let others = foreign.others.clone();
            shown = shown.and(others);
            let is_known = |writer: &Writer| known.iter().any(|id| id.writer == *writer);
            for (writer, body) in &foreign.ours {
                shown = match body {
                    Err(refusal) => Err(refusal.clone()),
                    Ok(_) if is_known(writer) => shown,
                    Ok(body) => shown.and_then(|shown| laid(shown, body.clone(), self.key)),
                };
            }
        }
        for own in own {
            shown = shown.and_then(|shown| laid(shown, own, self.key));
        }
        match shown {
            Ok(Some(sketch)) => {
                // What its cells come to, less what was kept of others, may look like nothing.
                self.shown.get_or_insert(Cell { epoch, value: 1, expires_at: None });
                self.shows = Shows::Sketch(Box::new(sketch));
            }
            Ok(None) => (self.shown, self.shows) = (None, Shows::NoSketch),
            Err(_) => (self.owned.at_odds, self.shows) = (true, Shows::NoSketch),
        }
        Left::default()
    }
}

/// Whether a life's body was laid into the one that is nobody's.
fn is_folded(row: &Snapshot, id: CellId) -> bool {
    !row.cells.contains_key(&id) && row.spent.get(&id).is_some_and(|spent| spent.closed)
}

/// What a node has to show of its own.
#[derive(Default)]
struct OwnParts {
    /// Sketches, and the epoch that each is of.
    sketches: Vec<(Sketch, Epoch)>,
    /// The cells of the row that they stand for.
    known: Vec<CellId>,
}

impl Sharing<'_> {
    /// Puts what changed in the own bodies of a counter, if something has; how many pages.
    pub(super) async fn settle_body(&self, name: &KeptName) -> Result<usize, StoreError> {
        let _busy = Busy::hold(self.inner, name);
        let now = self.elapsed();
        let mut turn = Turn::new(self.inner);
        let present = self.shared.present();
        let acts = |cell: &&OwnCell| cell.incarnation == present || self.shared.heir(cell.incarnation).acts(now);
        let due = turn.share(named(name), |share| {
            let unsettled = share.owned.bodies().filter(|cell| !cell.settled).filter(acts);
            unsettled.map(|cell| (cell.incarnation, cell.shard)).collect::<Vec<_>>()
        });
        turn.finish();
        let mut pages = 0;
        for which in due.unwrap_or_default() {
            pages += self.settle_one_body(name, which).await?;
        }
        Ok(pages)
    }

    async fn settle_one_body(&self, name: &KeptName, which: (Incarnation, Shard)) -> Result<usize, StoreError> {
        let mut pages = 0;
        for _ in 0..TRIES {
            let now = self.elapsed();
            let mut turn = Turn::new(self.inner);
            let put = turn.share(named(name), |share| share.body_put(which));
            turn.finish();
            let Ok(Some(put)) = put else { break };
            let end = self.inner.journal.reserved();
            if self.inner.committed(Wait { written: end, synced: end }).await.is_err()
                || !self.shared.may_put(self.elapsed())
                || !self.may_send(now)
            {
                break;
            }
            step!("settling a body");
            let verdict = self.shared.store.put_body(named(name), &put).await?;
            step!("put a body");
            let figures = &self.shared.figures;
            let bytes: usize = put.pages.iter().map(|(_, bytes)| bytes.len()).sum();
            figures.bodies.fetch_add(1, Sync::Relaxed);
            figures.pages.fetch_add(put.pages.len() as u64, Sync::Relaxed);
            figures.pages_bytes.fetch_add(bytes as u64, Sync::Relaxed);
            pages += put.pages.len().max(1);
            let mut turn = Turn::new(self.inner);
            let told = turn.share(named(name), |share| share.told_body(&put, &verdict));
            turn.finish();
            let Ok((again, left)) = told else { break };
            self.heed(name, left);
            if !again {
                break;
            }
        }
        Ok(pages)
    }
}
