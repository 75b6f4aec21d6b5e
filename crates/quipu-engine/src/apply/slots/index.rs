//! From hashes to the numbers of slots: places in a row, the next free one taken when one's own is not.
//!
//! A place is four bytes: the number of a slot and a few bits of its hash, so that nearly every slot that is looked at is the right one. It grows by a half, so it is never much larger
//! than it has to be, and only these few bytes a counter are made anew when it does.
//!
//! Invariant: between a number's own place and the one it is at, none is empty.

use super::prefetch::prefetch;

/// Bits of a place that are the number; the others are of the hash.
const NUMBER_BITS: u32 = 26;

/// So many slots can be told apart. A shard of a thousand with as many would take half a terabyte with the others.
pub const NUMBERS_MAX: u32 = (1 << NUMBER_BITS) - 1;

/// So many places from a hash's own one on are looked at together.
const NEAR: usize = 4;

/// Places of the smallest index: a line of memory.
const PLACES_MIN: usize = 16;

/// See the module.
#[repr(C)]
pub struct Index {
    /// 0 is empty; else the number and one, and bits of the hash above it.
    places: Vec<u32>,
    count: u32,
    /// So many of the upper bits are the same in all hashes: they chose the shard.
    shard_bits: u32,
}

impl Index {
    pub fn new(shard_bits: u32) -> Index {
        Index { places: Vec::new(), count: 0, shard_bits }
    }

    /// The number at which `is` says yes, of those whose hash may be this one.
    #[inline]
    pub fn find(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        if self.places.is_empty() {
            return None;
        }
        let (home, tag) = (self.home(hash), tag(hash));
        let (before, from) = self.places.split_at(home);
        for &place in from.iter().chain(before) {
            if place == 0 {
                return None;
            }
            if place & !NUMBERS_MAX == tag && is((place & NUMBERS_MAX) - 1) {
                return Some((place & NUMBERS_MAX) - 1);
            }
        }
        None
    }

