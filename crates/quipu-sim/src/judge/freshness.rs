//! Computes the freshness bound of readings in fair conditions.
//!
//! In: the adds of one rising counter with their times of sending and ack, and each node's
//! readings. Out: the least value that a node may show next.
//!
//! Conditions are fair if there is no fault, all nodes are up, the store answers, and no earlier
//! call is still waited for. Then an acknowledged add is settled within `settle_every`, and a
//! node's view of the others is at most `freshness` old.
//!
//! So take two readings of one node. Every add sent after the first was answered, and acknowledged
//! the lag before the second was sent, must be in the difference. In other conditions only the
//! judge's other floors hold.

use std::time::Duration;

/// The adds and readings of one counter.
#[derive(Default)]
pub struct FreshnessHistory {
    adds: Vec<TimedAdd>,
    /// Time and value of each node's last answered reading.
    shown: Vec<Option<(Duration, i128)>>,
}

#[derive(Debug, Clone, Copy)]
struct TimedAdd {
    asked_at: Duration,
    acked_at: Duration,
    delta: i64,
}

/// Conditions at an event.
#[derive(Debug, Clone, Copy)]
pub struct Conditions {
    /// The time.
    pub now: Duration,
    /// Start of the current time without any fault in effect.
    pub clear_since: Duration,
    /// Start of the fair time: as `clear_since`, and all nodes have recovered.
    pub fair_since: Duration,
    /// Time until all nodes know an add, in fair conditions.
    pub lag: Duration,
}

impl FreshnessHistory {
    /// Records an acknowledged add.
    pub fn add_acked(&mut self, asked_at: Duration, conditions: Conditions, delta: i64) {
        self.adds.push(TimedAdd { asked_at, acked_at: conditions.now, delta });
    }

    /// Records a node's reading.
    pub fn add_reading(&mut self, node: usize, conditions: Conditions, value: i128) {
        if self.shown.len() <= node {
            self.shown.resize(node + 1, None);
        }
        self.shown[node] = Some((conditions.now, value));
    }

    /// The least value that a node may answer now, if a bound exists.
    pub fn least_reading(&self, node: usize, conditions: Conditions) -> Option<i128> {
        let (at, value) = self.shown.get(node).copied().flatten()?;
        let until = conditions.now.checked_sub(conditions.lag)?;
        if at < conditions.fair_since || until < at {
            return None;
        }
        // Adds are in the order of their acks: those acked before this reading were also sent
        // before it.
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
