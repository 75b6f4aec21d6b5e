//! Maps hashes to slot numbers by open addressing with linear probing.
//!
//! A bucket has four bytes: the number of a slot and a few bits of its hash, so nearly every slot
//! that is read is the right one. The index grows by a half, so it is never much larger than
//! needed. Only these few bytes per counter are rebuilt when it grows.
//!
//! Invariant: no bucket between a number's home bucket and its actual bucket is empty.

use crate::table::slots::prefetch::prefetch;

/// Bits of a bucket for the number; the others are bits of the hash.
const NUMBER_BITS: u32 = 26;

/// Bound of the slot numbers. A shard of a thousand with this many slots would take half a terabyte
/// with the others.
pub const NUMBERS_MAX: u32 = (1 << NUMBER_BITS) - 1;

/// Buckets from the home bucket on that are compared together.
const NEAR: usize = 4;

/// Buckets of the smallest index: one cache line.
const BUCKETS_MIN: usize = 16;

/// The index of a shard, see the module.
#[repr(C)]
pub struct SlotIndex {
    /// 0: empty; otherwise the number plus one, with bits of the hash above it.
    buckets: Vec<u32>,
    count: u32,
    /// Number of upper hash bits that are equal in the whole shard.
    shard_bits: u32,
}

impl SlotIndex {
    pub fn new(shard_bits: u32) -> SlotIndex {
        SlotIndex { buckets: Vec::new(), count: 0, shard_bits }
    }

    /// Returns the number that `matches` accepts, among those whose hash bits agree.
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

    /// Prefetches the home bucket of a hash and those close behind it.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        if let Some(near) = self.buckets.get(self.home(hash)..).and_then(<[u32]>::first_chunk::<NEAR>) {
            prefetch(&near[0]);
            prefetch(&near[NEAR - 1]);
        }
    }

    /// The most likely number of this hash; `None`: it has none.
    #[inline]
    pub fn likely_number(&self, hash: u64) -> Option<u32> {
        let (home, tag) = (self.home(hash), tag(hash));
        // Nearly always the number is in its home bucket or close behind it. A branch per bucket
        // would be unpredictable, so all are compared before any is tested.
        if let Some(near) = self.buckets.get(home..).and_then(<[u32]>::first_chunk::<NEAR>) {
            let number_at = |at: usize| near[at].wrapping_sub(tag).wrapping_sub(1);
            // An empty bucket, or one with other hash bits, yields more than any number.
            let matching = (0..NEAR).fold(0, |matching, at| matching | u32::from(number_at(at) < NUMBERS_MAX) << at);
            if matching != 0 {
                return Some(number_at(matching.trailing_zeros() as usize));
            }
        }
        self.find(hash, |_| true)
    }

    /// Inserts a number; `hash_of` returns the hash of every other one.
    pub fn insert(&mut self, hash: u64, number: u32, hash_of: impl Fn(u32) -> u64) {
        assert!(number < NUMBERS_MAX, "a shard holds at most {NUMBERS_MAX} counters: more shards are needed");
        // At most four fifths full: then the home bucket, or the next one, nearly always has the
        // number.
        if (self.count as usize + 1) * 5 > self.buckets.len() * 4 {
            self.rebuild((self.buckets.len() + self.buckets.len() / 2).max(BUCKETS_MIN), hash_of);
        }
        self.put(hash, number);
    }

    /// Replaces a hash's number.
    pub fn renumber(&mut self, hash: u64, from: u32, to: u32) {
        let at = self.bucket_of(hash, from);
        self.buckets[at] = tag(hash) | (to + 1);
    }

    /// Removes a number; `hash_of` returns the hash of every number.
    pub fn remove(&mut self, hash: u64, number: u32, hash_of: impl Fn(u32) -> u64) {
        let mut hole = self.bucket_of(hash, number);
        let mut at = self.next_bucket(hole);
        // A later number moves into the hole, unless the hole is before its home bucket.
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

    /// Shrinks the index if far fewer numbers are left.
    pub fn shrink(&mut self, hash_of: impl Fn(u32) -> u64) {
        let count = self.count as usize;
        if self.buckets.len() > 4 * count + BUCKETS_MIN {
            self.rebuild((2 * count).max(BUCKETS_MIN), hash_of);
        }
    }

    /// About `count` numbers with the smallest hashes from this one on, and the hash below which
    /// all were found. `None`: these are all.
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
                // A number whose home is before an empty bucket is stored before that bucket.
                0 if found.len() >= count => return (found, Some(self.first_hash_after(hash, at))),
                0 => {}
                bucket => visit(&mut found, at, bucket, false),
            }
        }
        // Numbers that did not fit at the end wrapped around to the beginning.
        for (at, bucket) in self.buckets.iter().enumerate().take_while(|(_, bucket)| **bucket != 0) {
            visit(&mut found, at, *bucket, true);
        }
        (found, None)
    }

    /// Bytes of the index.
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

    /// Home bucket of a hash: from the bits below the shard's, so buckets are in the order of
    /// hashes. The number of buckets need not be a power of two.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        ((((hash << self.shard_bits) >> 32) * self.buckets.len() as u64) >> 32) as usize
    }

    /// The smallest hash, in the shard of this one, with a home bucket after `at`.
    fn first_hash_after(&self, hash: u64, at: usize) -> u64 {
        let first = ((at as u64 + 1) << 32).div_ceil(self.buckets.len() as u64);
        let shard = if self.shard_bits == 0 { 0 } else { hash >> (64 - self.shard_bits) << (64 - self.shard_bits) };
        // For the last bucket it is the first hash of the next shard, or the maximum.
        shard.saturating_add(((u128::from(first) << 32) >> self.shard_bits).min(u128::from(u64::MAX)) as u64)
    }

    #[inline]
    fn next_bucket(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() { 0 } else { at + 1 }
    }

    /// Number of steps from one bucket to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.buckets.len() - from }
    }
}

/// The hash bits stored in a bucket: neither the shard's nor the home bucket's.
#[inline]
fn tag(hash: u64) -> u32 {
    (hash as u32) << NUMBER_BITS
}
