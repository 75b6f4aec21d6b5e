//! Measures the latency of commands by namespace, with a cap on namespaces.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::latency::{NAMESPACES_MAX, OTHER_NAMESPACES};
use super::{Histogram, SampleWriter};

/// By namespace, then by command: both are few, the commands because they are a table in code.
type CommandHistograms = BTreeMap<Box<[u8]>, BTreeMap<&'static str, Histogram>>;

/// Latencies of the sampled commands.
#[derive(Default)]
pub(crate) struct CommandLatencies {
    commands: Mutex<CommandHistograms>,
}

impl CommandLatencies {
    pub fn record(&self, command: &'static str, namespace: &[u8], took: Duration) {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let known = commands.contains_key(namespace) || commands.len() < NAMESPACES_MAX;
        let namespace = if known { namespace } else { OTHER_NAMESPACES.as_bytes() };
        let by_command = match commands.get_mut(namespace) {
            Some(by_command) => by_command,
            None => commands.entry(namespace.into()).or_default(),
        };
        by_command.entry(command).or_default().record(took);
    }

    pub fn write_to(&self, out: &mut SampleWriter<'_>) {
        let commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        for (namespace, by_command) in &*commands {
            let namespace = String::from_utf8_lossy(namespace);
            for (command, histogram) in by_command {
                histogram.write_to(&[("command", command), ("namespace", &namespace)], out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_beyond_the_cap_are_counted_together() {
        let latencies = CommandLatencies::default();
        for number in 0..NAMESPACES_MAX + 10 {
            latencies.record("incr", format!("n{number}").as_bytes(), Duration::from_millis(1));
        }
        latencies.record("get", b"n0", Duration::from_millis(1));
        let mut text = String::new();
        latencies.write_to(&mut SampleWriter::new("m", &mut text));
        assert_eq!(
            text.lines().filter(|line| line.starts_with("m_count{command=\"incr\"")).count(),
            NAMESPACES_MAX + 1
        );
        assert!(text.contains("m_count{command=\"incr\",namespace=\"…\"} 10\n"), "{text}");
        assert!(text.contains("m_count{command=\"get\",namespace=\"n0\"} 1\n"));
    }
}
