//! How long operations take, by namespace, with a cap on namespaces.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use quipu_model::Name;
use tokio::time::Instant;

use super::{Histogram, Samples};

/// Namespaces that are told apart. Names come from clients: without a cap, so would the size of a scrape.
pub(crate) const NAMESPACES_MAX: usize = 64;

/// The namespace of all that came after.
pub(super) const REST: &str = "…";

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Add,
    Read,
    Reset,
    Delete,
    List,
    Batch,
    Observe,
}

impl Operation {
    const ALL: [Operation; 7] = [
        Operation::Add,
        Operation::Read,
        Operation::Reset,
        Operation::Delete,
        Operation::List,
        Operation::Batch,
        Operation::Observe,
    ];

    fn word(self) -> &'static str {
        match self {
            Operation::Add => "add",
            Operation::Read => "read",
            Operation::Reset => "reset",
            Operation::Delete => "delete",
            Operation::List => "list",
            Operation::Batch => "batch",
            Operation::Observe => "observe",
        }
    }
}

/// A histogram for each.
type Operations = [Histogram; Operation::ALL.len()];

/// How long operations took.
#[derive(Default)]
pub(crate) struct Latencies {
    namespaces: Mutex<BTreeMap<Box<[u8]>, Arc<Operations>>>,
    rest: Arc<Operations>,
    /// Of operations on no single counter.
    none: Arc<Operations>,
}

/// An operation under way; it is over when this is dropped.
pub(crate) struct Timed {
    operations: Arc<Operations>,
    operation: Operation,
    since: Instant,
}

impl Latencies {
    /// Begins to time an operation on a counter.
    pub fn time(&self, operation: Operation, name: Name<'_>) -> Timed {
        let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        let namespace = name.namespace();
        let operations = match namespaces.get(namespace) {
            Some(operations) => operations.clone(),
            None if namespaces.len() >= NAMESPACES_MAX => self.rest.clone(),
            None => namespaces.entry(namespace.into()).or_default().clone(),
        };
        Timed { operations, operation, since: Instant::now() }
    }

    /// Begins to time an operation on several.
    pub fn time_all(&self, operation: Operation) -> Timed {
        Timed { operations: self.none.clone(), operation, since: Instant::now() }
    }

    pub fn read(&self, out: &mut Samples<'_>) {
        let namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        let named = namespaces.iter().map(|(name, operations)| (String::from_utf8_lossy(name), operations));
        let others = [(REST.into(), &self.rest), ("".into(), &self.none)];
        for (namespace, operations) in named.chain(others) {
            for operation in Operation::ALL {
                let labels = [("operation", operation.word()), ("namespace", &*namespace)];
                operations[operation as usize].read(&labels, out);
            }
        }
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.operations[self.operation as usize].record(self.since.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_have_a_cap() {
        let latencies = Latencies::default();
        for number in 0..NAMESPACES_MAX + 10 {
            let name = format!("n{number}:a");
            drop(latencies.time(Operation::Add, Name::new(name.as_bytes()).unwrap()));
        }
        drop(latencies.time_all(Operation::List));
        let mut text = String::new();
        latencies.read(&mut Samples::new("m", &mut text));
        let counted =
            |label: &str| text.lines().filter(|line| line.contains("m_count") && line.contains(label)).count();
        assert_eq!(counted("operation=\"add\""), NAMESPACES_MAX + 1);
        assert!(text.contains("m_count{operation=\"add\",namespace=\"…\"} 10\n"), "{text}");
        assert!(text.contains("m_count{operation=\"list\",namespace=\"\"} 1\n"));
    }
}
