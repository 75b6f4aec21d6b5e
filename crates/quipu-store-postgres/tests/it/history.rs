//! Tests servers of changed identity: the store changes nothing on them before the caller asks for
//! the history.

use std::process::Command;
use std::thread;
use std::time::Duration;

use quipu_model::Store;
use quipu_model::shared::Verdict;
use quipu_store_postgres::{Options, open};
use quipu_testkit::server_suite::history::{ask_history, expect_changes_refused, put};
use quipu_testkit::server_suite::puts::wait_for_answer;
use quipu_testkit::server_suite::{StoreAdapter, next_prefix};
use quipu_testkit::servers::postgres::PostgresServer;
use quipu_testkit::store_suite::block_on;

use crate::Postgres;

quipu_testkit::server_tests!(Postgres, history);

#[test]
fn a_server_that_lost_nothing_has_the_same_history_after_a_restart() {
    let mut server = PostgresServer::start().unwrap();
    let store = Postgres::open_fresh(&server.url());
    let first = block_on(store.history()).unwrap();
    assert_eq!(first.0.len(), 1, "{first:?}");
    put(&store, b"a", 1).unwrap();
    server.restart().unwrap();
    wait_for_answer(&store);
    assert_eq!(put(&store, b"a", 2).unwrap(), [Verdict::Newest], "nothing is asked anew");
    assert_eq!(ask_history(&store), first);
}

#[test]
fn where_a_crash_loses_commits_each_restart_and_each_crash_is_another_history() {
    for settings in ["synchronous_commit=off", "fsync=off"] {
        let mut server = PostgresServer::start_with(&[settings]).unwrap();
        let store = Postgres::open_fresh(&server.url());
        let first = block_on(store.history()).unwrap();
        put(&store, b"a", 1).unwrap();
        assert_eq!(block_on(store.history()).unwrap(), first, "{settings}: as long as it runs");
        server.restart().unwrap();
        wait_for_answer(&store);
        expect_changes_refused(&store, b"a", 2);
        let second = ask_history(&store);
        assert_ne!(first, second, "{settings}");
        // One process crashes, and the server recovers.
        let started = server.query("SELECT pg_postmaster_start_time()").unwrap();
        let ours = "SELECT pid FROM pg_stat_activity WHERE application_name = 'quipu' LIMIT 1";
        let pid = server.query(ours).unwrap();
        assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
        // The store may be answered once more, before the other processes have ended.
        let is_back = || {
            let answer = server.query("SELECT pg_postmaster_start_time()");
            answer.inspect_err(|_| thread::sleep(Duration::from_millis(50))).is_ok_and(|answer| answer == started)
        };
        assert!((0..600).any(|_| is_back()), "{settings}: the server recovers, and has started long before");
        wait_for_answer(&store);
        expect_changes_refused(&store, b"a", 2);
        assert_ne!(ask_history(&store), second, "{settings}");
        assert_eq!(put(&store, b"a", 2).unwrap(), [Verdict::Newest]);
    }
}

#[test]
fn tables_that_were_restored_in_the_place_of_others_are_another_history() {
    let server = PostgresServer::start().unwrap();
    let store = open(&server.url(), Options::default()).unwrap();
    let first = block_on(store.history()).unwrap();
    put(&store, b"a", 1).unwrap();
    server
        .query(
            "ALTER TABLE quipu_claims RENAME TO old_claims; CREATE TABLE quipu_claims (LIKE old_claims INCLUDING ALL); \
             DROP TABLE old_claims",
        )
        .unwrap();
    let second = block_on(store.history()).unwrap();
    assert_ne!(first, second, "asked on the connection that there was");
    assert_eq!(put(&store, b"a", 2).unwrap(), [Verdict::Newest]);
}

#[test]
fn a_role_without_rights_to_ask_a_server_notices_restarts() {
    let mut server = PostgresServer::start().unwrap();
    let prefix = next_prefix::<Postgres>();
    let open = |user: &str| {
        let url = format!("postgres://{user}@{}/postgres", server.address());
        open(&url, Options { prefix: prefix.clone(), ..Options::default() }).unwrap()
    };
    block_on(open("postgres").clock()).unwrap();
    server
        .query(&format!(
            "CREATE ROLE counter LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO counter; \
             REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC; SELECT '{prefix}'"
        ))
        .unwrap();
    let store = open("counter");
    let first = block_on(store.history()).unwrap();
    assert_eq!(block_on(store.history()).unwrap(), first);
    put(&store, b"a", 1).unwrap();
    server.restart().unwrap();
    wait_for_answer(&store);
    expect_changes_refused(&store, b"a", 2);
    assert_ne!(ask_history(&store), first);
    assert_eq!(put(&store, b"a", 2).unwrap(), [Verdict::Newest]);
}
