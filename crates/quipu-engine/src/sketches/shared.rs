//! Changes of sketches that are shared: what is shown changes, and what this node says.
//!
//! In: the work of a command. Out: what the shown sketch says to it; in the run's record the cells, and what changed in this node's own body.
//!
//! The work is done three times: in what is shown, which the reply is of; in this node's own body, which the journal, the ledger and the store get; and in the stretch of what the store does not know (`settling`).
//! It is done there also if the shown sketch does not change: that another node has counted an item already may be of an epoch that is over.
//!
//! Which of this node's bodies that is depends on the sketch: the node's, if it may be taken in twice, else that of the present life.
//!
//! Invariant: an own cell has the epoch of its body, and counts its changes.

use quipu_model::{Cell, KindAndDialect, Name, Refusal};
use quipu_sketch::{Edits, Sketch};

use super::Body;
use super::apply::{Wanted, known};
use super::change::{Begin, Fresh, Way, all_of, edits_bytes, packed};
use super::note::own_pane;
use super::settling::Settling;
use super::together::{empty_like, is_alike, is_idempotent, take_in};
use crate::apply::Run;
use crate::journal::format::{EDIT_OVERHEAD_BYTES_MAX, Entry};
use crate::sharing::Shows;

/// Copies of a shared sketch in memory: the shown one, this node's own, and what the store does not know.
const COPIES: u64 = 3;

impl Run<'_, '_> {
    /// Changes a shared sketch, which is made if it does not exist; what the work says of what is shown, and whether that has changed.
    pub(super) fn change_shared<T>(
        &mut self,
        name: Name<'_>,
        wanted: Wanted,
        grows: impl FnOnce(&Sketch) -> u64,
        make: impl FnOnce() -> Result<Sketch, Refusal>,
        work: impl Fn(&mut Sketch, &mut Edits) -> Result<T, Refusal>,
    ) -> Result<(T, bool), Refusal> {
        let before = self.sole_cell(name);
        let hash = self.table.hash(name.bytes());
        let index = self.table.shard_of(hash);
        let present =
            self.picking.as_ref().map(|picking| picking.present()).ok_or(wanted.refusal(KindAndDialect::COUNT))?;
        let mut made = None;
        match before {
            None => {
                let sketch = make()?;
                self.check_memory((sketch.memory() as u64 + grows(&sketch)) * COPIES)?;
                made = Some(sketch);
            }
            Some(_) => {
                let shard = self.held.shard(index);
                let shown = shard.body(name.bytes()).ok_or(wanted.refusal(KindAndDialect::COUNT))?.sketch();
                if !wanted.takes(known(shown)) {
                    return Err(wanted.refusal(known(shown)));
                }
                let (grows, all) = (grows(shown), shown.memory() as u64);
                let copies = if shard.observing(hash, name.bytes(), shown, present).is_some() { 0 } else { COPIES - 1 };
                self.check_growth(grows * COPIES + all * copies)?;
            }
        }
        let shard = self.held.shard(index);
        let shown = match &mut made {
            Some(made) => &*made,
            None => shard.body(name.bytes()).ok_or(wanted.refusal(KindAndDialect::COUNT))?.sketch(),
        };
        // What this node said under an epoch that may be over, of which only the store can tell.
        if shard.own_shelves().of(name.bytes()).any(|(_, own)| !is_alike(own.sketch(), shown)) {
            return Err(Refusal::StoreDown);
        }
        let mut edits = Fresh::take();
        let worked = match &mut made {
            Some(made) => work(made, &mut edits.0)?,
            None => {
                let body = shard.body_mut(name.bytes()).ok_or(wanted.refusal(KindAndDialect::COUNT))?;
                let worked = work(body.sketch_mut(), &mut edits.0)?;
                shard.note_body(name.bytes());
                worked
            }
        };
        let changed = made.is_some() || !edits.0.is_empty();
        self.say(name, before, made, &work)?;
        Ok((worked, changed))
    }

