//! Queries and parses the server's `INFO`.
//!
//! Not here: when to ask (`link`, `store`).

use redis::{Pipeline, RedisError, Value};

/// The policy that removes nothing.
const NO_EVICTION: &str = "noeviction";

/// The lines of one or several sections.
#[derive(Debug, Default)]
pub(crate) struct Info {
    text: String,
}

impl Info {
    /// Asks for the fields of a server's identity. One command per section: several at once need
    /// Redis 7.
    pub(crate) fn identity_query() -> Pipeline {
        sections(&["server", "replication"])
    }

    /// Asks for the eviction policy.
    pub(crate) fn memory_query() -> Pipeline {
        sections(&["memory"])
    }

    /// Adds the reply to one `INFO`.
    pub(crate) fn read(&mut self, reply: Value) -> Result<(), RedisError> {
        self.text.push_str(&redis::from_redis_value::<String>(reply)?);
        self.text.push('\n');
        Ok(())
    }

    /// The identity of the server's data: its process and its replication history. The process
    /// changes with every restart; the history when a replica is promoted or takes another master's
    /// data. None if the server does not report its process.
    pub(crate) fn identity(&self) -> Option<String> {
        let process = self.field("run_id")?;
        let history = self.field("master_replid").unwrap_or("-");
        Some(format!("{process} {history} {}", self.field("role").unwrap_or("-")))
    }

    /// The policy by which a full server evicts keys, if it evicts. Without a memory limit it never
    /// does.
    pub(crate) fn evicts_by(&self) -> Option<&str> {
        let is_limited = self.field("maxmemory").is_some_and(|bytes| bytes != "0");
        self.field("maxmemory_policy").filter(|policy| is_limited && *policy != NO_EVICTION)
    }

    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.text.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(field, _)| *field == name).map(|(_, value)| value.trim())
    }
}

fn sections(names: &[&str]) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(names.len());
    for name in names {
        pipeline.cmd("INFO").arg(*name);
    }
    pipeline
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(text: &str) -> Info {
        Info { text: text.replace('\n', "\r\n") }
    }

    #[test]
    fn the_identity_changes_with_the_process_the_history_and_the_role() {
        let of = |process, history, role| {
            info(&format!("# Server\nrun_id:{process}\nrole:{role}\nmaster_replid:{history}\n")).identity()
        };
        let first = of("a", "b", "master");
        assert_eq!(first, of("a", "b", "master"));
        for other in [of("x", "b", "master"), of("a", "x", "master"), of("a", "b", "slave")] {
            assert_ne!(first, other);
        }
        assert_eq!(info("role:master\n").identity(), None);
    }

    #[test]
    fn only_a_limit_and_a_policy_together_evict() {
        let policy =
            |limit, policy| info(&format!("maxmemory:{limit}\nmaxmemory_human:1\nmaxmemory_policy:{policy}\n"));
        assert_eq!(policy(100, "volatile-lru").evicts_by(), Some("volatile-lru"));
        assert_eq!(policy(100, "noeviction").evicts_by(), None);
        assert_eq!(policy(0, "allkeys-lru").evicts_by(), None);
        assert_eq!(info("").evicts_by(), None);
    }
}
