//! Tests the store on a real server. PostgreSQL must be installed.

mod damage;
mod faults;
mod history;
mod law;
mod race;
mod suite;
#[cfg(feature = "tls")]
mod tls;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quipu_store_postgres::{Options, PostgresStore, open};

/// A store on this server that holds nothing: under a prefix that no other test has.
fn fresh(url: &str) -> PostgresStore {
    open(url, Options { prefix: prefix(), ..Options::default() }).expect("the URL is a helper's")
}

/// The same, with little patience, and still more than a busy machine takes to fork.
fn hasty(url: &str) -> PostgresStore {
    let (connect_timeout, reply_timeout) = (Duration::from_secs(1), Duration::from_secs(1));
    open(url, Options { prefix: prefix(), connect_timeout, reply_timeout }).expect("the URL is a helper's")
}

fn prefix() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("Test-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
