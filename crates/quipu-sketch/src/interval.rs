//! An estimate with its interval.

/// An estimate, with an interval that holds the truth in about 95 of 100 cases.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The most plausible value.
    pub estimate: f64,
    /// Lower end of the interval.
    pub lower: f64,
    /// Upper end of the interval.
    pub upper: f64,
}

impl Interval {
    /// Returns the interval of two standard deviations to both sides, within the given limits.
    pub(crate) fn around(estimate: f64, deviation: f64, (least, most): (f64, f64)) -> Interval {
        let most = most.max(least);
        Interval {
            estimate: estimate.clamp(least, most),
            lower: (estimate - 2.0 * deviation).clamp(least, most),
            upper: (estimate + 2.0 * deviation).clamp(least, most),
        }
    }

    /// Returns true if the value cannot be distinguished from 0.
    pub fn is_below_resolution(&self) -> bool {
        self.lower <= 0.0
    }
}
