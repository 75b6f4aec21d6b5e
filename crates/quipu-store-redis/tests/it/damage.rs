//! Tests keys with foreign data: an error for that key alone, bounded work, and never a wrong
//! number.

use quipu_model::shared::{Claim, ClaimEnd, ClaimVerdict, Holder, Registration, RestoreVerdict, Verdict, WriterStage};
use quipu_model::{Millis, Store, StoreError};
use quipu_protocol::resp::Value;
use quipu_store_redis::{Options, RedisStore, open};
use quipu_testkit::SeededRng;
use quipu_testkit::server_suite::damage::{DamageableStore, join_causes, promptly, put_among_others};
use quipu_testkit::server_suite::puts::{make_body_put, make_claim, make_put, name, writer};
use quipu_testkit::servers::redis::RedisServer;
use quipu_testkit::store_suite::block_on;

use crate::Redis;

/// Claims that are damaged by chance, and schedules.
const CLAIMS: usize = 60;
const SEEDS: u64 = 6;

const CELL: &str = "c:0000000000000001.0000000000000001.0";
const BODY: &str = "b:0000000000000001.0000000000000001";

fn store(server: &RedisServer) -> RedisStore {
    open(&server.url(), Options::default()).expect("the URL is a helper's")
}

quipu_testkit::server_tests!(Redis, damage);

impl DamageableStore for Redis {
    const SEEDS: u64 = SEEDS;
    const ROWS: usize = 60;
    const REFUSED_MIN: u32 = 100;

    fn damage_row(server: &RedisServer, at: &str, rng: &SeededRng) -> String {
        let key = format!("quipu:c:{at}");
        let done: Vec<String> = (0..1 + rng.below(2)).map(|_| damage(server, &key, rng)).collect();
        done.join(", ")
    }
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
    for (damage, seq) in damage.into_iter().zip(1..) {
        server.call(&["DEL", "quipu:c:bad"]).unwrap();
        server.call(damage).unwrap();
        let what = format!("{damage:?}");
        let shown = join_causes(&put_among_others(&store, seq, &what).expect_err("it cannot be put"));
        assert!(shown.contains("quipu:c:bad"), "{what}: {shown}");
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
        block_on(store.put_body(name(b"visitors"), &make_body_put(seq, None))).unwrap();
        server.call(&["HSET", "quipu:c:visitors", BODY, &format!("3 0000000000000007 {length}")]).unwrap();
        let next = make_body_put(seq + 1, Some(seq));
        let put = promptly("a put of a body", || block_on(store.put_body(name(b"visitors"), &next)));
        let shown = join_causes(&put.expect_err("nobody knows how many pages there are"));
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
        let shown = join_causes(&read.expect_err("it is no row"));
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
        let first = make_claim(token.as_bytes(), 1, forget_at);
        assert_eq!(block_on(store.claim(&first)).unwrap(), ClaimVerdict::Claimed);
        block_on(store.end_claim(&first.token, first.owner, 1, &ClaimEnd::Done((*b"5").into()))).unwrap();
        server.call(&["HDEL", &format!("quipu:t:{token}"), field]).unwrap();
        let again = block_on(store.claim(&make_claim(token.as_bytes(), 2, forget_at)));
        let shown = join_causes(&again.expect_err("it was applied"));
        assert!(shown.contains(field) && shown.contains(&format!("quipu:t:{token}")), "{shown}");
    }
    for garbage in ["", "-1", "1e3", "0x10", "never"] {
        server.call(&["HSET", "quipu:t:t3", "forget", garbage]).unwrap();
        let again = block_on(store.claim(&make_claim(b"t3", 2, forget_at)));
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
    let applied = |token: &str| Claim { reply: Some((*b"5").into()), ..make_claim(token.as_bytes(), 1, forget_at) };
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
        let shown = join_causes(&error.expect("nobody knows who that is"));
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

#[test]
fn claims_and_registrations_of_garbage_stop_nobody_else() {
    let server = RedisServer::start().unwrap();
    let store = store(&server);
    let forget_at = Millis(block_on(store.clock()).unwrap().0 + 600_000);
    for seed in 0..SEEDS {
        let rng = SeededRng::new(seed);
        for n in 0..CLAIMS {
            let token = format!("{seed}:{n}");
            let first = make_claim(token.as_bytes(), 1, forget_at);
            block_on(store.claim(&first)).unwrap();
            if rng.chance(50) {
                block_on(store.end_claim(&first.token, first.owner, 1, &ClaimEnd::Done((*b"5").into()))).unwrap();
            }
            let what = damage(&server, &format!("quipu:t:{token}"), &rng);
            let again = Claim { owner: writer(2), ..make_claim(token.as_bytes(), 2, forget_at) };
            let verdict = promptly(&what, || block_on(store.claim(&again)));
            let is_over = value(&server, &format!("quipu:t:{token}"), "attempt") == "2";
            // It may be claimed only if its window was over, as far as anybody can read.
            assert!(!matches!(verdict, Ok(ClaimVerdict::Claimed)) || is_over, "{what}: {verdict:?}");
            let applied = Claim { reply: Some((*b"5").into()), ..first.clone() };
            assert!(promptly(&what, || block_on(store.restore_claims(&[applied]))).is_ok(), "{what}");
            drop(promptly(&what, || block_on(store.end_claim(&first.token, first.owner, 1, &ClaimEnd::Released))));
            let fine = make_claim(format!("fine:{token}").as_bytes(), 1, forget_at);
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
