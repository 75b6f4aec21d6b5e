//! Reads the identity of a server's data, which changes when the server may have lost confirmed
//! commits.
//!
//! In: a connection. Out: a text that stays equal while the server keeps every commit.
//!
//! | part | changes with |
//! |---|---|
//! | system identifier | another server, created by `initdb` |
//! | timeline | promotion of a standby, restore to a point in time |
//! | database, tables of counters and of claims | restore of a dump in their place |
//! | start time of the server, and of its statistics | restart, crash of one of its processes |
//!
//! The last part counts only where a crash loses commits: `fsync` or `synchronous_commit` is off,
//! for the server or for this connection. The server's start time alone is not enough. When one
//! process crashes, all others end and the server recovers from its log, but its start time stays;
//! its statistics start anew. A role without the right to read the first parts uses all the others,
//! and the last one always.
//!
//! Not covered: a copy of the server's files put back in their place (a snapshot of a volume or of
//! a machine).

use tokio_postgres::{Client, Error};

use crate::schema::with_prefix;

/// Name of the only server in a history.
pub(crate) const SERVER: &str = "postgresql";

/// Parts that every role may read.
const TABLES: &str = r#"
  (SELECT oid FROM pg_database WHERE datname = current_database()),
  coalesce(to_regclass('"{p}_counters"')::oid, 0), coalesce(to_regclass('"{p}_claims"')::oid, 0)"#;

/// Start times of the server and of its statistics.
const STARTS: &str = r#"
  concat_ws('/', extract(epoch FROM pg_postmaster_start_time()), (SELECT extract(epoch FROM stats_reset) FROM pg_stat_bgwriter))"#;

/// Parts that a role may read unless an administrator revoked the right.
const SERVER_AND_TIMELINE: &str =
    "(SELECT system_identifier FROM pg_control_system()), left(pg_walfile_name(pg_current_wal_lsn()), 8)";

/// Asks a server for its data's identity.
pub(crate) async fn ask_identity(client: &Client, prefix: &str) -> Result<String, Error> {
    match client.query_one(&with_server(prefix), &[]).await {
        Ok(row) => row.try_get(0),
        // The role has no right to these functions, or the server lacks them.
        Err(error) if error.as_db_error().is_some() => client.query_one(&without_server(prefix), &[]).await?.try_get(0),
        Err(error) => Err(error),
    }
}

fn with_server(prefix: &str) -> String {
    let is_lossy = "'off' IN (current_setting('fsync'), current_setting('synchronous_commit'))";
    with_prefix(
        &format!("SELECT concat_ws(' ', {SERVER_AND_TIMELINE}, {TABLES}, CASE WHEN {is_lossy} THEN {STARTS} END)"),
        prefix,
    )
}

fn without_server(prefix: &str) -> String {
    with_prefix(&format!("SELECT concat_ws(' ', {TABLES}, {STARTS})"), prefix)
}
