//! Converts the results of sketches to replies.

use quipu_model::{Estimate, Kind, Millis};
use quipu_sketch::{Hll, Interval, Sketch, Unique};

use crate::apply::bodies::apply::known;
use crate::apply::bodies::time::{Worth, total};
use crate::bodies::body_map::Body;

/// An estimate with this relative standard error.
pub fn interval(estimate: f64, rse: f64) -> Estimate {
    let off = 2.0 * rse * estimate;
    rounded_estimate(estimate, estimate - off, estimate + off)
}

/// Rounds an interval outwards to an estimate.
pub fn estimate(interval: Interval) -> Estimate {
    rounded_estimate(interval.estimate, interval.lower, interval.upper)
}

fn rounded_estimate(value: f64, low: f64, high: f64) -> Estimate {
    // Float conversions saturate at the ends of the range. A lower bound slightly above 0 becomes
    // 0.
    Estimate { value: value.round() as u64, low: low.floor() as u64, high: high.ceil() as u64 }
}

/// A sketch's part of a reading.
pub struct SketchReading {
    /// Kind of the sketch.
    pub kind: Kind,
    /// Number of distinct items, or total of all events.
    pub value: i64,
    /// Lower and upper bound of `value`.
    pub bound: (i64, i64),
    /// Most by which an item's estimate is too high.
    pub error: Option<u64>,
}

/// Reads a sketch.
pub fn read_sketch(body: &Body, now: Millis) -> SketchReading {
    if let Sketch::Ring(_) = body.sketch() { read_windowed(body, now) } else { read_plain(body.sketch()) }
}

/// Reads all panes of a window, or the decayed total.
fn read_windowed(body: &Body, now: Millis) -> SketchReading {
    let sketches = body.sketches(now);
    let union = || {
        let hlls: Vec<&Hll> =
            sketches.iter().filter_map(|it| if let Sketch::Hll(hll) = it { Some(hll) } else { None }).collect();
        let uniques: Vec<&Unique> = sketches
            .iter()
            .filter_map(|it| if let Sketch::Unique(unique) = it { Some(unique) } else { None })
            .collect();
        match (&hlls[..], &uniques[..]) {
            ([], []) => Estimate::exact(0),
            ([one], []) => interval(one.estimate(), one.rse()),
            (several, []) => {
                let rse = several.iter().map(|hll| hll.rse()).fold(0.0, f64::max);
                interval(Hll::union_estimate(several), rse)
            }
            (_, [one]) => interval(one.estimate(), one.rse()),
            (_, several) => estimate(Unique::union(several)),
        }
    };
    let kind = known(body.sketch()).kind;
    if kind == Kind::Unique {
        let Estimate { value, low, high } = union();
        return SketchReading { kind, value: integer(value), bound: (integer(low), integer(high)), error: None };
    }
    let worth = Worth { decay: body.decay(), now };
    let error = sketches.iter().map(|sketch| read_plain(sketch).error.unwrap_or(0)).fold(0, u64::saturating_add);
    let all = integer(total(body, now));
    SketchReading { kind, value: all, bound: (all, all), error: Some(worth.at_most(error)) }
}

fn read_plain(sketch: &Sketch) -> SketchReading {
    let unique = |Estimate { value, low, high }: Estimate| {
        let bound = (integer(low), integer(high));
        SketchReading { kind: Kind::Unique, value: integer(value), bound, error: None }
    };
    // The total is counted exactly, not estimated.
    let of_items = |kind: Kind, total: u64, error: f64| {
        let total = integer(total);
        SketchReading { kind, value: total, bound: (total, total), error: Some(error.ceil() as u64) }
    };
    match sketch {
        Sketch::Hll(hll) => unique(interval(hll.estimate(), hll.rse())),
        Sketch::Unique(uniques) => unique(interval(uniques.estimate(), uniques.rse())),
        Sketch::Cms(counts) | Sketch::Frequency(counts) => {
            of_items(Kind::Frequency, counts.n(), counts.epsilon() * counts.n() as f64)
        }
        Sketch::TopK(list) | Sketch::Top(list) => of_items(Kind::Top, list.n(), list.error()),
        Sketch::Ring(_) | Sketch::Replayed(..) => {
            unreachable!("panes are plain, and all sketches are looked at before anybody asks")
        }
    }
}

/// A count as an integer reply, saturated.
pub fn integer(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A range of a string, with the rules of `GETRANGE`: both ends inclusive, negative ones count from
/// the end.
pub fn string_range(string: &[u8], from: i64, to: i64) -> &[u8] {
    let length = i64::try_from(string.len()).unwrap_or(i64::MAX);
    let index = |at: i64| if at < 0 { length.saturating_add(at) } else { at };
    if from < 0 && to < 0 && from > to {
        return &[];
    }
    let (from, to) = (index(from).max(0), index(to).max(0).min(length - 1));
    if length == 0 || from > to { &[] } else { &string[from as usize..=to as usize] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_redis() {
        for (from, to, range) in [
            (0, -1, "hello"),
            (1, 3, "ell"),
            (-3, -1, "llo"),
            (0, 0, "h"),
            (-100, 1, "he"),
            (3, 100, "lo"),
            (4, 2, ""),
            (5, 9, ""),
            (-1, -3, ""),
            (0, -100, "h"),
            (i64::MIN, i64::MAX, "hello"),
        ] {
            assert_eq!(string_range(b"hello", from, to), range.as_bytes(), "{from} {to}");
        }
        assert_eq!(string_range(b"", 0, -1), b"");
    }
}
