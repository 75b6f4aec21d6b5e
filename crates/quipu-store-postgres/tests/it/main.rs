//! Tests the store on a real server. PostgreSQL must be installed.

mod damage;
mod faults;
mod history;
mod law;
mod race;
mod suite;
#[cfg(feature = "tls")]
mod tls;

use std::ops::Range;
use std::time::Duration;

use quipu_store_postgres::{Options, PostgresStore, open};
use quipu_testkit::server_suite::StoreAdapter;
use quipu_testkit::servers::postgres::PostgresServer;

/// The store under test.
struct Postgres;

impl StoreAdapter for Postgres {
    type Server = PostgresServer;
    type Store = PostgresStore;

    const PREFIX: &'static str = "Test-";
    const HASTY_TIMEOUT: Duration = Duration::from_secs(1); // more than a busy machine takes to fork
    const COUNTS_PUTS: bool = false;

    fn open(url: &str, prefix: String, timeout: Option<Duration>) -> PostgresStore {
        let mut options = Options { prefix, ..Options::default() };
        if let Some(timeout) = timeout {
            (options.connect_timeout, options.reply_timeout) = (timeout, timeout);
        }
        open(url, options).expect("the URL is a helper's")
    }

    fn fill_registry(server: &PostgresServer, prefix: &str, _store: &PostgresStore, nodes: Range<u64>) {
        let fill = format!(
            "INSERT INTO \"{prefix}_writers\" SELECT ('00000000-0000-' || lpad(to_hex(n), 4, '0') || '-0000-000000000001')::uuid, \
             1, 1, 5, 'live' FROM generate_series({}, {}) n",
            nodes.start,
            nodes.end - 1
        );
        server.query(&fill).expect("the server takes rows");
    }
}
