//! Draws curves as an SVG chart: x is logarithmic, y begins at 0.

use std::fmt::Write;

use super::figures::Curve;

/// Size of the chart in pixels, and its margins.
const SIZE: (f64, f64) = (640.0, 360.0);
const LEFT: f64 = 62.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 46.0;

/// Horizontal grid lines, from 0 to the highest value.
const STEPS: u32 = 5;

/// Height of a line of the legend.
const LEGEND: f64 = 16.0;

const COLOURS: [&str; 4] = ["#0b6e4f", "#8fbf9f", "#b23a2e", "#e0a458"];

/// The chart as SVG.
pub fn plot(curves: &[&Curve]) -> String {
    let (width, height) = SIZE;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#333\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let low = points().map(|point| point.0).fold(f64::MAX, f64::min);
    let high = points().map(|point| point.0).fold(0.0, f64::max);
    let most = points().map(|point| point.1).fold(0.0, f64::max);
    if let Some(first) = curves.first().filter(|_| low <= high && low > 0.0) {
        let length = (high / low).ln();
        let across = |x: f64| {
            let part = if length > 0.0 { (x / low).ln() / length } else { 0.5 };
            LEFT + part * (width - LEFT - RIGHT)
        };
        let up = |y: f64| height - BOTTOM - if most > 0.0 { y / most } else { 0.0 } * (height - TOP - BOTTOM);
        for step in 0..=STEPS {
            let y = most * f64::from(step) / f64::from(STEPS);
            let from = LEFT;
            let to = width - RIGHT;
            let at = up(y);
            let _ = writeln!(svg, "<line x1=\"{from}\" x2=\"{to}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>");
            text(&mut svg, (LEFT - 8.0, at + 4.0), "end", &trimmed(y));
        }
        for power in low.log10().ceil() as i32..=high.log10().floor() as i32 {
            let x = 10f64.powi(power);
            text(&mut svg, (across(x), height - BOTTOM + 18.0), "middle", &trimmed(x));
        }
        text(&mut svg, (width - RIGHT, height - 8.0), "end", first.x);
        text(&mut svg, (8.0, 14.0), "start", first.y);
        for (index, one) in curves.iter().enumerate() {
            draw(&mut svg, COLOURS[index % COLOURS.len()], one, (&across, &up), index);
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw(
    svg: &mut String,
    colour: &str,
    curve: &Curve,
    (across, up): (&dyn Fn(f64) -> f64, &dyn Fn(f64) -> f64),
    index: usize,
) {
    let path: Vec<String> = curve.points.iter().map(|(x, y)| format!("{:.1},{:.1}", across(*x), up(*y))).collect();
    let path = path.join(" ");
    let _ = writeln!(svg, "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
    for (x, y) in &curve.points {
        let _ = writeln!(svg, "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\" fill=\"{colour}\"/>", across(*x), up(*y));
    }
    let y = SIZE.1 - BOTTOM - 12.0 - LEGEND * index as f64;
    let _ = writeln!(
        svg,
        "<rect x=\"{}\" y=\"{:.1}\" width=\"12\" height=\"4\" fill=\"{colour}\"/>",
        SIZE.0 - 210.0,
        y - 6.0
    );
    text(svg, (SIZE.0 - 192.0, y), "start", &curve.name);
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) {
    // All text is ours, words and figures: there is nothing to escape.
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
}

/// A number without trailing zeros.
fn trimmed(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_curve_has_a_line_and_a_point_per_figure() {
        let one =
            Curve { plot: "p", name: "one".into(), x: "items", y: "error", points: vec![(1.0, 0.5), (100.0, 2.0)] };
        let svg = plot(&[&one, &one]);
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (2, 4));
        assert!(!plot(&[]).contains("<polyline"));
        let point = Curve { points: vec![(5.0, 0.0)], ..one };
        assert!(!plot(&[&point]).contains("NaN"));
    }
}
