//! Tests the store on real servers. redis-server must be installed.

mod cluster;
mod damage;
mod faults;
mod history;
mod law;
mod suite;
#[cfg(feature = "tls")]
mod tls;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quipu_store_redis::{Options, RedisStore, open};

/// A store on this server that holds nothing: under a prefix that no other test has.
fn fresh(url: &str) -> RedisStore {
    open(url, Options { prefix: prefix(), ..Options::default() }).expect("the URL is a helper's")
}

/// The same, with little patience.
fn hasty(url: &str) -> RedisStore {
    let (connect_timeout, reply_timeout) = (Duration::from_millis(300), Duration::from_millis(300));
    open(url, Options { prefix: prefix(), connect_timeout, reply_timeout }).expect("the URL is a helper's")
}

fn prefix() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("test{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
