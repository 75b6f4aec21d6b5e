//! Tests keys with foreign data: an error for that key alone, bounded work, and never a wrong
//! number.

use std::error::Error;
use std::time::{Duration, Instant};

use quipu_model::shared::body::{BodyShape, StoredBody};
use quipu_model::shared::put::put;
use quipu_model::shared::{
    BodyPut, BodyVerdict, Claim, ClaimEnd, ClaimToken, ClaimVerdict, Holder, Put, Registration, RestoreVerdict,
    Snapshot, SwapVerdict, Verdict, WriterStage, incarnation_cell,
};
use quipu_model::{Millis, Store, StoreError};
use quipu_store_redis::{Options, RedisStore, open};
use quipu_testkit::SeededRng;
use quipu_testkit::resp::Value;
use quipu_testkit::servers::redis::RedisServer;
use quipu_testkit::store_suite::block_on;

use crate::suite::{make_put, name, writer};

/// Longer than any call on a small key takes, and shorter than the time-out of a reply.
const PROMPT: Duration = Duration::from_secs(3);

/// Rows that are damaged by chance, and schedules.
const ROWS: usize = 60;
const SEEDS: u64 = 6;

const CELL: &str = "c:0000000000000001.0000000000000001.0";
const BODY: &str = "b:0000000000000001.0000000000000001";

fn store(server: &RedisServer) -> RedisStore {
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
    BodyPut { put, from: from.map(quipu_model::shared::Seq), whole: true, shape, pages: vec![(1, (*b"page").into())] }
}

fn claim(token: &[u8], attempt: u64, forget_at: Millis) -> Claim {
    let token = ClaimToken::new(token).expect("tokens of these tests are short");
    Claim { token, owner: writer(1), attempt, payload: 5, forget_at, reply: None }
}

#[test]
fn one_damaged_row_takes_no_verdict_from_the_others() {
    let server = RedisServer::start().unwrap();
    let store = store(&server);
    let damage: [&[&str]; 6] = [
        &["SET", "quipu:c:bad", "of another type"],
        &["HSET", "quipu:c:bad", "field", "without an epoch"],
        &["HSET", "quipu:c:bad", "epoch", "what", "puts", "1"],
        &["HSET", "quipu:c:bad", "epoch", "00000000000000000000.00000000000000000000", "puts", "1e15"],
        &["HSET", "quipu:c:bad", "epoch", "00000000000000000000.00000000000000000000", "puts", "99999999999999999999"],
        &["HSET", "quipu:c:bad", "epoch", "00000000000000000000.00000000000000000000", "puts", "1", "expires", "0x10"],
    ];
    let names: Vec<String> = (0..100).map(|n| format!("n{n}")).collect();
    for (damage, seq) in damage.into_iter().zip(1..) {
        server.call(&["DEL", "quipu:c:bad"]).unwrap();
        server.call(damage).unwrap();
        let mut puts: Vec<_> = names.iter().map(|at| (name(at.as_bytes()), make_put(seq, 5))).collect();
        puts.insert(50, (name(b"bad"), make_put(seq, 5)));
        let mut results = block_on(store.put(&puts)).unwrap();
        let bad = results.remove(50).expect_err("it cannot be put");
        assert!(causes(&bad).contains("quipu:c:bad"), "{damage:?}: {}", causes(&bad));
        assert!(results.iter().all(|result| matches!(result, Ok(Verdict::Newest))), "{damage:?}: {results:?}");
        let alone = block_on(store.put(&[(name(b"bad"), make_put(seq, 5))])).expect("the store itself is well");
        assert!(alone[0].is_err());
        if damage[0] == "HSET" {
            assert_eq!(server.call(&["HEXISTS", "quipu:c:bad", CELL]).unwrap().number(), Some(0), "{damage:?}");
        }
    }
}

#[test]
fn a_length_of_many_digits_in_a_body_does_not_keep_the_server() {
    let server = RedisServer::start().unwrap();
    let store = store(&server);
    for (length, seq) in [("99999999999999", 1), ("16777217", 2), ("1e9", 3), ("", 4), ("0x7fffffff", 5)] {
        server.call(&["DEL", "quipu:c:visitors"]).unwrap();
        block_on(store.put_body(name(b"visitors"), &body_put(seq, None))).unwrap();
        server.call(&["HSET", "quipu:c:visitors", BODY, &format!("3 0000000000000007 {length}")]).unwrap();
        let next = body_put(seq + 1, Some(seq));
        let put = promptly("a put of a body", || block_on(store.put_body(name(b"visitors"), &next)));
        let shown = causes(&put.expect_err("nobody knows how many pages there are"));
        assert!(shown.contains("quipu:c:visitors") && shown.contains("body"), "{length}: {shown}");
        let other = promptly("a put elsewhere", || block_on(store.put_all(&[(name(b"other"), make_put(seq, 1))])));
        assert_eq!(other.unwrap(), [Verdict::Newest]);
    }
}

