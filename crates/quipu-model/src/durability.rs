//! Durability of an operation at the time of its reply.

use std::fmt;
use std::str::FromStr;

/// Meaning of an ack. Ordered: the later one is the stricter one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Durability {
    /// Applied in memory; a crash goes back to the value last sealed.
    Memory,
    /// Handed to the operating system. It survives the end of the process and is synced within the
    /// relaxed window.
    Relaxed,
    /// Synced to disk.
    #[default]
    Durable,
}

impl Durability {
    /// All durabilities, weakest first.
    pub const ALL: [Durability; 3] = [Durability::Memory, Durability::Relaxed, Durability::Durable];

    /// Name used in configuration and documents.
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

/// A text other than the three names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown durability '{0}': it is memory, relaxed or durable")]
pub struct UnknownDurability(String);

impl FromStr for Durability {
    type Err = UnknownDurability;

    fn from_str(name: &str) -> Result<Durability, UnknownDurability> {
        Durability::ALL.into_iter().find(|d| d.name() == name).ok_or_else(|| UnknownDurability(name.to_owned()))
    }
}
