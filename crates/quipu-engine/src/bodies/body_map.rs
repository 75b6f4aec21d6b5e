//! Holds the bodies of one shard's sketches, and the state of their pages.
//!
//! In: edits of a body. Out: the body; records of its unsealed pages.
//!
//! The body of a sketch over time is a ring. Beside it is one body per pane, numbered by the ring's
//! slot plus one; journal and ledger use the same numbers.
//!
//! All bodies are in memory. At a start they are raw bytes first: recovery replays the journal's
//! edits over the ledger's pages, and parses only the result.
//!
//! Invariants:
//! - a page that differs from the ledger is in `dirty` or `sealing`;
//! - a ring has exactly one body for each slot with a pane; each has the ring's epoch;
//! - `at_rest` has every page that the ledger may have, also of removed bodies, until a seal has
//!   deleted it;
//! - `bytes` is the total size of all bodies.

use std::collections::BTreeMap;

use quipu_model::{AuxRecord, Epoch, NameBuf};
use quipu_sketch::{Edits, Sketch, SketchKind};

use crate::bodies::page_set::PageSet;
use crate::bodies::stored_page::{
    BodyHead, NOTE_OVERHEAD_BYTES, PAGE_BYTES, PageOwner, SHOWN_PANE, StoredPage, own_pane, page_count, page_note,
    page_removal,
};
use crate::bodies::together::empty_like;
use crate::bodies::unsettled_changes::UnsettledChanges;
use crate::journal::format::PackedEdits;

/// Overhead of a body beside its sketch: its share of a tree that is two thirds full, and the
/// struct itself.
const BODY_BYTES: usize = size_of::<Body>() + 64;

/// Error for a sketch of a newer version of this program.
const UNKNOWN_KIND: &str = "a sketch of a kind that this program does not know";

/// The body of a sketch.
#[derive(Debug)]
pub struct Body {
    sketch: Sketch,
    /// Epoch of its cell.
    pub epoch: Epoch,
    /// Number of its changes in this epoch: the value of its cell.
    pub version: u64,
    /// Journal and ledger together have all of its changes. If not, the next record has the whole
    /// body.
    pub journaled: bool,
    dirty: PageSet,
    sealing: PageSet,
    at_rest: PageSet,
    /// Pages that the present seal deletes from the ledger.
    forgetting: PageSet,
    /// It is the shown body of a shared counter: merged from other bodies, and not journaled.
    is_derived: bool,
    /// For an own body on a shared store: its unsettled changes.
    unsettled: Option<Box<UnsettledChanges>>,
    /// Its size as included in the map's `bytes`.
    accounted_bytes: usize,
    /// For a ring: one body per pane.
    panes: BTreeMap<u32, Body>,
    /// For a ring: ledger pages of removed panes, and whether the present seal deletes them.
    removed_panes: BTreeMap<u32, (PageSet, bool)>,
}

impl Body {
    /// A new body, in neither journal nor ledger.
    pub fn new(sketch: Sketch, epoch: Epoch, version: u64) -> Body {
        let mut dirty = PageSet::default();
        dirty.insert_range(0..page_count(sketch.bytes().len()).max(1));
        Body {
            sketch,
            epoch,
            version,
            journaled: true,
            dirty,
            sealing: PageSet::default(),
            at_rest: PageSet::default(),
            forgetting: PageSet::default(),
            is_derived: false,
            unsettled: None,
            accounted_bytes: 0,
            panes: BTreeMap::new(),
            removed_panes: BTreeMap::new(),
        }
    }

    /// The shown body of a shared counter under this epoch.
    pub fn derived(sketch: Sketch, epoch: Epoch) -> Body {
        // As not journaled, so that an estimate of a change's room includes the whole body: the
        // record's own body may have to be created.
        Body { is_derived: true, journaled: false, dirty: PageSet::default(), ..Body::new(sketch, epoch, 0) }
    }

    /// Replaces sketch and epoch; neither journal nor ledger has the new state.
    pub fn replace(&mut self, sketch: Sketch, epoch: Epoch, version: u64) {
        let pages = page_count(self.bytes().len().max(sketch.bytes().len())).max(1);
        (self.sketch, self.epoch, self.version, self.journaled) = (sketch, epoch, version, false);
        self.dirty.insert_range(0..pages);
    }

