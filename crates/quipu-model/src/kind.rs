//! The kinds of counters.

/// What a counter counts, and so which commands it understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A signed 64-bit sum, exact and checked.
    Count,
    /// How many different items were seen.
    Unique,
    /// How often each item came.
    Frequency,
    /// Which items come most often.
    Top,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Count, Kind::Unique, Kind::Frequency, Kind::Top];

    /// The word used in configuration, JSON and documents.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Count => "count",
            Kind::Unique => "unique",
            Kind::Frequency => "frequency",
            Kind::Top => "top",
        }
    }
}
