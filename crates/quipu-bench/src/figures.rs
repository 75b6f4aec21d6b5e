//! Aggregates measurements by setting: medians of the repetitions, and ratios of pairs taken side
//! by side.

use std::time::Duration;

use quipu_model::Durability;

use crate::measure::Measurement;
use crate::peers::Peer;

/// The setting of one figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BenchSetting {
    /// The durability; none for a server that was running already.
    pub mode: Option<Durability>,
    /// Number of keys.
    pub keys: usize,
    /// Commands in flight per connection.
    pub pipeline: usize,
}

/// All samples of one server in one setting.
pub struct Series {
    /// Their setting.
    pub setting: BenchSetting,
    /// Their server.
    pub peer: Peer,
    /// In the order in which they were taken.
    pub samples: Vec<Measurement>,
}

/// Two servers in one setting.
pub struct Ratio {
    /// Their setting.
    pub setting: BenchSetting,
    /// Redis's CPU time per operation divided by ours.
    pub cpu: Option<f64>,
    /// Our operations per second divided by Redis's.
    pub throughput: Option<f64>,
    /// Redis's CPU time per operation divided by that of a server that does nothing: the upper
    /// bound of our ratio.
    pub floor: Option<f64>,
}

/// The acknowledged adds, and the sum found afterwards.
#[derive(Debug, Clone, Copy)]
pub struct AckAccount {
    /// The server.
    pub peer: Peer,
    /// The durability; none for a server that was running already.
    pub mode: Option<Durability>,
    /// Number of keys.
    pub keys: usize,
    /// Adds that were answered: while keys were made, in warm-ups, and in measurements.
    pub acknowledged: u64,
    /// Growth of the sum of all keys; `None` if other clients may have added.
    pub found: Option<u64>,
}

impl Measurement {
    /// Operations per second.
    pub fn throughput(&self) -> f64 {
        self.operations as f64 / self.elapsed.as_secs_f64()
    }

    /// CPU time of the server per operation, in microseconds.
    pub fn cpu_per_operation(&self) -> Option<f64> {
        self.server_cpu.and_then(|cpu| self.per_operation(cpu))
    }

    /// CPU time of the load per operation, in microseconds.
    pub fn load_cpu_per_operation(&self) -> Option<f64> {
        self.load_cpu.and_then(|cpu| self.per_operation(cpu))
    }

    /// The fraction of the time for which the server was on a core; more than 1 on more than one
    /// core.
    pub fn busy(&self) -> Option<f64> {
        self.server_cpu.map(|cpu| cpu.as_secs_f64() / self.elapsed.as_secs_f64())
    }

    fn per_operation(&self, time: Duration) -> Option<f64> {
        (self.operations > 0).then(|| micros(time) / self.operations as f64)
    }
}

impl Series {
    /// The median of one figure.
    pub fn median(&self, figure: impl Fn(&Measurement) -> f64) -> f64 {
        median(self.samples.iter().map(figure)).unwrap_or_default()
    }

    /// The median of a figure that may be missing.
    pub fn median_known(&self, figure: impl Fn(&Measurement) -> Option<f64>) -> Option<f64> {
        median(self.samples.iter().filter_map(figure))
    }
}

impl Ratio {
    /// Compares series of the same setting, repetition by repetition: a disturbance of the machine
    /// affects both.
    pub fn new(redis: &Series, quipu: &Series, floor: Option<&Series>) -> Ratio {
        let known = |ratio: &f64| ratio.is_finite();
        let cpu = |other: &Series| {
            let pairs = redis.samples.iter().zip(&other.samples);
            let each = pairs.filter_map(|(redis, other)| Some(redis.cpu_per_operation()? / other.cpu_per_operation()?));
            median(each.filter(known))
        };
        let pairs = redis.samples.iter().zip(&quipu.samples);
        let throughput = pairs.map(|(redis, quipu)| quipu.throughput() / redis.throughput());
        Ratio {
            setting: quipu.setting,
            cpu: cpu(quipu),
            floor: floor.and_then(cpu),
            throughput: median(throughput.filter(known)),
        }
    }
}

/// All ratios: one for each setting in which both servers were measured.
pub fn ratios(series: &[Series]) -> Vec<Ratio> {
    let of = |peer: Peer| series.iter().filter(move |one| one.peer == peer);
    let pairs = of(Peer::Quipu).flat_map(|quipu| of(Peer::Redis).map(move |redis| (redis, quipu)));
    let alike = pairs.filter(|(redis, quipu)| redis.setting == quipu.setting);
    let floor = |setting: BenchSetting| of(Peer::Floor).find(|floor| floor.setting == setting);
    alike.map(|(redis, quipu)| Ratio::new(redis, quipu, floor(quipu.setting))).collect()
}

/// A time in microseconds.
pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// At least three significant digits of a value from 1 on; three decimals below 1.
pub fn rounded(value: f64) -> String {
    match value {
        value if value >= 100.0 => grouped(value.round() as u64),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

/// A number with a comma between thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The middle one, or the mean of the middle two.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(peer: Peer, samples: &[(u64, u64)]) -> Series {
        let sample = |&(operations, cpu_micros): &(u64, u64)| Measurement {
            operations,
            elapsed: Duration::from_secs(1),
            server_cpu: Some(Duration::from_micros(cpu_micros)),
            load_cpu: None,
            p50: Duration::ZERO,
            p99: Duration::ZERO,
            p999: Duration::ZERO,
            acknowledged: operations,
        };
        let setting = BenchSetting { mode: Some(Durability::Memory), keys: 1, pipeline: 16 };
        Series { setting, peer, samples: samples.iter().map(sample).collect() }
    }

    #[test]
    fn ratios_are_medians_over_pairs() {
        let redis = series(Peer::Redis, &[(1000, 1000), (500, 1000), (1000, 1000)]);
        let quipu = series(Peer::Quipu, &[(2000, 1000), (1000, 1000), (9000, 1000)]);
        let floor = series(Peer::Floor, &[(3000, 1000), (1500, 1000), (9000, 1000)]);
        let all = ratios(&[redis, floor, quipu]);
        let [ratio] = &all[..] else { panic!("{} ratios", all.len()) };
        assert_eq!(ratio.floor, Some(3.0));
        assert_eq!((ratio.cpu, ratio.throughput), (Some(2.0), Some(2.0)), "the slow second counts for both");
    }

    #[test]
    fn a_median_is_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
    }

    #[test]
    fn a_server_that_was_not_looked_at_has_no_cpu_figure() {
        let mut quipu = series(Peer::Quipu, &[(10, 5)]);
        assert_eq!(quipu.median_known(Measurement::cpu_per_operation), Some(0.5));
        quipu.samples[0].server_cpu = None;
        assert_eq!(quipu.median_known(Measurement::cpu_per_operation), None);
        quipu.samples[0].operations = 0;
        assert_eq!(quipu.median_known(Measurement::load_cpu_per_operation), None);
    }

    #[test]
    fn numbers_are_as_long_as_they_are_exact() {
        for (value, shown) in [(0.0634, "0.063"), (1.256, "1.26"), (12.34, "12.3"), (1712.4, "1,712")] {
            assert_eq!(rounded(value), shown);
        }
        for (value, shown) in [(7, "7"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(value), shown);
        }
    }
}
