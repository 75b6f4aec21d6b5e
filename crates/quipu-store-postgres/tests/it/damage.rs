//! Tests rows with foreign data or foreign locks: an error for that counter alone, and never a
//! wrong number.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use quipu_model::shared::body::BodyShape;
use quipu_model::shared::put::put;
use quipu_model::shared::{
    BodyPut, Claim, ClaimEnd, ClaimToken, ClaimVerdict, Holder, Put, Registration, RestoreVerdict, RowVersion, Seq,
    Snapshot, SwapVerdict, Verdict, WriterStage, incarnation_cell,
};
use quipu_model::{Millis, NodeId, Store, StoreError};
use quipu_store_postgres::{Options, PostgresStore, open};
use quipu_testkit::SeededRng;
use quipu_testkit::servers::postgres::PostgresServer;
use quipu_testkit::store_suite::block_on;

use crate::suite::{make_put, name, writer};

/// Longer than any call on a small row takes, and shorter than the time-out of a statement.
const PROMPT: Duration = Duration::from_secs(3);

/// Rows that are damaged by chance, and schedules.
const ROWS: usize = 40;
const SEEDS: u64 = 4;

fn store(server: &PostgresServer) -> PostgresStore {
    open(&server.url(), Options::default()).expect("the URL is a helper's")
}

/// An error and its causes, in one line.
fn causes(error: &StoreError) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// What a call answers, which must not take long.
#[allow(clippy::disallowed_methods, reason = "real servers are waited for")]
fn promptly<T>(what: &str, call: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let answer = call();
    assert!(begun.elapsed() < PROMPT, "{what} took {:?}", begun.elapsed());
    answer
}

/// A put of a sketch's whole body.
fn body_put(seq: u64, from: Option<u64>) -> BodyPut {
    let put = Put { cell: incarnation_cell(writer(1), 0), ..make_put(seq, 1) };
    let shape = BodyShape { kind: 3, key: 7, length: 2_000 };
    BodyPut { put, from: from.map(Seq), whole: true, shape, pages: vec![(1, (*b"page").into())] }
}

fn claim(token: &[u8], attempt: u64, forget_at: Millis) -> Claim {
    let token = ClaimToken::new(token).expect("tokens of these tests are short");
    Claim { token, owner: writer(1), attempt, payload: 5, forget_at, reply: None }
}

