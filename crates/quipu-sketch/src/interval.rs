//! A count with its limits.

/// An estimate, and between which limits the truth lies in about 95 of 100 cases.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The most plausible value.
    pub estimate: f64,
    /// It is hardly less.
    pub lower: f64,
    /// It is hardly more.
    pub upper: f64,
}

impl Interval {
    /// Two standard deviations to both sides, within what is possible.
    pub(crate) fn around(estimate: f64, deviation: f64, (least, most): (f64, f64)) -> Interval {
        let most = most.max(least);
        Interval {
            estimate: estimate.clamp(least, most),
            lower: (estimate - 2.0 * deviation).clamp(least, most),
            upper: (estimate + 2.0 * deviation).clamp(least, most),
        }
    }

    /// Whether the value cannot be told from nothing.
    pub fn is_below_resolution(&self) -> bool {
        self.lower <= 0.0
    }
}