#[test]
fn a_hash_with_more_fields_or_longer_ones_than_any_stays_at_the_server() {
    let server = RedisServer::start().unwrap();
    let store = store(&server);
    let fill = "for n = 1, 1100000, 1000 do local t = {} for i = n, n + 999 do t[#t + 1] = 'x' .. i; t[#t + 1] = '' end \
                redis.call('HSET', KEYS[1], unpack(t)) end";
    server.call(&["EVAL", fill, "1", "quipu:c:wide"]).unwrap();
    server.call(&["HSET", "quipu:c:long", "x", &"x".repeat(1 << 20)]).unwrap();
    for (at, why) in [(&b"wide"[..], "1100000 fields"), (b"long", "longer")] {
        let read = promptly("a read", || block_on(store.read(name(at))));
        let shown = causes(&read.expect_err("it is no row"));
        assert!(shown.contains(why), "{shown}");
        assert!(promptly("a read", || block_on(store.read_bodies(name(at)))).is_err());
        assert!(promptly("a put", || block_on(store.put(&[(name(at), make_put(1, 1))]))).unwrap()[0].is_err());
    }
}

#[test]
fn a_claim_that_lost_a_field_is_not_claimed_again() {
    let server = RedisServer::start().unwrap();
    let store = store(&server);
    let forget_at = Millis(block_on(store.clock()).unwrap().0 + 600_000);
    for (field, n) in ["owner", "attempt", "payload", "forget"].into_iter().zip(0..) {
        let token = format!("t{n}");
        let first = claim(token.as_bytes(), 1, forget_at);
        assert_eq!(block_on(store.claim(&first)).unwrap(), ClaimVerdict::Claimed);
        block_on(store.end_claim(&first.token, first.owner, 1, &ClaimEnd::Done((*b"5").into()))).unwrap();
        server.call(&["HDEL", &format!("quipu:t:{token}"), field]).unwrap();
        let again = block_on(store.claim(&claim(token.as_bytes(), 2, forget_at)));
        let shown = causes(&again.expect_err("it was applied"));
        assert!(shown.contains(field) && shown.contains(&format!("quipu:t:{token}")), "{shown}");
    }
    for garbage in ["", "-1", "1e3", "0x10", "never"] {
        server.call(&["HSET", "quipu:t:t3", "forget", garbage]).unwrap();
        let again = block_on(store.claim(&claim(b"t3", 2, forget_at)));
        assert!(matches!(again, Err(StoreError::Unknown { .. })), "{garbage}: {again:?}");
    }
}

#[test]
fn claims_that_cannot_be_read_are_conflicts_and_the_others_are_put_back() {
    let server = RedisServer::start().unwrap();
    let store = store(&server);
    let forget_at = Millis(block_on(store.clock()).unwrap().0 + 600_000);
    server.call(&["SET", "quipu:t:other", "type"]).unwrap();
    server.call(&["HSET", "quipu:t:foreign", "x", "y"]).unwrap();
    server.call(&["HSET", "quipu:t:torn", "owner", "1.1", "payload", "5"]).unwrap();
    let wanted = ["other", "a", "foreign", "torn", "b"];
    let applied = |token: &str| Claim { reply: Some((*b"5").into()), ..claim(token.as_bytes(), 1, forget_at) };
    let verdicts = block_on(store.restore_claims(&wanted.map(applied))).unwrap();
    use RestoreVerdict::{Conflict, Restored};
    assert_eq!(verdicts, [Conflict, Restored, Conflict, Conflict, Restored]);
    assert_eq!(server.call(&["HLEN", "quipu:t:foreign"]).unwrap().number(), Some(1), "left alone");
    let ttl = server.call(&["PTTL", "quipu:t:a"]).unwrap().number().unwrap();
    assert!((1..=600_000).contains(&ttl), "it expires with its window: {ttl}");
}

