//! Makes the puts, claims and registrations of the tests, and sends them until a server answers.

use std::ops::RangeInclusive;
use std::thread;
use std::time::Duration;

use quipu_model::shared::body::BodyShape;
use quipu_model::shared::{
    BodyPut, CellId, Claim, ClaimToken, Holder, Put, Registration, Seq, Shard, Snapshot, Verdict, WriterStage,
    incarnation_cell,
};
use quipu_model::{Epoch, Incarnation, Millis, Name, NodeId, Store, Writer};

use crate::store_suite::block_on;

/// How often a call is tried until a store must have healed: with a pause each, half a minute, in
/// which a busy machine starts a server.
const TRIES: u32 = 600;

/// The first incarnation of a node.
pub fn writer(node: u64) -> Writer {
    Writer { node: NodeId(node), incarnation: Incarnation(1) }
}

/// A put of the first cell of the first writer.
pub fn make_put(seq: u64, value: i128) -> Put {
    let cell = CellId { writer: writer(1), shard: Shard(0) };
    Put { cell, epoch: Epoch::FIRST, seq: Seq(seq), value, total: value }
}

/// The count of puts in a row's version after these, each carried out once.
pub fn puts_of(seqs: RangeInclusive<u64>) -> u64 {
    seqs.map(|seq| make_put(seq, 0).stride()).sum()
}

/// A put of a sketch's whole body.
pub fn make_body_put(seq: u64, from: Option<u64>) -> BodyPut {
    let put = Put { cell: incarnation_cell(writer(1), 0), ..make_put(seq, 1) };
    let shape = BodyShape { kind: 3, key: 7, length: 2_000 };
    BodyPut { put, from: from.map(Seq), whole: true, shape, pages: vec![(1, (*b"page").into())] }
}

/// A claim of the first writer.
pub fn make_claim(token: &[u8], attempt: u64, forget_at: Millis) -> Claim {
    let token = ClaimToken::new(token).expect("tokens of the tests are short");
    Claim { token, owner: writer(1), attempt, payload: 5, forget_at, reply: None }
}

/// A registration of a node's first writer, live and held.
pub fn registration(node: u64, version: u64) -> Registration {
    Registration {
        writer: writer(node),
        holder: Some(Holder(1)),
        lease_until: Millis(5),
        stage: WriterStage::Live,
        version,
    }
}

/// A name.
pub fn name(bytes: &[u8]) -> Name<'_> {
    Name::new(bytes).expect("names of the tests are short")
}

/// Puts until it is answered; returns the verdict and how many tries that took.
pub fn put_until_answered(store: &impl Store, at: &[u8], seq: u64) -> (Verdict, u32) {
    for tries in 1..=TRIES {
        match block_on(store.put_all(&[(name(at), make_put(seq, i128::from(seq)))])) {
            Ok(verdicts) => return (verdicts[0], tries),
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
    panic!("the store does not heal")
}

/// Reads a row until the condition holds: a request whose client has gone may take a moment longer.
/// Returns the last row in any case.
pub fn read_until(store: &impl Store, at: &[u8], condition: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let mut row = Snapshot::default();
    for _ in 0..TRIES {
        row = block_on(store.read(name(at))).expect("the server answers").snapshot;
        if condition(&row) {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    row
}

/// Waits until the server answers, without asking for its history.
pub fn wait_for_answer(store: &impl Store) {
    let answers = || {
        block_on(store.clock()).is_ok() || {
            thread::sleep(Duration::from_millis(50));
            false
        }
    };
    assert!((0..TRIES).any(|_| answers()), "the server answers");
}
