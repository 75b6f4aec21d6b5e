//! Holds the resident counters in shards, shared by all workers.
//!
//! A name's hash decides its shard; one short-held lock guards a shard. Callers address cells by
//! hash and name and never see their storage, so the storage can change.
//!
//! Not here: the counters of one shard and their invariants (`shard`).

mod census;
pub(crate) mod lanes;
pub(crate) mod locks;
pub(crate) mod sampler;
pub(crate) mod shard;
pub(crate) mod slots;
pub mod unsettled;
pub(crate) mod walk;

use quipu_model::Epoch;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use self::sampler::EventSampler;
pub use self::shard::{Residency, ResidentName, Shard};
use self::slots::prefetch::prefetch_two;
use self::slots::{SlotTable, SpareChunks};
use crate::base::sync::{Arc, AtomicI64, Mutex, MutexGuard, Ordering, lock, try_lock};

/// Order keys have 53 bits, so that a cursor is an integer in every client, including clients that
/// count in doubles.
pub const ORDER_BITS: u32 = 53;

/// All shards of the resident table.
pub struct Table {
    shards: Vec<AlignedShard>,
    /// The top bits of a hash choose the shard, so a walk of shards in order walks hashes in order.
    shard_bits: u32,
    seed: u64,
    counters: AtomicI64,
    bytes: AtomicI64,
    /// Bytes of sketch bodies, included in `bytes`.
    bodies_bytes: AtomicI64,
    /// Events too late for the window of their sketch, since the start.
    late_events: AtomicI64,
    /// Events of sampled counts.
    sampled_events: AtomicI64,
    spare_chunks: Arc<SpareChunks>,
}

impl Table {
    /// An empty table. The seed is secret, so that no client can choose names that collide.
    pub fn new(shards: usize, seed: u64) -> Table {
        let shards = shards.next_power_of_two();
        let shard_bits = shards.trailing_zeros();
        let spare = Arc::new(SpareChunks::default());
        let shards = (0..shards)
            .map(|_| AlignedShard(Mutex::new(Shard::new(SlotTable::new(seed, shard_bits, spare.clone())))))
            .collect();
        Table {
            shards,
            shard_bits,
            seed,
            counters: AtomicI64::new(0),
            bytes: AtomicI64::new(0),
            bodies_bytes: AtomicI64::new(0),
            late_events: AtomicI64::new(0),
            sampled_events: AtomicI64::new(0),
            spare_chunks: spare,
        }
    }

    /// The hash of a name.
    pub fn hash(&self, name: &[u8]) -> u64 {
        xxh3_64_with_seed(name, self.seed)
    }

    /// Seed of the hashes. The ledger is ordered by them, so the seed never changes.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The shard of a hash.
    pub fn shard_of(&self, hash: u64) -> usize {
        // A shift by 64 is undefined, and a single shard needs none.
        if self.shard_bits == 0 { 0 } else { (hash >> (64 - self.shard_bits)) as usize }
    }

    /// The first hash of a shard.
    pub fn first_hash(&self, shard: usize) -> u64 {
        if self.shard_bits == 0 { 0 } else { (shard as u64) << (64 - self.shard_bits) }
    }

    /// Number of shards.
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Prefetches the lines that every access to a shard needs.
    #[inline]
    pub fn prefetch(&self, shard: usize) {
        prefetch_two(&self.shards[shard]);
    }

