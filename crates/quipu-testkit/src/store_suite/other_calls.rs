//! Tests the store's other calls: scans, claims, registrations, its clock.

use std::collections::BTreeSet;
use std::time::Duration;

use quipu_model::ports::store::{NODE_NAME_BYTES_MAX, RESTORED_CLAIMS_MAX, SCAN_NAMES_MAX};
use quipu_model::shared::claim::{CLAIM_REPLY_BYTES_MAX, TOKEN_BYTES_MAX};
use quipu_model::shared::registry::renew;
use quipu_model::shared::{
    Claim, ClaimEnd, ClaimEndVerdict, ClaimToken, ClaimVerdict, Holder, RegisterVerdict, Registration, RestoreVerdict,
    WriterStage,
};
use quipu_model::{Epoch, Millis, NodeId, Store, StoreError};

use super::cells::{make_put, name, put, writer};

/// Names to scan: several pages, and enough for every part of a sharded store.
const NAMES: u32 = 300;

pub(super) async fn prove(store: &impl Store) {
    a_scan_names_every_row(store).await;
    a_scan_past_the_bound_is_refused(store).await;
    a_token_is_held_by_one_attempt_and_its_reply_by_all(store).await;
    a_token_given_back_may_be_claimed_again(store).await;
    a_reply_past_the_bound_is_refused(store).await;
    lost_claims_are_put_back_and_no_other_is_replaced(store).await;
    more_claims_than_the_bound_are_refused_whole(store).await;
    a_store_that_is_left_alone_keeps_its_history(store).await;
    a_registration_is_replaced_only_as_it_was_seen(store).await;
    a_node_has_the_name_that_was_said_last(store).await;
    the_clock_is_the_one_that_rows_are_read_by(store).await;
}

