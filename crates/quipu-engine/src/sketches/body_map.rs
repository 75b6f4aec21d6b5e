//! The bodies of one shard's sketches.
//!
//! In: what changed in a body. Out: the body; notes of the pages that the ledger does not know.
//!
//! The body of a sketch over time is a ring, and has a body for each pane beside it, by the slot of the ring plus one: numbers that journal and ledger know it by, too.
//!
//! All bodies are in memory. At a start they are bytes first: the journal's edits are laid over what the ledger has, and only what comes of that is looked at as a sketch.
//!
//! Invariants:
//! - a page that the ledger does not have as it is is in `dirty` or `sealing`;
//! - a ring has a body for each of its slots that has a pane, and no other; each of the ring's epoch;
//! - `at_rest` has every page of which the ledger may have a note, that of a body that is gone included, until the ledger was told;
//! - `bytes` is what all bodies take.

use std::collections::BTreeMap;

use quipu_model::{AuxRecord, Epoch, NameBuf};
use quipu_sketch::{Edits, Sketch, SketchKind};

use super::page_set::PageSet;
use super::stored_page::{
    BodyHead, NOTE_OVERHEAD_BYTES, PAGE_BYTES, PageOwner, SHOWN_PANE, StoredPage, own_pane, page_count, page_note,
    page_removal,
};
use super::together::empty_like;
use super::unsettled_changes::UnsettledChanges;
use crate::journal::format::PackedEdits;

/// What a body takes beside its sketch: its place in a tree that is two thirds full, and itself.
const BODY_BYTES: usize = size_of::<Body>() + 64;

/// What is wrong with a sketch that a later program has made.
const UNKNOWN_KIND: &str = "a sketch of a kind that this program does not know";

/// The body of a sketch.
#[derive(Debug)]
pub struct Body {
    sketch: Sketch,
    /// That of its cell.
    pub epoch: Epoch,
    /// How often it has changed in this epoch: the value of its cell.
    pub version: u64,
    /// Whether the journal, over the ledger, has all of its changes. If not, the next record has all of it.
    pub journaled: bool,
    dirty: PageSet,
    sealing: PageSet,
    at_rest: PageSet,
    /// Pages that the ledger is told to forget.
    forgetting: PageSet,
    /// It is what is shown of a shared counter: made of other bodies, and nothing to write down.
    is_derived: bool,
    /// Of what this node says on a shared store: how far the store knows it.
    unsettled: Option<Box<UnsettledChanges>>,
    /// What it takes, as the shelf knows.
    accounted_bytes: usize,
    /// Of a ring: a body for each pane.
    panes: BTreeMap<u32, Body>,
    /// Of a ring: what the ledger may still have of panes that are gone, and whether it is being told.
    removed_panes: BTreeMap<u32, (PageSet, bool)>,
}

impl Body {
    /// A new one, of which neither journal nor ledger know.
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

    /// What is shown of a shared counter under this epoch.
    pub fn derived(sketch: Sketch, epoch: Epoch) -> Body {
        // Whoever asks how much room a change of it takes is told of all of it: what is written is a body of this node, which may have to be made.
        Body { is_derived: true, journaled: false, dirty: PageSet::default(), ..Body::new(sketch, epoch, 0) }
    }

    /// Becomes another one, under another epoch, of which neither journal nor ledger know.
    pub fn replace(&mut self, sketch: Sketch, epoch: Epoch, version: u64) {
        let pages = page_count(self.bytes().len().max(sketch.bytes().len())).max(1);
        (self.sketch, self.epoch, self.version, self.journaled) = (sketch, epoch, version, false);
        self.dirty.insert_range(0..pages);
    }

    /// How far the store knows it; of a body that was found at a start, `found` says that.
    pub fn unsettled_mut(&mut self, found: impl FnOnce() -> UnsettledChanges) -> &mut UnsettledChanges {
        self.unsettled.get_or_insert_with(|| Box::new(found()))
    }

    /// It has its next version, whether or not its bytes have changed: the page that says so has.
    pub fn next_version(&mut self) {
        self.version += 1;
        self.dirty.insert(0);
    }

    /// Counts something once more: in the stretch of what the store does not know, when the body is about to get its next version.
    pub fn record_unsettled(&mut self, count: impl FnOnce(&mut Sketch) -> bool) {
        let (sketch, version) = (&self.sketch, self.version);
        let Some(unsettled) = &mut self.unsettled else { return };
        let delta = unsettled.open_delta(version, || empty_like(sketch).ok());
        if !delta.is_some_and(count) {
            unsettled.lose_track(version + 1);
        }
    }

    /// How far the store knows it, if that was ever asked for.
    pub fn unsettled(&self) -> Option<&UnsettledChanges> {
        self.unsettled.as_deref()
    }

    /// Its pages as a put brings them: these, or all; those of zeros alone are empty.
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

