//! Tests servers of changed identity: the store changes nothing on them before the caller asks for
//! the history.

use std::process::Command;
use std::thread;
use std::time::Duration;

use quipu_model::shared::{Claim, ClaimEnd, ClaimToken, RowVersion, Verdict};
use quipu_model::{History, Millis, Store, StoreCall, StoreError};
use quipu_store_postgres::{Options, PostgresStore, open};
use quipu_testkit::servers::postgres::PostgresServer;
use quipu_testkit::store_suite::block_on;

use crate::fresh;
use crate::suite::{make_put, name, writer};

/// Every call that needs what the store has confirmed before: refused, as of an unknown history.
fn expect_changes_refused(store: &PostgresStore, at: &[u8], seq: u64) {
    let token = ClaimToken::new(at).expect("it is short");
    let claim = Claim { token, owner: writer(1), attempt: 1, payload: 1, forget_at: Millis(u64::MAX), reply: None };
    let end = ClaimEnd::Done((*b"1").into());
    let errors = [
        block_on(store.put(&[(name(at), make_put(seq, 1))])).err(),
        block_on(store.swap(name(at), RowVersion::ABSENT, None)).err(),
        block_on(store.claim(&claim)).err(),
        block_on(store.end_claim(&claim.token, claim.owner, 1, &end)).err(),
        block_on(store.restore_claims(&[Claim { reply: Some((*b"1").into()), ..claim.clone() }])).err(),
    ];
    let calls = [StoreCall::Put, StoreCall::Swap, StoreCall::Claim, StoreCall::EndClaim, StoreCall::RestoreClaims];
    for (error, expected) in errors.into_iter().zip(calls) {
        match error {
            Some(StoreError::HistoryChanged { call }) => assert_eq!(call, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
    assert!(block_on(store.read(name(at))).is_ok(), "a read is answered by whoever is there");
}

fn put(store: &PostgresStore, at: &[u8], seq: u64) -> Result<Vec<Verdict>, StoreError> {
    block_on(store.put_all(&[(name(at), make_put(seq, 1))]))
}

/// The first calls after a restart may find connections that broke, or a server that recovers.
fn history(store: &PostgresStore) -> History {
    let ask = || {
        block_on(store.history()).ok().or_else(|| {
            thread::sleep(Duration::from_millis(50));
            None
        })
    };
    (0..200).find_map(|_| ask()).expect("the server answers")
}

/// Waits until the server answers on a new connection, without asking for its history.
fn wait_for(store: &PostgresStore) {
    let answers = || {
        block_on(store.clock()).is_ok() || {
            thread::sleep(Duration::from_millis(50));
            false
        }
    };
    assert!((0..200).any(|_| answers()), "the server answers");
}

#[test]
fn a_server_that_lost_nothing_has_the_same_history_after_a_restart() {
    let mut server = PostgresServer::start().unwrap();
    let store = fresh(&server.url());
    let first = block_on(store.history()).unwrap();
    assert_eq!(first.0.len(), 1, "{first:?}");
    put(&store, b"a", 1).unwrap();
    server.restart().unwrap();
    wait_for(&store);
    assert_eq!(put(&store, b"a", 2).unwrap(), [Verdict::Newest], "nothing is asked anew");
    assert_eq!(history(&store), first);
}

#[test]
fn a_server_in_the_place_of_another_is_not_changed_before_its_history_is_asked() {
    let mut server = PostgresServer::start().unwrap();
    let (store, tool) = (fresh(&server.url()), fresh(&server.url()));
    let first = block_on(store.history()).unwrap();
    put(&store, b"a", 1).unwrap();
    server.restart_empty().unwrap();
    wait_for(&store);
    expect_changes_refused(&store, b"a", 2);
    assert_eq!(block_on(store.read(name(b"a"))).unwrap().snapshot, Default::default(), "nothing was put");
    assert_ne!(history(&store), first);
    assert_eq!(put(&store, b"a", 2).unwrap(), [Verdict::Newest]);
    wait_for(&tool);
    assert_eq!(put(&tool, b"b", 1).unwrap(), [Verdict::Newest], "one that never asked is refused nothing");
}

#[test]
fn where_a_crash_loses_commits_each_restart_and_each_crash_is_another_history() {
    for settings in ["synchronous_commit=off", "fsync=off"] {
        let mut server = PostgresServer::start_with(&[settings]).unwrap();
        let store = fresh(&server.url());
        let first = block_on(store.history()).unwrap();
        put(&store, b"a", 1).unwrap();
        assert_eq!(block_on(store.history()).unwrap(), first, "{settings}: as long as it runs");
        server.restart().unwrap();
        wait_for(&store);
        expect_changes_refused(&store, b"a", 2);
        let second = history(&store);
        assert_ne!(first, second, "{settings}");
        // One process crashes, and the server recovers; it has started long before.
        let started = server.query("SELECT pg_postmaster_start_time()").unwrap();
        let ours = "SELECT pid FROM pg_stat_activity WHERE application_name = 'quipu' LIMIT 1";
        let pid = server.query(ours).unwrap();
        assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
        wait_for(&store);
        assert_eq!(server.query("SELECT pg_postmaster_start_time()").unwrap(), started);
        expect_changes_refused(&store, b"a", 2);
        assert_ne!(history(&store), second, "{settings}");
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
    let prefix = crate::prefix();
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
    wait_for(&store);
    expect_changes_refused(&store, b"a", 2);
    assert_ne!(history(&store), first);
    assert_eq!(put(&store, b"a", 2).unwrap(), [Verdict::Newest]);
}
