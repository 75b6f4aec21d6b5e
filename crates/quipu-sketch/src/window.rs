//! Time windows: maps times to the panes of a window.
//!
//! A window of `count` panes is a ring of that many sketches or counters. Pane number i holds the
//! times from i·pane up to, and not including, (i+1)·pane. A reading at `now` joins the pane of
//! `now` and the `count − 1` before it. It covers at least the window's length less one pane, and
//! at most the length.
//!
//! All times are milliseconds since 1970. The two numbers are the only state.

/// A window in panes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Panes {
    /// Milliseconds of a pane, at least 1.
    pane: u64,
    /// Panes of the window, at least 1.
    count: u32,
}

/// Position of a time relative to a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PanePosition {
    /// In the pane of this number.
    Pane(u64),
    /// Older than the window.
    Late,
    /// In a pane that has not begun.
    Ahead,
}

/// Most panes of a window: each is a sketch of its own.
pub const PANES_MAX: u32 = 1440;

/// Milliseconds per unit.
const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

impl Panes {
    /// Creates a window of `count` panes.
    pub fn new(pane_ms: u64, count: u32) -> Option<Panes> {
        pane_ms.checked_mul(u64::from(count)).filter(|length| *length > 0 && count <= PANES_MAX)?;
        Some(Panes { pane: pane_ms, count })
    }

    /// Parses `1h/60`: the last hour, in 60 panes of a minute. The length must be whole panes.
    pub fn parse(text: &str) -> Result<Panes, String> {
        let wrong =
            || format!("'{text}' is not a window: write 1h/60 for the last hour in 60 panes, at most {PANES_MAX}");
        let (length, count) = text.split_once('/').ok_or_else(wrong)?;
        let digits = length.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = length.split_at(digits);
        let (_, factor) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let length = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(wrong)?;
        if !count.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        let count: u32 = count.parse().map_err(|_| wrong())?;
        if count == 0 || !length.is_multiple_of(u64::from(count)) {
            return Err(wrong());
        }
        Panes::new(length / u64::from(count), count).ok_or_else(wrong)
    }

    /// Returns the length of the window in milliseconds.
    pub fn length(&self) -> u64 {
        self.pane * u64::from(self.count)
    }

    /// Returns the length of a pane in milliseconds: a reading may fall short of the window by this
    /// much.
    pub fn pane(&self) -> u64 {
        self.pane
    }

    /// Returns the number of panes.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the number of the pane of a time.
    pub fn pane_of(&self, time: u64) -> u64 {
        time / self.pane
    }

    /// Returns the times of a pane.
    pub fn times_of(&self, pane: u64) -> std::ops::Range<u64> {
        let from = pane.saturating_mul(self.pane);
        from..from.saturating_add(self.pane)
    }

    /// Returns the slot of a pane in the ring.
    pub fn slot_of(&self, pane: u64) -> usize {
        (pane % u64::from(self.count)) as usize
    }

    /// Returns the panes that a reading joins.
    pub fn covered(&self, now: u64) -> std::ops::RangeInclusive<u64> {
        let last = self.pane_of(now);
        last.saturating_sub(u64::from(self.count) - 1)..=last
    }

    /// Returns true if a pane has left the window. A future pane has not.
    pub fn is_expired(&self, pane: u64, now: u64) -> bool {
        pane < *self.covered(now).start()
    }

    /// Returns the position of an event's time.
    pub fn locate(&self, time: u64, now: u64) -> PanePosition {
        let (pane, covered) = (self.pane_of(time), self.covered(now));
        if pane < *covered.start() {
            PanePosition::Late
        } else if pane > *covered.end() {
            PanePosition::Ahead
        } else {
            PanePosition::Pane(pane)
        }
    }
}

impl std::fmt::Display for Panes {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let length = self.length();
        let (unit, factor) =
            UNITS.into_iter().rev().find(|(_, factor)| length.is_multiple_of(*factor)).unwrap_or(UNITS[0]);
        write!(out, "{}{unit}/{}", length / factor, self.count)
    }
}

/// Weights of a decay: an event counts half after each half-life.
///
/// The weight of an event is fixed on arrival, and grows with time from a landmark on (forward
/// decay). So earlier counts need no update. A reading divides by the present weight. Weights
/// double every half-life, so the landmark must advance now and then, by whole half-lives. All
/// counts are then halved the same number of times, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decay {
    /// Half-life in milliseconds, at least 1.
    half_life: u64,
    /// Time at which weights are [`Decay::UNIT`].
    landmark: u64,
}

/// Number of half-lives after which the landmark advances: weights are then 2²⁴, and 2⁴⁰ events fit
/// 64 bits.
const HALF_LIVES_MAX: u64 = 8;

impl Decay {
    /// Weight of an event at the landmark. Weights are whole numbers, so each has a relative error
    /// of at most 1/130,000.
    pub const UNIT: u64 = 1 << 16;

