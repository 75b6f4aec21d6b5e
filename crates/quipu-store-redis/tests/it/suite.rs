//! Runs the suite on one server, plus tests of this store alone.

use quipu_model::shared::body::{BodyShape, StoredBody};
use quipu_model::shared::{
    BodyPut, BodyVerdict, Claim, ClaimToken, ClaimVerdict, Put, SwapVerdict, Verdict, incarnation_cell,
};
use quipu_model::{Millis, Store, StoreError};
use quipu_protocol::resp::Value;
use quipu_store_redis::{Options, open};
use quipu_testkit::server_suite::StoreAdapter;
use quipu_testkit::server_suite::puts::{make_put, name, puts_of, writer};
use quipu_testkit::servers::redis::RedisServer;
use quipu_testkit::store_suite;
use quipu_testkit::store_suite::block_on;

use crate::Redis;

quipu_testkit::server_tests!(Redis, suite);

#[test]
fn a_user_with_the_rights_that_the_first_page_lists_has_enough() {
    let page = include_str!("../../src/lib.rs");
    let listed = page.lines().skip_while(|line| !line.contains("ACL SETUSER")).take_while(|line| !line.contains("```"));
    let words: Vec<&str> = listed.flat_map(str::split_whitespace).filter(|word| "+~".contains(&word[..1])).collect();
    assert!(words.contains(&"+evalsha") && words.contains(&"~quipu*"), "{words:?}");
    let server = RedisServer::start().unwrap();
    let rights = words.iter().map(|word| if word.starts_with('~') { "~test*" } else { word });
    let request: Vec<&str> = ["ACL", "SETUSER", "counter", "on", ">pass"].into_iter().chain(rights).collect();
    server.call(&request).unwrap();
    let url = format!("redis://counter:pass@{}", server.address());
    block_on(store_suite(async || Redis::open_fresh(&url)));
}

#[test]
fn bodies_are_in_the_fields_that_the_first_page_draws_and_go_with_them() {
    let server = RedisServer::start().unwrap();
    let (store, at) = (open(&server.url(), Options::default()).unwrap(), name(b"visitors"));
    let fields = || {
        let fields = ["bodies", "b:0000000000000001.0000000000000001", "p:0000000000000001.0000000000000001.1"];
        fields.map(|field| match server.call(&["HGET", "quipu:c:visitors", field]).unwrap() {
            Value::Bulk(value) => Some(String::from_utf8(value).expect("it is text here")),
            _ => None,
        })
    };
    let put = Put { cell: incarnation_cell(writer(1), 0), ..make_put(1, 1) };
    let shape = BodyShape { kind: 3, key: 0xabc, length: 2_000 };
    let asked = BodyPut { put, from: None, whole: true, shape, pages: vec![(1, Box::new(*b"page\0"))] };
    assert_eq!(block_on(store.put_body(at, &asked)).unwrap(), BodyVerdict::Cell(Verdict::Newest));
    let [drawn, whose, page] = [Some("1"), Some("3 0000000000000abc 2000"), Some("page")];
    assert_eq!(fields().each_ref().map(Option::as_deref), [drawn, whose, page]);
    let swap = |body: Option<StoredBody>| {
        let seen = block_on(store.read(at)).unwrap().snapshot;
        let mut next = seen.clone();
        next.version.swaps += 1;
        let swapped = block_on(store.swap_bodies(at, seen.version, &next, &[(writer(1), body)])).unwrap();
        assert_eq!(swapped, SwapVerdict::Swapped);
        fields()
    };
    let mut body = StoredBody::new(BodyShape { key: 0, ..shape }).unwrap();
    body.write_page(1, b"other").unwrap();
    assert_eq!(
        swap(Some(body)).each_ref().map(Option::as_deref),
        [drawn, Some("3 0000000000000000 2000"), Some("other")]
    );
    assert_eq!(swap(None), [None, None, None], "without bodies nothing says that there are any");
}

#[test]
fn scripts_that_the_server_forgot_are_loaded_again() {
    let server = RedisServer::start().unwrap();
    let store = Redis::open_fresh(&server.url());
    let names: Vec<String> = (0..20).map(|n| format!("n{n}")).collect();
    for seq in 1..=3 {
        let puts: Vec<_> = names.iter().map(|at| (name(at.as_bytes()), make_put(seq, 5))).collect();
        assert_eq!(block_on(store.put_all(&puts)).unwrap(), vec![Verdict::Newest; names.len()]);
        server.call(&["SCRIPT", "FLUSH"]).unwrap();
        assert_eq!(block_on(store.read(name(b"n7"))).unwrap().snapshot.sum(), 5);
        server.call(&["SCRIPT", "FLUSH"]).unwrap();
    }
}

