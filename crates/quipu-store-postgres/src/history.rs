//! The identity of a server's data: what changes when a server may have lost commits that it confirmed.
//!
//! In: a connection. Out: a text that is the same as long as the server has everything.
//!
//! | part | changes with |
//! |---|---|
//! | system identifier | another server, made by `initdb` |
//! | timeline | a standby that was promoted, a restore to a point in time |
//! | database, tables of counters and of claims | a dump that was restored in their place |
//! | start of the server, and of its statistics | a restart, a crash of one of its processes |
//!
//! The last part counts only where a crash loses commits: `fsync` or `synchronous_commit` is off, for the server or for this connection. The
//! start of the server alone would not do: when one process crashes, all others end and the server recovers from its log, but it has started
//! long before; its statistics begin anew. A role without the right to ask for the first parts has all others, the last one always.
//!
//! Not covered: a copy of the server's files put back in their place (a snapshot of a volume or of a machine).

use tokio_postgres::{Client, Error};

use crate::schema::with_prefix;

/// The name of the server in a history: there is one.
pub(crate) const SERVER: &str = "postgresql";

/// The parts that every role may ask for.
const TABLES: &str = r#"
  (SELECT oid FROM pg_database WHERE datname = current_database()),
  coalesce(to_regclass('"{p}_counters"')::oid, 0), coalesce(to_regclass('"{p}_claims"')::oid, 0)"#;

/// The start of the server, and of its statistics.
const STARTS: &str = r#"
  concat_ws('/', extract(epoch FROM pg_postmaster_start_time()), (SELECT extract(epoch FROM stats_reset) FROM pg_stat_bgwriter))"#;

/// What a role may ask for unless somebody took that right away.
const SERVER_AND_TIMELINE: &str =
    "(SELECT system_identifier FROM pg_control_system()), left(pg_walfile_name(pg_current_wal_lsn()), 8)";

/// Asks a server for the identity of its data.
pub(crate) async fn ask_identity(client: &Client, prefix: &str) -> Result<String, Error> {
    match client.query_one(&with_server(prefix), &[]).await {
        Ok(row) => row.try_get(0),
        // No right to these functions, or no such functions.
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