    /// The unsettled changes; `found` provides them for a body loaded at the start.
    pub fn unsettled_mut(&mut self, found: impl FnOnce() -> UnsettledChanges) -> &mut UnsettledChanges {
        self.unsettled.get_or_insert_with(|| Box::new(found()))
    }

    /// Advances the version, even if no bytes have changed: page 0 contains the version.
    pub fn next_version(&mut self) {
        self.version += 1;
        self.dirty.insert(0);
    }

    /// Repeats a count in the unsettled delta, before the body gets its next version.
    pub fn record_unsettled(&mut self, count: impl FnOnce(&mut Sketch) -> bool) {
        let (sketch, version) = (&self.sketch, self.version);
        let Some(unsettled) = &mut self.unsettled else { return };
        let delta = unsettled.open_delta(version, || empty_like(sketch).ok());
        if !delta.is_some_and(count) {
            unsettled.lose_track(version + 1);
        }
    }

    /// The unsettled changes, if they are tracked.
    pub fn unsettled(&self) -> Option<&UnsettledChanges> {
        self.unsettled.as_deref()
    }

    /// The pages for a put: those in `which`, or all. Pages of zeros are empty.
    pub fn put_pages(&self, which: Option<&PageSet>) -> Vec<(u32, Box<[u8]>)> {
        let length = self.bytes().len();
        let page = |page: usize| {
            let from = page * PAGE_BYTES;
            let bytes = crate::journal::format::trim_trailing_zeros(&self.bytes()[from..length.min(from + PAGE_BYTES)]);
            (page as u32, Box::from(bytes))
        };
        let pages = page_count(length);
        match which {
            Some(which) => which.iter().filter(|page| *page < pages).map(page).collect(),
            None => (0..pages).map(page).filter(|(_, bytes)| !bytes.is_empty()).collect(),
        }
    }

    /// The pane in a slot of the ring.
    pub fn pane(&self, slot: u32) -> Option<&Body> {
        self.panes.get(&(slot + 1))
    }

    /// The same, mutable; the caller records its edits.
    pub fn pane_mut(&mut self, slot: u32) -> Option<&mut Body> {
        self.panes.get_mut(&(slot + 1))
    }

    /// All panes, by their number in journal and ledger.
    pub fn panes(&self) -> impl Iterator<Item = (u32, &Body)> {
        self.panes.iter().map(|(number, body)| (*number, body))
    }

    /// The same, mutable.
    pub fn panes_mut(&mut self) -> impl Iterator<Item = (u32, &mut Body)> {
        self.panes.iter_mut().map(|(number, body)| (*number, body))
    }

    /// Puts a pane into a slot and replaces the earlier one.
    pub fn put_pane(&mut self, slot: u32, body: Body) {
        self.insert_pane(slot + 1, body);
    }

    fn insert_pane(&mut self, number: u32, mut body: Body) {
        self.remove_pane(number);
        if let Some((pages, _)) = self.removed_panes.remove(&number) {
            body.at_rest = pages;
        }
        self.panes.insert(number, body);
    }

    /// Removes a pane that has left the window; the next seal deletes it from the ledger.
    pub fn drop_pane(&mut self, slot: u32) {
        self.remove_pane(slot + 1);
    }

    fn remove_pane(&mut self, number: u32) {
        if let Some(body) = self.panes.remove(&number)
            && !body.at_rest.is_empty()
        {
            self.removed_panes.insert(number, (body.at_rest, false));
        }
    }

    /// Returns true if journal and ledger together have the whole body, panes included.
    pub fn is_journaled(&self) -> bool {
        self.journaled && self.panes.values().all(|pane| pane.journaled)
    }

