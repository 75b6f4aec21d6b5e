//! Runs the suite on one server, plus tests of this store alone.

use std::thread;
use std::time::Duration;

use quipu_model::shared::{
    CellId, Claim, ClaimToken, ClaimVerdict, Put, RowVersion, Seq, Shard, Snapshot, SwapId, SwapVerdict, Verdict,
};
use quipu_model::{Epoch, Millis, NodeId, Store, StoreError};
use quipu_store_postgres::{Options, open};
use quipu_testkit::server_suite::puts::{make_put, name, writer};
use quipu_testkit::server_suite::{StoreAdapter, next_prefix};
use quipu_testkit::servers::postgres::PostgresServer;
use quipu_testkit::store_suite;
use quipu_testkit::store_suite::block_on;

use crate::Postgres;

quipu_testkit::server_tests!(Postgres, suite);

#[test]
fn people_read_their_counts_with_plain_sql() {
    let server = PostgresServer::start().unwrap();
    let store = open(&server.url(), Options::default()).unwrap();
    let other = Put { cell: CellId { writer: writer(2), shard: Shard(3) }, ..make_put(1, i128::from(i64::MAX) * 2) };
    let puts = [(name(b"likes:42"), make_put(7, 42)), (name(b"likes:42"), other), (name(b"\xff"), make_put(1, -1))];
    block_on(store.put_all(&puts)).unwrap();
    assert_eq!(server.query("SELECT total FROM quipu_totals WHERE name = 'likes:42'").unwrap(), "18446744073709551656");
    assert_eq!(
        server.query("SELECT shown, total, cells FROM quipu_totals ORDER BY name").unwrap(),
        "likes:42|18446744073709551656|2\n\\377|-1|1"
    );
    let top =
        "SELECT shown, total FROM quipu_totals WHERE name >= 'likes:' AND name < 'likes;' ORDER BY total DESC LIMIT 10";
    assert!(include_str!("../../src/lib.rs").contains(top), "as the first page has it");
    assert_eq!(server.query(top).unwrap(), "likes:42|18446744073709551656");
    let cells = "SELECT writer, shard, seq, value, total, closed FROM quipu_cells JOIN quipu_counters c ON c.id = counter \
                 WHERE name = 'likes:42' AND shard = 0";
    assert_eq!(server.query(cells).unwrap(), "00000000-0000-0001-0000-000000000001|0|7|42|42|f");
    // What has expired, or was deleted, is no counter any more; what never expires is one.
    for (at, expires_at, base) in [("past", "1", "5"), ("gone", "NULL", "NULL"), ("never", "9223372036854775807", "5")]
    {
        let statement = format!(
            "INSERT INTO quipu_counters (name, born_at, swaps, epoch, base, expires_at) \
             VALUES ('{at}', 1, 0, '00000000-0000-0000-0000-000000000000', {base}, {expires_at})"
        );
        server.query(&statement).unwrap();
    }
    let others = "SELECT shown, total, expires_at FROM quipu_totals WHERE name IN ('past', 'gone', 'never')";
    assert_eq!(server.query(others).unwrap(), "never|5|infinity");
    let plan = server
        .query("SET enable_seqscan = off; EXPLAIN SELECT total FROM quipu_totals WHERE name = 'likes:42'")
        .unwrap();
    assert!(plan.contains("quipu_counters_name") && plan.contains("quipu_cells_pkey"), "by keys alone: {plan}");
}

