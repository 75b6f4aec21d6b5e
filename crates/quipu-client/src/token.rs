//! Makes tokens, the names of mutations for their retries.
//!
//! Invariant: no two mutations have the same token, even of two clients made at the same time. A
//! client's producer is 128 random bits, and the client numbers its mutations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Makes tokens.
#[derive(Debug)]
pub(crate) struct TokenSource {
    producer: String,
    numbers_used: AtomicU64,
}

/// The item of one token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenItem(String);

impl TokenSource {
    pub fn new() -> TokenSource {
        let mut bytes = [0; 16];
        // Without random bytes, the time and the process tell clients apart; every system we know
        // of has them.
        if getrandom::fill(&mut bytes).is_err() {
            bytes[..8].copy_from_slice(&(since_1970().as_nanos() as u64).to_le_bytes());
            bytes[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        }
        TokenSource {
            producer: bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            numbers_used: AtomicU64::new(0),
        }
    }

    pub fn producer(&self) -> &[u8] {
        self.producer.as_bytes()
    }

    /// A number that is very likely unique.
    pub fn seed(&self) -> u64 {
        // The first 64 of the producer's bits, and the count of numbers used.
        let bits = self.producer.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_default();
        bits.wrapping_add(self.numbers_used.fetch_add(1, Ordering::Relaxed))
    }

    /// A new token, with the present time.
    pub fn next(&self) -> TokenItem {
        // Thirteen digits: the server's form of a token with its time.
        TokenItem(format!("{:013}-{:x}", since_1970().as_millis(), self.numbers_used.fetch_add(1, Ordering::Relaxed)))
    }
}

impl TokenItem {
    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

#[allow(clippy::disallowed_methods, reason = "a token carries the real time, which the server compares with its own")]
fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use quipu_model::Identity;

    use super::*;

    #[test]
    fn tokens_differ_and_carry_their_time() {
        let (tokens, others) = (TokenSource::new(), TokenSource::new());
        assert_ne!(tokens.producer(), others.producer());
        let (first, second) = (tokens.next(), tokens.next());
        assert_ne!(first, second);
        let time =
            Identity::token(tokens.producer(), first.bytes()).unwrap().time().expect("the server finds the time");
        assert!(time.0.abs_diff(since_1970().as_millis() as u64) < 60_000);
    }
}
