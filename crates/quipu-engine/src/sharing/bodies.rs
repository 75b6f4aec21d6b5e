//! Bodies of sketches: this node's own goes to the store, those of the others come back, and what is shown is all of them laid together.
//!
//! In: a counter's own body that changed; a row and the bodies beside it. Out: puts of changed pages; the own body under the epoch that the row has; the sketch that is shown.
//!
//! Invariants:
//! - what is put is synced first, as with cells, and under the cell that says how often the body has changed;
//! - an own body that the store kept less of when its epoch ended goes on with what was counted since, and is written down before it is put;
//! - what is shown is of one reading of the store, and of the own body of the same moment;
//! - where the store has a body of this node that this node never put, which is so after a loss here, and where somebody else runs on a copy of its directory, that one is gone on with, and with all of its own that is not known to be in it.
//!
//! Not here: how often the store is asked (`settle`, `fetch`), what a cell's verdict means (`quipu_model::shared`).

use quipu_model::shared::body::{Body as Beside, Shape};
use quipu_model::shared::{
    BodyPut, BodyVerdict, NODE, Own, Seen, SeenBodies, Seq, Shard, Snapshot, Verdict, is_node_cell, node_cell,
};
use quipu_model::{Cell, KeptName, NodeId, Refusal, StoreError};
use quipu_sketch::{Key, Kind, Sketch};

use super::own::OwnCell;
use super::settle::named;
use super::share::{Left, Share};
use super::{Busy, Sharing};
use crate::failpoint::step;
use crate::journal::Wait;
use crate::sketches::{Body, Rest, Settling, is_idempotent, key_print, take_in};
use crate::sync::Ordering;
use crate::turn::Turn;

/// A put that does not go on from what the store has is made anew so often at once.
const TRIES: usize = 3;

/// What the store has beside a row.
pub struct Foreign {
    /// The bodies of other nodes, laid together; refused if that cannot be.
    others: Result<Option<Sketch>, Refusal>,
    /// This node's; refused if it makes no sense to it.
    own: Result<Option<Sketch>, Refusal>,
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
    pub const NONE: Foreign = Foreign { others: Ok(None), own: Ok(None) };

    /// Most bytes that this node's own body may come to by hearing of it.
    pub fn bytes_max(&self) -> usize {
        // A list of items may become longer by the numbers and the items of another.
        let own = self.own.as_ref().ok().and_then(|own| own.as_ref());
        own.map_or(0, |own| own.bytes().len() * 4)
    }

    /// From what was read.
    pub fn of(seen: &SeenBodies, node: NodeId, key: &Key) -> Foreign {
        if seen.seen.snapshot.due(seen.seen.at) {
            return Foreign::NONE;
        }
        let mut others: Result<Option<Sketch>, Refusal> = Ok(None);
        for (_, body) in seen.bodies.iter().filter(|(of, _)| **of != node) {
            others = others.and_then(|others| laid(others, sketch(body, key)?, key));
        }
        let own = seen.bodies.get(&node).map(|body| sketch(body, key)).transpose();
        Foreign { others, own }
    }
}

/// A sketch from the store.
fn sketch(body: &Beside, key: &Key) -> Result<Sketch, Refusal> {
    let kind = Kind::from_code(body.shape.kind).ok_or(Refusal::WrongKind)?;
    if body.shape.key != key_print(key, kind) {
        return Err(Refusal::NotOffered {
            reason: "another node hashes what sketches count by another secret: give all nodes the same one",
        });
    }
    Sketch::from_bytes(kind, body.bytes.clone())
        .map_err(|_| Refusal::NotOffered { reason: "the store has a sketch of another node that makes no sense" })
}

fn laid(into: Option<Sketch>, other: Sketch, key: &Key) -> Result<Option<Sketch>, Refusal> {
    match into {
        None => Ok(Some(other)),
        Some(mut into) => take_in(&mut into, &other, key).map(|()| Some(into)),
    }
}