    /// Creates a decay with a landmark.
    pub fn new(half_life_ms: u64, landmark: u64) -> Decay {
        Decay { half_life: half_life_ms.max(1), landmark }
    }

    /// Returns the half-life in milliseconds.
    pub fn half_life(&self) -> u64 {
        self.half_life
    }

    /// Returns the time at which weights are [`Decay::UNIT`].
    pub fn landmark(&self) -> u64 {
        self.landmark
    }

    /// Returns the weight of an event at a time, before the landmark has to advance; 0 for one too
    /// old to count.
    pub fn weight(&self, time: u64) -> u64 {
        self.exact(time).round() as u64
    }

    /// Returns the value of a sum of weights at a time.
    pub fn value(&self, sum: u64, now: u64) -> f64 {
        sum as f64 / self.exact(now)
    }

    /// Returns, once weights have become large, the next decay and the number of times that all
    /// sums must be halved.
    pub fn advance_landmark(&self, now: u64) -> Option<(Decay, u32)> {
        let halves = now.saturating_sub(self.landmark) / self.half_life;
        let landmark = self.landmark + halves * self.half_life;
        (halves >= HALF_LIVES_MAX).then(|| (Decay { landmark, ..*self }, u32::try_from(halves).unwrap_or(u32::MAX)))
    }

    fn exact(&self, time: u64) -> f64 {
        let since = (i128::from(time) - i128::from(self.landmark)) as f64;
        (since / self.half_life as f64).exp2() * Decay::UNIT as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_read_and_shown() {
        let hour = Panes::parse("1h/60").unwrap();
        assert_eq!((hour.length(), hour.pane(), hour.count()), (3_600_000, 60_000, 60));
        for text in ["1h/60", "90s/3", "7d/7", "1500ms/5", "1d/1440"] {
            assert_eq!(Panes::parse(text).unwrap().to_string(), text);
        }
        for bad in [
            "",
            "1h",
            "1h/0",
            "h/2",
            "1h/-1",
            "1h/+2",
            "1/2",
            "1x/2",
            "1h/7000",
            "7ms/2",
            "0s/1",
            "99999999999999999999h/1",
            "1 h/2",
            "213503982335d/1",
        ] {
            assert!(Panes::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_time_is_in_one_pane_and_borders_are_half_open() {
        let panes = Panes::new(1000, 3).unwrap();
        assert_eq!([0, 999, 1000, 1999].map(|time| panes.pane_of(time)), [0, 0, 1, 1]);
        assert_eq!(panes.times_of(1), 1000..2000);
        let now = 10_500;
        assert_eq!(panes.covered(now), 8..=10);
        assert_eq!(panes.locate(8_000, now), PanePosition::Pane(8));
        assert_eq!(panes.locate(7_999, now), PanePosition::Late);
        assert_eq!(panes.locate(10_999, now), PanePosition::Pane(10));
        assert_eq!(panes.locate(11_000, now), PanePosition::Ahead);
        assert!(panes.is_expired(7, now) && !panes.is_expired(8, now) && !panes.is_expired(11, now));
        assert_eq!(panes.covered(500), 0..=0);
        let slots: Vec<usize> = panes.covered(now).map(|pane| panes.slot_of(pane)).collect();
        assert_eq!(slots, [2, 0, 1]);
    }

    #[test]
    fn a_reading_falls_short_by_less_than_a_pane() {
        let panes = Panes::parse("10s/10").unwrap();
        for now in 50_000..53_000 {
            let covered = now + 1 - panes.times_of(*panes.covered(now).start()).start;
            assert!(covered <= panes.length() && covered > panes.length() - panes.pane());
        }
    }

    #[test]
    fn what_came_a_half_life_ago_counts_half() {
        let decay = Decay::new(1000, 5000);
        let sum = decay.weight(5000) + decay.weight(6000);
        assert_eq!(sum, 3 * Decay::UNIT);
        assert_eq!((decay.value(sum, 6000), decay.value(sum, 7000)), (1.5, 0.75));
        assert_eq!(decay.weight(4000), Decay::UNIT / 2);
        assert_eq!(Decay::new(100, 5_000).weight(3_000), 0, "too old to count");
        assert!(decay.advance_landmark(12_999).is_none());
        let (later, halves) = decay.advance_landmark(13_500).unwrap();
        assert_eq!((later.landmark(), halves), (13_000, 8));
        assert_eq!(later.value(sum >> halves, 26_000), decay.value(sum, 26_000));
        assert_eq!(Decay::new(0, u64::MAX).weight(0), 0);
        let (far, halves) = Decay::new(1, 0).advance_landmark(u64::MAX).unwrap();
        assert_eq!((far.landmark(), halves), (u64::MAX, u32::MAX));
    }
}