    /// Sizes of the bodies and panes that are not fully journaled.
    pub fn unjournaled_bytes(&self) -> impl Iterator<Item = usize> + '_ {
        std::iter::once(self).chain(self.panes.values()).filter(|body| !body.journaled).map(|body| body.bytes().len())
    }

    /// The sketch.
    pub fn sketch(&self) -> &Sketch {
        &self.sketch
    }

    /// The sketch, mutable; the caller records its edits.
    pub fn sketch_mut(&mut self) -> &mut Sketch {
        &mut self.sketch
    }

    /// The body's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.sketch.bytes()
    }

    /// Most bytes of a part of it after a merge of panes.
    pub fn bytes_after_a_carry(&self) -> usize {
        // In a list, an item missing in one pane counts with that pane's limit, so numbers may
        // become wider than in this body.
        let wider = matches!(self.sketch, Sketch::TopK(_) | Sketch::Top(_));
        self.bytes().len() * if wider { 2 } else { 1 }
    }

    /// Code of its kind.
    pub fn kind(&self) -> u8 {
        self.sketch.kind().code()
    }

    /// Marks the header in page 0 as changed.
    pub fn mark_head_changed(&mut self) {
        self.dirty.insert(0);
    }

    /// Marks the pages of non-empty edits as changed; `length`: the body's length before them.
    pub fn record_edits(&mut self, length: usize, edits: &Edits) {
        if edits.is_whole() {
            self.mark_pages_changed(0..page_count(length.max(self.bytes().len())).max(1));
            return;
        }
        let mut length = length;
        for edit in edits.iter() {
            length = self.record_edit(length, edit.at as usize, edit.removed as usize, edit.bytes.len());
        }
        debug_assert_eq!(length, self.bytes().len(), "edits lead from the old bytes to the new ones");
    }

    /// Marks the pages of one edit; returns the body's length after it.
    fn record_edit(&mut self, length: usize, at: usize, removed: usize, inserted: usize) -> usize {
        let after = length - removed.min(length) + inserted;
        // Bytes after a splice have moved.
        let end = if removed == inserted { at + inserted } else { length.max(after) };
        self.mark_pages_changed(at / PAGE_BYTES..page_count(end).max(at / PAGE_BYTES + 1));
        after
    }

    fn mark_pages_changed(&mut self, pages: std::ops::Range<usize>) {
        if let Some(unsettled) = &mut self.unsettled {
            unsettled.mark_changed(pages.clone());
        }
        if !self.is_derived {
            self.dirty.insert_range(pages);
        }
    }

    fn memory(&self) -> usize {
        let pages = [&self.dirty, &self.sealing, &self.at_rest, &self.forgetting];
        let unsettled = self.unsettled.as_ref().map_or(0, |unsettled| unsettled.memory());
        let panes: usize = self.panes.values().map(Body::memory).sum();
        let removed: usize = self.removed_panes.values().map(|(pages, _)| 64 + pages.memory()).sum();
        BODY_BYTES
            + self.sketch.memory()
            + pages.into_iter().map(PageSet::memory).sum::<usize>()
            + unsettled
            + panes
            + removed
    }

    /// Number of unsealed pages.
    fn unsealed_page_count(&self) -> usize {
        let mut pages = self.dirty.clone();
        pages.insert_set(&self.sealing);
        pages.len() + self.panes.values().map(Body::unsealed_page_count).sum::<usize>()
    }

    /// Collects the unsealed pages; `base_pane`: the map's pane number.
    fn collect_pages(&mut self, hash: u64, name: &[u8], base_pane: u32, out: &mut Vec<AuxRecord>) {
        self.collect_own_pages((hash, name, base_pane), out);
        for (number, pane) in &mut self.panes {
            pane.collect_own_pages((hash, name, *number), out);
        }
        for (number, (pages, is_collected)) in &mut self.removed_panes {
            out.extend(pages.iter().map(|page| page_removal((hash, name, *number), page)));
            *is_collected = true;
        }
    }

    fn collect_own_pages(&mut self, owner: PageOwner<'_>, out: &mut Vec<AuxRecord>) {
        self.sealing.insert_set(&self.dirty);
        self.dirty = PageSet::default();
        if self.sealing.is_empty() {
            return;
        }
        // Page 0 contains the version, so it changes with every other page.
        self.sealing.insert(0);
        let length = self.bytes().len();
        let pages = page_count(length).max(1);
        let head = BodyHead { kind: self.kind(), epoch: self.epoch, version: self.version, length };
        let (mut forgetting, mut written) = (PageSet::default(), PageSet::default());
        for page in self.sealing.iter().filter(|page| *page < pages) {
            let from = page * PAGE_BYTES;
            let bytes = &self.bytes()[from..length.min(from + PAGE_BYTES)];
            let note = page_note(owner, page, Some(&head).filter(|_| page == 0), bytes);
            match note.value {
                Some(_) => written.insert(page),
                None => forgetting.insert(page),
            }
            out.extend(Some(note).filter(|note| note.value.is_some()));
        }
        for page in self.at_rest.iter().filter(|page| *page >= pages) {
            forgetting.insert(page);
        }
        let forgets = |page: &usize| self.at_rest.contains(*page);
        out.extend(forgetting.iter().filter(forgets).map(|page| page_removal(owner, page)));
        self.at_rest.insert_set(&written);
        self.forgetting = forgetting;
    }

    fn undo_collect(&mut self) {
        self.dirty.insert_set(&std::mem::take(&mut self.sealing));
        self.forgetting = PageSet::default();
        self.panes.values_mut().for_each(Body::undo_collect);
        self.removed_panes.values_mut().for_each(|(_, is_collected)| *is_collected = false);
    }

    fn mark_sealed(&mut self) {
        self.sealing = PageSet::default();
        self.at_rest.remove_set(&std::mem::take(&mut self.forgetting));
        self.panes.values_mut().for_each(Body::mark_sealed);
        self.removed_panes.retain(|_, (_, is_collected)| !*is_collected);
    }

    /// All pages that the ledger may have, by pane; 0: the body itself.
    fn into_at_rest(self) -> BTreeMap<u32, PageSet> {
        let panes = self.panes.into_iter().map(|(number, pane)| (number, pane.at_rest));
        let removed = self.removed_panes.into_iter().map(|(number, (pages, _))| (number, pages));
        let all = panes.chain(removed).chain([(0, self.at_rest)]);
        all.filter(|(_, pages)| !pages.is_empty()).collect()
    }

    /// Parses the replayed bytes of body and panes as sketches.
    fn parse(&mut self) -> Result<(), String> {
        self.sketch.ready().map_err(|damaged| damaged.to_string())?;
        let Sketch::Ring(ring) = &self.sketch else {
            return if self.panes.is_empty() { Ok(()) } else { Err("panes of a sketch that has none".to_owned()) };
        };
        let has_pane = |number: u32| number <= ring.slots() && ring.pane_in(number - 1).is_some();
        let left: Vec<u32> = self.panes.keys().copied().filter(|number| !has_pane(*number)).collect();
        let (slots, kind) = (ring.slots(), ring.kind());
        // Panes that the ring has dropped; the journal does not mention them again.
        left.into_iter().for_each(|number| self.remove_pane(number));
        let Sketch::Ring(ring) = &self.sketch else { return Ok(()) };
        if (0..slots).any(|slot| ring.pane_in(slot).is_some() != self.panes.contains_key(&(slot + 1))) {
            return Err("a pane of a sketch over time is missing".to_owned());
        }
        for pane in self.panes.values_mut() {
            if (pane.sketch.kind(), pane.epoch) != (kind, self.epoch) {
                return Err("a pane of a sketch over time is another's".to_owned());
            }
            pane.sketch.ready().map_err(|damaged| damaged.to_string())?;
        }
        Ok(())
    }
}

