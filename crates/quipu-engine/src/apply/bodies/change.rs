//! Changes sketches and journals the changes.
//!
//! In: the work of a command. Out: a changed body; in the run's record the cell and the body's
//! edits.
//!
//! Invariants:
//! - a refused command leaves cells, bodies and record as they were;
//! - work that does not change the body writes no entry, and needs no memory.

use std::cell::Cell as Slot;

use quipu_model::{Cell, Dialect, Kind, KindAndDialect, Name, Refusal, Reply};
use quipu_sketch::{Edit, Edits, Sketch};

use crate::apply::Run;
use crate::apply::bodies::apply::{Wanted, known};
use crate::apply::bodies::bodies_bytes_max;
use crate::apply::bodies::room::HEADER_BYTES;
use crate::apply::bodies::time::{Told, When};
use crate::bodies::body_map::Body;
use crate::journal::format::{EDIT_OVERHEAD_BYTES_MAX, Entry, PackedEdit, trim_trailing_zeros};

/// Edits up to this size are kept for the next command.
const EDITS_BYTES_MAX: usize = 64 << 10;

/// A new sketch must fit one part in this many of all counters' memory. Existing ones may grow
/// beyond it, up to [`bodies_bytes_max`].
const BODIES_SHARE: u64 = 2;

thread_local! {
    static EDITS: Slot<Option<Edits>> = const { Slot::new(None) };
}

/// Empty edits in reused memory.
pub struct PooledEdits(pub Edits);

impl PooledEdits {
    pub fn take() -> PooledEdits {
        let mut edits = EDITS.take().unwrap_or_default();
        edits.clear();
        PooledEdits(edits)
    }
}

impl Drop for PooledEdits {
    fn drop(&mut self) {
        if self.0.memory() <= EDITS_BYTES_MAX {
            EDITS.set(Some(std::mem::take(&mut self.0)));
        }
    }
}

impl Run<'_, '_> {
    /// Changes a sketch, or creates it. `grows` bounds its growth in bytes. Returns the result of
    /// `work`, `None` if the event came too late; and whether the body changed. Refused work
    /// changes nothing. For a sketch over time, `work` runs on the pane and receives the weight of
    /// each event there.
    pub(super) fn change_sketch<T>(
        &mut self,
        name: Name<'_>,
        wanted: Wanted,
        when: When,
        grows: impl FnOnce(&Sketch, u64) -> u64,
        make: impl FnOnce() -> Result<Sketch, Refusal>,
        work: impl Fn(&mut Sketch, &mut Edits, u64) -> Result<T, Refusal>,
    ) -> Result<(Option<T>, bool), Refusal> {
        if self.picker.is_some() {
            // A shared store offers no windows, so the time has no effect and every weight is 1.
            let grows = |sketch: &Sketch| grows(sketch, 1);
            let done = self.change_shared(name, wanted, grows, make, |sketch, edits| work(sketch, edits, 1));
            return done.map(|(worked, changed)| (Some(worked), changed));
        }
        let before = self.cell_without_lanes(name);
        let hash = self.table.hash(name.bytes());
        let Some(cell) = before else {
            let mut sketch = self.over_time(name, wanted.kind, make()?)?;
            if let Sketch::Ring(ring) = &sketch {
                return self.change_ring((name, None), ring, when, grows, work);
            }
            let mut edits = PooledEdits::take();
            self.check_memory(sketch.memory() as u64 + grows(&sketch, 1))?;
            let initial = InitialBytes::from_sketch(&sketch);
            let worked = work(&mut sketch, &mut edits.0, 1)?;
            self.write_new(name, None, sketch, Some((initial, &edits.0)));
            return Ok((Some(worked), true));
        };
        let body = self
            .locks
            .shard(self.table.shard_of(hash))
            .body_mut(name.bytes())
            .ok_or(wanted.refusal(KindAndDialect::COUNT))?;
        let found = known(body.sketch());
        if !wanted.takes(found) {
            return Err(wanted.refusal(found));
        }
        if let Sketch::Ring(ring) = body.sketch() {
            let ring = ring.clone();
            return self.change_ring((name, Some(cell)), &ring, when, grows, work);
        }
        if self.memory.is_some() {
            let grows = grows(body.sketch(), 1);
            self.check_growth(grows)?;
        }
        let body = self
            .locks
            .shard(self.table.shard_of(hash))
            .body_mut(name.bytes())
            .ok_or(wanted.refusal(KindAndDialect::COUNT))?;
        let mut edits = PooledEdits::take();
        let length = body.bytes().len();
        let worked = work(body.sketch_mut(), &mut edits.0, 1)?;
        let changed = !edits.0.is_empty();
        if changed {
            body.record_edits(length, &edits.0);
            self.write_changed(name, cell, None, &edits.0);
        }
        Ok((Some(worked), changed))
    }

