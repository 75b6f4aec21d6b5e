//! The resident table: every counter of the node, shared by all workers.
//!
//! A name's hash decides its shard; a shard is behind one short lock. Callers speak of cells by hash and name and never see how
//! they are kept, so the keeping can change.
//!
//! Invariants:
//! - a shard's `version` is raised by every change in it, its `newest` is the end of its newest record;
//! - `deadlines` holds exactly the cells that expire.

use std::collections::BTreeSet;

use hashbrown::HashTable;
use quipu_model::{Cell, Epoch, Millis};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::journal::format::Position;
use crate::sync::{AtomicI64, Mutex, MutexGuard, Ordering, lock};

/// Order keys have 53 bits, so that a cursor is a whole number in every client, those that count in doubles included.
pub const ORDER_BITS: u32 = 53;

/// All shards.
pub struct Table {
    shards: Vec<Mutex<Shard>>,
    /// The top bits of a hash choose the shard, so walking shards in order walks hashes in order.
    shard_bits: u32,
    seed: u64,
    counters: AtomicI64,
}

impl Table {
    /// An empty table. The seed is secret, so that nobody can choose names that collide.
    pub fn new(shards: usize, seed: u64) -> Table {
        let shards = shards.next_power_of_two();
        let shard_bits = shards.trailing_zeros();
        let shards = (0..shards).map(|_| Mutex::new(Shard::new(shard_bits))).collect();
        Table { shards, shard_bits, seed, counters: AtomicI64::new(0) }
    }

    /// The hash of a name.
    pub fn hash(&self, name: &[u8]) -> u64 {
        xxh3_64_with_seed(name, self.seed)
    }

    /// The shard of a hash.
    pub fn shard_of(&self, hash: u64) -> usize {
        // A shift by 64 is not defined, and one shard needs none.
        if self.shard_bits == 0 { 0 } else { (hash >> (64 - self.shard_bits)) as usize }
    }

    /// How many shards there are.
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Takes the lock of a shard. Several are taken in the order of their index.
    pub fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        lock(&self.shards[shard])
    }

    /// How many counters there are, those that have expired but were not looked at since included.
    pub fn counters(&self) -> u64 {
        self.counters.load(Ordering::Relaxed).max(0) as u64
    }

    /// Notes counters that came or went.
    pub fn note_counters(&self, change: i64) {
        if change != 0 {
            self.counters.fetch_add(change, Ordering::Relaxed);
        }
    }
}

/// One shard, as its lock gives it out.
pub struct Shard {
    slots: HashTable<Slot>,
    shard_bits: u32,
    deadlines: BTreeSet<(Millis, Box<[u8]>)>,
    /// Names of namespaces in memory mode that changed, or are gone, since they were last sealed; each once.
    unsealed: HashTable<(u64, Box<[u8]>)>,
    /// A counter made from here on begins with this epoch: past that of all that are gone.
    pub floor: Epoch,
    /// No cell that was ever here has a newer epoch.
    pub epoch_newest: Epoch,
    /// Raised by every change; what WATCH compares.
    pub version: u64,
    /// The end of the newest record that speaks of this shard.
    pub newest: Position,
}

struct Slot {
    hash: u64,
    name: Box<[u8]>,
    cell: Cell,
    /// Stands in the shard's list of unsealed names.
    unsealed: bool,
}

impl Shard {
    fn new(shard_bits: u32) -> Shard {
        Shard {
            slots: HashTable::new(),
            shard_bits,
            deadlines: BTreeSet::new(),
            unsealed: HashTable::new(),
            floor: Epoch::FIRST,
            epoch_newest: Epoch::FIRST,
            version: 0,
            newest: Position(0),
        }
    }

    /// The cell of a name.
    pub fn get(&self, hash: u64, name: &[u8]) -> Option<Cell> {
        self.slots.find(self.rotated(hash), |slot| &*slot.name == name).map(|slot| slot.cell)
    }

    /// Makes or replaces the cell of a name; returns whether it was made.
    pub fn put(&mut self, hash: u64, name: &[u8], cell: Cell) -> bool {
        self.version += 1;
        self.epoch_newest = self.epoch_newest.max(cell.epoch);
        let rotated = self.rotated(hash);
        let before = match self.slots.find_mut(rotated, |slot| &*slot.name == name) {
            Some(slot) => Some(std::mem::replace(&mut slot.cell, cell)),
            None => {
                let bits = self.shard_bits;
                let slot = Slot { hash, name: name.into(), cell, unsealed: false };
                self.slots.insert_unique(rotated, slot, |slot| slot.hash.rotate_left(bits));
                None
            }
        };
        let expired_at = before.and_then(|cell| cell.expires_at);
        if expired_at != cell.expires_at {
            self.drop_deadline(expired_at, name);
            if let Some(at) = cell.expires_at {
                self.deadlines.insert((at, name.into()));
            }
        }
        before.is_none()
    }

    /// Removes the cell of a name; returns it.
    pub fn remove(&mut self, hash: u64, name: &[u8]) -> Option<Cell> {
        let entry = self.slots.find_entry(self.rotated(hash), |slot| &*slot.name == name).ok()?;
        let (slot, _) = entry.remove();
        self.version += 1;
        self.drop_deadline(slot.cell.expires_at, name);
        Some(slot.cell)
    }

    /// Removes everything; returns how many there were.
    pub fn clear(&mut self) -> usize {
        self.version += 1;
        self.deadlines.clear();
        self.unsealed.clear();
        let count = self.slots.len();
        self.slots.clear();
        count
    }

