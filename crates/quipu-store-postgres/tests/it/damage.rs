//! Tests rows with foreign data or foreign locks: an error for that counter alone, and never a
//! wrong number.

use std::thread;
use std::time::Duration;

use quipu_model::shared::{Claim, ClaimEnd, ClaimVerdict, Holder, Registration, RestoreVerdict, Verdict, WriterStage};
use quipu_model::{Millis, NodeId, Store, StoreError};
use quipu_store_postgres::{Options, PostgresStore, open};
use quipu_testkit::SeededRng;
use quipu_testkit::server_suite::damage::{DamageableStore, join_causes, promptly, put_among_others};
use quipu_testkit::server_suite::puts::{make_body_put, make_claim, make_put, name, writer};
use quipu_testkit::servers::postgres::PostgresServer;
use quipu_testkit::store_suite::block_on;

use crate::Postgres;

fn store(server: &PostgresServer) -> PostgresStore {
    open(&server.url(), Options::default()).expect("the URL is a helper's")
}

quipu_testkit::server_tests!(Postgres, damage);

impl DamageableStore for Postgres {
    const SEEDS: u64 = 4;
    const ROWS: usize = 40;
    const REFUSED_MIN: u32 = 30;

    fn damage_row(server: &PostgresServer, at: &str, rng: &SeededRng) -> String {
        let statement = damage(rng, at);
        server.query(&statement).expect(&statement);
        statement
    }
}

#[test]
fn one_damaged_row_takes_no_verdict_from_the_others() {
    let server = PostgresServer::start().unwrap();
    let store = store(&server);
    assert_eq!(put_among_others(&store, 1, "nothing is damaged").unwrap(), Verdict::Newest);
    let bad = "(SELECT id FROM quipu_counters WHERE name = 'bad')";
    let mut seq = 1;
    for (bend, mend) in [
        // What cannot be decoded.
        (format!("UPDATE quipu_cells SET seq = 'NaN' WHERE counter = {bad}"), "UPDATE quipu_cells SET seq = 1"),
        (
            format!("UPDATE quipu_cells SET seq = 1e30, value = 0.5 WHERE counter = {bad}"),
            "UPDATE quipu_cells SET seq = 1, value = 1",
        ),
        (
            "UPDATE quipu_counters SET expires_at = -1 WHERE name = 'bad'".to_owned(),
            "UPDATE quipu_counters SET expires_at = NULL",
        ),
        // What the statement fails on.
        (
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF EXISTS (SELECT FROM quipu_counters WHERE id = NEW.counter AND name = 'bad') THEN RAISE 'no'; END IF; \
             RETURN NEW; END $$; \
             CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON quipu_cells FOR EACH ROW EXECUTE FUNCTION refuse()"
                .to_owned(),
            "DROP TRIGGER refuse ON quipu_cells",
        ),
        (
            "CREATE FUNCTION divide() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF EXISTS (SELECT FROM quipu_counters WHERE id = NEW.counter AND name = 'bad') THEN NEW.value := 1 / 0; END IF; \
             RETURN NEW; END $$; \
             CREATE TRIGGER divide BEFORE INSERT OR UPDATE ON quipu_cells FOR EACH ROW EXECUTE FUNCTION divide()"
                .to_owned(),
            "DROP TRIGGER divide ON quipu_cells",
        ),
    ] {
        server.query(&bend).unwrap();
        seq += 1;
        let error = put_among_others(&store, seq, &bend).expect_err(&bend);
        let shown = join_causes(&error);
        assert!(shown.contains("bad"), "{bend}: {shown}");
        let alone = block_on(store.put(&[(name(b"bad"), make_put(seq, 5))])).expect("the store itself is well");
        assert!(alone[0].is_err(), "{bend}");
        server.query(mend).unwrap();
        seq += 1;
        assert_eq!(put_among_others(&store, seq, &bend).unwrap(), Verdict::Newest, "{bend}");
    }
}