#[test]
fn a_user_with_the_rights_that_the_first_page_lists_has_enough() {
    let page = include_str!("../../src/lib.rs");
    let listed =
        page.lines().skip_while(|line| !line.contains("CREATE ROLE counter")).take_while(|line| !line.contains("```"));
    let rights: String = listed.map(|line| line.trim_start_matches("//!").to_owned() + "\n").collect();
    assert!(rights.contains("GRANT"), "{rights}");
    let server = PostgresServer::start().unwrap();
    let fill = || {
        let prefix = next_prefix::<Postgres>();
        let open = |user: &str| {
            let url = format!("postgres://{user}@{}/postgres", server.address());
            open(&url, Options { prefix: prefix.clone(), ..Options::default() }).unwrap()
        };
        block_on(open("postgres").clock()).unwrap();
        server
            .query(
                &rights
                    .replace("quipu_", &format!("{prefix}_"))
                    .replace("CREATE ROLE counter LOGIN PASSWORD 'password';", ""),
            )
            .unwrap();
        open("counter")
    };
    server.query("CREATE ROLE counter LOGIN").unwrap();
    block_on(store_suite(async || fill()));
}

#[test]
fn what_a_server_refuses_is_not_applied_and_heals_by_itself() {
    let server = PostgresServer::start().unwrap();
    let prefix = next_prefix::<Postgres>();
    let store = open(&server.url(), Options { prefix: prefix.clone(), ..Options::default() }).unwrap();
    let put = |seq| block_on(store.put_all(&[(name(b"a"), make_put(seq, 1))]));
    assert_eq!(put(1).unwrap(), [Verdict::Newest]);
    let refused = |seq, why: &str| {
        let put = put(seq);
        assert!(matches!(put, Err(StoreError::NotApplied { .. })), "{why}: {put:?}");
    };
    let configure = |statement: &str| {
        server.query(statement).unwrap();
        server.reload().unwrap();
    };
    configure("ALTER SYSTEM SET default_transaction_read_only = on");
    end_connections(&server);
    until(
        || put(2).is_err_and(|error| matches!(error, StoreError::NotApplied { .. })),
        "a server that takes no writes",
    );
    configure("ALTER SYSTEM RESET default_transaction_read_only");
    until(|| put(2).is_ok(), "a server that takes writes again");
    server.query(&format!("ALTER TABLE \"{prefix}_cells\" RENAME TO away")).unwrap();
    refused(3, "a table that is not there");
    server.query(&format!("ALTER TABLE away RENAME TO \"{prefix}_cells\"")).unwrap();
    assert_eq!(put(3).unwrap(), [Verdict::Newest]);
    server.query(&format!("ALTER TABLE \"{prefix}_cells\" ADD CONSTRAINT small CHECK (seq < 4)")).unwrap();
    refused(4, "a constraint");
    server.query(&format!("ALTER TABLE \"{prefix}_cells\" DROP CONSTRAINT small")).unwrap();
    assert_eq!(put(4).unwrap(), [Verdict::Newest]);
    let all = ["schema", "counters", "cells", "bodies", "pages", "claims", "writers", "names"]
        .map(|table| format!("\"{prefix}_{table}\""));
    server.query(&format!("DROP TABLE {} CASCADE", all.join(", "))).unwrap();
    refused(5, "no tables");
    assert_eq!(put(5).unwrap(), [Verdict::Newest], "a new connection has made them again");
}

/// Ends all connections to a server but the one that asks.
fn end_connections(server: &PostgresServer) {
    let statement = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'quipu'";
    server.query(statement).expect("it ends them");
}