    /// Writes the result of a merge, into an existing sketch or a new one.
    pub(super) fn write_merged(
        &mut self,
        name: Name<'_>,
        before: Option<Cell>,
        merged: Sketch,
        edits: &Edits,
    ) -> Result<(), Refusal> {
        match before {
            Some(cell) if !edits.is_empty() => {
                let length = self.body(name).map_or(0, |body| body.bytes().len());
                self.check_growth(merged.bytes().len().saturating_sub(length) as u64)?;
                self.write_changed(name, cell, Some(merged), edits);
            }
            Some(_) => {}
            None => {
                self.check_memory(merged.memory() as u64)?;
                self.write_new(name, None, merged, None);
            }
        }
        Ok(())
    }

    /// Creates a sketch for an absent counter.
    pub(super) fn make_sketch(&mut self, name: Name<'_>, kind: Kind, sketch: Sketch) -> Result<Reply, Refusal> {
        if self.cell_without_lanes(name).is_some() {
            return Err(Refusal::SketchExists { kind });
        }
        if self.picker.is_some() {
            let wanted = Wanted { kind, dialect: Dialect::Native };
            return self.change_shared(name, wanted, |_| 0, || Ok(sketch), |_, _| Ok(())).map(|_| Reply::Ok);
        }
        let sketch = self.over_time(name, kind, sketch)?;
        self.check_memory(sketch.memory() as u64)?;
        let initial = InitialBytes::from_sketch(&sketch);
        self.write_new(name, None, sketch, Some((initial, &Edits::new())));
        Ok(Reply::Ok)
    }

    /// Checks that there is memory for a new sketch of this size.
    pub(super) fn check_memory(&self, bytes: u64) -> Result<(), Refusal> {
        let Some((table_bytes_max, bytes_max)) = self.memory else { return Ok(()) };
        let fits = self.table.bytes() + bytes <= table_bytes_max
            && self.table.bodies_bytes() + bytes <= table_bytes_max / BODIES_SHARE;
        if fits { Ok(()) } else { Err(Refusal::NoMemory { bytes_max }) }
    }

    /// Checks that there is memory for a sketch to grow by `bytes`; without growth the check always
    /// succeeds.
    pub(super) fn check_growth(&self, bytes: u64) -> Result<(), Refusal> {
        let Some((table_bytes_max, bytes_max)) = self.memory.filter(|_| bytes > 0) else { return Ok(()) };
        let fits = self.table.bodies_bytes() + bytes <= bodies_bytes_max(table_bytes_max);
        if fits { Ok(()) } else { Err(Refusal::NoMemory { bytes_max }) }
    }

    /// Writes a body changed by these edits. They are recorded already, unless `other` replaces the
    /// sketch.
    pub(super) fn write_changed(&mut self, name: Name<'_>, cell: Cell, other: Option<Sketch>, edits: &Edits) {
        let cell = Cell { value: cell.value + 1, ..cell };
        let (hash, before) = self.put(name, cell);
        let shard = self.locks.shard(self.table.shard_of(hash));
        let body = shard.body_mut(name.bytes()).expect("a cell of the same epoch keeps its body");
        if let Some(other) = other {
            let length = body.bytes().len();
            *body.sketch_mut() = other;
            body.record_edits(length, edits);
        }
        body.version = cell.value as u64;
        let unsure = !std::mem::replace(&mut body.journaled, before.is_some());
        if let Some(before) = before {
            let Cell { epoch, value, expires_at } = cell;
            let entry =
                Entry::Cell { name: name.bytes(), epoch, value, expires_at, count: 1, sum: 1, before, own: &[] };
            self.builder.push(self.now, &entry);
            // Edits larger than the resulting body are of no use.
            let whole =
                unsure || edits.is_whole() || edits_bytes_max(edits) > EDIT_OVERHEAD_BYTES_MAX + body.bytes().len();
            let change = (body.kind(), body.version, whole);
            let owner = (name.bytes(), 0);
            match whole {
                true => self.builder.push_sketch(self.now, owner, change, [whole_body_edit(body.bytes())].into_iter()),
                false => self.builder.push_sketch(self.now, owner, change, edits.iter().map(pack_edit)),
            }
        }
        shard.update_body_size(name.bytes());
        self.table.update_byte_totals(shard);
    }

    /// After a cell's entry: if the counter is a sketch and the journal lacks a part of its body,
    /// writes the whole body.
    pub(crate) fn write_unjournaled(&mut self, name: Name<'_>) {
        let hash = self.table.hash(name.bytes());
        if self.picker.is_some() {
            // The shown body of a shared counter is never journaled; `shared` journals this node's
            // own bodies.
            return;
        }
        let shard = self.locks.shard(self.table.shard_of(hash));
        if shard.body(name.bytes()).is_none_or(Body::is_journaled) {
            return;
        }
        let Some(body) = shard.body_mut(name.bytes()) else { return };
        Told { now: self.now, name: name.bytes(), draft: self.builder }.push_unjournaled(body);
    }

