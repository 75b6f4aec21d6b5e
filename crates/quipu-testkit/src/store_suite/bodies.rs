//! What a store answers to puts of bodies, and what becomes of them.

use quipu_model::shared::body::{Body, PAGE_BYTES, Shape};
use quipu_model::shared::{
    Bodies, BodyPut, BodyVerdict, Put, SeenBodies, Seq, Snapshot, SwapId, SwapVerdict, Verdict, node_cell,
};
use quipu_model::{Epoch, Millis, NodeId, Store};

use super::cells::{name, put, said};

const NEWEST: BodyVerdict = BodyVerdict::Told(Verdict::Newest);

/// A body as the model has it, and how it is put.
struct Says {
    node: NodeId,
    epoch: Epoch,
    seq: u64,
    body: Body,
}

impl Says {
    fn new(node: u64, length: u32) -> Says {
        let shape = Shape { kind: 3, key: u64::MAX, length };
        Says { node: NodeId(node), epoch: Epoch::FIRST, seq: 0, body: Body::new(shape).expect("it is short") }
    }

    /// The put that says these pages anew, each full of its byte.
    fn put(&mut self, pages: &[(u32, u8)]) -> BodyPut {
        let from = Some(Seq(self.seq)).filter(|seq| seq.0 > 0);
        self.seq += 1;
        let mut said = Vec::new();
        for &(page, byte) in pages {
            let length = (self.body.bytes.len() - page as usize * PAGE_BYTES).min(PAGE_BYTES);
            let bytes: Box<[u8]> = if byte == 0 { Box::default() } else { vec![byte; length].into() };
            self.body.lay_page(page, &bytes).expect("it is within the body");
            said.push((page, bytes));
        }
        let put = Put {
            cell: node_cell(self.node),
            epoch: self.epoch,
            seq: Seq(self.seq),
            value: self.seq.into(),
            total: self.seq.into(),
        };
        BodyPut { put, from, whole: false, shape: self.body.shape, pages: said }
    }

    /// The same body with another length.
    fn grow(&mut self, length: u32) {
        self.body.shape.length = length;
        self.body.bytes.resize(length as usize, 0);
    }
}

async fn ask(store: &impl Store, at: &[u8], body: &BodyPut) -> BodyVerdict {
    store.put_body(name(at), body).await.expect("a store without faults puts bodies")
}

async fn look(store: &impl Store, at: &[u8]) -> SeenBodies {
    store.read_bodies(name(at)).await.expect("a store without faults reads bodies")
}

pub(super) async fn prove(store: &impl Store) {
    a_counter_without_bodies_has_none(store).await;
    a_body_is_what_its_puts_come_to(store).await;
    a_put_that_does_not_go_on_from_what_is_there_changes_nothing(store).await;
    a_body_may_be_put_anew_as_a_whole(store).await;
    nodes_have_bodies_of_their_own(store).await;
    a_large_body_comes_back_as_it_was(store).await;
    a_change_that_keeps_the_epoch_keeps_bodies_and_any_other_drops_them(store).await;
    a_put_of_an_ended_epoch_is_told_what_was_kept(store).await;
    a_row_that_is_due_takes_no_bodies(store).await;
}

async fn a_counter_without_bodies_has_none(store: &impl Store) {
    assert_eq!(look(store, b"b:none").await.bodies, Bodies::new());
    put(store, b"b:count", said(1, Epoch::FIRST, 1, 7)).await;
    let seen = look(store, b"b:count").await;
    assert_eq!((seen.bodies.len(), seen.seen.snapshot.sum()), (0, 7));
    assert_eq!(seen.seen.snapshot, store.read(name(b"b:count")).await.expect("a store reads").snapshot);
}