/// Puts into a hundred counters and into `bad` among them; returns the outcome for `bad` if all
/// others succeeded.
fn put_among_others(store: &PostgresStore, seq: u64, what: &str) -> Result<Verdict, StoreError> {
    let names: Vec<String> = (0..100).map(|n| format!("n{n}")).collect();
    let mut puts: Vec<_> = names.iter().map(|at| (name(at.as_bytes()), make_put(seq, 5))).collect();
    puts.insert(50, (name(b"bad"), make_put(seq, 5)));
    let mut results = block_on(store.put(&puts)).expect(what);
    let bad = results.remove(50);
    assert!(results.iter().all(|result| matches!(result, Ok(Verdict::Newest))), "{what}: {results:?}");
    bad
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
        let shown = causes(&error);
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
    block_on(store.put_body(name(b"wide"), &body_put(1, None))).unwrap();
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
    let shown = causes(&bodies.expect_err("there is no room for all that"));
    assert!(shown.contains("wide") && shown.contains("bodies"), "{shown}");
    assert!(block_on(store.read(name(b"wide"))).is_ok(), "the row itself is fine");
    let forget_at = Millis(block_on(store.clock()).unwrap().0 + 600_000);
    let first = claim(b"t", 1, forget_at);
    block_on(store.claim(&first)).unwrap();
    bend("UPDATE quipu_claims SET reply = convert_to(repeat('x', 50000000), 'UTF8')");
    assert!(promptly("a claim", || block_on(store.claim(&claim(b"t", 2, forget_at)))).is_err());
    let applied = |token: &[u8]| Claim { reply: Some((*b"5").into()), ..claim(token, 1, forget_at) };
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

/// Makes a row of several writers with a body.
fn fill(store: &PostgresStore, at: &str, rng: &SeededRng) {
    let at = name(at.as_bytes());
    block_on(store.put_body(at, &body_put(1, None))).expect("an empty row takes a body");
    let mut row = block_on(store.read(at)).expect("it was written by us").snapshot;
    let version = row.version;
    row.version.swaps += 1;
    row.base = Some(7);
    row.swaps = vec![quipu_model::shared::SwapId(9)];
    if rng.chance(50) {
        row.expires_at = Some(Millis(block_on(store.clock()).expect("it answers").0 + 3_600_000));
    }
    assert_eq!(block_on(store.swap(at, version, Some(&row))).expect("it answers"), SwapVerdict::Swapped);
    for node in 2..4 {
        let mut put = make_put(10, 5);
        put.cell.writer = writer(node);
        block_on(store.put_all(&[(at, put)])).expect("it answers");
    }
}

#[test]
fn rows_of_garbage_stop_nobody_else_and_are_never_taken_for_numbers() {
    let server = PostgresServer::start_with(&["synchronous_commit=off"]).unwrap();
    let store = store(&server);
    let (mut read_anyway, mut refused) = (0, 0);
    for seed in 0..SEEDS {
        let rng = SeededRng::new(seed);
        for n in 0..ROWS {
            let at = format!("fuzz:{seed}:{n}");
            fill(&store, &at, &rng);
            let statement = damage(&rng, &at);
            let what = format!("seed {seed}, row {n}: {statement}");
            server.query(&statement).expect(&what);
            let here = name(at.as_bytes());
            let before = promptly(&what, || block_on(store.read(here))).ok();
            match &before {
                Some(_) => read_anyway += 1,
                None => refused += 1,
            }
            put_as_the_model_does(&store, &at, before.map(|seen| (seen.snapshot, seen.at)), &rng, &what);
            drop(promptly(&what, || block_on(store.put_body(here, &body_put(2, Some(1))))));
            drop(promptly(&what, || block_on(store.read_bodies(here))));
            if let Ok(seen) = promptly(&what, || block_on(store.read(here))) {
                let next = Snapshot { base: Some(1), ..seen.snapshot.clone() };
                let version = seen.snapshot.version;
                drop(promptly(&what, || block_on(store.swap(here, version, Some(&next)))));
                drop(promptly(&what, || block_on(store.swap_bodies(here, version, &next, &[(writer(1), None)]))));
            }
            drop(promptly(&what, || block_on(store.swap(here, RowVersion::ABSENT, None))));
            let fine = promptly(&what, || block_on(store.put_all(&[(name(b"fine"), make_put(n as u64 + 1, 1))])));
            assert!(fine.is_ok(), "{what}: {fine:?}");
        }
    }
    assert!(read_anyway > 10 && refused > 30, "{read_anyway} were read, {refused} refused");
}

/// Puts: what the row was to a reader, the model says what must become of it, or there is an error.
fn put_as_the_model_does(
    store: &PostgresStore,
    at: &str,
    before: Option<(Snapshot, Millis)>,
    rng: &SeededRng,
    what: &str,
) {
    let mut wanted = make_put(9 + rng.below(4) as u64, 6);
    wanted.cell.writer = writer(2 + rng.below(3) as u64);
    let results = promptly(what, || block_on(store.put(&[(name(at.as_bytes()), wanted)])));
    let Ok(verdict) = &results.expect("the store itself is well")[0] else { return };
    let Some((row, time)) = before else { return };
    let mut row = Some(row);
    assert_eq!(*verdict, put(&mut row, &wanted, time), "{what}: {wanted:?}");
    if let (Ok(after), Some(mut row)) = (block_on(store.read(name(at.as_bytes()))), row) {
        row.version.puts = after.snapshot.version.puts;
        assert_eq!(after.snapshot, row, "{what}: {wanted:?}");
    }
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
            let first = claim(token.as_bytes(), 1, forget_at);
            assert_eq!(block_on(store.claim(&first)).unwrap(), ClaimVerdict::Claimed);
            server.query(&format!("UPDATE quipu_claims SET {column} = {garbage} WHERE token = '{token}'")).unwrap();
            let is_over = column == "forget_at" && ["-1", "0.5"].contains(garbage);
            let again = promptly(&token, || block_on(store.claim(&claim(token.as_bytes(), 2, forget_at))));
            assert!(again.is_err() || is_over, "{token} = {garbage}: {again:?}");
            let applied = Claim { reply: Some((*b"5").into()), ..first.clone() };
            assert!(promptly(&token, || block_on(store.restore_claims(&[applied]))).is_ok(), "{token} = {garbage}");
            drop(block_on(store.end_claim(&first.token, first.owner, 1, &ClaimEnd::Released)));
            let fine = claim(format!("fine:{token}").as_bytes(), 1, forget_at);
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