fn until(is_so: impl Fn() -> bool, what: &str) {
    for _ in 0..200 {
        if is_so() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("{what} took too long");
}

#[test]
fn a_call_that_waits_for_a_lock_too_long_is_cancelled_and_not_applied() {
    let server = PostgresServer::start().unwrap();
    let prefix = next_prefix::<Postgres>();
    let (connect_timeout, reply_timeout) = (Duration::from_secs(5), Duration::from_secs(1));
    let store = open(&server.url(), Options { prefix: prefix.clone(), connect_timeout, reply_timeout }).unwrap();
    assert!(block_on(store.put_all(&[(name(b"a"), make_put(1, 1))])).is_ok());
    thread::scope(|scope| {
        let holds = format!("BEGIN; LOCK TABLE \"{prefix}_cells\"; SELECT pg_sleep(3); COMMIT");
        let server = &server;
        scope.spawn(move || server.query(&holds).unwrap());
        until(
            || server.query("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'").unwrap() == "1",
            "somebody's lock",
        );
        let put = block_on(store.put_all(&[(name(b"a"), make_put(2, 2))]));
        assert!(matches!(put, Err(StoreError::NotApplied { .. })), "{put:?}");
    });
    assert_eq!(block_on(store.read(name(b"a"))).unwrap().snapshot.sum(), 1);
}

#[test]
fn a_connection_that_is_ended_while_it_works_leaves_the_outcome_open() {
    let server = PostgresServer::start().unwrap();
    let prefix = next_prefix::<Postgres>();
    let store = open(&server.url(), Options { prefix: prefix.clone(), ..Options::default() }).unwrap();
    assert!(block_on(store.put_all(&[(name(b"a"), make_put(1, 1))])).is_ok());
    thread::scope(|scope| {
        let holds = format!("BEGIN; LOCK TABLE \"{prefix}_cells\"; SELECT pg_sleep(1); COMMIT");
        let (server, store) = (&server, &store);
        scope.spawn(move || server.query(&holds).unwrap());
        until(
            || server.query("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'").unwrap() == "1",
            "somebody's lock",
        );
        let put = scope.spawn(move || block_on(store.put_all(&[(name(b"a"), make_put(2, 2))])));
        until(
            || server.query("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").unwrap() == "1",
            "waiting for it",
        );
        end_connections(server);
        let put = put.join().unwrap();
        assert!(matches!(put, Err(StoreError::Unknown { .. })), "{put:?}");
    });
    assert_eq!(block_on(store.put_all(&[(name(b"a"), make_put(2, 2))])).unwrap(), [Verdict::Newest]);
}

#[test]
fn rows_that_no_statement_of_ours_wrote_are_refused_and_left_alone() {
    let server = PostgresServer::start().unwrap();
    let store = open(&server.url(), Options::default()).unwrap();
    block_on(store.put_all(&[(name(b"odd"), make_put(1, 1))])).unwrap();
    for (bend, mend) in [
        ("UPDATE quipu_cells SET value = 0.5", "UPDATE quipu_cells SET value = 1"),
        ("UPDATE quipu_cells SET total = NULL", "UPDATE quipu_cells SET total = 1"),
        ("UPDATE quipu_cells SET total = 1e40", "UPDATE quipu_cells SET total = 1"),
        ("UPDATE quipu_cells SET seq = -1", "UPDATE quipu_cells SET seq = 1"),
        ("UPDATE quipu_cells SET spent_seq = 1", "UPDATE quipu_cells SET spent_seq = NULL"),
        (
            "UPDATE quipu_counters SET epoch = 'ffffffff-ffff-ffff-ffff-ffffffffffff'",
            "UPDATE quipu_counters SET epoch = '00000000-0000-0000-0000-000000000000'",
        ),
        (
            "UPDATE quipu_counters SET last = array_fill(gen_random_uuid(), ARRAY[33])",
            "UPDATE quipu_counters SET last = '{}'",
        ),
    ] {
        server.query(bend).unwrap();
        let read = block_on(store.read(name(b"odd")));
        assert!(matches!(read, Err(StoreError::Unknown { .. })), "{bend}: {read:?}");
        server.query(mend).unwrap();
        assert_eq!(block_on(store.read(name(b"odd"))).unwrap().snapshot.sum(), 1);
    }
}

#[test]
fn claims_whose_windows_are_over_are_removed_by_later_ones() {
    let server = PostgresServer::start().unwrap();
    let store = open(&server.url(), Options::default()).unwrap();
    let Millis(now) = block_on(store.clock()).unwrap();
    let claim = |token: &[u8], forget_at| Claim {
        token: ClaimToken::new(token).unwrap(),
        owner: writer(1),
        attempt: 1,
        payload: 1,
        forget_at: Millis(forget_at),
        reply: None,
    };
    let forgotten = "INSERT INTO quipu_claims SELECT ('old' || n)::bytea, gen_random_uuid(), 9, 9, n, 'reply' FROM generate_series(1, 10) n";
    server.query(forgotten).unwrap();
    assert_eq!(
        block_on(store.claim(&claim(b"old10", now + 60_000))).unwrap(),
        ClaimVerdict::Claimed,
        "its window was over"
    );
    for token in [&b"a"[..], b"b", b"c"] {
        assert_eq!(block_on(store.claim(&claim(token, u64::MAX))).unwrap(), ClaimVerdict::Claimed);
    }
    assert_eq!(
        server.query("SELECT token, reply FROM quipu_claims ORDER BY token").unwrap(),
        "\\x61|\n\\x62|\n\\x63|\n\\x6f6c643130|"
    );
    assert_eq!(block_on(store.claim(&claim(b"late", now - 1))).unwrap(), ClaimVerdict::TooLate);
}

#[test]
fn numbers_of_the_whole_range_are_exact() {
    let server = PostgresServer::start().unwrap();
    let store = Postgres::open_fresh(&server.url());
    for (n, value) in [i128::MAX, i128::MIN, -1, 10_000, i128::from(u64::MAX)].into_iter().enumerate() {
        let at = [n as u8];
        let wide = Put {
            seq: Seq(u64::MAX),
            epoch: Epoch { millis: i64::MAX as u64, node: NodeId(u64::MAX) },
            ..make_put(0, value)
        };
        assert_eq!(block_on(store.put_all(&[(name(&at), wide)])).unwrap(), [Verdict::Newest]);
        let seen = block_on(store.read(name(&at))).unwrap().snapshot;
        let held = seen.cells[&wide.cell];
        assert_eq!((held.seq, held.value, held.total, seen.epoch), (wide.seq, value, value, wide.epoch));
        // What a version is made of wraps here as it does at the server.
        let next = Snapshot {
            version: RowVersion { swaps: 1, ..seen.version },
            swaps: vec![SwapId(u128::MAX)],
            ..seen.clone()
        };
        assert_eq!(block_on(store.swap(name(&at), seen.version, Some(&next))).unwrap(), SwapVerdict::Swapped);
    }
}

#[test]
fn a_servers_own_defaults_do_not_matter() {
    let settings = ["default_transaction_isolation=serializable", "bytea_output=escape", "enable_indexscan=off"];
    let server = PostgresServer::start_with(&settings).unwrap();
    block_on(store_suite(async || Postgres::open_fresh(&server.url())));
}

#[test]
fn puts_of_one_cell_in_one_call_are_judged_in_their_order() {
    let server = PostgresServer::start().unwrap();
    let store = Postgres::open_fresh(&server.url());
    let falling: Vec<_> = (1..=512)
        .rev()
        .flat_map(|seq| [(name(b"a"), make_put(seq, 5)), (name(b"b"), make_put(600 - seq, 5))])
        .collect();
    let verdicts = block_on(store.put_all(&falling)).unwrap();
    for (n, verdict) in verdicts.into_iter().enumerate() {
        let newest = n == 0 || n % 2 == 1;
        assert_eq!(verdict, if newest { Verdict::Newest } else { Verdict::Older }, "put {n}");
    }
    // Whatever the first of a batch says makes the row; the others are judged by it.
    let [early, late] = [3, 9].map(|millis| Epoch { millis, node: NodeId(1) });
    let of = |epoch, seq| (name(b"c"), Put { epoch, ..make_put(seq, 5) });
    let verdicts = block_on(store.put_all(&[of(early, 2), of(late, 3), of(Epoch::FIRST, 1), of(early, 4)])).unwrap();
    assert_eq!(verdicts, [Verdict::Newest, Verdict::Behind { epoch: early }, Verdict::Older, Verdict::Newest]);
}
