//! The splits of one shard of the table, behind the shard's lock.

use std::collections::BTreeMap;

use quipu_model::NameBuf;

use super::LaneSet;
use crate::sync::{Arc, Ordering};

/// See the module. Few: those of counters that somebody has a handle of.
#[derive(Default)]
#[repr(C)]
pub struct ShardLanes {
    /// How many are live: what every command on the shard looks at first.
    live: usize,
    entries: BTreeMap<NameBuf, LaneEntry>,
}

/// A split, and what only the holder of the lock knows of it.
pub struct LaneEntry {
    lanes: Arc<LaneSet>,
    /// Room in the journal that it holds for its next join.
    room: usize,
    /// What its lanes came to at the last look since they were opened.
    last_total: Option<i64>,
}

impl ShardLanes {
    /// Whether there are lanes of this shard to look at.
    #[inline]
    pub fn has_live(&self) -> bool {
        self.live > 0
    }

    pub fn find(&self, name: &[u8]) -> Option<&Arc<LaneSet>> {
        self.entries.get(name).map(|entry| &entry.lanes)
    }

    pub fn insert(&mut self, lanes: Arc<LaneSet>) {
        let entry = LaneEntry { lanes, room: 0, last_total: None };
        self.entries.insert(entry.lanes.name().bytes().into(), entry);
    }

    /// Lets a split go that is not live.
    pub fn remove(&mut self, lanes: &LaneSet) {
        if self.find(lanes.name().bytes()).is_some_and(|found| std::ptr::eq(&**found, lanes)) {
            debug_assert!(!lanes.is_live(), "what lanes hold would be lost");
            self.entries.remove(lanes.name().bytes());
        }
    }

    /// The split of a name, if it is live.
    pub fn find_live(&mut self, name: &[u8]) -> Option<&mut LaneEntry> {
        if self.live == 0 {
            return None;
        }
        self.entries.get_mut(name).filter(|entry| entry.lanes.is_live())
    }

    #[inline]
    pub fn is_live(&self, name: &[u8]) -> bool {
        self.live > 0 && self.find(name).is_some_and(|lanes| lanes.is_live())
    }

    /// Those that are live.
    pub fn all_live(&self) -> Vec<Arc<LaneSet>> {
        let live = self.entries.values().filter(|entry| self.live > 0 && entry.lanes.is_live());
        live.map(|entry| entry.lanes.clone()).collect()
    }

    /// Opens the lanes; the room is theirs until they are closed. False if they are no lanes of this shard, or live already.
    pub fn open(&mut self, lanes: &LaneSet, room: usize) -> bool {
        let entry = self.entries.get_mut(lanes.name().bytes()).filter(|entry| std::ptr::eq(&*entry.lanes, lanes));
        let Some(entry) = entry.filter(|_| !lanes.is_live()) else { return false };
        (entry.room, entry.last_total) = (room, None);
        self.mark_live(lanes);
        lanes.open();
        true
    }

    /// Lanes that are not open hold something.
    pub fn mark_live(&mut self, lanes: &LaneSet) {
        self.live += usize::from(!lanes.live.swap(true, Ordering::AcqRel));
    }

    /// The lanes are closed and hold nothing of an add that has returned; the room that they held.
    pub fn mark_drained(&mut self, lanes: &LaneSet) -> usize {
        self.live -= usize::from(lanes.live.swap(false, Ordering::AcqRel));
        let entry = self.entries.get_mut(lanes.name().bytes()).filter(|entry| std::ptr::eq(&*entry.lanes, lanes));
        entry.map_or(0, |entry| std::mem::take(&mut entry.room))
    }

    /// Closes all lanes; whether they hold something.
    pub fn close_all(&mut self) -> bool {
        self.all_live().iter().fold(false, |hold, lanes| {
            lanes.close();
            hold | lanes.has_pending()
        })
    }

    /// Closes all lanes, of which each is handed over to have what it holds taken out; the room that they held.
    pub fn drain_all(&mut self, mut each: impl FnMut(&LaneSet)) -> usize {
        if self.live == 0 {
            return 0;
        }
        let mut room = 0;
        for entry in self.entries.values_mut().filter(|entry| entry.lanes.is_live()) {
            entry.lanes.close();
            each(&entry.lanes);
            entry.lanes.live.store(false, Ordering::Release);
            room += std::mem::take(&mut entry.room);
        }
        self.live = 0;
        room
    }
}

impl LaneEntry {
    pub fn lanes(&self) -> &Arc<LaneSet> {
        &self.lanes
    }

    /// The room that it holds.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Takes the room that it holds.
    pub fn take_room(&mut self) -> usize {
        std::mem::take(&mut self.room)
    }

    pub fn set_room(&mut self, room: usize) {
        self.room = room;
    }

    /// Whether nobody has added to the lanes since the last look; the first one after they were opened sees too little to tell.
    pub fn check_unused(&mut self) -> bool {
        let total = self.lanes.total();
        self.last_total.replace(total) == Some(total)
    }
}
