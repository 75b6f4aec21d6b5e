//! The splits of one shard of the table, behind the shard's lock.

use std::collections::BTreeMap;

use quipu_model::KeptName;

use super::Split;
use crate::sync::{Arc, Ordering};

/// See the module. Few: those of counters that somebody has a handle of.
#[derive(Default)]
#[repr(C)]
pub struct Splits {
    /// How many are live: what every command on the shard looks at first.
    live: usize,
    entries: BTreeMap<KeptName, Entry>,
}

/// A split, and what only the holder of the lock knows of it.
pub struct Entry {
    split: Arc<Split>,
    /// Room in the journal that it holds for its next join.
    room: usize,
    /// What its lanes came to at the last look since they were opened.
    seen: Option<i64>,
}

impl Splits {
    /// Whether there are lanes of this shard to look at.
    #[inline]
    pub fn are_live(&self) -> bool {
        self.live > 0
    }

    pub fn find(&self, name: &[u8]) -> Option<&Arc<Split>> {
        self.entries.get(name).map(|entry| &entry.split)
    }

    pub fn insert(&mut self, split: Arc<Split>) {
        let entry = Entry { split, room: 0, seen: None };
        self.entries.insert(entry.split.name().bytes().into(), entry);
    }

    /// Lets a split go that is not live.
    pub fn remove(&mut self, split: &Split) {
        if self.find(split.name().bytes()).is_some_and(|found| std::ptr::eq(&**found, split)) {
            debug_assert!(!split.is_live(), "what lanes hold would be lost");
            self.entries.remove(split.name().bytes());
        }
    }

    /// The split of a name, if it is live.
    pub fn live(&mut self, name: &[u8]) -> Option<&mut Entry> {
        if self.live == 0 {
            return None;
        }
        self.entries.get_mut(name).filter(|entry| entry.split.is_live())
    }

    #[inline]
    pub fn is_live(&self, name: &[u8]) -> bool {
        self.live > 0 && self.find(name).is_some_and(|split| split.is_live())
    }

    /// Those that are live.
    pub fn all_live(&self) -> Vec<Arc<Split>> {
        let live = self.entries.values().filter(|entry| self.live > 0 && entry.split.is_live());
        live.map(|entry| entry.split.clone()).collect()
    }

    /// Opens the lanes; the room is theirs until they are closed. False if they are no lanes of this shard, or live already.
    pub fn open(&mut self, split: &Split, room: usize) -> bool {
        let entry = self.entries.get_mut(split.name().bytes()).filter(|entry| std::ptr::eq(&*entry.split, split));
        let Some(entry) = entry.filter(|_| !split.is_live()) else { return false };
        (entry.room, entry.seen) = (room, None);
        self.mark_live(split);
        split.open();
        true
    }

    /// Lanes that are not open hold something.
    pub fn mark_live(&mut self, split: &Split) {
        self.live += usize::from(!split.live.swap(true, Ordering::AcqRel));
    }

    /// The lanes are closed and hold nothing of an add that has returned; the room that they held.
    pub fn settle(&mut self, split: &Split) -> usize {
        self.live -= usize::from(split.live.swap(false, Ordering::AcqRel));
        let entry = self.entries.get_mut(split.name().bytes()).filter(|entry| std::ptr::eq(&*entry.split, split));
        entry.map_or(0, |entry| std::mem::take(&mut entry.room))
    }

    /// Closes all lanes; whether they hold something.
    pub fn close_all(&mut self) -> bool {
        self.all_live().iter().fold(false, |hold, split| {
            split.close();
            hold | split.holds()
        })
    }

    /// Closes all lanes, of which each is handed over to have what it holds taken out; the room that they held.
    pub fn settle_all(&mut self, mut each: impl FnMut(&Split)) -> usize {
        if self.live == 0 {
            return 0;
        }
        let mut room = 0;
        for entry in self.entries.values_mut().filter(|entry| entry.split.is_live()) {
            entry.split.close();
            each(&entry.split);
            entry.split.live.store(false, Ordering::Release);
            room += std::mem::take(&mut entry.room);
        }
        self.live = 0;
        room
    }
}

impl Entry {
    pub fn split(&self) -> &Arc<Split> {
        &self.split
    }

    /// The room that it holds.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Takes the room that it holds.
    pub fn take_room(&mut self) -> usize {
        std::mem::take(&mut self.room)
    }

    pub fn hold_room(&mut self, room: usize) {
        self.room = room;
    }

    /// Whether nobody has added to the lanes since the last look; the first one after they were opened sees too little to tell.
    pub fn has_cooled(&mut self) -> bool {
        let total = self.split.total();
        self.seen.replace(total) == Some(total)
    }
}
