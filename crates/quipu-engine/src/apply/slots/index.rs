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
const BUCKETS_MIN: usize = 16;

/// See the module.
#[repr(C)]
pub struct SlotIndex {
    /// 0 is empty; else the number and one, and bits of the hash above it.
    buckets: Vec<u32>,
    count: u32,
    /// So many of the upper bits are the same in all hashes: they chose the shard.
    shard_bits: u32,
}

impl SlotIndex {
    pub fn new(shard_bits: u32) -> SlotIndex {
        SlotIndex { buckets: Vec::new(), count: 0, shard_bits }
    }

    /// The number at which `matches` says yes, of those whose hash may be this one.
    #[inline]
    pub fn find(&self, hash: u64, mut matches: impl FnMut(u32) -> bool) -> Option<u32> {
        if self.buckets.is_empty() {
            return None;
        }
        let (home, tag) = (self.home(hash), tag(hash));
        let (before, from) = self.buckets.split_at(home);
        for &bucket in from.iter().chain(before) {
            if bucket == 0 {
                return None;
            }
            if bucket & !NUMBERS_MAX == tag && matches((bucket & NUMBERS_MAX) - 1) {
                return Some((bucket & NUMBERS_MAX) - 1);
            }
        }
        None
    }

    /// Brings the place of a hash near, and those close behind it.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        if let Some(near) = self.buckets.get(self.home(hash)..).and_then(<[u32]>::first_chunk::<NEAR>) {
            prefetch(&near[0]);
            prefetch(&near[NEAR - 1]);
        }
    }

    /// The number that is most likely the one of this hash; `None`: it has none.
    #[inline]
    pub fn likely_number(&self, hash: u64) -> Option<u32> {
        let (home, tag) = (self.home(hash), tag(hash));
        // Nearly always it stands at its own place or close behind it. At which of them is anybody's guess, the processor's too, so all are looked at and none is asked about before.
        if let Some(near) = self.buckets.get(home..).and_then(<[u32]>::first_chunk::<NEAR>) {
            let number_at = |at: usize| near[at].wrapping_sub(tag).wrapping_sub(1);
            // What is empty or has other bits comes to more than any number.
            let matching = (0..NEAR).fold(0, |matching, at| matching | u32::from(number_at(at) < NUMBERS_MAX) << at);
            if matching != 0 {
                return Some(number_at(matching.trailing_zeros() as usize));
            }
        }
        self.find(hash, |_| true)
    }

    /// Adds a number; `hash_of` tells the hash of every other one.
    pub fn insert(&mut self, hash: u64, number: u32, hash_of: impl Fn(u32) -> u64) {
        assert!(number < NUMBERS_MAX, "a shard holds at most {NUMBERS_MAX} counters: more shards are needed");
        // Four fifths full at most: then one's own place, or the next, is nearly always the one.
        if (self.count as usize + 1) * 5 > self.buckets.len() * 4 {
            self.rebuild((self.buckets.len() + self.buckets.len() / 2).max(BUCKETS_MIN), hash_of);
        }
        self.put(hash, number);
    }

    /// Gives a hash another number.
    pub fn renumber(&mut self, hash: u64, from: u32, to: u32) {
        let at = self.bucket_of(hash, from);
        self.buckets[at] = tag(hash) | (to + 1);
    }

    /// Removes a number; `hash_of` tells the hash of every one.
    pub fn remove(&mut self, hash: u64, number: u32, hash_of: impl Fn(u32) -> u64) {
        let mut hole = self.bucket_of(hash, number);
        let mut at = self.next_bucket(hole);
        // What stands behind the hole moves into it unless that would be before its own place.
        while self.buckets[at] != 0 {
            let home = self.home(hash_of((self.buckets[at] & NUMBERS_MAX) - 1));
            let (to_hole, to_at) = (self.distance(home, hole), self.distance(home, at));
            if to_hole < to_at {
                self.buckets[hole] = self.buckets[at];
                hole = at;
            }
            at = self.next_bucket(at);
        }
        self.buckets[hole] = 0;
        self.count -= 1;
    }

    /// Gives memory back if far fewer are left than there were.
    pub fn shrink(&mut self, hash_of: impl Fn(u32) -> u64) {
        let count = self.count as usize;
        if self.buckets.len() > 4 * count + BUCKETS_MIN {
            self.rebuild((2 * count).max(BUCKETS_MIN), hash_of);
        }
    }

    /// About `count` numbers with the least hashes from this one on, and a hash: all before it were found. `None`: these are all.
    pub fn range_from(&self, hash: u64, count: usize, hash_of: impl Fn(u32) -> u64) -> (Vec<(u64, u32)>, Option<u64>) {
        let mut found = Vec::new();
        let visit = |found: &mut Vec<(u64, u32)>, at: usize, bucket: u32, wrapped: bool| {
            let number = (bucket & NUMBERS_MAX) - 1;
            let other = hash_of(number);
            if other >= hash && (self.home(other) > at) == wrapped {
                found.push((other, number));
            }
        };
        for at in self.home(hash)..self.buckets.len() {
            match self.buckets[at] {
                // Whatever belongs before an empty place stands before it.
                0 if found.len() >= count => return (found, Some(self.first_hash_after(hash, at))),
                0 => {}
                bucket => visit(&mut found, at, bucket, false),
            }
        }
        // What found no place at the end went on at the beginning.
        for (at, bucket) in self.buckets.iter().enumerate().take_while(|(_, bucket)| **bucket != 0) {
            visit(&mut found, at, *bucket, true);
        }
        (found, None)
    }

    /// How many bytes it takes.
    pub fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<u32>()
    }

    fn rebuild(&mut self, buckets: usize, hash_of: impl Fn(u32) -> u64) {
        let old = std::mem::replace(&mut self.buckets, vec![0; buckets]);
        self.count = 0;
        for bucket in old.into_iter().filter(|bucket| *bucket != 0) {
            let number = (bucket & NUMBERS_MAX) - 1;
            self.put(hash_of(number), number);
        }
    }

    fn put(&mut self, hash: u64, number: u32) {
        let mut at = self.home(hash);
        while self.buckets[at] != 0 {
            at = self.next_bucket(at);
        }
        self.buckets[at] = tag(hash) | (number + 1);
        self.count += 1;
    }

    fn bucket_of(&self, hash: u64, number: u32) -> usize {
        let (mut at, wanted) = (self.home(hash), tag(hash) | (number + 1));
        while self.buckets[at] != wanted {
            assert!(self.buckets[at] != 0, "the index holds the number of every slot");
            at = self.next_bucket(at);
        }
        at
    }

    /// The own place of a hash: from the bits behind those that chose the shard, so places are in the order of hashes; their number need not be a power of two.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        ((((hash << self.shard_bits) >> 32) * self.buckets.len() as u64) >> 32) as usize
    }

    /// The least hash, in the shard of this one, whose own place is behind this.
    fn first_hash_after(&self, hash: u64, at: usize) -> u64 {
        let first = ((at as u64 + 1) << 32).div_ceil(self.buckets.len() as u64);
        let shard = if self.shard_bits == 0 { 0 } else { hash >> (64 - self.shard_bits) << (64 - self.shard_bits) };
        // At the last place it is the first hash of the next shard, or none.
        shard.saturating_add(((u128::from(first) << 32) >> self.shard_bits).min(u128::from(u64::MAX)) as u64)
    }

    #[inline]
    fn next_bucket(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() { 0 } else { at + 1 }
    }

    /// How many steps it is from one place to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.buckets.len() - from }
    }
}

/// The bits of a hash that stand in a place: neither those of the shard nor those of the place.
#[inline]
fn tag(hash: u64) -> u32 {
    (hash as u32) << NUMBER_BITS
}