    /// Brings the place of a hash near, and those close behind it.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        if let Some(near) = self.places.get(self.home(hash)..).and_then(<[u32]>::first_chunk::<NEAR>) {
            prefetch(&near[0]);
            prefetch(&near[NEAR - 1]);
        }
    }

    /// The number that is most likely the one of this hash; `None`: it has none.
    #[inline]
    pub fn guess(&self, hash: u64) -> Option<u32> {
        let (home, tag) = (self.home(hash), tag(hash));
        // Nearly always it stands at its own place or close behind it. At which of them is anybody's guess, the processor's too, so all are looked at and none is asked about before.
        if let Some(near) = self.places.get(home..).and_then(<[u32]>::first_chunk::<NEAR>) {
            let number_at = |at: usize| near[at].wrapping_sub(tag).wrapping_sub(1);
            // What is empty or has other bits comes to more than any number.
            let those = (0..NEAR).fold(0, |those, at| those | u32::from(number_at(at) < NUMBERS_MAX) << at);
            if those != 0 {
                return Some(number_at(those.trailing_zeros() as usize));
            }
        }
        self.find(hash, |_| true)
    }

    /// Adds a number; `hash_of` tells the hash of every other one.
    pub fn insert(&mut self, hash: u64, number: u32, hash_of: impl Fn(u32) -> u64) {
        assert!(number < NUMBERS_MAX, "a shard holds at most {NUMBERS_MAX} counters: more shards are needed");
        // Four fifths full at most: then one's own place, or the next, is nearly always the one.
        if (self.count as usize + 1) * 5 > self.places.len() * 4 {
            self.rebuild((self.places.len() + self.places.len() / 2).max(PLACES_MIN), hash_of);
        }
        self.put(hash, number);
    }

    /// Gives a hash another number.
    pub fn renumber(&mut self, hash: u64, from: u32, to: u32) {
        let at = self.place_of(hash, from);
        self.places[at] = tag(hash) | (to + 1);
    }

    /// Removes a number; `hash_of` tells the hash of every one.
    pub fn remove(&mut self, hash: u64, number: u32, hash_of: impl Fn(u32) -> u64) {
        let mut hole = self.place_of(hash, number);
        let mut at = self.after(hole);
        // What stands behind the hole moves into it unless that would be before its own place.
        while self.places[at] != 0 {
            let home = self.home(hash_of((self.places[at] & NUMBERS_MAX) - 1));
            let (to_hole, to_at) = (self.distance(home, hole), self.distance(home, at));
            if to_hole < to_at {
                self.places[hole] = self.places[at];
                hole = at;
            }
            at = self.after(at);
        }
        self.places[hole] = 0;
        self.count -= 1;
    }

    /// Gives memory back if far fewer are left than there were.
    pub fn shrink(&mut self, hash_of: impl Fn(u32) -> u64) {
        let count = self.count as usize;
        if self.places.len() > 4 * count + PLACES_MIN {
            self.rebuild((2 * count).max(PLACES_MIN), hash_of);
        }
    }

    /// About `count` numbers with the least hashes from this one on, and a hash: all before it were found. `None`: these are all.
    pub fn from(&self, hash: u64, count: usize, hash_of: impl Fn(u32) -> u64) -> (Vec<(u64, u32)>, Option<u64>) {
        let mut found = Vec::new();
        let see = |found: &mut Vec<(u64, u32)>, at: usize, place: u32, went_round: bool| {
            let number = (place & NUMBERS_MAX) - 1;
            let other = hash_of(number);
            if other >= hash && (self.home(other) > at) == went_round {
                found.push((other, number));
            }
        };
        for at in self.home(hash)..self.places.len() {
            match self.places[at] {
                // Whatever belongs before an empty place stands before it.
                0 if found.len() >= count => return (found, Some(self.first_behind(hash, at))),
                0 => {}
                place => see(&mut found, at, place, false),
            }
        }
        // What found no place at the end went on at the beginning.
        for (at, place) in self.places.iter().enumerate().take_while(|(_, place)| **place != 0) {
            see(&mut found, at, *place, true);
        }
        (found, None)
    }

    /// How many bytes it takes.
    pub fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<u32>()
    }

    fn rebuild(&mut self, places: usize, hash_of: impl Fn(u32) -> u64) {
        let old = std::mem::replace(&mut self.places, vec![0; places]);
        self.count = 0;
        for place in old.into_iter().filter(|place| *place != 0) {
            let number = (place & NUMBERS_MAX) - 1;
            self.put(hash_of(number), number);
        }
    }

    fn put(&mut self, hash: u64, number: u32) {
        let mut at = self.home(hash);
        while self.places[at] != 0 {
            at = self.after(at);
        }
        self.places[at] = tag(hash) | (number + 1);
        self.count += 1;
    }

    fn place_of(&self, hash: u64, number: u32) -> usize {
        let (mut at, wanted) = (self.home(hash), tag(hash) | (number + 1));
        while self.places[at] != wanted {
            assert!(self.places[at] != 0, "the index holds the number of every slot");
            at = self.after(at);
        }
        at
    }

    /// The own place of a hash: from the bits behind those that chose the shard, so places are in the order of hashes; their number need not be a power of two.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        ((((hash << self.shard_bits) >> 32) * self.places.len() as u64) >> 32) as usize
    }

    /// The least hash, in the shard of this one, whose own place is behind this.
    fn first_behind(&self, hash: u64, at: usize) -> u64 {
        let first = ((at as u64 + 1) << 32).div_ceil(self.places.len() as u64);
        let shard = if self.shard_bits == 0 { 0 } else { hash >> (64 - self.shard_bits) << (64 - self.shard_bits) };
        // At the last place it is the first hash of the next shard, or none.
        shard.saturating_add(((u128::from(first) << 32) >> self.shard_bits).min(u128::from(u64::MAX)) as u64)
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.places.len() { 0 } else { at + 1 }
    }

    /// How many steps it is from one place to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.places.len() - from }
    }
}

/// The bits of a hash that stand in a place: neither those of the shard nor those of the place.
#[inline]
fn tag(hash: u64) -> u32 {
    (hash as u32) << NUMBER_BITS
}
