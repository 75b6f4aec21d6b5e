//! How safe an operation is when its reply leaves.

use std::fmt;
use std::str::FromStr;

/// What an ack means. Ordered: the later one is the stricter one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Durability {
    /// Applied in memory; after a crash, the value last sealed.
    Memory,
    /// Handed to the operating system; survives the end of the process, synced within the relaxed window.
    Relaxed,
    /// Synced to disk.
    #[default]
    Durable,
}

impl Durability {
    /// All of them, weakest first.
    pub const ALL: [Durability; 3] = [Durability::Memory, Durability::Relaxed, Durability::Durable];

    /// The word used in configuration and documents.
    pub fn name(self) -> &'static str {
        match self {
            Durability::Memory => "memory",
            Durability::Relaxed => "relaxed",
            Durability::Durable => "durable",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Not one of the three words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown durability '{0}': it is memory, relaxed or durable")]
pub struct UnknownDurability(String);

impl FromStr for Durability {
    type Err = UnknownDurability;

    fn from_str(name: &str) -> Result<Durability, UnknownDurability> {
        Durability::ALL.into_iter().find(|d| d.name() == name).ok_or_else(|| UnknownDurability(name.to_owned()))
    }
}
