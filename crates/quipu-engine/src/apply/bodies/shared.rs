//! Changes shared sketches: the shown body, this node's own body, and its unsettled delta.
//!
//! In: the work of a command. Out: the shown sketch's result; in the run's record the cells, and
//! the edits of this node's own body.
//!
//! The work runs three times. It changes the shown body, which the reply comes from. It changes
//! this node's own body, which goes to the journal, the ledger and the store. And it changes the
//! delta that the store does not have yet (`unsettled_changes`). The own body changes even if the
//! shown one does not: another node's count of the same item may belong to an epoch that has ended.
//!
//! The kind of sketch decides the own body: the node's body if its merge is idempotent, else the
//! body of the present incarnation.
//!
//! Invariant: an own cell has the epoch of its body, and counts its changes.

use quipu_model::{Cell, KindAndDialect, Name, Refusal};
use quipu_sketch::{Edits, Sketch};

use crate::apply::Run;
use crate::apply::bodies::apply::{Wanted, known};
use crate::apply::bodies::change::{
    EditSequence, InitialBytes, PooledEdits, edits_bytes_max, pack_edit, whole_body_edit,
};
use crate::apply::shared_counter::ShownBody;
use crate::bodies::body_map::Body;
use crate::bodies::stored_page::own_pane;
use crate::bodies::together::{empty_like, is_alike, is_idempotent, take_in};
use crate::bodies::unsettled_changes::UnsettledChanges;
use crate::journal::format::{EDIT_OVERHEAD_BYTES_MAX, Entry};

/// Copies of a shared sketch in memory: the shown body, the own body, and the unsettled delta.
const COPIES: u64 = 3;

impl Run<'_, '_> {
    /// Changes a shared sketch, or creates it. Returns the work's result on the shown body, and
    /// whether that body changed.
    pub(super) fn change_shared<T>(
        &mut self,
        name: Name<'_>,
        wanted: Wanted,
        grows: impl FnOnce(&Sketch) -> u64,
        make: impl FnOnce() -> Result<Sketch, Refusal>,
        work: impl Fn(&mut Sketch, &mut Edits) -> Result<T, Refusal>,
    ) -> Result<(T, bool), Refusal> {
        let before = self.cell_without_lanes(name);
        let hash = self.table.hash(name.bytes());
        let index = self.table.shard_of(hash);
        let present =
            self.picker.as_ref().map(|picker| picker.incarnation()).ok_or(wanted.refusal(KindAndDialect::COUNT))?;
        let mut created = None;
        match before {
            None => {
                let sketch = make()?;
                self.check_memory((sketch.memory() as u64 + grows(&sketch)) * COPIES)?;
                created = Some(sketch);
            }
            Some(_) => {
                let shard = self.locks.shard(index);
                let shown = shard.body(name.bytes()).ok_or(wanted.refusal(KindAndDialect::COUNT))?.sketch();
                if !wanted.takes(known(shown)) {
                    return Err(wanted.refusal(known(shown)));
                }
                let (grows, all) = (grows(shown), shown.memory() as u64);
                let copies =
                    if shard.observed_body(hash, name.bytes(), shown, present).is_some() { 0 } else { COPIES - 1 };
                self.check_growth(grows * COPIES + all * copies)?;
            }
        }
        let shard = self.locks.shard(index);
        let shown = match &mut created {
            Some(created) => &*created,
            None => shard.body(name.bytes()).ok_or(wanted.refusal(KindAndDialect::COUNT))?.sketch(),
        };
        // Own bodies of an epoch that may have ended; only the store can tell.
        if shard.own_bodies().bodies_of(name.bytes()).any(|(_, own)| !is_alike(own.sketch(), shown)) {
            return Err(Refusal::StoreDown);
        }
        let mut edits = PooledEdits::take();
        let result = match &mut created {
            Some(created) => work(created, &mut edits.0)?,
            None => {
                let body = shard.body_mut(name.bytes()).ok_or(wanted.refusal(KindAndDialect::COUNT))?;
                let result = work(body.sketch_mut(), &mut edits.0)?;
                shard.update_body_size(name.bytes());
                result
            }
        };
        let changed = created.is_some() || !edits.0.is_empty();
        self.change_own_body(name, before, created, &work)?;
        Ok((result, changed))
    }