    /// Writes a new sketch, with this cell or the cell of a new counter; with its edits, if these
    /// are known.
    pub(super) fn write_new(
        &mut self,
        name: Name<'_>,
        cell: Option<Cell>,
        sketch: Sketch,
        way: Option<(InitialBytes, &Edits)>,
    ) {
        let cell = cell.unwrap_or_else(|| self.with_value(name, None, 1));
        let (hash, before) = self.put(name, cell);
        let Cell { epoch, value, expires_at } = cell;
        let mut body = Body::new(sketch, epoch, value as u64);
        body.journaled = before.is_some();
        if let Some(before) = before {
            let entry =
                Entry::Cell { name: name.bytes(), epoch, value, expires_at, count: 1, sum: 1, before, own: &[] };
            self.builder.push(self.now, &entry);
            let change = (body.kind(), body.version, true);
            // A large sketch after its first items is nearly all zeros.
            let shorter = |(initial, edits): &(InitialBytes, &Edits)| {
                let way = EDIT_OVERHEAD_BYTES_MAX + initial.bytes.len() + edits_bytes_max(edits);
                let all = body.bytes();
                // In a large body trailing zeros are not trimmed: that would read all of it.
                let all = if all.len() <= EDITS_BYTES_MAX { trim_trailing_zeros(all) } else { all };
                !edits.is_whole() && way < all.len()
            };
            match way.filter(shorter) {
                Some((initial, edits)) => {
                    let way = EditSequence { initial: Some(initial.edit()), edits: edits.iter() };
                    self.builder.push_sketch(self.now, (name.bytes(), 0), change, way);
                }
                None => {
                    let all = [whole_body_edit(body.bytes())].into_iter();
                    self.builder.push_sketch(self.now, (name.bytes(), 0), change, all);
                }
            }
        }
        let shard = self.locks.shard(self.table.shard_of(hash));
        shard.put_body(hash, name.bytes(), body);
        self.table.update_byte_totals(shard);
        self.remove_if_expired(name, cell);
    }
}

/// The bytes of a sketch before its first item.
pub struct InitialBytes {
    length: u32,
    /// Without trailing zeros.
    bytes: Vec<u8>,
}

impl InitialBytes {
    pub fn from_sketch(sketch: &Sketch) -> InitialBytes {
        InitialBytes::from_bytes(sketch.bytes())
    }

    pub fn from_bytes(bytes: &[u8]) -> InitialBytes {
        // All bytes after the header are zeros. A read of megabytes of untouched memory would map
        // it.
        let header = &bytes[..bytes.len().min(HEADER_BYTES)];
        InitialBytes { length: bytes.len() as u32, bytes: trim_trailing_zeros(header).to_vec() }
    }

    /// Most bytes of it in a record.
    pub fn len(&self) -> usize {
        EDIT_OVERHEAD_BYTES_MAX + self.bytes.len()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn edit(&self) -> PackedEdit<'_> {
        PackedEdit { at: 0, removed: 0, length: self.length, bytes: &self.bytes }
    }
}

/// The initial bytes, and the edits after them.
pub struct EditSequence<'b, I> {
    pub initial: Option<PackedEdit<'b>>,
    pub edits: I,
}

impl<'b, I: ExactSizeIterator<Item = Edit<'b>>> Iterator for EditSequence<'b, I> {
    type Item = PackedEdit<'b>;

    fn next(&mut self) -> Option<PackedEdit<'b>> {
        self.initial.take().or_else(|| self.edits.next().map(pack_edit))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let length = self.edits.len() + usize::from(self.initial.is_some());
        (length, Some(length))
    }
}

impl<'b, I: ExactSizeIterator<Item = Edit<'b>>> ExactSizeIterator for EditSequence<'b, I> {}

pub fn pack_edit(edit: Edit<'_>) -> PackedEdit<'_> {
    PackedEdit { at: edit.at, removed: edit.removed, length: edit.bytes.len() as u32, bytes: edit.bytes }
}

/// A whole body as a single edit.
pub fn whole_body_edit(bytes: &[u8]) -> PackedEdit<'_> {
    PackedEdit { at: 0, removed: 0, length: bytes.len() as u32, bytes }
}

/// Most bytes of these edits in a record.
pub fn edits_bytes_max(edits: &Edits) -> usize {
    edits.len() * EDIT_OVERHEAD_BYTES_MAX + edits.bytes_len()
}
