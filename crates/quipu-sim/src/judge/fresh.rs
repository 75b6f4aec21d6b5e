//! How far a reading may lag behind, where nothing stands in its way.
//!
//! In: the adds of one counter that only rises, when they were asked and acknowledged, and what each node has shown. Out: the least that a node may
//! show next.
//!
//! In fair weather (no fault, everybody up, the store answering, and for so long that nobody waits for an answer from before) what was
//! acknowledged on any node is settled within `settle_every`, and what a node knows of the others is no older than `freshness`. So between two readings of
//! one node, what was asked after the first was answered and acknowledged the lag before the second was asked must have been added to what it
//! shows. In any other weather only the judge's other floors hold.

use std::time::Duration;

/// The adds and readings of one counter.
#[derive(Default)]
pub struct Fresh {
    adds: Vec<Add>,
    /// When each node last answered a reading, and with what.
    shown: Vec<Option<(Duration, i128)>>,
}

#[derive(Debug, Clone, Copy)]
struct Add {
    asked: Duration,
    acked: Duration,
    delta: i64,
}

/// The weather when something happens.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    /// The time.
    pub now: Duration,
    /// Since when nothing stands in anybody's way.
    pub clear_since: Duration,
    /// Since when it has been fair: the same, and everybody has found their way back from what did.
    pub fair_since: Duration,
    /// How long it takes until everybody knows, in fair weather.
    pub lag: Duration,
}

impl Fresh {
    /// An add was acknowledged.
    pub fn acked(&mut self, asked: Duration, weather: Weather, delta: i64) {
        self.adds.push(Add { asked, acked: weather.now, delta });
    }

    /// A node has answered with this value.
    pub fn showed(&mut self, node: usize, weather: Weather, value: i128) {
        if self.shown.len() <= node {
            self.shown.resize(node + 1, None);
        }
        self.shown[node] = Some((weather.now, value));
    }

    /// The least that a node may answer now, if anything is known.
    pub fn least(&self, node: usize, weather: Weather) -> Option<i128> {
        let (at, value) = self.shown.get(node).copied().flatten()?;
        let until = weather.now.checked_sub(weather.lag)?;
        if at < weather.fair_since || until < at {
            return None;
        }
        // In the order of their acks: none before this answer was asked after it.
        let since = self.adds.iter().rev().take_while(|add| add.acked >= at);
        let known = since.filter(|add| add.asked > at && add.acked <= until);
        Some(value + known.map(|add| i128::from(add.delta)).sum::<i128>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(now: u64) -> Weather {
        let second = Duration::from_secs;
        Weather { now: second(now), clear_since: second(10), fair_since: second(10), lag: second(5) }
    }

    #[test]
    fn in_fair_weather_a_reading_has_what_was_acknowledged_the_lag_before() {
        let mut fresh = Fresh::default();
        fresh.showed(0, at(12), 100);
        fresh.acked(Duration::from_secs(11), at(13), 1_000);
        fresh.acked(Duration::from_secs(13), at(14), 7);
        fresh.acked(Duration::from_secs(15), at(16), 20);
        assert_eq!(fresh.least(0, at(19)), Some(107), "what was asked before it showed 100 may have been in that");
        assert_eq!(fresh.least(0, at(21)), Some(127));
        assert_eq!(fresh.least(0, at(16)), None, "too soon");
        assert_eq!(fresh.least(1, at(21)), None, "it has shown nothing");
        let storm = Weather { fair_since: Duration::from_secs(13), ..at(21) };
        assert_eq!(fresh.least(0, storm), None);
    }
}