async fn a_body_is_what_its_puts_come_to(store: &impl Store) {
    let (at, mut says) = (b"b:pages", Says::new(1, 3_000));
    assert_eq!(ask(store, at, &says.put(&[(0, 1), (2, 3)])).await, NEWEST);
    let first = look(store, at).await;
    assert_eq!(first.bodies, Bodies::from([(says.node, says.body.clone())]), "a page that was not put is zeros");
    assert_eq!(first.seen.snapshot.cells[&node_cell(says.node)].seq, Seq(1), "its cell is in the row");
    let second = says.put(&[(1, 2)]);
    assert_eq!(ask(store, at, &second).await, NEWEST);
    let seen = look(store, at).await;
    assert_eq!(seen.bodies[&says.node], says.body, "pages that did not change stay");
    assert_ne!(seen.seen.snapshot.version, first.seen.snapshot.version, "and the version of the row has moved");
    assert_eq!(ask(store, at, &second).await, NEWEST, "the same put again");
    assert_eq!(look(store, at).await.seen.snapshot, seen.seen.snapshot, "changes nothing, not even the version");
    says.grow(5_000);
    assert_eq!(ask(store, at, &says.put(&[(2, 9), (4, 8)])).await, NEWEST);
    assert_eq!(
        look(store, at).await.bodies[&says.node],
        says.body,
        "longer, and what came is zeros where nothing was put"
    );
    says.grow(1_500);
    assert_eq!(ask(store, at, &says.put(&[(0, 0), (1, 6)])).await, NEWEST);
    assert_eq!(look(store, at).await.bodies[&says.node], says.body, "shorter, and a page became zeros");
    says.grow(5_000);
    assert_eq!(ask(store, at, &says.put(&[])).await, NEWEST);
    assert_eq!(look(store, at).await.bodies[&says.node], says.body, "of what was cut off nothing comes back");
}

async fn a_put_that_does_not_go_on_from_what_is_there_changes_nothing(store: &impl Store) {
    let (at, mut says) = (b"b:gap", Says::new(1, 2_000));
    let first = says.put(&[(0, 1)]);
    let second = says.put(&[(1, 2)]);
    assert_eq!(ask(store, at, &second).await, BodyVerdict::Gap { held: None }, "the first is not there");
    assert!(!look(store, at).await.seen.snapshot.exists(), "and no row is made of it");
    assert_eq!(ask(store, at, &first).await, NEWEST);
    let third = says.put(&[(0, 3)]);
    assert_eq!(ask(store, at, &third).await, BodyVerdict::Gap { held: Some(Seq(1)) });
    assert_eq!(ask(store, at, &second).await, NEWEST);
    assert_eq!(ask(store, at, &third).await, NEWEST, "in order it is put");
    let seen = look(store, at).await;
    assert_eq!(ask(store, at, &second).await, BodyVerdict::Told(Verdict::Older), "a put that was overtaken");
    assert_eq!(look(store, at).await.bodies, seen.bodies);
    assert_eq!(seen.bodies[&says.node], says.body);
}

async fn a_body_may_be_put_anew_as_a_whole(store: &impl Store) {
    let (at, mut says) = (b"b:whole", Says::new(1, 4_000));
    assert_eq!(ask(store, at, &says.put(&[(0, 1), (3, 4)])).await, NEWEST);
    let mut anew = Says { seq: 1, ..Says::new(1, 2_500) };
    let put = BodyPut { whole: true, ..anew.put(&[(1, 7)]) };
    assert_eq!(ask(store, at, &put).await, NEWEST);
    assert_eq!(look(store, at).await.bodies[&anew.node], anew.body, "nothing is left of the one before");
}

async fn nodes_have_bodies_of_their_own(store: &impl Store) {
    let (at, mut one, mut two) = (b"b:nodes", Says::new(1, 1_000), Says::new(u64::MAX, 2_000));
    for _ in 0..2 {
        assert_eq!(ask(store, at, &one.put(&[(0, 5)])).await, NEWEST);
        assert_eq!(ask(store, at, &two.put(&[(0, 6), (1, 7)])).await, NEWEST);
    }
    let bodies = Bodies::from([(one.node, one.body), (two.node, two.body)]);
    assert_eq!(look(store, at).await.bodies, bodies);
}

async fn a_large_body_comes_back_as_it_was(store: &impl Store) {
    let (at, mut says) = (b"b:large", Says::new(1, 3_000_001));
    let pages: Vec<(u32, u8)> = (0..2_930).map(|page| (page, (page % 251) as u8)).collect();
    assert_eq!(ask(store, at, &says.put(&pages)).await, NEWEST);
    assert!(look(store, at).await.bodies[&says.node] == says.body, "three megabytes come back");
}