/// The bodies of one shard with one pane number.
#[derive(Debug)]
pub struct BodyMap {
    /// Pane number of this map's bodies in journal and ledger.
    pane: u32,
    bodies: BTreeMap<NameBuf, Box<Body>>,
    /// Ledger pages of removed bodies, and whether the present seal deletes them.
    removed: BTreeMap<NameBuf, (BTreeMap<u32, PageSet>, bool)>,
    bytes: usize,
}

impl BodyMap {
    /// A map for shown bodies.
    pub fn for_shown() -> BodyMap {
        BodyMap { pane: SHOWN_PANE, bodies: BTreeMap::new(), removed: BTreeMap::new(), bytes: 0 }
    }

    /// A map for this node's own bodies with this number.
    pub fn for_own(number: u16) -> BodyMap {
        BodyMap { pane: own_pane(number), ..BodyMap::for_shown() }
    }

    /// Takes out a body; the caller puts it back.
    pub fn take(&mut self, name: &[u8]) -> Option<Box<Body>> {
        let (name, body) = self.bodies.remove_entry(name)?;
        self.bytes -= body.accounted_bytes + name.len();
        Some(body)
    }

    /// Puts a body back.
    pub fn put_back(&mut self, name: &[u8], mut body: Box<Body>) {
        if let Some((mut pages, _)) = self.removed.remove(name) {
            body.at_rest.insert_set(&pages.remove(&0).unwrap_or_default());
        }
        body.accounted_bytes = body.memory();
        self.bytes += body.accounted_bytes + name.len();
        self.bodies.insert(name.into(), body);
    }

