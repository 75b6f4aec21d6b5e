//! Tests a store on its real server: the promises of the port, the law of rows, killed and replaced
//! servers, failing networks, damaged data, TLS.
//!
//! In: a [`StoreAdapter`], which names the store and its [`TestServer`]. Out: tests, by
//! [`server_tests`](crate::server_tests), in modules of the adapter's own tests.
//!
//! A server that is not installed is a failure that names the package, never a skipped test.
//!
//! Not here: what one server alone can do, such as a Cluster or a lock; it is in the adapter's
//! tests.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quipu_model::shared::RegisterVerdict;
use quipu_model::{BoxError, Store};

use self::puts::registration;
use crate::store_suite::block_on;

pub mod damage;
pub mod faults;
pub mod history;
pub mod law;
pub mod puts;
pub mod suite;
pub mod tls;

/// A real server that tests start, stop, kill and replace.
pub trait TestServer: Sized + Send + Sync {
    /// User of [`TestServer::url`], who may do anything; empty if the server names none.
    const USER: &'static str;

    /// Whether a server of [`TestServer::start_with_tls`] refuses connections without TLS at its
    /// address.
    const REFUSES_PLAIN: bool;

    /// Starts a server with its default durability.
    fn start() -> Result<Self, BoxError>;

    /// Starts a server that loses nothing that it acknowledged, even if it is killed.
    fn start_durable() -> Result<Self, BoxError>;

    /// Starts a server that does not wait for a disk.
    fn start_fast() -> Result<Self, BoxError>;

    /// Starts a server that takes TLS, with the files `cert.pem` and `key.pem` of this directory;
    /// returns the URL to use.
    fn start_with_tls(home: &Path) -> Result<(Self, String), BoxError>;

    /// Address of its listener.
    fn address(&self) -> SocketAddr;

    /// URL of the server by way of this address, as this user: `name`, `name:password` or nothing.
    fn url_of(&self, address: SocketAddr, user: &str) -> String;

    /// Requires this password of [`TestServer::USER`].
    fn require_password(&self, password: &str) -> Result<(), BoxError>;

    /// Number of rows, claims and registrations that it holds, of all stores.
    fn count_rows(&self) -> Result<u64, BoxError>;

    /// Suspends it: connections stay, and it answers nothing.
    fn stop(&self) -> Result<(), BoxError>;

    /// Resumes it.
    fn resume(&self) -> Result<(), BoxError>;

    /// Kills it, and waits until it is gone.
    fn kill(&mut self);

    /// Restarts it at the same address, with what it has on its disk.
    fn restart(&mut self) -> Result<(), BoxError>;

    /// Restarts it at the same address without data.
    fn restart_empty(&mut self) -> Result<(), BoxError>;

    /// URL of the server.
    fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// URL of the server by way of this address.
    fn url_at(&self, address: SocketAddr) -> String {
        self.url_of(address, Self::USER)
    }
}

/// A store, as its tests open it.
pub trait StoreAdapter: 'static {
    /// The server.
    type Server: TestServer;

    /// The store.
    type Store: Store + 'static;

    /// Beginning of the tests' prefixes.
    const PREFIX: &'static str;

    /// Timeout of a store with little patience.
    const HASTY_TIMEOUT: Duration;

    /// Whether the count of puts in a row's version is the model's, rather than one that rises
    /// with it.
    const COUNTS_PUTS: bool;

    /// Opens a store under this prefix, with the default timeouts unless one is given.
    fn open(url: &str, prefix: String, timeout: Option<Duration>) -> Self::Store;

    /// Opens a store that holds nothing: under a prefix that no other test has.
    fn open_fresh(url: &str) -> Self::Store {
        Self::open(url, next_prefix::<Self>(), None)
    }

    /// As [`StoreAdapter::open_fresh`], with little patience.
    fn open_hasty(url: &str) -> Self::Store {
        Self::open(url, next_prefix::<Self>(), Some(Self::HASTY_TIMEOUT))
    }

    /// Registers these nodes, by [`puts::registration`] of version 1. A store with slow
    /// registrations writes them to its server under the prefix.
    fn fill_registry(_server: &Self::Server, _prefix: &str, store: &Self::Store, nodes: Range<u64>) {
        for node in nodes {
            let verdict = block_on(store.register(0, &registration(node, 1))).expect("the server answers");
            assert_eq!(verdict, RegisterVerdict::Registered);
        }
    }
}

/// A prefix that no other test of this process has.
pub fn next_prefix<A: StoreAdapter + ?Sized>() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{}{}", A::PREFIX, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Writes the tests of one module of [`server_suite`](crate::server_suite) for an adapter. The
/// module that contains them has the same name.
#[macro_export]
macro_rules! server_tests {
    ($adapter:ty, suite) => {
        $crate::server_tests!(@ $adapter, suite,
            one_server_keeps_every_promise_of_the_port
            one_server_keeps_them_behind_a_calm_faulty_store
            a_wide_row_is_swapped_and_read_whole
            the_registry_is_full_at_its_bound_and_those_in_it_go_on
        );
    };
    ($adapter:ty, law) => {
        $crate::server_tests!(@ $adapter, law,
            verdicts_and_rows_are_those_of_the_model_whatever_is_put_and_swapped
        );
    };
    ($adapter:ty, faults) => {
        $crate::server_tests!(@ $adapter, faults,
            a_server_that_is_not_there_has_applied_nothing
            a_store_heals_after_its_server_was_killed_and_started_empty
            what_was_acknowledged_outlives_a_kill_if_the_server_writes_it_down
            a_server_that_hangs_leaves_the_outcome_open_and_heals_when_it_goes_on
            many_threads_heal_while_the_server_comes_and_goes
            a_wrong_password_applies_nothing_and_is_not_shown
            a_scan_goes_on_anew_after_the_server_was_started_again
            a_call_with_a_lost_reply_is_unknown_and_ran_once
            a_call_that_never_arrives_is_unknown_and_was_not_carried_out
            the_suite_passes_behind_a_slow_network
            each_add_is_counted_once_behind_a_network_that_fails
        );
    };
    ($adapter:ty, history) => {
        $crate::server_tests!(@ $adapter, history,
            a_server_in_the_place_of_another_is_not_changed_before_its_history_is_asked
            an_answer_that_nobody_waited_for_does_not_make_a_history_known
        );
    };
    ($adapter:ty, damage) => {
        $crate::server_tests!(@ $adapter, damage,
            rows_of_garbage_stop_nobody_else_and_are_never_taken_for_numbers
        );
    };
    ($adapter:ty, tls) => {
        $crate::server_tests!(@ $adapter, tls,
            the_suite_passes_over_tls_if_the_server_is_trusted_and_nothing_is_sent_if_not
        );
    };
    (@ $adapter:ty, $module:ident, $($test:ident)+) => {
        $(
            #[test]
            fn $test() {
                $crate::server_suite::$module::$test::<$adapter>();
            }
        )+
    };
}