#[test]
fn people_read_their_counts_with_plain_commands() {
    let server = RedisServer::start().unwrap();
    let store = quipu_store_redis::open(&server.url(), Default::default()).unwrap();
    block_on(store.put_all(&[(name(b"likes:42"), make_put(7, 42))])).unwrap();
    let field = "c:0000000000000001.0000000000000001.0";
    let cell = server.call(&["HGET", "quipu:c:likes:42", field]).unwrap();
    assert_eq!(cell, Value::Bulk(b"00000000000000000007 open 42 42".to_vec()));
    let compact = server.call(&["OBJECT", "ENCODING", "quipu:c:likes:42"]).unwrap();
    assert_eq!(compact, Value::Bulk(b"listpack".to_vec()));
    // As the first page of the crate has it.
    let script = "local v=tonumber(redis.call('HGET',KEYS[1],'base') or 0) \
        for _,f in ipairs(redis.call('HKEYS',KEYS[1])) do if f:sub(1,2)=='c:' then \
        v=v+tonumber(redis.call('HGET',KEYS[1],f):match('^%d+ %a+ (%S+)')) end end \
        return string.format('%.0f',v)";
    let total = server.call(&["EVAL", script, "1", "quipu:c:likes:42"]).unwrap();
    assert_eq!(total.number(), Some(42));
}

#[test]
fn a_key_that_is_something_else_is_refused_and_left_alone() {
    let server = RedisServer::start().unwrap();
    let store = quipu_store_redis::open(&server.url(), Default::default()).unwrap();
    server.call(&["SET", "quipu:c:taken", "1"]).unwrap();
    let put = block_on(store.put_all(&[(name(b"taken"), make_put(1, 1))]));
    assert!(matches!(put, Err(StoreError::NotApplied { .. })), "{put:?}");
    server.call(&["HSET", "quipu:c:odd", "born", "1", "epoch", "what"]).unwrap();
    let read = block_on(store.read(name(b"odd")));
    assert!(matches!(read, Err(StoreError::Unknown { .. })), "{read:?}");
    let both = block_on(store.put_all(&[(name(b"free"), make_put(1, 1)), (name(b"taken"), make_put(1, 1))]));
    assert!(matches!(both, Err(StoreError::Unknown { .. })), "one of two was put: {both:?}");
    assert_eq!(server.call(&["GET", "quipu:c:taken"]).unwrap().number(), Some(1));
}

#[test]
fn a_server_that_refuses_writes_has_not_applied_them() {
    let server = RedisServer::start().unwrap();
    let store = Redis::open_fresh(&server.url());
    assert!(block_on(store.put_all(&[(name(b"a"), make_put(1, 1))])).is_ok());
    server.call(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let put = block_on(store.put_all(&[(name(b"a"), make_put(2, 2))]));
    assert!(matches!(put, Err(StoreError::NotApplied { .. })), "no memory: {put:?}");
    assert_eq!(block_on(store.read(name(b"a"))).unwrap().snapshot.sum(), 1, "and reads go on");
    server.call(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    server.call(&["CONFIG", "SET", "min-replicas-to-write", "1"]).unwrap();
    let put = block_on(store.put_all(&[(name(b"a"), make_put(2, 2))]));
    assert!(matches!(put, Err(StoreError::NotApplied { .. })), "no replica: {put:?}");
    server.call(&["CONFIG", "SET", "min-replicas-to-write", "0"]).unwrap();
    assert_eq!(block_on(store.put_all(&[(name(b"a"), make_put(2, 2))])).unwrap(), [Verdict::Newest]);
}

#[test]
fn a_token_expires_by_the_servers_own_clock() {
    let server = RedisServer::start().unwrap();
    let store = quipu_store_redis::open(&server.url(), Default::default()).unwrap();
    let Millis(now) = block_on(store.clock()).unwrap();
    let claim = |token: &[u8], forget_at| Claim {
        token: ClaimToken::new(token).unwrap(),
        owner: writer(1),
        attempt: 1,
        payload: 1,
        forget_at: Millis(forget_at),
        reply: None,
    };
    for (token, forget_at) in [(&b"soon"[..], now + 60_000), (b"never", u64::MAX)] {
        assert_eq!(block_on(store.claim(&claim(token, forget_at))).unwrap(), ClaimVerdict::Claimed);
    }
    let left = server.call(&["PTTL", "quipu:t:soon"]).unwrap().number().unwrap();
    assert!((1..=60_000).contains(&left), "{left}");
    assert!(server.call(&["PTTL", "quipu:t:never"]).unwrap().number().unwrap() > 60_000);
    // One that the server has not removed yet, though its window is over.
    server.call(&["HSET", "quipu:t:over", "owner", "1.1", "attempt", "9", "payload", "9", "forget", "1"]).unwrap();
    assert_eq!(block_on(store.claim(&claim(b"over", now + 60_000))).unwrap(), ClaimVerdict::Claimed);
}

#[test]
fn a_version_rises_with_every_put_past_what_lua_can_count() {
    let server = RedisServer::start().unwrap();
    let store = quipu_store_redis::open(&server.url(), Default::default()).unwrap();
    block_on(store.put_all(&[(name(b"old"), make_put(1, 1))])).unwrap();
    for (seq, puts) in [(2, 999_999_999_999_998_u64), (4, 1 << 53)] {
        server.call(&["HSET", "quipu:c:old", "puts", &puts.to_string()]).unwrap();
        for more in 0..2 {
            block_on(store.put_all(&[(name(b"old"), make_put(seq + more, 1))])).unwrap();
            let version = block_on(store.read(name(b"old"))).unwrap().snapshot.version;
            assert_eq!(version.puts, puts + puts_of(seq..=seq + more));
        }
    }
}
