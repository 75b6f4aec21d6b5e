//! Takes one measurement: a warm-up, then an interval for which it counts operations, their latency
//! and the server's CPU time.
//!
//! Invariant: operations, time and CPU belong to the same interval. The load runs without a break
//! from the warm-up until after the interval, when all replies have come.

use std::time::{Duration, Instant};

use crate::commands::Commands;
use crate::cores::{CpuTimes, own_thread};
use crate::crowd::{CommandRange, Course, Crowd, now};
use crate::latency::Histogram;
use crate::stop::StopFlag;

/// Commands in flight per connection while keys are made.
const FILL_PIPELINE: usize = 256;

/// The load of one measurement.
pub struct Load<'a> {
    /// The commands.
    pub commands: &'a Commands,
    /// Commands in flight per connection.
    pub pipeline: usize,
    /// Time before the interval.
    pub warm_up: Duration,
    /// Length of the interval.
    pub length: Duration,
}

/// The figures of one measurement.
#[derive(Debug, Clone, Copy)]
pub struct Measurement {
    /// Operations that were answered in the interval.
    pub operations: u64,
    /// Length of the interval.
    pub elapsed: Duration,
    /// CPU time of the server.
    pub server_cpu: Option<Duration>,
    /// CPU time of the load.
    pub load_cpu: Option<Duration>,
    /// Time within which half of the pipelines were answered; `p99` and `p999` likewise for 99 %
    /// and 99.9 %.
    pub p50: Duration,
    /// See `p50`.
    pub p99: Duration,
    /// See `p50`.
    pub p999: Duration,
    /// All operations that were answered, warm-up and end included.
    pub acknowledged: u64,
}

/// Measures once. `server` is the server's process, if it is on this machine, for its CPU time.
pub fn measure(
    crowd: &mut Crowd,
    load: &Load<'_>,
    server: Option<u32>,
    stop: &StopFlag,
) -> anyhow::Result<Measurement> {
    let keys = load.commands.keys();
    let connections = crowd.connections();
    let began = now();
    let mut lap = Lap {
        pipeline: load.pipeline,
        keys,
        places: (0..connections).map(|connection| connection * keys / connections).collect(),
        server,
        phase: Phase::WarmUp,
        change_at: began + load.warm_up,
        length: load.length,
        before: CpuReading::take(server, began),
        after: CpuReading::take(None, began),
        operations: 0,
        acknowledged: 0,
        histogram: Histogram::new(),
    };
    crowd.drive(load.commands, &mut lap, stop)?;
    Ok(lap.sample())
}

/// Makes every key; returns the number of operations.
pub fn fill(crowd: &mut Crowd, commands: &Commands, stop: &StopFlag) -> anyhow::Result<u64> {
    let (keys, connections) = (commands.keys(), crowd.connections());
    let bound = |connection: usize| connection * keys / connections;
    let rest = (0..connections).map(|connection| (bound(connection), bound(connection + 1))).collect();
    let mut key_fill = KeyFill { rest, made: 0 };
    crowd.drive(commands, &mut key_fill, stop)?;
    Ok(key_fill.made)
}

/// CPU times at one point in time.
struct CpuReading {
    at: Instant,
    server: Option<CpuTimes>,
    load: Option<Duration>,
}

impl CpuReading {
    fn take(server: Option<u32>, at: Instant) -> CpuReading {
        CpuReading { at, server: server.and_then(CpuTimes::read), load: own_thread() }
    }
}

#[derive(PartialEq)]
enum Phase {
    WarmUp,
    Measured,
    Over,
}

/// A course on which all connections walk over all keys, from places far from one another.
struct Lap {
    pipeline: usize,
    keys: usize,
    places: Vec<usize>,
    server: Option<u32>,
    phase: Phase,
    change_at: Instant,
    length: Duration,
    before: CpuReading,
    after: CpuReading,
    operations: u64,
    acknowledged: u64,
    histogram: Histogram,
}

impl Lap {
    fn sample(self) -> Measurement {
        let (before, after) = (&self.before, &self.after);
        let quantile = |part| self.histogram.quantile(part).unwrap_or_default();
        Measurement {
            operations: self.operations,
            elapsed: after.at - before.at,
            server_cpu: after.server.as_ref().zip(before.server.as_ref()).map(|(after, before)| after.since(before)),
            load_cpu: after.load.zip(before.load).map(|(after, before)| after.saturating_sub(before)),
            p50: quantile(0.5),
            p99: quantile(0.99),
            p999: quantile(0.999),
            acknowledged: self.acknowledged,
        }
    }

    #[cold]
    fn change_phase(&mut self) {
        let reading = CpuReading::take(self.server, now());
        match self.phase {
            Phase::WarmUp => {
                self.change_at = reading.at + self.length;
                self.before = reading;
                self.phase = Phase::Measured;
            }
            Phase::Measured | Phase::Over => {
                self.after = reading;
                self.phase = Phase::Over;
            }
        }
    }
}

impl Course for Lap {
    fn next(&mut self, connection: usize, now: Instant) -> Option<CommandRange> {
        if now >= self.change_at && self.phase != Phase::Over {
            self.change_phase();
        }
        if self.phase == Phase::Over {
            return None;
        }
        let from = self.places[connection];
        self.places[connection] = (from + self.pipeline) % self.keys;
        Some(CommandRange { from, commands: self.pipeline })
    }

    fn answered(&mut self, commands: usize, took: Duration) {
        self.acknowledged += commands as u64;
        if self.phase == Phase::Measured {
            self.operations += commands as u64;
            self.histogram.record(took);
        }
    }
}

/// A course on which every connection makes its share of the keys.
struct KeyFill {
    rest: Vec<(usize, usize)>,
    made: u64,
}

impl Course for KeyFill {
    fn next(&mut self, connection: usize, _now: Instant) -> Option<CommandRange> {
        let (from, end) = self.rest[connection];
        let commands = FILL_PIPELINE.min(end - from);
        self.rest[connection].0 += commands;
        (commands > 0).then_some(CommandRange { from, commands })
    }

    fn answered(&mut self, commands: usize, _took: Duration) {
        self.made += commands as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fill_makes_every_key_once() {
        let mut key_fill = KeyFill { rest: vec![(0, 300), (300, 300), (300, 301)], made: 0 };
        let mut asked = Vec::new();
        for connection in 0..3 {
            while let Some(range) = key_fill.next(connection, now()) {
                asked.extend(range.from..range.from + range.commands);
            }
        }
        assert_eq!(asked, (0..301).collect::<Vec<_>>());
    }
}