#[test]
fn a_registration_that_cannot_be_read_is_not_replaced() {
    let server = RedisServer::start().unwrap();
    let store = store(&server);
    let field = "0000000000000001.0000000000000001";
    server.call(&["HSET", "quipu:writers", field, "what"]).unwrap();
    let (holder, lease_until) = (Some(Holder(1)), Millis(5));
    let next = Registration { writer: writer(1), holder, lease_until, stage: WriterStage::Live, version: 1 };
    for error in [block_on(store.register(0, &next)).err(), block_on(store.unregister(writer(1), 0)).err()] {
        let shown = causes(&error.expect("nobody knows who that is"));
        assert!(shown.contains("quipu:writers"), "{shown}");
    }
    assert_eq!(server.call(&["HGET", "quipu:writers", field]).unwrap(), Value::Bulk(b"what".to_vec()));
}

/// Fields of a key, as text: what these tests write is.
fn fields(server: &RedisServer, key: &str) -> Vec<String> {
    let reply = server.call(&["HKEYS", key]).expect("it is a hash");
    let text = |value: &Value| match value {
        Value::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("{other:?}"),
    };
    reply.elements().iter().map(text).collect()
}

fn value(server: &RedisServer, key: &str, field: &str) -> String {
    match server.call(&["HGET", key, field]).expect("it is a hash") {
        Value::Bulk(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        _ => String::new(),
    }
}

/// What a field may hold after damage: parts of what was there, other numbers, bytes of no meaning.
fn damaged(was: &str, rng: &SeededRng) -> String {
    const ODD: [&str; 16] = [
        "",
        " ",
        "-",
        "-1",
        "+1",
        "0x10",
        "1e308",
        "1e309",
        "nan",
        "inf",
        "18446744073709551616",
        "99999999999999999999",
        "\u{0}\u{ff}",
        "open",
        "3 0 4294967295",
        "00000000000000000000.99999999999999999999",
    ];
    let mut text: Vec<char> = was.chars().collect();
    match rng.below(8) {
        0 => return rng.pick(&ODD).to_string(),
        1 => text.truncate(rng.below(text.len() + 1)),
        2 => text.extend(rng.pick(&ODD).chars()),
        3 => text.extend(std::iter::repeat_n('9', rng.below(400))),
        4 => text = "x".repeat(rng.below(5_000)).chars().collect(),
        5 if !text.is_empty() => {
            let at = rng.below(text.len());
            text.splice(at..at, rng.pick(&ODD).chars());
        }
        _ if !text.is_empty() => {
            let at = rng.below(text.len());
            text[at] = *rng.pick(&['0', '9', ' ', 'o', 'c', '-', '.', '\u{1}', 'é']);
        }
        _ => {}
    }
    text.into_iter().collect()
}

fn damage(server: &RedisServer, key: &str, rng: &SeededRng) -> String {
    let names = fields(server, key);
    let field = rng.pick(&names).clone();
    let was = value(server, key, &field);
    match rng.below(6) {
        0 => {
            server.call(&["HDEL", key, &field]).expect("it is a hash");
            format!("{field} removed")
        }
        1 => {
            let other = damaged(&field, rng);
            server.call(&["HSET", key, &other, &was]).expect("it is a hash");
            format!("{field} again as {other:?}")
        }
        _ => {
            let bent = damaged(&was, rng);
            server.call(&["HSET", key, &field, &bent]).expect("it is a hash");
            format!("{field} = {bent:?}, was {was:?}")
        }
    }
}

/// Makes a row of several writers with an expiry, a spent cell, and a body.
fn fill(store: &RedisStore, at: &str, rng: &SeededRng) {
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
    let server = RedisServer::start().unwrap();
    let store = store(&server);
    let (mut read_anyway, mut refused) = (0, 0);
    for seed in 0..SEEDS {
        let rng = SeededRng::new(seed);
        for n in 0..ROWS {
            let at = format!("fuzz:{seed}:{n}");
            fill(&store, &at, &rng);
            let key = format!("quipu:c:{at}");
            let what: Vec<String> = (0..1 + rng.below(2)).map(|_| damage(&server, &key, &rng)).collect();
            let what = format!("seed {seed}, row {n}: {what:?}");
            let here = name(at.as_bytes());
            let before = promptly(&what, || block_on(store.read(here))).ok();
            match &before {
                Some(_) => read_anyway += 1,
                None => refused += 1,
            }
            put_as_the_model_does(&store, &at, before.map(|seen| (seen.snapshot, seen.at)), &rng, &what);
            let body = promptly(&what, || block_on(store.put_body(here, &body_put(2, Some(1)))));
            if let Ok(BodyVerdict::Cell(Verdict::Newest)) = body {
                let held = block_on(store.read_bodies(here)).map(|seen| seen.bodies.get(&writer(1)).cloned());
                let expected =
                    StoredBody { bytes: page_one(), ..StoredBody::new(body_put(2, None).shape).expect("it is short") };
                assert!(held.as_ref().map_or(true, |held| held.as_ref() == Some(&expected)), "{what}: {held:?}");
            }
            if let Ok(seen) = promptly(&what, || block_on(store.read(here))) {
                let next = Snapshot { base: Some(1), ..seen.snapshot.clone() };
                let version = seen.snapshot.version;
                drop(promptly(&what, || block_on(store.swap(here, version, Some(&next)))));
                drop(promptly(&what, || block_on(store.swap_bodies(here, version, &next, &[(writer(1), None)]))));
            }
            drop(promptly(&what, || block_on(store.swap(here, quipu_model::shared::RowVersion::ABSENT, None))));
            let fine = promptly(&what, || block_on(store.put_all(&[(name(b"fine"), make_put(n as u64 + 1, 1))])));
            assert!(fine.is_ok(), "{what}: {fine:?}");
        }
    }
    assert!(read_anyway > 10 && refused > 100, "{read_anyway} were read, {refused} refused");
}

fn page_one() -> Vec<u8> {
    let mut bytes = vec![0; 2_000];
    bytes[1_024..1_028].copy_from_slice(b"page");
    bytes
}

/// Puts: what the row was to a reader, the model says what must become of it, or there is an error.
fn put_as_the_model_does(
    store: &RedisStore,
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
    let mut row = Some(row).filter(|row| row.version != Default::default());
    let was_there = row.is_some();
    assert_eq!(*verdict, put(&mut row, &wanted, time), "{what}: {wanted:?}");
    if let (Ok(after), Some(mut row), true) = (block_on(store.read(name(at.as_bytes()))), row, was_there) {
        row.version.puts = after.snapshot.version.puts;
        assert_eq!(after.snapshot, row, "{what}: {wanted:?}");
    }
}

#[test]
fn claims_and_registrations_of_garbage_stop_nobody_else() {
    let server = RedisServer::start().unwrap();
    let store = store(&server);
    let forget_at = Millis(block_on(store.clock()).unwrap().0 + 600_000);
    for seed in 0..SEEDS {
        let rng = SeededRng::new(seed);
        for n in 0..ROWS {
            let token = format!("{seed}:{n}");
            let first = claim(token.as_bytes(), 1, forget_at);
            block_on(store.claim(&first)).unwrap();
            if rng.chance(50) {
                block_on(store.end_claim(&first.token, first.owner, 1, &ClaimEnd::Done((*b"5").into()))).unwrap();
            }
            let what = damage(&server, &format!("quipu:t:{token}"), &rng);
            let again = Claim { owner: writer(2), ..claim(token.as_bytes(), 2, forget_at) };
            let verdict = promptly(&what, || block_on(store.claim(&again)));
            let is_over = value(&server, &format!("quipu:t:{token}"), "attempt") == "2";
            // It may be claimed only if its window was over, as far as anybody can read.
            assert!(!matches!(verdict, Ok(ClaimVerdict::Claimed)) || is_over, "{what}: {verdict:?}");
            let applied = Claim { reply: Some((*b"5").into()), ..first.clone() };
            assert!(promptly(&what, || block_on(store.restore_claims(&[applied]))).is_ok(), "{what}");
            drop(promptly(&what, || block_on(store.end_claim(&first.token, first.owner, 1, &ClaimEnd::Released))));
            let fine = claim(format!("fine:{token}").as_bytes(), 1, forget_at);
            assert_eq!(block_on(store.claim(&fine)).unwrap(), ClaimVerdict::Claimed);
            let (holder, lease_until) = (Some(Holder(1)), Millis(5));
            let registration =
                Registration { writer: writer(9), holder, lease_until, stage: WriterStage::Live, version: 1 };
            server.call(&["DEL", "quipu:writers", "quipu:names"]).unwrap();
            block_on(store.register(0, &registration)).unwrap();
            block_on(store.name_node(quipu_model::NodeId(9), Some("nine"))).unwrap();
            let what = damage(&server, "quipu:writers", &rng) + &damage(&server, "quipu:names", &rng);
            drop(promptly(&what, || block_on(store.writers())));
            drop(promptly(&what, || block_on(store.node_names())));
            drop(promptly(&what, || block_on(store.register(1, &Registration { version: 2, ..registration }))));
            drop(promptly(&what, || block_on(store.unregister(writer(9), 2))));
        }
    }
}
