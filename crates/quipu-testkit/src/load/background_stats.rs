//! Reads the server's statistics of its background work: seals, evictions, loads, compactions.
//!
//! In: `INFO quipu`. Out: figures that add up over incarnations. A suite about eviction uses them
//! to show that evictions occurred.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use quipu_protocol::resp::{RespConnection, Value};

/// Background work of one incarnation or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BackgroundStats {
    /// Number of seals.
    pub seals: u64,
    /// Number of counters that left memory.
    pub evicted: u64,
    /// Number of counters looked up in the ledger.
    pub loads: u64,
    /// Number of pieces of compaction.
    pub compactions: u64,
}

impl BackgroundStats {
    /// Fetches the statistics of the server's present incarnation.
    pub fn fetch(client: &mut RespConnection) -> io::Result<BackgroundStats> {
        let fields = read_info(client, "quipu")?;
        let figure = |name: &str| {
            let text = fields.get(name).and_then(|text| text.parse().ok());
            text.ok_or_else(|| io::Error::other(format!("INFO quipu has no {name}")))
        };
        Ok(BackgroundStats {
            seals: figure("seals_total")?,
            evicted: figure("evicted_total")?,
            loads: figure("loaded_total")?,
            compactions: figure("compactions_total")?,
        })
    }

    /// Returns true if every kind of work occurred.
    pub fn are_complete(&self) -> bool {
        self.seals > 0 && self.evicted > 0 && self.loads > 0 && self.compactions > 0
    }
}

impl std::ops::AddAssign for BackgroundStats {
    fn add_assign(&mut self, other: BackgroundStats) {
        self.seals += other.seals;
        self.evicted += other.evicted;
        self.loads += other.loads;
        self.compactions += other.compactions;
    }
}

impl fmt::Display for BackgroundStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BackgroundStats { seals, evicted, loads, compactions } = self;
        write!(f, "seals {seals}, evicted {evicted}, loads {loads}, compactions {compactions}")
    }
}

/// Fetches a section of INFO, by key.
pub fn read_info(client: &mut RespConnection, section: &str) -> io::Result<BTreeMap<String, String>> {
    match client.call(&["INFO", section])? {
        Value::Bulk(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let pairs = text.lines().filter_map(|line| line.split_once(':'));
            Ok(pairs.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect())
        }
        other => Err(io::Error::new(io::ErrorKind::InvalidData, format!("INFO was answered {other:?}"))),
    }
}