async fn a_scan_names_every_row(store: &impl Store) {
    let names: BTreeSet<Box<[u8]>> = (0..NAMES).map(|n| format!("scan:{n}").into_bytes().into()).collect();
    for at in &names {
        put(store, at, make_put(1, Epoch::FIRST, 1, 1)).await;
    }
    let mut scanned = BTreeSet::new();
    let mut from = None;
    // A page may be small or empty; a scan must still end.
    for _ in 0..100 * NAMES {
        let page = store.scan(from.as_ref(), 7).await.expect("a store scans");
        scanned.extend(page.names);
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert!(from.is_none(), "a scan ends");
    assert!(scanned.is_superset(&names), "every row is named: {} of {NAMES}", scanned.intersection(&names).count());
}

async fn a_scan_past_the_bound_is_refused(store: &impl Store) {
    assert!(store.scan(None, SCAN_NAMES_MAX).await.is_ok());
    match store.scan(None, SCAN_NAMES_MAX + 1).await {
        Err(StoreError::NotApplied { .. }) => {}
        other => panic!("a page past the bound: {other:?}"),
    }
}

async fn a_node_has_the_name_that_was_said_last(store: &impl Store) {
    let (node, other) = (NodeId(u64::MAX - 1), NodeId(7));
    let longest = "ü".repeat(NODE_NAME_BYTES_MAX / 2);
    for (node, name) in [(node, Some("a:1")), (other, Some("b:1")), (node, Some(&*longest)), (other, None)] {
        store.name_node(node, name).await.expect("a store takes names");
    }
    let names = store.node_names().await.expect("a store lists names");
    assert_eq!((names.get(&node), names.get(&other)), (Some(&longest), None));
    store.name_node(other, None).await.expect("what has no name may be forgotten again");
    match store.name_node(other, Some(&"n".repeat(NODE_NAME_BYTES_MAX + 1))).await {
        Err(StoreError::NotApplied { .. }) => {}
        unexpected => panic!("a name past the bound: {unexpected:?}"),
    }
}

fn token(bytes: &[u8]) -> ClaimToken {
    ClaimToken::new(bytes).expect("tokens of the suite are short")
}

async fn make_claim(store: &impl Store, bytes: &[u8], node: u64, attempt: u64) -> Claim {
    let Millis(now) = store.clock().await.expect("a store has a clock");
    let (token, forget_at) = (token(bytes), Millis(now + 3_600_000));
    Claim { token, owner: writer(node), attempt, payload: u64::MAX, forget_at, reply: None }
}

async fn send_claim(store: &impl Store, claim: &Claim) -> ClaimVerdict {
    store.claim(claim).await.expect("a store answers claims")
}

async fn a_token_is_held_by_one_attempt_and_its_reply_by_all(store: &impl Store) {
    let longest = [0xfe; TOKEN_BYTES_MAX];
    let (first, other) = (make_claim(store, &longest, 1, u64::MAX).await, make_claim(store, &longest, 2, 2).await);
    let late = Claim { forget_at: Millis(1), ..other.clone() };
    assert_eq!(send_claim(store, &late).await, ClaimVerdict::TooLate, "a claim after its own window");
    for _ in 0..2 {
        assert_eq!(send_claim(store, &first).await, ClaimVerdict::Claimed, "claimed, and asked again");
    }
    let in_flight = ClaimVerdict::InFlight { owner: first.owner, attempt: u64::MAX };
    assert_eq!(send_claim(store, &other).await, in_flight);
    assert_eq!(send_claim(store, &Claim { payload: 6, ..other.clone() }).await, ClaimVerdict::Mismatch);
    let reply: Box<[u8]> = (0..CLAIM_REPLY_BYTES_MAX).map(|n| n as u8).collect();
    let done = ClaimEnd::Done(reply.clone());
    let end = |owner, attempt, end| store.end_claim(&first.token, owner, attempt, end);
    assert_eq!(end(other.owner, 2, &done).await.expect("a store answers"), ClaimEndVerdict::NotHeld);
    for _ in 0..2 {
        assert_eq!(end(first.owner, u64::MAX, &done).await.expect("a store answers"), ClaimEndVerdict::Ended);
    }
    assert_eq!(
        end(first.owner, u64::MAX, &ClaimEnd::Released).await.expect("a store answers"),
        ClaimEndVerdict::NotHeld
    );
    for again in [&first, &other] {
        assert_eq!(send_claim(store, again).await, ClaimVerdict::Done { reply: reply.clone() });
    }
}

async fn a_token_given_back_may_be_claimed_again(store: &impl Store) {
    let (first, other) = (make_claim(store, b"back", 1, 1).await, make_claim(store, b"back", 2, 2).await);
    send_claim(store, &first).await;
    let back = store.end_claim(&first.token, first.owner, 1, &ClaimEnd::Released).await.expect("a store answers");
    assert_eq!(back, ClaimEndVerdict::Ended);
    assert_eq!(send_claim(store, &other).await, ClaimVerdict::Claimed);
    assert_eq!(send_claim(store, &first).await, ClaimVerdict::InFlight { owner: other.owner, attempt: 2 });
}

async fn lost_claims_are_put_back_and_no_other_is_replaced(store: &impl Store) {
    let reply: Box<[u8]> = (0..CLAIM_REPLY_BYTES_MAX).map(|n| n as u8).collect();
    let applied = |claim: Claim| Claim { reply: Some(reply.clone()), ..claim };
    let lost = applied(make_claim(store, b"lost", 1, 1).await);
    let open = make_claim(store, b"open", 1, 2).await;
    let theirs = make_claim(store, b"theirs", 2, 3).await;
    let spent = make_claim(store, b"spent", 2, 4).await;
    for existing in [&open, &theirs, &spent] {
        assert_eq!(send_claim(store, existing).await, ClaimVerdict::Claimed);
    }
    let done = ClaimEnd::Done((*b"5").into());
    store.end_claim(&spent.token, spent.owner, spent.attempt, &done).await.expect("a store ends claims");
    let late = Claim { forget_at: Millis(1), ..applied(make_claim(store, b"late", 1, 5).await) };
    let restored = [
        lost.clone(),
        applied(make_claim(store, b"open", 1, 6).await),
        applied(make_claim(store, b"theirs", 1, 7).await),
        applied(make_claim(store, b"spent", 1, 8).await),
        late,
    ];
    use RestoreVerdict::{Conflict, Known, Restored};
    let verdicts = store.restore_claims(&restored).await.expect("a store restores claims");
    assert_eq!(verdicts, [Restored, Restored, Conflict, Conflict, Known], "in the order of the claims");
    let again = store.restore_claims(&restored).await.expect("a store restores claims");
    assert_eq!(again, [Known, Known, Conflict, Conflict, Known], "a call may be repeated");
    for bytes in [&b"lost"[..], b"open"] {
        let retry = make_claim(store, bytes, 3, 9).await;
        assert_eq!(send_claim(store, &retry).await, ClaimVerdict::Done { reply: reply.clone() });
    }
    let retry = make_claim(store, b"theirs", 3, 9).await;
    let in_flight = ClaimVerdict::InFlight { owner: theirs.owner, attempt: theirs.attempt };
    assert_eq!(send_claim(store, &retry).await, in_flight, "the claim of another node stays as it was");
    let retry = make_claim(store, b"spent", 3, 9).await;
    assert_eq!(send_claim(store, &retry).await, ClaimVerdict::Done { reply: (*b"5").into() });
    assert_eq!(store.restore_claims(&[]).await.expect("nothing is restored"), []);
}

async fn more_claims_than_the_bound_are_refused_whole(store: &impl Store) {
    let first = make_claim(store, b"restored:0", 1, 1).await;
    let numbered = |n: usize| Claim {
        token: token(format!("restored:{n}").as_bytes()),
        reply: Some((*b"1").into()),
        ..first.clone()
    };
    let mut restored: Vec<Claim> = (0..=RESTORED_CLAIMS_MAX).map(numbered).collect();
    match store.restore_claims(&restored).await {
        Err(StoreError::NotApplied { .. }) => {}
        other => panic!("{} claims in one call: {other:?}", restored.len()),
    }
    restored.pop();
    let verdicts = store.restore_claims(&restored).await.expect("as many as are allowed");
    assert_eq!(verdicts, vec![RestoreVerdict::Restored; RESTORED_CLAIMS_MAX], "nothing of a refused call was restored");
}

async fn a_store_that_is_left_alone_keeps_its_history(store: &impl Store) {
    let before = store.history().await.expect("a store tells its history");
    put(store, b"history", make_put(1, Epoch::FIRST, 1, 1)).await;
    assert_eq!(store.history().await.expect("a store tells its history"), before);
}

async fn a_reply_past_the_bound_is_refused(store: &impl Store) {
    let existing = make_claim(store, b"reply", 1, 1).await;
    send_claim(store, &existing).await;
    let done = ClaimEnd::Done(vec![0; CLAIM_REPLY_BYTES_MAX + 1].into());
    match store.end_claim(&existing.token, existing.owner, 1, &done).await {
        Err(StoreError::NotApplied { .. }) => {}
        other => panic!("a reply past the bound: {other:?}"),
    }
    assert_eq!(send_claim(store, &existing).await, ClaimVerdict::Claimed, "it is still in flight");
}

async fn a_registration_is_replaced_only_as_it_was_seen(store: &impl Store) {
    let now = store.clock().await.expect("a store has a clock");
    let me = (writer(1), Holder(u64::MAX));
    let first = renew(None, me, true, now, Duration::from_secs(10)).expect("nobody knows it yet");
    let register = async |version, next: &Registration| store.register(version, next).await.expect("a store answers");
    assert_eq!(register(0, &first).await, RegisterVerdict::Registered);
    assert_eq!(register(0, &first).await, RegisterVerdict::Moved, "there is one now");
    let retired = Registration { version: 2, ..first.closed(now) };
    let renewed = renew(Some(&first), me, false, now, Duration::from_secs(20)).expect("it is live");
    assert_eq!(register(1, &renewed).await, RegisterVerdict::Registered);
    assert_eq!(register(1, &retired).await, RegisterVerdict::Moved, "renewing and retiring cannot both win");
    let released = renewed.released();
    assert_eq!(register(2, &released).await, RegisterVerdict::Registered);
    let mut known = vec![released];
    for (node, stage) in [
        (2, WriterStage::Retiring { since: now }),
        (3, WriterStage::Closed { since: now }),
        (u64::MAX, WriterStage::Folded { since: Millis(0) }),
    ] {
        let other = Registration { writer: writer(node), stage, ..first };
        assert_eq!(register(0, &other).await, RegisterVerdict::Registered);
        known.push(other);
    }
    let mut listed = store.writers().await.expect("a store lists").registrations;
    listed.sort_unstable_by_key(|registration| registration.writer);
    assert_eq!(listed, known, "registrations come back as they were put");

    let remove = async |version| store.unregister(writer(2), version).await.expect("a store answers");
    assert_eq!(remove(2).await, RegisterVerdict::Moved);
    assert_eq!(remove(1).await, RegisterVerdict::Registered);
    assert_eq!(remove(1).await, RegisterVerdict::Moved, "it is gone");
    assert_eq!(store.writers().await.expect("a store lists").registrations.len(), known.len() - 1);
}

async fn the_clock_is_the_one_that_rows_are_read_by(store: &impl Store) {
    let before = store.clock().await.expect("a store has a clock");
    let current = store.read(name(b"clock")).await.expect("a store reads");
    let listed = store.writers().await.expect("a store lists");
    let after = store.clock().await.expect("a store has a clock");
    assert!(before > Millis(0), "a clock shows the time");
    assert!(
        before <= current.at && current.at <= listed.at && listed.at <= after,
        "one clock: {before}, {}, {after}",
        current.at
    );
}