    /// Does the work in this node's own body, and writes that down.
    fn say<T>(
        &mut self,
        name: Name<'_>,
        before: Option<Cell>,
        made: Option<Sketch>,
        work: &impl Fn(&mut Sketch, &mut Edits) -> Result<T, Refusal>,
    ) -> Result<(), Refusal> {
        let Some(picking) = &self.picking else { return Err(Refusal::WrongKind) };
        let hash = self.table.hash(name.bytes());
        let index = self.table.shard_of(hash);
        let shard = self.held.shard(index);
        let shown = made.as_ref().or(shard.body(name.bytes()).map(Body::sketch)).ok_or(Refusal::WrongKind)?;
        let is_idempotent = is_idempotent(shown);
        let mut fresh = match shard.observing(hash, name.bytes(), shown, picking.present()) {
            Some(_) => None,
            None => Some(empty_like(shown)?),
        };
        let (owned, _) = shard.take_own(hash, name.bytes());
        let mut owned = owned.unwrap_or_default();
        let Some(said) = picking.observing(&mut owned, is_idempotent) else {
            // So many lives have ended before they were settled that there is no place for another. What is shown is made anew with the next row.
            owned.outdate();
            shard.give_own(hash, name.bytes(), owned);
            return Err(Refusal::StoreDown);
        };
        let number = said.number();
        let mut body = shard.own_shelves_mut().take(name.bytes(), number);
        let begin = fresh.as_ref().map(Begin::of);
        let mut edits = Fresh::take();
        let (mut length, mut done) = (0, Ok(()));
        if let Some(fresh) = &mut fresh {
            done = work(fresh, &mut edits.0).map(drop);
        } else if let Some(own) = &mut body {
            length = own.bytes().len();
            done = work(own.sketch_mut(), &mut edits.0).map(drop);
        }
        if let Err(refusal) = done {
            // What is shown is ahead of what this node says: it is made anew with the next row.
            owned.outdate();
            if let Some(body) = body {
                shard.own_shelves_mut().give(name.bytes(), number, body);
            }
            shard.give_own(hash, name.bytes(), owned);
            return Err(refusal);
        }
        let is_new = fresh.is_some();
        let begun = |fresh| Box::new(Body::new(fresh, said.own.epoch, said.own.value as u64));
        let mut body = body.or(fresh.map(begun)).expect("the work was done in one of them");
        let version = body.version;
        let settling = body.settling(|| Settling::of(said, version));
        said.seq = settling.leap(said.seq, picking.random());
        said.say(said.own.added(1).unwrap_or(said.own));
        said.note_line(settling.line());
        if !is_new {
            body.note(length, &edits.0);
        }
        body.keep_apart(|stretch| work(stretch, &mut Edits::new()).is_ok());
        body.next_version();
        let own = owned.encode();
        shard.give_own(hash, name.bytes(), owned);
        let cell = match before {
            Some(cell) => Cell { value: cell.value.saturating_add(1), ..cell },
            None => self.with_value(name, None, 1),
        };
        let (_, journal) = self.put(name, cell);
        let Some(picking) = &self.picking else { return Err(Refusal::WrongKind) };
        let shard = self.held.shard(index);
        if let Some(made) = made {
            shard.put_body(hash, name.bytes(), Body::lent(made, cell.epoch));
        }
        let unsure = !std::mem::replace(&mut body.journaled, journal.is_some());
        if let Some(before) = journal {
            let Cell { epoch, value, expires_at } = cell;
            let entry =
                Entry::Cell { name: name.bytes(), epoch, value, expires_at, count: 1, sum: 1, before, own: &own };
            self.draft.push(self.now, &entry);
            let way = EDIT_OVERHEAD_BYTES_MAX + edits_bytes(&edits.0) + begin.as_ref().map_or(0, Begin::len);
            let all = unsure || edits.0.is_whole() || way > EDIT_OVERHEAD_BYTES_MAX + body.bytes().len();
            let place = (name.bytes(), own_pane(number));
            let change = (body.kind(), body.version, all || is_new);
            match begin.as_ref().filter(|_| !all) {
                _ if all => self.draft.push_sketch(self.now, place, change, [all_of(body.bytes())].into_iter()),
                Some(begin) => {
                    let way = Way { begin: Some(begin.edit()), edits: edits.0.iter() };
                    self.draft.push_sketch(self.now, place, change, way);
                }
                None => self.draft.push_sketch(self.now, place, change, edits.0.iter().map(packed)),
            }
        }
        shard.own_shelves_mut().give(name.bytes(), number, body);
        shard.note_unsettled(name.bytes(), || picking.due(name));
        self.table.note_bytes(shard);
        Ok(())
    }

    /// Of a shared sketch that exists something is shown: after a start, until its row was seen, what this node itself has said.
    pub(crate) fn show_own(&mut self, name: Name<'_>, cell: Cell) {
        let hash = self.table.hash(name.bytes());
        let shard = self.held.shard(self.table.shard_of(hash));
        if shard.own_shelves().is_empty() || shard.body(name.bytes()).is_some() {
            return;
        }
        let mut all: Option<Sketch> = None;
        for (_, own) in shard.own_shelves().of(name.bytes()) {
            match &mut all {
                None => all = Some(own.sketch().clone()),
                // Of another kind: the row tells.
                Some(all) => drop(take_in(all, own.sketch(), self.key)),
            }
        }
        let Some(all) = all else { return };
        shard.put_body(hash, name.bytes(), Body::lent(all, cell.epoch));
        self.table.note_bytes(shard);
    }

    /// Shows this of a shared counter whose cell was written or shown.
    pub(crate) fn show_body(&mut self, name: Name<'_>, shown: Option<Cell>, shows: Shows) {
        let hash = self.table.hash(name.bytes());
        let shard = self.held.shard(self.table.shard_of(hash));
        match (shows, shown) {
            (Shows::AsBefore, _) => return,
            (Shows::Sketch(sketch), Some(cell)) => shard.put_body(hash, name.bytes(), Body::lent(*sketch, cell.epoch)),
            (Shows::Sketch(_) | Shows::NoSketch, _) if shard.body(name.bytes()).is_none() => return,
            (Shows::Sketch(_) | Shows::NoSketch, _) => shard.drop_body(hash, name.bytes()),
        }
        self.table.note_bytes(shard);
    }

    /// Writes down what this node says of a sketch, all of the body with this number; its cell is written already.
    pub(crate) fn write_own_body(&mut self, name: Name<'_>, number: u16) {
        let hash = self.table.hash(name.bytes());
        let is_journaled = self.before(name, true).is_some();
        let shard = self.held.shard(self.table.shard_of(hash));
        let Some(body) = shard.own_shelves_mut().get_mut(name.bytes(), number) else { return };
        body.journaled = is_journaled;
        if is_journaled {
            let change = (body.kind(), body.version, true);
            let all = [all_of(body.bytes())].into_iter();
            self.draft.push_sketch(self.now, (name.bytes(), own_pane(number)), change, all);
        }
    }
}