#[test]
fn several_damaged_rows_are_found_in_a_bounded_number_of_statements() {
    let server = PostgresServer::start().unwrap();
    let store = store(&server);
    block_on(store.clock()).unwrap();
    server
        .query(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF EXISTS (SELECT FROM quipu_counters WHERE id = NEW.counter AND name LIKE 'bad%') THEN RAISE 'no'; END IF; \
             RETURN NEW; END $$; \
             CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON quipu_cells FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .unwrap();
    for (bad, all_others) in [(3, true), (1_000, false)] {
        let names: Vec<String> = (0..1_024)
            .map(|n| {
                if n % (1_024 / bad) == 7 % (1_024 / bad) && n / (1_024 / bad) < bad {
                    format!("bad{n}")
                } else {
                    format!("n{n}")
                }
            })
            .collect();
        let puts: Vec<_> = names.iter().map(|at| (name(at.as_bytes()), make_put(1, 5))).collect();
        let results = block_on(store.put(&puts)).unwrap();
        for (name, result) in names.iter().zip(&results) {
            let is_bad = name.starts_with("bad");
            assert!(!is_bad || result.is_err(), "{name}: {result:?}");
            assert!(is_bad || !all_others || matches!(result, Ok(Verdict::Newest)), "{name}: {result:?}");
        }
    }
}

#[test]
fn a_row_that_another_session_keeps_locked_takes_no_verdict_from_the_others() {
    let server = PostgresServer::start().unwrap();
    let (connect_timeout, reply_timeout) = (Duration::from_secs(5), Duration::from_secs(2));
    let store = open(&server.url(), Options { connect_timeout, reply_timeout, ..Options::default() }).unwrap();
    assert_eq!(put_among_others(&store, 1, "nothing is locked").unwrap(), Verdict::Newest);
    thread::scope(|scope| {
        let server = &server;
        let holds = "BEGIN; SELECT FROM quipu_counters WHERE name = 'bad' FOR UPDATE; SELECT pg_sleep(6); COMMIT";
        scope.spawn(move || server.query(holds).unwrap());
        let is_held = || {
            let asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
            server.query(asleep).unwrap() == "1" || {
                thread::sleep(Duration::from_millis(20));
                false
            }
        };
        assert!((0..200).any(|_| is_held()), "somebody's lock");
        let bad = put_among_others(&store, 2, "one is locked");
        assert!(matches!(bad, Err(StoreError::NotApplied { .. })), "{bad:?}");
    });
    assert_eq!(put_among_others(&store, 3, "nothing is locked any more").unwrap(), Verdict::Newest);
}

#[test]
fn more_than_a_row_ever_has_stays_at_the_server() {
    let server = PostgresServer::start().unwrap();
    let store = store(&server);
    block_on(store.put_body(name(b"wide"), &make_body_put(1, None))).unwrap();
    let bend = |statement: &str| server.query(statement).unwrap();
    bend("UPDATE quipu_pages SET bytes = convert_to(repeat('x', 50000000), 'UTF8')");
    assert!(promptly("a read of bodies", || block_on(store.read_bodies(name(b"wide")))).is_err());
    bend(
        "UPDATE quipu_pages SET bytes = 'page'; UPDATE quipu_counters SET last = array_fill(gen_random_uuid(), ARRAY[1000000])",
    );
    assert!(promptly("a read", || block_on(store.read(name(b"wide")))).is_err());
    bend("UPDATE quipu_counters SET last = '{}'");
    bend(
        "INSERT INTO quipu_bodies SELECT counter, gen_random_uuid(), 3, 7, 16777216 FROM quipu_bodies, generate_series(1, 200)",
    );
    let bodies = promptly("a read of bodies", || block_on(store.read_bodies(name(b"wide"))));
    let shown = join_causes(&bodies.expect_err("there is no room for all that"));
    assert!(shown.contains("wide") && shown.contains("bodies"), "{shown}");
    assert!(block_on(store.read(name(b"wide"))).is_ok(), "the row itself is fine");
    let forget_at = Millis(block_on(store.clock()).unwrap().0 + 600_000);
    let first = make_claim(b"t", 1, forget_at);
    block_on(store.claim(&first)).unwrap();
    bend("UPDATE quipu_claims SET reply = convert_to(repeat('x', 50000000), 'UTF8')");
    assert!(promptly("a claim", || block_on(store.claim(&make_claim(b"t", 2, forget_at)))).is_err());
    let applied = |token: &[u8]| Claim { reply: Some((*b"5").into()), ..make_claim(token, 1, forget_at) };
    let restored = block_on(store.restore_claims(&[applied(b"t"), applied(b"u"), applied(b"u")])).unwrap();
    assert_eq!(restored, [RestoreVerdict::Conflict, RestoreVerdict::Restored, RestoreVerdict::Known]);
}

/// Statements that damage one row, with `{at}` for its name: any column by what its type allows.
fn damage(rng: &SeededRng, at: &str) -> String {
    const NUMBERS: [&str; 12] = [
        "-1",
        "0.5",
        "'NaN'",
        "'Infinity'",
        "'-Infinity'",
        "1e40",
        "1e1000",
        "18446744073709551616",
        "NULL",
        "0",
        "7",
        "99999999999999999999999999999999999999999",
    ];
    const UUIDS: [&str; 4] = [
        "gen_random_uuid()",
        "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
        "'00000000-0000-0000-0000-000000000000'",
        "NULL",
    ];
    const INTEGERS: [&str; 5] = ["-1", "2147483647", "-2147483648", "65536", "3"];
    let counter = format!("counter = (SELECT id FROM quipu_counters WHERE name = '{at}')");
    let columns: [(&str, &[&str], &[&str]); 9] = [
        ("quipu_counters", &["born_at", "swaps", "puts"], &NUMBERS[..8]),
        ("quipu_counters", &["base", "expires_at", "gone_at"], &NUMBERS),
        ("quipu_counters", &["epoch"], &UUIDS[..3]),
        (
            "quipu_cells",
            &["seq", "value", "total", "spent_seq", "spent_value", "spent_total", "spent_at", "spent_expired"],
            &NUMBERS,
        ),
        ("quipu_cells", &["spent_epoch"], &UUIDS),
        ("quipu_cells", &["shard"], &INTEGERS),
        ("quipu_bodies", &["kind", "length"], &INTEGERS),
        ("quipu_bodies", &["key"], &NUMBERS[..8]),
        ("quipu_pages", &["page"], &INTEGERS),
    ];
    let (table, names, values) = columns[rng.below(columns.len())];
    let condition = if table == "quipu_counters" { format!("name = '{at}'") } else { counter };
    let one = format!("ctid IN (SELECT ctid FROM {table} WHERE {condition} ORDER BY random() LIMIT 1)");
    format!("UPDATE {table} SET {} = {} WHERE {one}", rng.pick(names), rng.pick(values))
}

#[test]
fn claims_and_registrations_of_garbage_stop_nobody_else() {
    let server = PostgresServer::start_with(&["synchronous_commit=off"]).unwrap();
    let store = store(&server);
    let forget_at = Millis(block_on(store.clock()).unwrap().0 + 600_000);
    let (holder, lease_until) = (Some(Holder(1)), Millis(5));
    let registration = Registration { writer: writer(9), holder, lease_until, stage: WriterStage::Live, version: 1 };
    for (n, garbage) in
        ["-1", "0.5", "'NaN'", "'Infinity'", "1e40", "1e1000", "18446744073709551616"].iter().enumerate()
    {
        for column in ["attempt", "payload", "forget_at"] {
            let token = format!("{column}:{n}");
            let first = make_claim(token.as_bytes(), 1, forget_at);
            assert_eq!(block_on(store.claim(&first)).unwrap(), ClaimVerdict::Claimed);
            server.query(&format!("UPDATE quipu_claims SET {column} = {garbage} WHERE token = '{token}'")).unwrap();
            let is_over = column == "forget_at" && ["-1", "0.5"].contains(garbage);
            let again = promptly(&token, || block_on(store.claim(&make_claim(token.as_bytes(), 2, forget_at))));
            assert!(again.is_err() || is_over, "{token} = {garbage}: {again:?}");
            let applied = Claim { reply: Some((*b"5").into()), ..first.clone() };
            assert!(promptly(&token, || block_on(store.restore_claims(&[applied]))).is_ok(), "{token} = {garbage}");
            drop(block_on(store.end_claim(&first.token, first.owner, 1, &ClaimEnd::Released)));
            let fine = make_claim(format!("fine:{token}").as_bytes(), 1, forget_at);
            assert_eq!(block_on(store.claim(&fine)).unwrap(), ClaimVerdict::Claimed);
        }
        for column in ["version", "holder", "lease_until", "since"] {
            server.query("DELETE FROM quipu_writers").unwrap();
            block_on(store.register(0, &registration)).unwrap();
            server.query(&format!("UPDATE quipu_writers SET {column} = {garbage}")).unwrap();
            assert!(promptly(column, || block_on(store.writers())).is_err(), "{column} = {garbage}");
            drop(block_on(store.register(1, &Registration { version: 2, ..registration })));
        }
    }
    block_on(store.name_node(NodeId(9), Some("nine"))).unwrap();
    server.query("UPDATE quipu_names SET name = repeat('x', 10000000)").unwrap();
    assert!(promptly("names", || block_on(store.node_names())).is_err());
}
