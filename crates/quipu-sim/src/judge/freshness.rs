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
pub struct FreshnessHistory {
    adds: Vec<TimedAdd>,
    /// When each node last answered a reading, and with what.
    shown: Vec<Option<(Duration, i128)>>,
}

#[derive(Debug, Clone, Copy)]
struct TimedAdd {
    asked_at: Duration,
    acked_at: Duration,
    delta: i64,
}

/// The weather when something happens.
#[derive(Debug, Clone, Copy)]
pub struct Conditions {
    /// The time.
    pub now: Duration,
    /// Since when nothing stands in anybody's way.
    pub clear_since: Duration,
    /// Since when it has been fair: the same, and everybody has found their way back from what did.
    pub fair_since: Duration,
    /// How long it takes until everybody knows, in fair weather.
    pub lag: Duration,
}

impl FreshnessHistory {
    /// An add was acknowledged.
    pub fn add_acked(&mut self, asked_at: Duration, conditions: Conditions, delta: i64) {
        self.adds.push(TimedAdd { asked_at, acked_at: conditions.now, delta });
    }

    /// A node has answered with this value.
    pub fn add_reading(&mut self, node: usize, conditions: Conditions, value: i128) {
        if self.shown.len() <= node {
            self.shown.resize(node + 1, None);
        }
        self.shown[node] = Some((conditions.now, value));
    }

    /// The least that a node may answer now, if anything is known.
    pub fn least_reading(&self, node: usize, conditions: Conditions) -> Option<i128> {
        let (at, value) = self.shown.get(node).copied().flatten()?;
        let until = conditions.now.checked_sub(conditions.lag)?;
        if at < conditions.fair_since || until < at {
            return None;
        }
        // In the order of their acks: none before this answer was asked after it.
        let since = self.adds.iter().rev().take_while(|add| add.acked_at >= at);
        let known = since.filter(|add| add.asked_at > at && add.acked_at <= until);
        Some(value + known.map(|add| i128::from(add.delta)).sum::<i128>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(now: u64) -> Conditions {
        let second = Duration::from_secs;
        Conditions { now: second(now), clear_since: second(10), fair_since: second(10), lag: second(5) }
    }

    #[test]
    fn in_fair_weather_a_reading_has_what_was_acknowledged_the_lag_before() {
        let mut history = FreshnessHistory::default();
        history.add_reading(0, at(12), 100);
        history.add_acked(Duration::from_secs(11), at(13), 1_000);
        history.add_acked(Duration::from_secs(13), at(14), 7);
        history.add_acked(Duration::from_secs(15), at(16), 20);
        assert_eq!(
            history.least_reading(0, at(19)),
            Some(107),
            "what was asked before it showed 100 may have been in that"
        );
        assert_eq!(history.least_reading(0, at(21)), Some(127));
        assert_eq!(history.least_reading(0, at(16)), None, "too soon");
        assert_eq!(history.least_reading(1, at(21)), None, "it has shown nothing");
        let storm = Conditions { fair_since: Duration::from_secs(13), ..at(21) };
        assert_eq!(history.least_reading(0, storm), None);
    }
}