    /// Does the work in this node's own body, and journals it.
    fn change_own_body<T>(
        &mut self,
        name: Name<'_>,
        before: Option<Cell>,
        created: Option<Sketch>,
        work: &impl Fn(&mut Sketch, &mut Edits) -> Result<T, Refusal>,
    ) -> Result<(), Refusal> {
        let Some(picker) = &self.picker else { return Err(Refusal::WrongKind) };
        let hash = self.table.hash(name.bytes());
        let index = self.table.shard_of(hash);
        let shard = self.locks.shard(index);
        let shown = created.as_ref().or(shard.body(name.bytes()).map(Body::sketch)).ok_or(Refusal::WrongKind)?;
        let is_idempotent = is_idempotent(shown);
        let mut fresh = match shard.observed_body(hash, name.bytes(), shown, picker.incarnation()) {
            Some(_) => None,
            None => Some(empty_like(shown)?),
        };
        let (own_cells, _) = shard.take_own_cells(hash, name.bytes());
        let mut own_cells = own_cells.unwrap_or_default();
        let Some(own_cell) = picker.open_observed_cell(&mut own_cells, is_idempotent) else {
            // Too many ended incarnations are unsettled, so no cell is free for another. The next
            // row restores the shown body.
            own_cells.invalidate_row();
            shard.put_back_own_cells(hash, name.bytes(), own_cells);
            return Err(Refusal::StoreDown);
        };
        let number = own_cell.body_number();
        let mut body = shard.own_bodies_mut().take(name.bytes(), number);
        let initial = fresh.as_ref().map(InitialBytes::from_sketch);
        let mut edits = PooledEdits::take();
        let (mut length, mut done) = (0, Ok(()));
        if let Some(fresh) = &mut fresh {
            done = work(fresh, &mut edits.0).map(drop);
        } else if let Some(own) = &mut body {
            length = own.bytes().len();
            done = work(own.sketch_mut(), &mut edits.0).map(drop);
        }
        if let Err(refusal) = done {
            // The shown body is ahead of the own body; the next row restores it.
            own_cells.invalidate_row();
            if let Some(body) = body {
                shard.own_bodies_mut().put_back(name.bytes(), number, body);
            }
            shard.put_back_own_cells(hash, name.bytes(), own_cells);
            return Err(refusal);
        }
        let is_new = fresh.is_some();
        let new_body = |fresh| Box::new(Body::new(fresh, own_cell.own.epoch, own_cell.own.value as u64));
        let mut body = body.or(fresh.map(new_body)).expect("the work was done in one of them");
        let version = body.version;
        let changes = body.unsettled_mut(|| UnsettledChanges::from_cell(own_cell, version));
        own_cell.seq = changes.advance_seq(own_cell.seq, picker.random());
        own_cell.update(own_cell.own.added(1).unwrap_or(own_cell.own));
        own_cell.set_seq_range(changes.seq_range());
        if !is_new {
            body.record_edits(length, &edits.0);
        }
        body.record_unsettled(|delta| work(delta, &mut Edits::new()).is_ok());
        body.next_version();
        let own = own_cells.encode();
        shard.put_back_own_cells(hash, name.bytes(), own_cells);
        let cell = match before {
            Some(cell) => Cell { value: cell.value.saturating_add(1), ..cell },
            None => self.with_value(name, None, 1),
        };
        let (_, journal) = self.put(name, cell);
        let Some(picker) = &self.picker else { return Err(Refusal::WrongKind) };
        let shard = self.locks.shard(index);
        if let Some(created) = created {
            shard.put_body(hash, name.bytes(), Body::derived(created, cell.epoch));
        }
        let unsure = !std::mem::replace(&mut body.journaled, journal.is_some());
        if let Some(before) = journal {
            let Cell { epoch, value, expires_at } = cell;
            let entry =
                Entry::Cell { name: name.bytes(), epoch, value, expires_at, count: 1, sum: 1, before, own: &own };
            self.builder.push(self.now, &entry);
            let way =
                EDIT_OVERHEAD_BYTES_MAX + edits_bytes_max(&edits.0) + initial.as_ref().map_or(0, InitialBytes::len);
            let all = unsure || edits.0.is_whole() || way > EDIT_OVERHEAD_BYTES_MAX + body.bytes().len();
            let owner = (name.bytes(), own_pane(number));
            let change = (body.kind(), body.version, all || is_new);
            match initial.as_ref().filter(|_| !all) {
                _ if all => {
                    self.builder.push_sketch(self.now, owner, change, [whole_body_edit(body.bytes())].into_iter())
                }
                Some(initial) => {
                    let way = EditSequence { initial: Some(initial.edit()), edits: edits.0.iter() };
                    self.builder.push_sketch(self.now, owner, change, way);
                }
                None => self.builder.push_sketch(self.now, owner, change, edits.0.iter().map(pack_edit)),
            }
        }
        shard.own_bodies_mut().put_back(name.bytes(), number, body);
        shard.mark_unsettled(name.bytes(), || picker.due_at(name));
        self.table.update_byte_totals(shard);
        Ok(())
    }

