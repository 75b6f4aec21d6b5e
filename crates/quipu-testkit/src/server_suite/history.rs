//! Tests servers of changed identity: the store changes nothing on them before the caller asks for
//! the history.

use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use quipu_model::shared::{Claim, ClaimEnd, RowVersion, Verdict};
use quipu_model::{History, Millis, Store, StoreCall, StoreError};

use super::puts::{make_claim, make_put, name, wait_for_answer};
use super::{StoreAdapter, TestServer};
use crate::store_suite::block_on;

/// Sends every call that needs what the store has confirmed before: each is refused, as of an
/// unknown history.
pub fn expect_changes_refused(store: &impl Store, at: &[u8], seq: u64) {
    let claim = make_claim(at, 1, Millis(u64::MAX));
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

/// Puts into one counter.
pub fn put(store: &impl Store, at: &[u8], seq: u64) -> Result<Vec<Verdict>, StoreError> {
    block_on(store.put_all(&[(name(at), make_put(seq, 1))]))
}

/// The history. The first calls after a restart may find connections that broke, or a server that
/// recovers.
pub fn ask_history(store: &impl Store) -> History {
    let ask = || {
        block_on(store.history()).ok().or_else(|| {
            thread::sleep(Duration::from_millis(50));
            None
        })
    };
    (0..600).find_map(|_| ask()).expect("the server answers")
}

/// A server without data takes the place of the one whose history the store knows.
pub fn a_server_in_the_place_of_another_is_not_changed_before_its_history_is_asked<A: StoreAdapter>() {
    let mut server = A::Server::start().expect("the server starts");
    let store = A::open_fresh(&server.url());
    let tool = A::open_fresh(&server.url());
    let first = block_on(store.history()).expect("the server answers");
    assert_eq!(first.0.len(), 1, "{first:?}");
    assert_eq!(put(&store, b"a", 1).expect("the server answers"), [Verdict::Newest]);
    server.restart_empty().expect("the server starts");
    wait_for_answer(&store);
    expect_changes_refused(&store, b"a", 2);
    assert_eq!(server.count_rows().expect("the server answers"), 0, "nothing was put");
    assert_ne!(ask_history(&store), first);
    assert_eq!(put(&store, b"a", 2).expect("the server answers"), [Verdict::Newest]);
    assert_ne!(server.count_rows().expect("the server answers"), 0, "and now something is");
    wait_for_answer(&tool);
    assert_eq!(put(&tool, b"b", 1).expect("none is refused that never asked"), [Verdict::Newest]);
}

/// A call for the history is begun, and given up before its answer.
pub fn an_answer_that_nobody_waited_for_does_not_make_a_history_known<A: StoreAdapter>() {
    let mut server = A::Server::start().expect("the server starts");
    let store = A::open_fresh(&server.url());
    block_on(store.history()).expect("the server answers");
    server.restart_empty().expect("the server starts");
    wait_for_answer(&store);
    block_on(async {
        let mut asked = store.history();
        let _ = asked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    });
    block_on(store.clock()).expect("the server answers");
    expect_changes_refused(&store, b"a", 1);
}