async fn swap(store: &impl Store, at: &[u8], bend: impl FnOnce(&mut Snapshot)) {
    let seen = look(store, at).await.seen;
    let mut next = seen.snapshot.clone();
    bend(&mut next);
    next.version.swaps += 1;
    next.swaps.push(SwapId(7));
    let swapped = store.swap(name(at), seen.snapshot.version, Some(&next)).await.expect("a store swaps");
    assert_eq!(swapped, SwapVerdict::Swapped);
}

async fn a_change_that_keeps_the_epoch_keeps_bodies_and_any_other_drops_them(store: &impl Store) {
    let (at, mut says) = (b"b:swap", Says::new(1, 2_000));
    assert_eq!(ask(store, at, &says.put(&[(0, 1), (1, 2)])).await, NEWEST);
    swap(store, at, |row| row.expires_at = Some(Millis(i64::MAX as u64))).await;
    let seen = look(store, at).await;
    assert_eq!((&seen.bodies[&says.node], seen.bodies.len()), (&says.body, 1), "an expiry keeps the epoch");
    assert_eq!(ask(store, at, &says.put(&[(1, 5)])).await, NEWEST, "and it goes on");
    let moved = Epoch { millis: 5, node: NodeId(2) };
    swap(store, at, |row| {
        row.cells.clear();
        row.epoch = moved;
    })
    .await;
    assert_eq!(look(store, at).await.bodies, Bodies::new(), "another epoch has none of them");
    let mut anew = Says { epoch: moved, seq: 0, ..Says::new(1, 2_000) };
    assert_eq!(ask(store, at, &anew.put(&[(0, 9)])).await, NEWEST);
    assert_eq!(look(store, at).await.bodies[&says.node], anew.body, "nor of their pages");
    let version = look(store, at).await.seen.snapshot.version;
    assert_eq!(store.swap(name(at), version, None).await.expect("a store swaps"), SwapVerdict::Swapped);
    let seen = look(store, at).await;
    assert_eq!((seen.bodies, seen.seen.snapshot), (Bodies::new(), Snapshot::default()), "a row that is gone has none");
    let mut last = Says::new(1, 2_000);
    assert_eq!(ask(store, at, &last.put(&[(1, 4)])).await, NEWEST);
    assert_eq!(
        look(store, at).await.bodies[&last.node],
        last.body,
        "a row that is made anew has nothing of the old one"
    );
}

async fn a_put_of_an_ended_epoch_is_told_what_was_kept(store: &impl Store) {
    use quipu_model::shared::{By, Change, NOBODY, Next, compute};
    let (at, mut says) = (b"b:stale", Says::new(1, 2_000));
    assert_eq!(ask(store, at, &says.put(&[(0, 1)])).await, NEWEST);
    let seen = look(store, at).await.seen;
    let by = By { id: SwapId(9), node: NodeId(2), grace: std::time::Duration::from_secs(60), registered: &NOBODY };
    let computed = compute(&seen, &by, &Change::Delete).expect("a sketch may be deleted");
    let Next::Row(next) = computed.next else { panic!("{computed:?}") };
    let swapped = store.swap(name(at), seen.snapshot.version, Some(&next)).await.expect("a store swaps");
    assert_eq!(swapped, SwapVerdict::Swapped);
    let told = ask(store, at, &says.put(&[(1, 2)])).await;
    assert_eq!(told, BodyVerdict::Told(Verdict::Stale { epoch: next.epoch, kept: 1, expired: None }));
    let seen = look(store, at).await;
    assert_eq!((seen.bodies.len(), seen.seen.snapshot.exists()), (0, false));
}

async fn a_row_that_is_due_takes_no_bodies(store: &impl Store) {
    let (at, mut says) = (b"b:due", Says::new(1, 2_000));
    assert_eq!(ask(store, at, &says.put(&[(0, 1)])).await, NEWEST);
    swap(store, at, |row| row.expires_at = Some(Millis(1))).await;
    let told = ask(store, at, &says.put(&[(1, 2)])).await;
    assert_eq!(told, BodyVerdict::Told(Verdict::Behind { epoch: Epoch::FIRST }));
}