impl Share<'_> {
    /// What there is to put of the own body.
    fn body_put(&mut self) -> Option<BodyPut> {
        let (node, key) = (self.node, self.key);
        let cell = self.owned.cells.iter().find(|cell| cell.incarnation == NODE && !cell.settled)?;
        let (put, body) = (cell.put(node)?, self.body.as_mut()?);
        let (seq, version) = (cell.seq, body.version);
        let merge = |into: &mut Sketch, other: &Sketch| take_in(into, other, key).is_ok();
        let sending = body.settling(|| Settling::of(cell, version)).send(seq, version, merge);
        let kind = body.sketch().kind();
        let shape = Shape { kind: kind.code(), key: key_print(key, kind), length: body.bytes().len() as u32 };
        let pages = body.pages(Some(&sending.pages).filter(|_| !sending.whole));
        Some(BodyPut { put, from: sending.from, whole: sending.whole, shape, pages })
    }

    /// A verdict on a put of the own body; whether it is to be put anew at once.
    fn told_body(&mut self, put: &BodyPut, verdict: &BodyVerdict) -> (bool, Left) {
        let nothing = (false, Left::default());
        let Some(cell) = self.owned.cells.iter_mut().find(|cell| cell.incarnation == NODE) else { return nothing };
        let Some(body) = self.body.as_mut().filter(|_| cell.own.epoch == put.put.epoch) else { return nothing };
        let (newest, version, is_idempotent) = (cell.seq == put.put.seq, body.version, is_idempotent(body.sketch()));
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
            BodyVerdict::Gap { held } if settling.gap(held, is_idempotent) => return (true, Left::default()),
            BodyVerdict::Told(Verdict::Behind { .. }) => return (false, Left { swap: true, ..Left::default() }),
            // Overtaken by its own next one.
            BodyVerdict::Told(Verdict::Older) if !newest => false,
            // What became of it, the row and the bodies beside it tell.
            BodyVerdict::Gap { .. } | BodyVerdict::Told(_) => true,
        };
        if looks {
            self.owned.outdate();
        }
        (false, Left { fetch: looks, ..Left::default() })
    }

    /// The row has a body of this node, and this node has none: it has lost it, and is to hear of it.
    pub(super) fn find_body(&mut self, seen: &Seen) {
        if self.owned.node().is_none() && seen.snapshot.cells.contains_key(&node_cell(self.node)) {
            self.owned.open(NODE, Shard(0), None);
        }
    }

    /// What a row, and the bodies beside it if they were read, mean for the own body.
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
            let Ok(own) = &foreign.own else { return Left::default() };
            self.adopt(cell, row, own.as_ref());
            return Left { carried: 1, ..Left::default() };
        }
        if !same_epoch {
            self.carry_body(cell, row);
            return Left { carried: 1, ..Left::default() };
        }
        self.say_above(cell, newest);
        let settled = !cell.own.said || held == Some(cell.seq);
        if let (true, Some(held), Some(body)) = (settled, held, &mut self.body) {
            let version = body.version;
            body.settling(|| Settling::of(cell, version)).confirmed(held, version);
            cell.confirmed = i128::from(held.0);
        }
        self.confirmed |= settled != cell.settled;
        cell.settled = settled;
        cell.doubted &= !settled;
        Left::default()
    }

    /// Whether a put that the row has is in the own body. Who says nothing has put nothing: another who has the same directory has.
    fn has_put(&self, cell: &OwnCell, held: Seq) -> bool {
        let has = |body: &Body| match body.known_settling() {
            Some(settling) => settling.has(held, is_idempotent(body.sketch())),
            None => Settling::of(cell, body.version).has(held, is_idempotent(body.sketch())),
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
                let (version, is_idempotent) = (body.version, is_idempotent(body.sketch()));
                let settling = body.settling(|| Settling::of(cell, version));
                cell.seq = settling.leap_over(cell.seq, newest, self.random);
                cell.say(cell.own);
                cell.note_line(settling.line(is_idempotent));
            }
            None => cell.seq = newest,
        }
        self.changed = true;
    }

    /// The version up to which what was counted under the cell's epoch is over with it: what the store had of it when it ended, or has, if it is due to end; and what expired in this node's knowledge.
    fn over_at(&self, cell: &OwnCell, row: &Snapshot) -> u64 {
        let id = node_cell(self.node);
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

    /// The epoch has ended: the own body goes on with what the store has not kept of it, under the next one.
    fn carry_body(&mut self, cell: &mut OwnCell, row: &Snapshot) {
        let over = self.over_at(cell, row);
        // Who set it to a number wanted no sketch.
        let rest = self.rest(over).filter(|_| row.base.is_none());
        let value = match &rest {
            Some(_) => cell.own.value.saturating_sub(i128::from(over)).max(1),
            None => 0,
        };
        let newest = row.newest(node_cell(self.node)).unwrap_or_default();
        // Another who has the same directory may carry something else from the same state.
        cell.seq = match &mut self.body {
            Some(body) => {
                let version = body.version;
                body.settling(|| Settling::of(cell, version)).leap_over(cell.seq, newest, self.random)
            }
            None => cell.seq.max(newest),
        };
        cell.say(Own { epoch: row.epoch, value, total: cell.own.total, said: rest.is_some(), ..Own::default() });
        let line = self.replace_body(rest.clone(), row.epoch, value as u64, |settling, version| {
            settling.begin_epoch(version, rest);
        });
        cell.note_line(line);
    }

    /// The store has a body of this node that this node does not know: it goes on with that, and with what it has counted itself and is not known to be in it.
    fn adopt(&mut self, cell: &mut OwnCell, row: &Snapshot, own: Option<&Sketch>) {
        let id = node_cell(self.node);
        let Some(held) = row.cells.get(&id).copied() else { return };
        let same_epoch = row.epoch == cell.own.epoch;
        let news = self.news(cell, row).filter(|_| row.base.is_none());
        let mut all = own.cloned();
        let mut is_news = false;
        // Of uniques all may be taken in, if some of it is there already: that is harmless.
        let whole = self.body.as_ref().map(|body| body.sketch()).filter(|body| same_epoch && is_idempotent(body));
        for sketch in whole.into_iter().chain(&news) {
            match &mut all {
                None => (all, is_news) = (Some(sketch.clone()), true),
                Some(all) => {
                    let before = Some(all.bytes().to_vec()).filter(|_| is_idempotent(all));
                    // Of another kind: what the store has stays.
                    let taken = take_in(all, sketch, self.key).is_ok();
                    is_news |= taken && before.is_none_or(|before| before != all.bytes());
                }
            }
        }
        let value = held.value.max(0).saturating_add(i128::from(is_news));
        let total = cell.own.total.saturating_add(1);
        cell.seq = cell.seq.max(row.newest(id).unwrap_or_default());
        let (mut seq, random, held_value) = (cell.seq, self.random, u64::try_from(held.value).unwrap_or(0));
        let line = self.replace_body(all, row.epoch, value as u64, |settling, version| {
            settling.begin_epoch(version, news.filter(|_| is_news));
            settling.adopted(held.seq, held_value);
            if is_news {
                seq = settling.leap(seq, random);
            } else {
                settling.confirmed(held.seq, version);
            }
        });
        let own = Own { epoch: row.epoch, value, total, said: self.body.is_some(), ..Own::default() };
        if is_news {
            cell.seq = seq;
            cell.say(own);
        } else {
            // It is what the store has.
            (cell.own, cell.seq, cell.settled, cell.doubted) = (own, held.seq, true, false);
        }
        cell.note_line(line);
    }

    /// What the own body has that is not known to be in what the store has of this node.
    fn news(&self, cell: &OwnCell, row: &Snapshot) -> Option<Sketch> {
        let body = self.body.as_ref()?;
        if row.epoch != cell.own.epoch {
            return self.rest(self.over_at(cell, row));
        }
        let found;
        let settling = match body.known_settling() {
            Some(settling) => settling,
            None => {
                found = Settling::of(cell, body.version);
                &found
            }
        };
        match settling.surely_in() {
            Some(_) => self.together(settling.unconfirmed()),
            None if is_idempotent(body.sketch()) => Some(body.sketch().clone()),
            // Counts that are in already must not be counted again, and nobody knows which of them are.
            None => self.together(settling.unconfirmed()),
        }
    }

    /// Another own body, or none, in place of the one that is there; what is written down of whose puts are whose.
    fn replace_body(
        &mut self,
        sketch: Option<Sketch>,
        epoch: quipu_model::Epoch,
        version: u64,
        settle: impl FnOnce(&mut Settling, u64),
    ) -> (Seq, Seq) {
        self.changed = true;
        let Some(sketch) = sketch else {
            self.dropped = self.body.take().or(self.dropped.take());
            return (Seq(0), Seq(0));
        };
        let is_idempotent = is_idempotent(&sketch);
        let body = match &mut self.body {
            Some(body) => {
                body.become_other(sketch, epoch, version);
                body
            }
            None => self.body.insert(Box::new(Body::new(sketch, epoch, version))),
        };
        let settling = body.settling(|| Settling::begun(version));
        settle(settling, version);
        self.says_anew = true;
        settling.line(is_idempotent)
    }

    /// What is to be shown, now that the own body has heard of the row. What is shown of the counter's cell may have to go with it.
    pub(super) fn show_bodies(&mut self, seen: &Seen, foreign: Option<&Foreign>) -> Left {
        let row = seen.snapshot.as_of(seen.at);
        let mine = self.owned.node().filter(|cell| cell.own.said).copied();
        self.owned.at_odds = false;
        if !row.is_sketch() && mine.is_none() {
            self.shows = Shows::NoSketch;
            return Left::default();
        }
        let mixed = row.base.is_some() || row.cells.keys().any(|id| !is_node_cell(id));
        let known = |node: NodeId| node == self.node && mine.is_some_and(|cell| cell.own.epoch == row.epoch);
        let unknown = row.cells.keys().any(|id| is_node_cell(id) && !known(id.writer.node));
        let shown = match (foreign, mine) {
            _ if mixed => Err(Refusal::WrongKind),
            // The row moves before it is known what of the own body goes on.
            (_, Some(cell)) if cell.own.epoch < row.epoch && !row.is_sketch() => {
                Ok(self.rest(self.over_at(&cell, &seen.snapshot)))
            }
            (_, Some(cell)) if cell.own.epoch > row.epoch => Ok(self.body.as_ref().map(|body| body.sketch().clone())),
            (None, _) if unknown => {
                // Only the row was read: what was shown of the same epoch goes on being shown, and anything else is asked for.
                self.owned.outdate();
                let same = self.has_shown_body && self.shown.is_some_and(|shown| shown.epoch == row.epoch);
                if !same {
                    self.shown = None;
                }
                self.shows = if same { Shows::AsBefore } else { Shows::NoSketch };
                return Left { fetch: true, ..Left::default() };
            }
            (foreign, mine) => {
                let own_there = foreign.map_or(Ok(()), |foreign| foreign.own.as_ref().map(drop).map_err(Clone::clone));
                let others = own_there.and(foreign.map_or(Ok(None), |foreign| foreign.others.clone()));
                let own = mine.and(self.body.as_ref()).map(|body| body.sketch().clone());
                others.and_then(|others| match own {
                    Some(own) => laid(others, own, self.key),
                    None => Ok(others),
                })
            }
        };
        match shown {
            Ok(Some(sketch)) => {
                // What its cell comes to, less what was kept of another's, may look like nothing.
                let epoch = mine.map_or(row.epoch, |cell| cell.own.epoch.max(row.epoch));
                self.shown.get_or_insert(Cell { epoch, value: 1, expires_at: None });
                self.shows = Shows::Sketch(Box::new(sketch));
            }
            Ok(None) => (self.shown, self.shows) = (None, Shows::NoSketch),
            Err(_) => (self.owned.at_odds, self.shows) = (true, Shows::NoSketch),
        }
        Left::default()
    }
}

impl Sharing<'_> {
    /// Puts what changed in the own body of a counter, if something has; how many pages.
    pub(super) async fn settle_body(&self, name: &KeptName) -> Result<usize, StoreError> {
        let _busy = Busy::hold(self.inner, name);
        let mut pages = 0;
        for _ in 0..TRIES {
            let now = self.elapsed();
            let mut turn = Turn::new(self.inner);
            let put = turn.share(named(name), |share| share.body_put());
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
            figures.bodies.fetch_add(1, Ordering::Relaxed);
            figures.pages.fetch_add(put.pages.len() as u64, Ordering::Relaxed);
            figures.pages_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
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
