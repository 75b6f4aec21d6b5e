//! Tests the store on real servers. redis-server must be installed.

mod cluster;
mod damage;
mod faults;
mod history;
mod law;
mod suite;
#[cfg(feature = "tls")]
mod tls;

use std::time::Duration;

use quipu_store_redis::{Options, RedisStore, open};
use quipu_testkit::server_suite::StoreAdapter;
use quipu_testkit::servers::redis::RedisServer;

/// The store under test.
struct Redis;

impl StoreAdapter for Redis {
    type Server = RedisServer;
    type Store = RedisStore;

    const PREFIX: &'static str = "test";
    const HASTY_TIMEOUT: Duration = Duration::from_millis(300);
    const COUNTS_PUTS: bool = true;

    fn open(url: &str, prefix: String, timeout: Option<Duration>) -> RedisStore {
        let mut options = Options { prefix, ..Options::default() };
        if let Some(timeout) = timeout {
            (options.connect_timeout, options.reply_timeout) = (timeout, timeout);
        }
        open(url, options).expect("the URL is a helper's")
    }
}