    /// The body of the pane in a slot of the ring.
    pub fn pane(&self, slot: u32) -> Option<&Body> {
        self.panes.get(&(slot + 1))
    }

    /// The same, to be changed; what changed is to be noted.
    pub fn pane_mut(&mut self, slot: u32) -> Option<&mut Body> {
        self.panes.get_mut(&(slot + 1))
    }

    /// All panes, by what journal and ledger know each by.
    pub fn panes(&self) -> impl Iterator<Item = (u32, &Body)> {
        self.panes.iter().map(|(number, body)| (*number, body))
    }

    /// The same, to be changed.
    pub fn panes_mut(&mut self) -> impl Iterator<Item = (u32, &mut Body)> {
        self.panes.iter_mut().map(|(number, body)| (*number, body))
    }

    /// Puts a pane into a slot, in place of another.
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

    /// The pane in a slot has left the window; the ledger is to forget it.
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

    /// Whether the journal, over the ledger, has all of it, panes included.
    pub fn is_journaled(&self) -> bool {
        self.journaled && self.panes.values().all(|pane| pane.journaled)
    }

    /// Bytes of all that the journal does not have.
    pub fn unjournaled_bytes(&self) -> impl Iterator<Item = usize> + '_ {
        std::iter::once(self).chain(self.panes.values()).filter(|body| !body.journaled).map(|body| body.bytes().len())
    }

    /// The sketch.
    pub fn sketch(&self) -> &Sketch {
        &self.sketch
    }

    /// The sketch, to be changed; what changed is to be noted.
    pub fn sketch_mut(&mut self) -> &mut Sketch {
        &mut self.sketch
    }

    /// All of its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.sketch.bytes()
    }

    /// Most bytes that a part of it may have, laid together from panes.
    pub fn bytes_after_a_carry(&self) -> usize {
        // Of a list, what was not listed in one pane is counted by its limit, so that numbers may get wider than they are here.
        let wider = matches!(self.sketch, Sketch::TopK(_) | Sketch::Top(_));
        self.bytes().len() * if wider { 2 } else { 1 }
    }

    /// The number of its kind.
    pub fn kind(&self) -> u8 {
        self.sketch.kind().code()
    }

    /// Notes that what the first page says of the whole has changed.
    pub fn mark_head_changed(&mut self) {
        self.dirty.insert(0);
    }

    /// Notes that these edits were made, of which there are some, when it had so many bytes.
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

    /// Notes an edit of a body that had so many bytes; returns how many it has then.
    fn record_edit(&mut self, length: usize, at: usize, removed: usize, inserted: usize) -> usize {
        let after = length - removed.min(length) + inserted;
        // What comes after a splice has moved.
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

    /// How many of its pages the ledger does not know.
    fn unsealed_page_count(&self) -> usize {
        let mut pages = self.dirty.clone();
        pages.insert_set(&self.sealing);
        pages.len() + self.panes.values().map(Body::unsealed_page_count).sum::<usize>()
    }

    /// Of the shelf whose bodies journal and ledger know by this number.
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
        // It says the version, so it changes with every other.
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

    /// All of which the ledger may have a note: of each pane, or of none.
    fn into_at_rest(self) -> BTreeMap<u32, PageSet> {
        let panes = self.panes.into_iter().map(|(number, pane)| (number, pane.at_rest));
        let removed = self.removed_panes.into_iter().map(|(number, (pages, _))| (number, pages));
        let all = panes.chain(removed).chain([(0, self.at_rest)]);
        all.filter(|(_, pages)| !pages.is_empty()).collect()
    }

    /// Bytes were replayed, of panes as well: looks at all of them as sketches.
    fn parse(&mut self) -> Result<(), String> {
        self.sketch.ready().map_err(|damaged| damaged.to_string())?;
        let Sketch::Ring(ring) = &self.sketch else {
            return if self.panes.is_empty() { Ok(()) } else { Err("panes of a sketch that has none".to_owned()) };
        };
        let has_pane = |number: u32| number <= ring.slots() && ring.pane_in(number - 1).is_some();
        let left: Vec<u32> = self.panes.keys().copied().filter(|number| !has_pane(*number)).collect();
        let (slots, kind) = (ring.slots(), ring.kind());
        // What the ring has left behind, the journal does not mention again.
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

/// The bodies of a shard.
#[derive(Debug)]
pub struct BodyMap {
    /// Which of the bodies of each name these are.
    pane: u32,
    bodies: BTreeMap<NameBuf, Box<Body>>,
    /// What the ledger may still have of bodies that are gone, and whether it is being told.
    removed: BTreeMap<NameBuf, (BTreeMap<u32, PageSet>, bool)>,
    bytes: usize,
}

impl BodyMap {
    /// For bodies that are shown.
    pub fn for_shown() -> BodyMap {
        BodyMap { pane: SHOWN_PANE, bodies: BTreeMap::new(), removed: BTreeMap::new(), bytes: 0 }
    }

    /// For what this node says on a shared store: the bodies with this number.
    pub fn for_own(number: u16) -> BodyMap {
        BodyMap { pane: own_pane(number), ..BodyMap::for_shown() }
    }

    /// Takes a body out, to be given back.
    pub fn take(&mut self, name: &[u8]) -> Option<Box<Body>> {
        let (name, body) = self.bodies.remove_entry(name)?;
        self.bytes -= body.accounted_bytes + name.len();
        Some(body)
    }

    /// Gives a body back that was taken out.
    pub fn put_back(&mut self, name: &[u8], mut body: Box<Body>) {
        if let Some((mut pages, _)) = self.removed.remove(name) {
            body.at_rest.insert_set(&pages.remove(&0).unwrap_or_default());
        }
        body.accounted_bytes = body.memory();
        self.bytes += body.accounted_bytes + name.len();
        self.bodies.insert(name.into(), body);
    }

    /// A body that was taken out does not come back; the ledger is to forget it.
    pub fn drop_taken(&mut self, name: &[u8], body: Box<Body>) {
        self.put_back(name, body);
        self.remove(name);
    }

    /// Whether there are no bodies.
    pub fn is_empty(&self) -> bool {
        self.bodies.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.bodies.len()
    }

    /// The body of a name.
    pub fn get(&self, name: &[u8]) -> Option<&Body> {
        self.bodies.get(name).map(|body| &**body)
    }

    /// The body of a name, to be changed; then it is to be [reckoned](Shelf::reckon).
    pub fn get_mut(&mut self, name: &[u8]) -> Option<&mut Body> {
        self.bodies.get_mut(name).map(|body| &mut **body)
    }

    /// All bodies.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Body)> {
        self.bodies.iter().map(|(name, body)| (&**name, &**body))
    }

    /// About how many bytes all of them take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Puts a body there, in place of another of that name.
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

    /// A body has changed: takes note of what it takes now.
    pub fn update_size(&mut self, name: &[u8]) {
        if let Some(body) = self.bodies.get_mut(name) {
            let memory = body.memory();
            self.bytes = self.bytes + memory - std::mem::replace(&mut body.accounted_bytes, memory);
        }
    }

    /// Takes a body away; the ledger is to forget it.
    pub fn remove(&mut self, name: &[u8]) {
        let Some((name, body)) = self.bodies.remove_entry(name) else { return };
        self.bytes -= body.accounted_bytes + name.len();
        let at_rest = body.into_at_rest();
        if !at_rest.is_empty() {
            self.removed.insert(name, (at_rest, false));
        }
    }

    /// Takes everything away; the ledger forgets all of it without being told.
    pub fn clear(&mut self) {
        *self = BodyMap { pane: self.pane, ..BodyMap::for_shown() };
    }

    // ---- start ------------------------------------------------------------------------------------------------------------------

    /// Takes a page that the ledger has; says what is wrong with it.
    pub fn load_page(&mut self, stored_page: &StoredPage<'_>) -> Result<(), &'static str> {
        let StoredPage { name, page, head, bytes, .. } = stored_page;
        let pane = &if stored_page.pane == self.pane { 0 } else { stored_page.pane };
        if let Some(BodyHead { kind, epoch, version, length }) = head {
            let kind = SketchKind::from_code(*kind).ok_or(UNKNOWN_KIND)?;
            // Memory is asked for as much as is announced: at most that of the largest sketch.
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

    /// Takes what a record says of a body whose cell has this epoch; says what is wrong with it.
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
                // A ring that is told of as a whole has the panes that it had: those that it does not mention go when all was replayed.
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
        // Of a ring nothing else may have changed.
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

    /// Looks at all bodies as sketches; says which is none, and why.
    pub fn parse_bodies(&mut self) -> Result<(), (NameBuf, String)> {
        for (name, body) in &mut self.bodies {
            body.parse().map_err(|reason| (name.clone(), reason))?;
        }
        let names: Vec<NameBuf> = self.bodies.keys().cloned().collect();
        names.iter().for_each(|name| self.update_size(name));
        Ok(())
    }

    // ---- seal -------------------------------------------------------------------------------------------------------------------

    /// Pages that the ledger does not know, and of those it is to forget, that they are gone; in no order.
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

    /// About how many bytes the ledger takes for what it does not know.
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

    /// What was collected did not reach the ledger.
    pub fn undo_collect(&mut self) {
        self.bodies.values_mut().for_each(|body| body.undo_collect());
        self.removed.values_mut().for_each(|(_, is_collected)| *is_collected = false);
    }

    /// What was collected is sealed.
    pub fn mark_sealed(&mut self) {
        self.bodies.values_mut().for_each(|body| body.mark_sealed());
        self.removed.retain(|_, (_, is_collected)| !*is_collected);
    }
}
