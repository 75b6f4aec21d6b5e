//! Chance.

/// Where identities and hash seeds come from.
pub trait Rng: Send + Sync {
    /// 64 random bits.
    fn next(&self) -> u64;
}