    /// Notes that the journal does not know the present state of a name.
    pub fn note_unsealed(&mut self, hash: u64, name: &[u8]) {
        let (rotated, bits) = (self.rotated(hash), self.shard_bits);
        let slot = self.slots.find_mut(rotated, |slot| &*slot.name == name);
        if slot.is_some_and(|slot| std::mem::replace(&mut slot.unsealed, true)) {
            return;
        }
        if self.unsealed.find(rotated, |(_, noted)| &**noted == name).is_none() {
            self.unsealed.insert_unique(rotated, (hash, name.into()), |(hash, _)| hash.rotate_left(bits));
        }
    }

    /// The names noted so.
    pub fn unsealed(&self) -> impl Iterator<Item = &[u8]> {
        self.unsealed.iter().map(|(_, name)| &**name)
    }

    /// Whether there are any.
    pub fn has_unsealed(&self) -> bool {
        !self.unsealed.is_empty()
    }

    /// Takes some of them, in the order of [`Shard::unsealed`]: they are about to be sealed.
    pub fn take_unsealed(&mut self, count: usize) -> Vec<(u64, Box<[u8]>)> {
        let mut left = count;
        let names: Vec<_> =
            self.unsealed.extract_if(|_| left.checked_sub(1).map(|less| left = less).is_some()).collect();
        for (hash, name) in &names {
            let rotated = self.rotated(*hash);
            if let Some(slot) = self.slots.find_mut(rotated, |slot| slot.name == *name) {
                slot.unsealed = false;
            }
        }
        names
    }

    /// All cells, in no order.
    pub fn cells(&self) -> impl Iterator<Item = (&[u8], Cell)> {
        self.slots.iter().map(|slot| (&*slot.name, slot.cell))
    }

    /// Names whose order key is at least `from`, lowest keys first: `count` of them, and those that share the last one's key.
    pub fn names_from(&self, from: u64, count: usize) -> Vec<(u64, &[u8])> {
        let mut names: Vec<(u64, &[u8])> =
            self.slots.iter().map(|slot| (order_key(slot.hash), &*slot.name)).filter(|(key, _)| *key >= from).collect();
        if names.len() > count && count > 0 {
            let (_, &mut (last, _), _) = names.select_nth_unstable_by_key(count - 1, |(key, _)| *key);
            names.retain(|(key, _)| *key <= last);
        }
        names
    }

    /// Names of cells that have expired, the longest expired first, at most `count` of them.
    pub fn overdue(&self, now: Millis, count: usize) -> impl Iterator<Item = Box<[u8]>> {
        self.deadlines.iter().take_while(move |(at, _)| *at <= now).take(count).map(|(_, name)| name.clone())
    }

    fn drop_deadline(&mut self, at: Option<Millis>, name: &[u8]) {
        if let Some(at) = at {
            self.deadlines.remove(&(at, name.into()));
        }
    }

    /// The map takes its own index from the bits that did not choose the shard: within a shard those are all the same.
    fn rotated(&self, hash: u64) -> u64 {
        hash.rotate_left(self.shard_bits)
    }
}

/// The place of a name in a walk over all names.
pub fn order_key(hash: u64) -> u64 {
    hash >> (64 - ORDER_BITS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn cell(value: i64, expires: Option<u64>) -> Cell {
        Cell { epoch: Epoch::FIRST, value, expires_at: expires.map(Millis) }
    }

    #[derive(Debug, Clone)]
    enum Op {
        Put(u8, i64, Option<u64>),
        Remove(u8),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let put = (0u8..24, any::<i64>(), proptest::option::of(0u64..50)).prop_map(|(n, v, e)| Op::Put(n, v, e));
        proptest::collection::vec(prop_oneof![3 => put, 1 => (0u8..24).prop_map(Op::Remove)], 0..120)
    }

    proptest! {
        #[test]
        fn a_shard_is_a_map_with_deadlines(ops in ops(), now in 0u64..60) {
            let table = Table::new(1, 7);
            let mut shard = table.lock(0);
            let mut model: BTreeMap<u8, Cell> = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Put(n, value, expires) => {
                        let cell = cell(value, expires);
                        let made = shard.put(table.hash(&[n]), &[n], cell);
                        prop_assert_eq!(made, model.insert(n, cell).is_none());
                    }
                    Op::Remove(n) => prop_assert_eq!(shard.remove(table.hash(&[n]), &[n]), model.remove(&n)),
                }
            }
            prop_assert_eq!(shard.cells().count(), model.len());
            for n in 0..24 {
                prop_assert_eq!(shard.get(table.hash(&[n]), &[n]), model.get(&n).copied());
            }
            let first = model.iter().filter_map(|(n, c)| Some((c.expires_at?, *n))).min();
            let overdue = first.filter(|(at, _)| at.0 <= now).map(|(_, n)| Box::from([n]));
            prop_assert_eq!(shard.overdue(Millis(now), 1).next(), overdue);
            prop_assert_eq!(shard.deadlines.len(), model.values().filter(|c| c.expires_at.is_some()).count());
        }

        #[test]
        fn walking_by_key_meets_every_name_once(names in proptest::collection::btree_set(any::<u16>(), 0..200), count in 1usize..9) {
            let table = Table::new(4, 3);
            for name in &names {
                let bytes = name.to_be_bytes();
                let hash = table.hash(&bytes);
                table.lock(table.shard_of(hash)).put(hash, &bytes, cell(0, None));
            }
            let mut met = Vec::new();
            for shard in 0..4 {
                let mut from = 0;
                loop {
                    let shard = table.lock(shard);
                    let page = shard.names_from(from, count);
                    let Some(last) = page.iter().map(|(key, _)| *key).max() else { break };
                    met.extend(page.iter().map(|(_, name)| u16::from_be_bytes([name[0], name[1]])));
                    from = last + 1;
                }
            }
            met.sort_unstable();
            prop_assert_eq!(met, names.into_iter().collect::<Vec<_>>());
        }
    }
}
