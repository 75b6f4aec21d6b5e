//! Measures the latency of HTTP operations by namespace, with a cap on namespaces.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use quipu_model::Name;
use tokio::time::Instant;

use super::{Histogram, SampleWriter};

/// Most namespaces with figures of their own. Names come from clients: without a cap the size of a
/// scrape would have none.
pub(crate) const NAMESPACES_MAX: usize = 64;

/// Label for all later namespaces.
pub(super) const OTHER_NAMESPACES: &str = "…";

/// Kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HttpOperation {
    Add,
    Read,
    Reset,
    Delete,
    List,
    Batch,
    Observe,
}

impl HttpOperation {
    const ALL: [HttpOperation; 7] = [
        HttpOperation::Add,
        HttpOperation::Read,
        HttpOperation::Reset,
        HttpOperation::Delete,
        HttpOperation::List,
        HttpOperation::Batch,
        HttpOperation::Observe,
    ];

    fn name(self) -> &'static str {
        match self {
            HttpOperation::Add => "add",
            HttpOperation::Read => "read",
            HttpOperation::Reset => "reset",
            HttpOperation::Delete => "delete",
            HttpOperation::List => "list",
            HttpOperation::Batch => "batch",
            HttpOperation::Observe => "observe",
        }
    }
}

/// One histogram per operation.
type OperationHistograms = [Histogram; HttpOperation::ALL.len()];

/// Latencies of HTTP operations.
#[derive(Default)]
pub(crate) struct HttpLatencies {
    namespaces: Mutex<BTreeMap<Box<[u8]>, Arc<OperationHistograms>>>,
    others: Arc<OperationHistograms>,
    /// Operations on no single counter.
    without_name: Arc<OperationHistograms>,
}

/// A running operation; dropping the timer records its duration.
pub(crate) struct LatencyTimer {
    operations: Arc<OperationHistograms>,
    operation: HttpOperation,
    since: Instant,
}

impl HttpLatencies {
    /// Starts the timer of an operation on one counter.
    pub fn time(&self, operation: HttpOperation, name: Name<'_>) -> LatencyTimer {
        let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        let namespace = name.namespace();
        let operations = match namespaces.get(namespace) {
            Some(operations) => operations.clone(),
            None if namespaces.len() >= NAMESPACES_MAX => self.others.clone(),
            None => namespaces.entry(namespace.into()).or_default().clone(),
        };
        LatencyTimer { operations, operation, since: Instant::now() }
    }

    /// Starts the timer of an operation on several counters.
    pub fn time_all(&self, operation: HttpOperation) -> LatencyTimer {
        LatencyTimer { operations: self.without_name.clone(), operation, since: Instant::now() }
    }

    pub fn write_to(&self, out: &mut SampleWriter<'_>) {
        let namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        let named = namespaces.iter().map(|(name, operations)| (String::from_utf8_lossy(name), operations));
        let others = [(OTHER_NAMESPACES.into(), &self.others), ("".into(), &self.without_name)];
        for (namespace, operations) in named.chain(others) {
            for operation in HttpOperation::ALL {
                let labels = [("operation", operation.name()), ("namespace", &*namespace)];
                operations[operation as usize].write_to(&labels, out);
            }
        }
    }
}

impl Drop for LatencyTimer {
    fn drop(&mut self) {
        self.operations[self.operation as usize].record(self.since.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_have_a_cap() {
        let latencies = HttpLatencies::default();
        for number in 0..NAMESPACES_MAX + 10 {
            let name = format!("n{number}:a");
            drop(latencies.time(HttpOperation::Add, Name::new(name.as_bytes()).unwrap()));
        }
        drop(latencies.time_all(HttpOperation::List));
        let mut text = String::new();
        latencies.write_to(&mut SampleWriter::new("m", &mut text));
        let counted =
            |label: &str| text.lines().filter(|line| line.contains("m_count") && line.contains(label)).count();
        assert_eq!(counted("operation=\"add\""), NAMESPACES_MAX + 1);
        assert!(text.contains("m_count{operation=\"add\",namespace=\"…\"} 10\n"), "{text}");
        assert!(text.contains("m_count{operation=\"list\",namespace=\"\"} 1\n"));
    }
}
