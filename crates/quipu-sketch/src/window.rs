//! Counts of the last hour: which panes a window is made of.
//!
//! A window of a length, in `count` panes, is a ring of that many sketches or counters. Pane number i holds the times from i·pane up to, and not including, (i+1)·pane. A reading
//! at `now` joins the pane that now is in and the `count − 1` before it: it covers at least the window's length less one pane, and at most the length.
//!
//! All times are milliseconds since 1970. No state beyond the two numbers.

/// A window in panes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Panes {
    /// Milliseconds of a pane, at least 1.
    pane: u64,
    /// Panes of the window, at least 1.
    count: u32,
}

/// Where a time belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PanePosition {
    /// In the pane of this number.
    Pane(u64),
    /// It is older than the window.
    Late,
    /// Its pane has not begun.
    Ahead,
}

/// Most panes of a window: each is a sketch of its own.
pub const PANES_MAX: u32 = 1440;

/// Milliseconds per unit.
const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

impl Panes {
    /// A window of so many panes.
    pub fn new(pane_ms: u64, count: u32) -> Option<Panes> {
        pane_ms.checked_mul(u64::from(count)).filter(|length| *length > 0 && count <= PANES_MAX)?;
        Some(Panes { pane: pane_ms, count })
    }

    /// Reads `1h/60`: the last hour, in 60 panes of a minute. The length must be whole panes.
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

    /// Milliseconds of the window.
    pub fn length(&self) -> u64 {
        self.pane * u64::from(self.count)
    }

    /// Milliseconds of a pane: by so much a reading may fall short of the window.
    pub fn pane(&self) -> u64 {
        self.pane
    }

    /// Panes of the window.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The number of the pane that a time is in.
    pub fn pane_of(&self, time: u64) -> u64 {
        time / self.pane
    }

    /// The times of a pane.
    pub fn times_of(&self, pane: u64) -> std::ops::Range<u64> {
        let from = pane.saturating_mul(self.pane);
        from..from.saturating_add(self.pane)
    }

    /// Where in the ring a pane is.
    pub fn slot_of(&self, pane: u64) -> usize {
        (pane % u64::from(self.count)) as usize
    }

    /// The panes that a reading joins.
    pub fn covered(&self, now: u64) -> std::ops::RangeInclusive<u64> {
        let last = self.pane_of(now);
        last.saturating_sub(u64::from(self.count) - 1)..=last
    }

    /// Whether a pane has left the window. One that is ahead has not.
    pub fn is_expired(&self, pane: u64, now: u64) -> bool {
        pane < *self.covered(now).start()
    }

    /// Where an event belongs.
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

/// Weights for what is trending: what came a half-life ago counts half.
///
/// The weight of an event is fixed when it comes, and grows with time from a landmark on (forward decay); what has been counted before never has to be touched. A reading divides by the
/// weight of now. Weights double every half-life, so the landmark must move on now and then, by whole half-lives: everything is then halved as often, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decay {
    /// Milliseconds in which a count halves, at least 1.
    half_life: u64,
    /// Where weights are [`Decay::UNIT`].
    landmark: u64,
}

/// After so many half-lives the landmark moves: weights are then 2²⁴, and 2⁴⁰ events fit 64 bits.
const HALF_LIVES_MAX: u64 = 8;

impl Decay {
    /// The weight of an event at the landmark. Weights are whole numbers, so each is right to a part in 130,000.
    pub const UNIT: u64 = 1 << 16;

    /// Weights from a landmark on.
    pub fn new(half_life_ms: u64, landmark: u64) -> Decay {
        Decay { half_life: half_life_ms.max(1), landmark }
    }

    /// Milliseconds in which a count halves.
    pub fn half_life(&self) -> u64 {
        self.half_life
    }

    /// Where weights are [`Decay::UNIT`].
    pub fn landmark(&self) -> u64 {
        self.landmark
    }

    /// The weight of an event at a time, which is before the landmark has to move; 0 of one that is too old to count.
    pub fn weight(&self, time: u64) -> u64 {
        self.exact(time).round() as u64
    }

    /// What a sum of weights is worth at a time.
    pub fn value(&self, sum: u64, now: u64) -> f64 {
        sum as f64 / self.exact(now)
    }

    /// Once weights have become large: the weights to go on with, and how often all sums so far must be halved.
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