    /// Shows the merge of this node's own bodies, after a start, until the first row arrives.
    pub(crate) fn show_own_bodies(&mut self, name: Name<'_>, cell: Cell) {
        let hash = self.table.hash(name.bytes());
        let shard = self.locks.shard(self.table.shard_of(hash));
        if shard.own_bodies().is_empty() || shard.body(name.bytes()).is_some() {
            return;
        }
        let mut all: Option<Sketch> = None;
        for (_, own) in shard.own_bodies().bodies_of(name.bytes()) {
            match &mut all {
                None => all = Some(own.sketch().clone()),
                // Of another kind: the row decides.
                Some(all) => drop(take_in(all, own.sketch(), self.key)),
            }
        }
        let Some(all) = all else { return };
        shard.put_body(hash, name.bytes(), Body::derived(all, cell.epoch));
        self.table.update_byte_totals(shard);
    }

    /// Shows a body for a shared counter after its cell was written or shown.
    pub(crate) fn show_body(&mut self, name: Name<'_>, shown: Option<Cell>, shows: ShownBody) {
        let hash = self.table.hash(name.bytes());
        let shard = self.locks.shard(self.table.shard_of(hash));
        match (shows, shown) {
            (ShownBody::Unchanged, _) => return,
            (ShownBody::Sketch(sketch), Some(cell)) => {
                shard.put_body(hash, name.bytes(), Body::derived(*sketch, cell.epoch))
            }
            (ShownBody::Sketch(_) | ShownBody::NoSketch, _) if shard.body(name.bytes()).is_none() => return,
            (ShownBody::Sketch(_) | ShownBody::NoSketch, _) => shard.drop_body(hash, name.bytes()),
        }
        self.table.update_byte_totals(shard);
    }

    /// Journals the whole own body with this number; its cell is in the record already.
    pub(crate) fn write_own_body(&mut self, name: Name<'_>, number: u16) {
        let hash = self.table.hash(name.bytes());
        let is_journaled = self.prior_existence(name, true).is_some();
        let shard = self.locks.shard(self.table.shard_of(hash));
        let Some(body) = shard.own_bodies_mut().get_mut(name.bytes(), number) else { return };
        body.journaled = is_journaled;
        if is_journaled {
            let change = (body.kind(), body.version, true);
            let all = [whole_body_edit(body.bytes())].into_iter();
            self.builder.push_sketch(self.now, (name.bytes(), own_pane(number)), change, all);
        }
    }
}