    /// Locks a shard. A thread locks several in the order of their index.
    pub fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        lock(&self.shards[shard].0)
    }

    /// Locks a shard if it is free; allowed in any order.
    #[inline]
    pub fn try_lock(&self, shard: usize) -> Option<MutexGuard<'_, Shard>> {
        try_lock(&self.shards[shard].0)
    }

    /// Works on a shard under its lock, and updates the table's totals of counters and bytes.
    pub fn with_shard<T>(&self, shard: usize, work: impl FnOnce(&mut Shard) -> T) -> T {
        let mut shard = self.lock(shard);
        let result = work(&mut shard);
        self.update_totals(&mut shard);
        result
    }

    /// Adds a shard's changes since the last call to the table's totals.
    pub fn update_totals(&self, shard: &mut Shard) {
        if !std::mem::take(&mut shard.totals_stale) {
            return;
        }
        let events = std::mem::take(&mut shard.sampler.events);
        if events > 0 {
            self.sampled_events.fetch_add(events as i64, Ordering::Relaxed);
        }
        let (counters, bytes) = (shard.counters as i64, shard.bytes() as i64);
        if shard.counted_totals != (counters, bytes) {
            self.counters.fetch_add(counters - shard.counted_totals.0, Ordering::Relaxed);
            self.bytes.fetch_add(bytes - shard.counted_totals.1, Ordering::Relaxed);
            shard.counted_totals = (counters, bytes);
        }
        let bodies_bytes = shard.bodies_bytes() as i64;
        if shard.counted_bodies_bytes != bodies_bytes {
            self.bodies_bytes.fetch_add(bodies_bytes - shard.counted_bodies_bytes, Ordering::Relaxed);
            shard.counted_bodies_bytes = bodies_bytes;
        }
    }

    /// Updates the byte totals in the middle of a run: its next command may need memory, too. The
    /// number of counters is updated once they have a record.
    pub fn update_byte_totals(&self, shard: &mut Shard) {
        let (bytes, bodies_bytes) = (shard.bytes() as i64, shard.bodies_bytes() as i64);
        self.bytes.fetch_add(bytes - shard.counted_totals.1, Ordering::Relaxed);
        self.bodies_bytes.fetch_add(bodies_bytes - shard.counted_bodies_bytes, Ordering::Relaxed);
        (shard.counted_totals.1, shard.counted_bodies_bytes) = (bytes, bodies_bytes);
    }

    /// Newest epoch of all cells, present and past.
    pub fn epoch_newest(&self) -> Epoch {
        let newest = (0..self.shard_count()).map(|shard| {
            let shard = self.lock(shard);
            shard.floor.max(shard.epoch_newest)
        });
        newest.max().unwrap_or(Epoch::FIRST)
    }

    /// Seeds the samplers of all shards from a number unique to this start.
    pub fn seed_rng(&self, seed: u64) {
        for shard in 0..self.shard_count() {
            let seed = xxh3_64_with_seed(&(shard as u64).to_le_bytes(), self.seed ^ seed);
            self.lock(shard).sampler = EventSampler::new(seed);
        }
    }

    /// Events of sampled counts, taken or not, since the start.
    pub fn sampled_events(&self) -> u64 {
        self.sampled_events.load(Ordering::Relaxed).max(0) as u64
    }

    /// Moves slots into huge pages, where the system has them, to speed up random access.
    pub fn collapse_huge_pages(&self) {
        self.spare_chunks.collapse_huge_pages();
    }

    /// Number of counters, resident or not, including expired ones that were not found expired yet.
    pub fn counters(&self) -> u64 {
        self.counters.load(Ordering::Relaxed).max(0) as u64
    }

    /// Approximate bytes of the resident counters.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed).max(0) as u64
    }

    /// Counts events that were too late for the window of their sketch.
    pub fn add_late_events(&self, events: u64) {
        // A client may send any number; the cap keeps the sum from overflowing.
        self.late_events.fetch_add(events.min(1 << 40) as i64, Ordering::Relaxed);
    }

    /// Events too late for their window, since the start.
    pub fn late_events(&self) -> u64 {
        self.late_events.load(Ordering::Relaxed).max(0) as u64
    }

    /// Approximate bytes of sketch bodies, included in `bytes`; bodies are never evicted.
    pub fn bodies_bytes(&self) -> u64 {
        self.bodies_bytes.load(Ordering::Relaxed).max(0) as u64
    }
}

/// A shard on cache lines of its own.
#[repr(align(128))]
struct AlignedShard(Mutex<Shard>);

/// Position of a name in a walk over all names.
pub fn order_key(hash: u64) -> u64 {
    hash >> (64 - ORDER_BITS)
}