    /// Drops a body that was taken out; the next seal deletes it from the ledger.
    pub fn drop_taken(&mut self, name: &[u8], body: Box<Body>) {
        self.put_back(name, body);
        self.remove(name);
    }

    /// Returns true if there are no bodies.
    pub fn is_empty(&self) -> bool {
        self.bodies.is_empty()
    }

    /// Number of bodies.
    pub fn len(&self) -> usize {
        self.bodies.len()
    }

    /// The body of a name.
    pub fn get(&self, name: &[u8]) -> Option<&Body> {
        self.bodies.get(name).map(|body| &**body)
    }

    /// The body of a name, mutable; after a change the caller must call [`BodyMap::update_size`].
    pub fn get_mut(&mut self, name: &[u8]) -> Option<&mut Body> {
        self.bodies.get_mut(name).map(|body| &mut **body)
    }

    /// All bodies.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Body)> {
        self.bodies.iter().map(|(name, body)| (&**name, &**body))
    }

    /// Approximate bytes of all bodies.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Inserts a body and replaces the earlier one.
    pub fn insert(&mut self, name: &[u8], mut body: Body) {
        self.remove(name);
        if let Some((mut pages, _)) = self.removed.remove(name) {
            body.at_rest = pages.remove(&0).unwrap_or_default();
            body.removed_panes = pages.into_iter().map(|(number, pages)| (number, (pages, false))).collect();
        }
        body.accounted_bytes = body.memory();
        self.bytes += body.accounted_bytes + name.len();
        self.bodies.insert(name.into(), Box::new(body));
    }

    /// Updates the sizes after a change of a body.
    pub fn update_size(&mut self, name: &[u8]) {
        if let Some(body) = self.bodies.get_mut(name) {
            let memory = body.memory();
            self.bytes = self.bytes + memory - std::mem::replace(&mut body.accounted_bytes, memory);
        }
    }

    /// Removes a body; the next seal deletes it from the ledger.
    pub fn remove(&mut self, name: &[u8]) {
        let Some((name, body)) = self.bodies.remove_entry(name) else { return };
        self.bytes -= body.accounted_bytes + name.len();
        let at_rest = body.into_at_rest();
        if !at_rest.is_empty() {
            self.removed.insert(name, (at_rest, false));
        }
    }

    /// Removes all bodies; the ledger is cleared separately.
    pub fn clear(&mut self) {
        *self = BodyMap { pane: self.pane, ..BodyMap::for_shown() };
    }

    // ---- start ---------------------------------------------------------------------------------

    /// Loads a page from the ledger; an error describes its damage.
    pub fn load_page(&mut self, stored_page: &StoredPage<'_>) -> Result<(), &'static str> {
        let StoredPage { name, page, head, bytes, .. } = stored_page;
        let pane = &if stored_page.pane == self.pane { 0 } else { stored_page.pane };
        if let Some(BodyHead { kind, epoch, version, length }) = head {
            let kind = SketchKind::from_code(*kind).ok_or(UNKNOWN_KIND)?;
            // Allocates the announced length: at most that of the largest sketch.
            let mut body = Body::new(Sketch::Replayed(kind, vec![0; *length]), *epoch, *version);
            body.dirty = PageSet::default();
            match pane {
                0 => self.insert(name, body),
                _ => self.get_mut(name).ok_or("a pane of a sketch without its ring")?.insert_pane(*pane, body),
            }
        }
        let body = self.body_or_pane_mut(name, *pane).ok_or("a page of a sketch without its first one")?;
        let from = page * PAGE_BYTES;
        let Sketch::Replayed(_, all) = &mut body.sketch else { return Err("a page of a sketch that is whole") };
        let target = all.get_mut(from..from + bytes.len()).ok_or("a page of a sketch beyond its end")?;
        target.copy_from_slice(bytes);
        body.at_rest.insert(*page);
        self.update_size(name);
        Ok(())
    }

    /// The body of a name, or of one of its panes.
    fn body_or_pane_mut(&mut self, name: &[u8], pane: u32) -> Option<&mut Body> {
        let body = self.get_mut(name)?;
        if pane == 0 { Some(body) } else { body.panes.get_mut(&pane) }
    }

    /// Replays a record of a body under its cell's epoch; an error describes its damage.
    pub fn replay_edits(
        &mut self,
        (name, pane): (&[u8], u32),
        epoch: Epoch,
        (kind, version, whole): (u8, u64, bool),
        edits: &PackedEdits<'_>,
    ) -> Result<(), &'static str> {
        if whole {
            let kind = SketchKind::from_code(kind).ok_or(UNKNOWN_KIND)?;
            let body = Body::new(Sketch::Replayed(kind, Vec::new()), epoch, version);
            match (pane, self.get_mut(name)) {
                // A ring written as a whole keeps its panes; those it does not mention are removed
                // after the replay.
                (0, Some(before))
                    if before.epoch == epoch && kind == SketchKind::Ring && before.kind() == kind.code() =>
                {
                    before.sketch = body.sketch;
                    before.dirty.insert_range(0..page_count(before.bytes().len()).max(1));
                }
                (0, _) => self.insert(name, body),
                (_, Some(ring)) => ring.insert_pane(pane, body),
                (_, None) => return Err("a pane of a sketch without its ring"),
            }
        }
        let body = self.body_or_pane_mut(name, pane).ok_or("a change of a sketch that is not there")?;
        if !whole && (body.kind(), body.epoch, body.version.checked_add(1)) != (kind, epoch, Some(version)) {
            return Err("a change of a sketch that does not follow the one before");
        }
        body.version = version;
        // In a ring the version may be the only change.
        body.mark_head_changed();
        for edit in edits.iter() {
            let length = body.bytes().len();
            let mut inserted = edit.bytes.to_vec();
            inserted.resize(edit.length as usize, 0);
            body.sketch.replay(edit.at, edit.removed, &inserted).map_err(|damaged| damaged.0)?;
            body.record_edit(length, edit.at as usize, edit.removed as usize, inserted.len());
        }
        self.update_size(name);
        Ok(())
    }

    /// Parses all bodies as sketches; an error names the damaged body.
    pub fn parse_bodies(&mut self) -> Result<(), (NameBuf, String)> {
        for (name, body) in &mut self.bodies {
            body.parse().map_err(|reason| (name.clone(), reason))?;
        }
        let names: Vec<NameBuf> = self.bodies.keys().cloned().collect();
        names.iter().for_each(|name| self.update_size(name));
        Ok(())
    }

    // ---- seal ----------------------------------------------------------------------------------

    /// Collects the unsealed pages, and deletions of removed ones, in no order.
    pub fn collect_pages(&mut self, hash: impl Fn(&[u8]) -> u64, out: &mut Vec<AuxRecord>) {
        let pane = self.pane;
        for (name, body) in &mut self.bodies {
            body.collect_pages(hash(name), name, pane, out);
        }
        for (name, (pages, is_collected)) in &mut self.removed {
            for (number, pages) in pages {
                let number = if *number == 0 { pane } else { *number };
                out.extend(pages.iter().map(|page| page_removal((hash(name), name, number), page)));
            }
            *is_collected = true;
        }
    }

    /// Approximate ledger bytes of the unsealed changes.
    pub fn unsealed_bytes(&self) -> u64 {
        let pages: usize = self.bodies.values().map(|body| body.unsealed_page_count()).sum();
        let panes = self.bodies.values().flat_map(|body| body.removed_panes.values().map(|(pages, _)| pages.len()));
        let removed = self.removed.values().flat_map(|(pages, _)| pages.values().map(PageSet::len)).sum::<usize>();
        let removed = removed + panes.sum::<usize>();
        let names = |names: &mut dyn Iterator<Item = &NameBuf>| names.map(|name| name.len() as u64).max().unwrap_or(0);
        let name = names(&mut self.bodies.keys()).max(names(&mut self.removed.keys()));
        pages as u64 * (PAGE_BYTES as u64 + name + 2 * NOTE_OVERHEAD_BYTES)
            + removed as u64 * (name + 2 * NOTE_OVERHEAD_BYTES)
    }

    /// The collected pages did not reach the ledger.
    pub fn undo_collect(&mut self) {
        self.bodies.values_mut().for_each(|body| body.undo_collect());
        self.removed.values_mut().for_each(|(_, is_collected)| *is_collected = false);
    }

    /// The collected pages are in the ledger.
    pub fn mark_sealed(&mut self) {
        self.bodies.values_mut().for_each(|body| body.mark_sealed());
        self.removed.retain(|_, (_, is_collected)| !*is_collected);
    }
}
