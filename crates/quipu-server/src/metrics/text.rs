//! Writes the metrics in Prometheus's text format, and docs/metrics.md.

use std::fmt::Write;

use super::{METRICS, Metric, MetricSources};

/// Writes all metrics.
pub(crate) fn text(sources: &MetricSources<'_>) -> String {
    let mut text = String::with_capacity(16 << 10);
    for Metric { name, kind, help, read, .. } in METRICS {
        let start = text.len();
        append(&mut text, format_args!("# HELP {name} {help}\n# TYPE {name} {}\n", kind.name()));
        let before = text.len();
        read(sources, &mut SampleWriter { name, text: &mut text });
        if text.len() == before {
            // The metric has no value on this server.
            text.truncate(start);
        }
    }
    text
}

/// Generates `docs/metrics.md`.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Metrics\n\n`GET /metrics`, in Prometheus's text format. Printed from the code by `cargo xtask docs`; a test compares the two.\n\n\
         Counters begin at 0 with the process, and again after `CONFIG RESETSTAT`. A metric that has no value, such as those of a shared store on a \
         node without one, is left out.\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n",
    );
    for Metric { name, kind, labels, help, .. } in METRICS {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        append(&mut page, format_args!("| `{name}` | {} | {} | {help} |\n", kind.name(), labels.join(", ")));
    }
    page
}

/// Writes the values of one metric.
pub(crate) struct SampleWriter<'t> {
    name: &'t str,
    text: &'t mut String,
}

impl<'t> SampleWriter<'t> {
    #[cfg(test)]
    pub fn new(name: &'t str, text: &'t mut String) -> SampleWriter<'t> {
        SampleWriter { name, text }
    }

    /// Writes the only value.
    pub fn one(&mut self, value: u64) {
        self.with(&[], value);
    }

    /// Writes the only value, of a metric in seconds.
    pub fn real(&mut self, value: f64) {
        append(self.text, format_args!("{} {value}\n", self.name));
    }

    /// Writes a value with labels.
    pub fn with(&mut self, labels: &[(&str, &str)], value: u64) {
        self.line("", labels, None, format_args!("{value}"));
    }

    /// Writes a histogram: counts by the upper bounds of their buckets, and one beyond the last
    /// bound.
    pub fn histogram(&mut self, labels: &[(&str, &str)], ends: &[f64], counts: &[u64], sum: f64) {
        let mut total = 0;
        for (bucket, count) in counts.iter().enumerate() {
            total += count;
            let end = ends.get(bucket).map_or_else(|| "+Inf".to_owned(), f64::to_string);
            self.line("_bucket", labels, Some(&end), format_args!("{total}"));
        }
        self.line("_sum", labels, None, format_args!("{sum}"));
        self.line("_count", labels, None, format_args!("{total}"));
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], end: Option<&str>, value: std::fmt::Arguments<'_>) {
        append(self.text, format_args!("{}{suffix}", self.name));
        let all = labels.iter().copied().chain(end.map(|end| ("le", end)));
        for (index, (label, value)) in all.enumerate() {
            append(self.text, format_args!("{}{label}=\"", if index == 0 { '{' } else { ',' }));
            for c in value.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        let close = if labels.is_empty() && end.is_none() { "" } else { "}" };
        append(self.text, format_args!("{close} {value}\n"));
    }
}

fn append(text: &mut String, words: std::fmt::Arguments<'_>) {
    text.write_fmt(words).expect("writing to a string cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MetricKind;

    #[test]
    fn the_table_keeps_to_prometheus_and_to_one_prefix() {
        let mut names: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
        for Metric { name, kind, help, .. } in METRICS {
            assert!(
                name.starts_with("quipu_") && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase()),
                "{name}"
            );
            assert_eq!(*kind == MetricKind::Counter, name.ends_with("_total"), "{name}");
            assert!(help.ends_with('.') && !help.contains(['\n', '\\', '|']), "{name}");
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), METRICS.len());
    }

    #[test]
    fn labels_are_escaped() {
        let mut text = String::new();
        SampleWriter::new("m", &mut text).with(&[("a", "x\"\\\n")], 1);
        assert_eq!(text, "m{a=\"x\\\"\\\\\\n\"} 1\n");
    }

    #[test]
    fn a_histogram_adds_up() {
        let mut text = String::new();
        SampleWriter::new("m", &mut text).histogram(&[], &[0.5, 1.0], &[2, 0, 1], 3.5);
        assert_eq!(
            text,
            "m_bucket{le=\"0.5\"} 2\nm_bucket{le=\"1\"} 2\nm_bucket{le=\"+Inf\"} 3\nm_sum 3.5\nm_count 3\n"
        );
    }
}
