//! Draws the figures as an SVG chart: time per operation over commands in flight, a panel per mode
//! and number of keys.
//!
//! Both axes are logarithmic: equal ratios are equal distances, and ratios are the point of the
//! figures.
//!
//! The chart shows CPU time, since a load generator may be slower than the server. It shows elapsed
//! time for `with_durability`, where the disk decides, and where no CPU time is known.

use std::fmt::Write;

use quipu_model::Durability;

use crate::figures::{Series, grouped, rounded};
use crate::measure::Measurement;
use crate::peers::Peer;

/// Size of a panel in pixels, and its margins.
const PANEL: (f64, f64) = (440.0, 280.0);
const LEFT: f64 = 62.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 46.0;

/// Height of the title above all panels.
const HEAD: f64 = 34.0;

/// Distance of a label from its point.
const LABEL: f64 = 8.0;

/// Distance between an axis and the first and last point: room for half a label.
const INSET: f64 = 22.0;

/// The chart as SVG.
pub fn plot(series: &[Series], title: &str) -> String {
    let modes = distinct(series.iter().map(|one| one.setting.mode));
    let keys = distinct(series.iter().map(|one| one.setting.keys));
    let (width, height) = (PANEL.0 * keys.len() as f64, HEAD + PANEL.1 * modes.len() as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#333\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    text(&mut svg, (LEFT, HEAD - 12.0), "start", "font-size=\"15\" font-weight=\"600\"", title);
    for (row, &mode) in modes.iter().enumerate() {
        for (column, &keys) in keys.iter().enumerate() {
            let here = |one: &&Series| one.setting.mode == mode && one.setting.keys == keys;
            let lines: Vec<&Series> = series.iter().filter(here).collect();
            let corner = (PANEL.0 * column as f64, HEAD + PANEL.1 * row as f64);
            Panel::new(mode, keys, &lines).draw(corner, &mut svg);
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// One pair of axes.
struct Panel {
    title: String,
    /// By server: commands in flight and microseconds.
    lines: Vec<(Peer, Vec<(f64, f64)>)>,
}

impl Panel {
    fn new(mode: Option<Durability>, keys: usize, series: &[&Series]) -> Panel {
        let by_cpu = mode != Some(Durability::Durable)
            && series.iter().all(|one| one.median_known(Measurement::cpu_per_operation).is_some());
        let time = |one: &Series| match by_cpu {
            true => one.median_known(Measurement::cpu_per_operation).unwrap_or_default(),
            false => 1e6 / one.median(Measurement::throughput),
        };
        let point =
            |one: &&&Series| Some((one.setting.pipeline as f64, time(one))).filter(|(_, y)| *y > 0.0 && y.is_finite());
        let line = |peer: Peer| {
            let mut points: Vec<(f64, f64)> =
                series.iter().filter(|one| one.peer == peer).filter_map(|one| point(&one)).collect();
            points.sort_by(|one, other| one.0.total_cmp(&other.0));
            (peer, points)
        };
        let figure = if by_cpu { "server CPU µs per operation" } else { "µs per operation" };
        let (mode, noun) = (mode.map_or("as it is", Durability::name), if keys == 1 { "key" } else { "keys" });
        let title = format!("{mode}, {} {noun}: {figure}", grouped(keys as u64));
        let lines =
            [Peer::Redis, Peer::Quipu, Peer::Floor].map(line).into_iter().filter(|(_, points)| !points.is_empty());
        Panel { title, lines: lines.collect() }
    }

    fn draw(&self, corner: (f64, f64), svg: &mut String) {
        let (x, y) = corner;
        text(svg, (x + LEFT, y + TOP - 18.0), "start", "font-weight=\"600\"", &self.title);
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let (left, right) = (x + LEFT, x + PANEL.0 - RIGHT);
        let across = Axis::new(points().map(|point| point.0), (left + INSET, right - INSET));
        // Upwards, with room above the highest and below the lowest for their labels.
        let up = Axis::new(points().flat_map(|point| [point.1 / 1.5, point.1 * 1.5]), (y + PANEL.1 - BOTTOM, y + TOP));
        let (Some(across), Some(up)) = (across, up) else { return };
        for tick in up.ticks() {
            let at = up.place(tick);
            let _ = writeln!(
                svg,
                "<line x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#e4e4e4\"/>"
            );
            text(svg, (x + LEFT - LABEL, at + 4.0), "end", "fill=\"#666\"", &trimmed(tick));
        }
        for pipeline in distinct(points().map(|point| point.0)) {
            text(svg, (across.place(pipeline), up.ends.0 + 18.0), "middle", "fill=\"#666\"", &grouped(pipeline as u64));
        }
        text(
            svg,
            ((left + right) / 2.0, up.ends.0 + 36.0),
            "middle",
            "fill=\"#666\"",
            "commands in flight per connection",
        );
        for (index, (peer, points)) in self.lines.iter().enumerate() {
            draw_line(*peer, points, &across, &up, svg);
            for point in points {
                // Of several figures for one number of commands, the highest is labelled above and
                // the others below.
                let highest = self
                    .lines
                    .iter()
                    .flat_map(|(_, others)| others)
                    .all(|other| other.0 != point.0 || other.1 <= point.1);
                let place = (across.place(point.0), up.place(point.1) + if highest { -LABEL } else { LABEL + 9.0 });
                let style = format!("fill=\"{}\" font-size=\"11\"", colour(*peer));
                text(svg, place, "middle", &style, &rounded(point.1));
            }
            let legend = (right - 60.0 * (self.lines.len() - 1 - index) as f64, y + TOP - 2.0);
            let style = format!("fill=\"{}\" font-weight=\"600\"", colour(*peer));
            text(svg, legend, "end", &style, peer.name());
        }
    }
}

fn draw_line(peer: Peer, points: &[(f64, f64)], across: &Axis, up: &Axis, svg: &mut String) {
    let colour = colour(peer);
    let places: Vec<(f64, f64)> = points.iter().map(|point| (across.place(point.0), up.place(point.1))).collect();
    let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let path = path.join(" ");
    let _ = writeln!(svg, "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
    for (x, y) in places {
        let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>");
    }
}

/// Values on a logarithmic scale, between two coordinates.
struct Axis {
    low: f64,
    high: f64,
    ends: (f64, f64),
}

impl Axis {
    /// From the lowest to the highest of these values; `None` if there are none.
    fn new(values: impl Iterator<Item = f64>, ends: (f64, f64)) -> Option<Axis> {
        let (low, high) = values.fold((f64::MAX, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
        (low <= high).then_some(Axis { low, high, ends })
    }

    fn place(&self, value: f64) -> f64 {
        let length = (self.high / self.low).ln();
        let part = if length > 0.0 { (value / self.low).ln() / length } else { 0.5 };
        self.ends.0 + part * (self.ends.1 - self.ends.0)
    }

    /// 1, 2 and 5 of every power of ten in between.
    fn ticks(&self) -> Vec<f64> {
        let powers = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let each = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(power)));
        each.filter(|tick| (self.low..=self.high).contains(tick)).collect()
    }
}

fn colour(peer: Peer) -> &'static str {
    match peer {
        Peer::Quipu => "#0b6e4f",
        Peer::Redis => "#b23a2e",
        Peer::Floor => "#8a8a8a",
    }
}

fn text(svg: &mut String, at: (f64, f64), anchor: &str, style: &str, text: &str) {
    let (x, y) = at;
    // All text is ours, words and figures: there is nothing to escape.
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {style}>{text}</text>");
}

/// A tick without trailing zeros.
fn trimmed(tick: f64) -> String {
    let text = format!("{tick:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Each value once, in the order of its first occurrence.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut kept = Vec::new();
    for value in values {
        if !kept.contains(&value) {
            kept.push(value);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::figures::BenchSetting;

    fn series(peer: Peer, mode: Durability, pipeline: usize, operations: u64) -> Series {
        let sample = Measurement {
            operations,
            elapsed: Duration::from_secs(1),
            server_cpu: Some(Duration::from_millis(500)),
            load_cpu: None,
            p50: Duration::ZERO,
            p99: Duration::ZERO,
            p999: Duration::ZERO,
            acknowledged: operations,
        };
        Series { setting: BenchSetting { mode: Some(mode), keys: 1, pipeline }, peer, samples: vec![sample] }
    }

    #[test]
    fn every_panel_has_a_line_per_server_and_a_point_per_figure() {
        let mut all = Vec::new();
        for mode in [Durability::Memory, Durability::Durable] {
            for (pipeline, operations) in [(1, 50_000), (16, 400_000), (64, 1_000_000)] {
                all.push(series(Peer::Redis, mode, pipeline, operations));
                all.push(series(Peer::Quipu, mode, pipeline, operations * 2));
            }
        }
        let svg = plot(&all, "INCR");
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (4, 12));
        assert!(svg.contains("memory, 1 key: server CPU µs per operation") && svg.contains(">5.00<"), "{svg}");
        assert!(svg.contains("durable, 1 key: µs per operation") && svg.contains(">10.0<"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn one_point_or_none_is_a_picture_too() {
        let svg = plot(&[series(Peer::Quipu, Durability::Memory, 16, 1000)], "INCR");
        assert!(svg.matches("<circle").count() == 1 && !svg.contains("NaN"), "{svg}");
        let svg = plot(&[series(Peer::Quipu, Durability::Memory, 16, 0)], "INCR");
        assert!(svg.matches("<circle").count() == 0 && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn equal_ratios_are_equal_distances() {
        let axis = Axis::new([1.0, 100.0].into_iter(), (0.0, 200.0)).unwrap();
        assert!((axis.place(10.0) - 100.0).abs() < 1e-9);
        assert_eq!(axis.ticks(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(trimmed(0.05), "0.05");
    }
}
