//! Holds the lane sets of one shard of the table, under the shard's lock.

use std::collections::BTreeMap;

use quipu_model::NameBuf;

use crate::base::sync::{Arc, Ordering};
use crate::table::lanes::LaneSet;

/// Lane sets by name. There are few: those of counters with a handle.
#[derive(Default)]
#[repr(C)]
pub struct ShardLanes {
    /// Number of live lane sets: every command on the shard checks it first.
    live: usize,
    entries: BTreeMap<NameBuf, LaneEntry>,
}

/// A lane set, and its state under the shard's lock.
pub struct LaneEntry {
    lanes: Arc<LaneSet>,
    /// Journal room for its next join.
    room: usize,
    /// Running sum at the last visit since the lanes were opened.
    last_total: Option<i64>,
}

impl ShardLanes {
    /// Returns true if the shard has live lanes.
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

    /// Removes a lane set that is not live.
    pub fn remove(&mut self, lanes: &LaneSet) {
        if self.find(lanes.name().bytes()).is_some_and(|found| std::ptr::eq(&**found, lanes)) {
            debug_assert!(!lanes.is_live(), "what lanes hold would be lost");
            self.entries.remove(lanes.name().bytes());
        }
    }

    /// The lane set of a name, if it is live.
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

    /// The live lane sets.
    pub fn all_live(&self) -> Vec<Arc<LaneSet>> {
        let live = self.entries.values().filter(|entry| self.live > 0 && entry.lanes.is_live());
        live.map(|entry| entry.lanes.clone()).collect()
    }

    /// Opens the lanes; they own the room until they are closed. False if these lanes are not
    /// registered in this shard, or are live already.
    pub fn open(&mut self, lanes: &LaneSet, room: usize) -> bool {
        let entry = self.entries.get_mut(lanes.name().bytes()).filter(|entry| std::ptr::eq(&*entry.lanes, lanes));
        let Some(entry) = entry.filter(|_| !lanes.is_live()) else { return false };
        (entry.room, entry.last_total) = (room, None);
        self.mark_live(lanes);
        lanes.open();
        true
    }

    /// Marks lanes live that are not open but hold a sum.
    pub fn mark_live(&mut self, lanes: &LaneSet) {
        self.live += usize::from(!lanes.live.swap(true, Ordering::AcqRel));
    }

    /// Marks lanes as closed and empty of returned adds; returns their room.
    pub fn mark_drained(&mut self, lanes: &LaneSet) -> usize {
        self.live -= usize::from(lanes.live.swap(false, Ordering::AcqRel));
        let entry = self.entries.get_mut(lanes.name().bytes()).filter(|entry| std::ptr::eq(&*entry.lanes, lanes));
        entry.map_or(0, |entry| std::mem::take(&mut entry.room))
    }

    /// Closes all lanes; returns whether they hold a sum.
    pub fn close_all(&mut self) -> bool {
        self.all_live().iter().fold(false, |hold, lanes| {
            lanes.close();
            hold | lanes.has_pending()
        })
    }

    /// Closes all lanes, passing each to `each` to take its sum; returns their room.
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

    /// Journal room of the lanes.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Takes the journal room of the lanes.
    pub fn take_room(&mut self) -> usize {
        std::mem::take(&mut self.room)
    }

    pub fn set_room(&mut self, room: usize) {
        self.room = room;
    }

    /// Returns true if no add came since the last visit. The first visit after an opening always
    /// returns false.
    pub fn check_unused(&mut self) -> bool {
        let total = self.lanes.total();
        self.last_total.replace(total) == Some(total)
    }
}
