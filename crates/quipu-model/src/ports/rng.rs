//! Port to random numbers.

/// Source of identities and hash seeds.
pub trait Rng: Send + Sync {
    /// Returns 64 random bits.
    fn next(&self) -> u64;
}
