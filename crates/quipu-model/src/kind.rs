//! Kinds of counters.

/// Kind of a counter; it decides which commands the counter accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A signed 64-bit sum, exact and checked.
    Count,
    /// Number of different items.
    Unique,
    /// Number of occurrences of each item.
    Frequency,
    /// The most frequent items.
    Top,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [Kind::Count, Kind::Unique, Kind::Frequency, Kind::Top];

    /// Name used in configuration, JSON and documents.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Count => "count",
            Kind::Unique => "unique",
            Kind::Frequency => "frequency",
            Kind::Top => "top",
        }
    }
}
