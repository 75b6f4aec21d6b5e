//! What a store answers to puts and swaps of bodies, and what becomes of them.

use std::time::Duration;

use quipu_model::shared::body::{Body, LIFE_BODIES_MAX, NOBODYS, PAGE_BYTES, Shape};
use quipu_model::shared::{
    Bodies, BodyPut, BodyVerdict, By, CellId, Change, NOBODY, Next, Put, Seen, SeenBodies, Seq, Snapshot, SwapId,
    SwapVerdict, Verdict, Version, compute, life_cell, node_cell,
};
use quipu_model::{Epoch, Incarnation, Millis, NodeId, Store, Writer};

use super::cells::{name, put, said};

const NEWEST: BodyVerdict = BodyVerdict::Told(Verdict::Newest);

/// A body as the model has it, and how it is put.
struct Says {
    cell: CellId,
    epoch: Epoch,
    seq: u64,
    body: Body,
}

impl Says {
    /// A node itself.
    fn new(node: u64, length: u32) -> Says {
        Says::of(node_cell(NodeId(node)), length)
    }

    /// A node, or one of its lives.
    fn of(cell: CellId, length: u32) -> Says {
        let shape = Shape { kind: 3, key: u64::MAX, length };
        Says { cell, epoch: Epoch::FIRST, seq: 0, body: Body::new(shape).expect("it is short") }
    }

    fn writer(&self) -> Writer {
        self.cell.writer
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
            cell: self.cell,
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
    lives_of_a_node_have_bodies_apart_from_its_own(store).await;
    bodies_are_swapped_together_with_their_row(store).await;
    a_row_that_moved_keeps_its_bodies(store).await;
    a_life_that_was_folded_puts_nothing_more(store).await;
    nothing_comes_back_of_a_body_that_was_replaced(store).await;
    large_bodies_are_replaced_and_dropped(store).await;
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
    assert_eq!(first.bodies, Bodies::from([(says.writer(), says.body.clone())]), "a page that was not put is zeros");
    assert_eq!(first.seen.snapshot.cells[&says.cell].seq, Seq(1), "its cell is in the row");
    let second = says.put(&[(1, 2)]);
    assert_eq!(ask(store, at, &second).await, NEWEST);
    let seen = look(store, at).await;
    assert_eq!(seen.bodies[&says.writer()], says.body, "pages that did not change stay");
    assert_ne!(seen.seen.snapshot.version, first.seen.snapshot.version, "and the version of the row has moved");
    assert_eq!(ask(store, at, &second).await, NEWEST, "the same put again");
    assert_eq!(look(store, at).await.seen.snapshot, seen.seen.snapshot, "changes nothing, not even the version");
    says.grow(5_000);
    assert_eq!(ask(store, at, &says.put(&[(2, 9), (4, 8)])).await, NEWEST);
    assert_eq!(
        look(store, at).await.bodies[&says.writer()],
        says.body,
        "longer, and what came is zeros where nothing was put"
    );
    says.grow(1_500);
    assert_eq!(ask(store, at, &says.put(&[(0, 0), (1, 6)])).await, NEWEST);
    assert_eq!(look(store, at).await.bodies[&says.writer()], says.body, "shorter, and a page became zeros");
    says.grow(5_000);
    assert_eq!(ask(store, at, &says.put(&[])).await, NEWEST);
    assert_eq!(look(store, at).await.bodies[&says.writer()], says.body, "of what was cut off nothing comes back");
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
    assert_eq!(seen.bodies[&says.writer()], says.body);
}

async fn a_body_may_be_put_anew_as_a_whole(store: &impl Store) {
    let (at, mut says) = (b"b:whole", Says::new(1, 4_000));
    assert_eq!(ask(store, at, &says.put(&[(0, 1), (3, 4)])).await, NEWEST);
    let mut anew = Says { seq: 1, ..Says::new(1, 2_500) };
    let put = BodyPut { whole: true, ..anew.put(&[(1, 7)]) };
    assert_eq!(ask(store, at, &put).await, NEWEST);
    assert_eq!(look(store, at).await.bodies[&anew.writer()], anew.body, "nothing is left of the one before");
}

async fn nodes_have_bodies_of_their_own(store: &impl Store) {
    let (at, mut one, mut two) = (b"b:nodes", Says::new(1, 1_000), Says::new(u64::MAX, 2_000));
    for _ in 0..2 {
        assert_eq!(ask(store, at, &one.put(&[(0, 5)])).await, NEWEST);
        assert_eq!(ask(store, at, &two.put(&[(0, 6), (1, 7)])).await, NEWEST);
    }
    let bodies = Bodies::from([(one.writer(), one.body), (two.writer(), two.body)]);
    assert_eq!(look(store, at).await.bodies, bodies);
}

async fn a_large_body_comes_back_as_it_was(store: &impl Store) {
    let (at, mut says) = (b"b:large", Says::new(1, 3_000_001));
    let pages: Vec<(u32, u8)> = (0..2_930).map(|page| (page, (page % 251) as u8)).collect();
    assert_eq!(ask(store, at, &says.put(&pages)).await, NEWEST);
    assert!(look(store, at).await.bodies[&says.writer()] == says.body, "three megabytes come back");
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
    assert_eq!((&seen.bodies[&says.writer()], seen.bodies.len()), (&says.body, 1), "an expiry keeps the epoch");
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
    assert_eq!(look(store, at).await.bodies[&says.writer()], anew.body, "nor of their pages");
    let version = look(store, at).await.seen.snapshot.version;
    assert_eq!(store.swap(name(at), version, None).await.expect("a store swaps"), SwapVerdict::Swapped);
    let seen = look(store, at).await;
    assert_eq!((seen.bodies, seen.seen.snapshot), (Bodies::new(), Snapshot::default()), "a row that is gone has none");
    let mut last = Says::new(1, 2_000);
    assert_eq!(ask(store, at, &last.put(&[(1, 4)])).await, NEWEST);
    assert_eq!(
        look(store, at).await.bodies[&last.writer()],
        last.body,
        "a row that is made anew has nothing of the old one"
    );
}

/// The row that a change leads to.
fn changed(seen: &Seen, change: Change) -> Snapshot {
    let by = By { id: SwapId(9), node: NodeId(2), grace: Duration::from_secs(60), registered: &NOBODY };
    let computed = compute(seen, &by, &change).expect("the suite's changes are for sketches, too");
    let Next::Row(next) = computed.next else { panic!("{computed:?}") };
    next
}

async fn a_put_of_an_ended_epoch_is_told_what_was_kept(store: &impl Store) {
    let (at, mut says) = (b"b:stale", Says::new(1, 2_000));
    assert_eq!(ask(store, at, &says.put(&[(0, 1)])).await, NEWEST);
    let seen = look(store, at).await.seen;
    let next = changed(&seen, Change::Delete);
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

/// The cell of a node's life.
fn life(node: u64, incarnation: u64, number: u16) -> CellId {
    life_cell(Writer { node: NodeId(node), incarnation: Incarnation(incarnation) }, number)
}

/// A body that nobody has put, each of these pages full of its byte.
fn made(length: u32, pages: &[(u32, u8)]) -> Body {
    let mut says = Says::new(0, length);
    says.put(pages);
    says.body
}

async fn swap_bodies(
    store: &impl Store,
    at: &[u8],
    version: Version,
    next: &Snapshot,
    bodies: &[(Writer, Option<Body>)],
) -> SwapVerdict {
    store.swap_bodies(name(at), version, next, bodies).await.expect("a store without faults swaps bodies")
}

/// A row as it is, but for its version.
fn moved_on(row: &Snapshot) -> Snapshot {
    let mut next = row.clone();
    next.version.swaps += 1;
    next
}

async fn lives_of_a_node_have_bodies_apart_from_its_own(store: &impl Store) {
    let at = b"b:lives";
    // A long life and a short one, the first number that a node gives to a body and the last.
    let cells = [node_cell(NodeId(1)), life(1, 1, 0), life(1, u64::MAX, LIFE_BODIES_MAX - 1), life(2, 1, 0)];
    let mut all = cells.map(|cell| Says::of(cell, 3_000));
    for round in 0..2 {
        for (says, byte) in all.iter_mut().zip(1 + 10 * round..) {
            let put = says.put(&[(round.into(), byte)]);
            assert_eq!(ask(store, at, &put).await, NEWEST);
            assert_eq!(ask(store, at, &put).await, NEWEST, "the same put again");
        }
    }
    // What becomes of one is nothing to the others.
    all[1].grow(500);
    assert_eq!(ask(store, at, &all[1].put(&[(0, 77)])).await, NEWEST);
    let mut anew = Says { seq: 2, ..Says::of(cells[2], 2_000) };
    assert_eq!(ask(store, at, &BodyPut { whole: true, ..anew.put(&[(1, 78)]) }).await, NEWEST);
    all[2] = anew;
    let seen = look(store, at).await;
    assert_eq!(seen.bodies, all.iter().map(|says| (says.writer(), says.body.clone())).collect());
    let seqs: Vec<_> = cells.iter().map(|cell| seen.seen.snapshot.cells.get(cell).map(|held| held.seq.0)).collect();
    assert_eq!(seqs, [Some(2), Some(3), Some(3), Some(2)], "each has a cell of its own");
    assert_eq!(seen.seen.snapshot.cells.len(), cells.len());
}

async fn bodies_are_swapped_together_with_their_row(store: &impl Store) {
    let at = b"b:fold";
    let (mut node, mut gone, mut stays) =
        (Says::new(1, 2_000), Says::of(life(1, 5, 0), 2_500), Says::of(life(1, 6, 1), 2_500));
    for (says, byte) in [(&mut node, 1), (&mut gone, 2), (&mut stays, 3)] {
        assert_eq!(ask(store, at, &says.put(&[(0, byte), (1, byte)])).await, NEWEST);
    }
    let seen = look(store, at).await.seen;
    let next = changed(&seen, Change::FoldBody(gone.writer()));
    let folded = made(2_500, &[(0, 2), (2, 9)]);
    let bodies = [(gone.writer(), None), (NOBODYS, Some(folded.clone()))];
    assert_eq!(swap_bodies(store, at, seen.snapshot.version, &next, &bodies).await, SwapVerdict::Swapped);
    let after = look(store, at).await;
    let left = [(node.writer(), node.body.clone()), (stays.writer(), stays.body.clone()), (NOBODYS, folded)];
    assert_eq!(after.bodies, Bodies::from(left), "one is dropped, one has come, the others are as they were");
    assert_eq!(after.seen.snapshot, next, "and the row is the next one");
    assert_eq!(ask(store, at, &stays.put(&[(2, 4)])).await, NEWEST, "others go on");
    // The second that is folded replaces what the first has left, also by another kind and length.
    let seen = look(store, at).await.seen;
    let next = changed(&seen, Change::FoldBody(stays.writer()));
    let mut other = made(5_000, &[(4, 7)]);
    (other.shape.kind, other.shape.key) = (u8::MAX, 5);
    let bodies = [(NOBODYS, Some(other.clone())), (stays.writer(), None)];
    assert_eq!(swap_bodies(store, at, seen.snapshot.version, &next, &bodies).await, SwapVerdict::Swapped);
    let after = look(store, at).await;
    assert_eq!(after.bodies, Bodies::from([(node.writer(), node.body.clone()), (NOBODYS, other)]));
    assert_eq!(after.seen.snapshot, next);
    swap(store, at, |row| row.expires_at = Some(Millis(i64::MAX as u64))).await;
    assert_eq!(look(store, at).await.bodies, after.bodies, "a swap without bodies keeps them");
    // The last ones go, and the row stays.
    let seen = look(store, at).await.seen;
    let mut next = moved_on(&seen.snapshot);
    next.cells.clear();
    let bodies = [(node.writer(), None), (NOBODYS, None)];
    assert_eq!(swap_bodies(store, at, seen.snapshot.version, &next, &bodies).await, SwapVerdict::Swapped);
    let after = look(store, at).await;
    assert_eq!((after.bodies, after.seen.snapshot), (Bodies::new(), next));
    let mut anew = Says::new(1, 2_000);
    assert_eq!(ask(store, at, &anew.put(&[(1, 6)])).await, NEWEST);
    assert_eq!(look(store, at).await.bodies, Bodies::from([(anew.writer(), anew.body)]), "one may be put again");
}

async fn a_row_that_moved_keeps_its_bodies(store: &impl Store) {
    let at = b"b:moved";
    let (mut node, mut gone) = (Says::new(1, 2_000), Says::of(life(1, 5, 0), 2_000));
    for says in [&mut node, &mut gone] {
        assert_eq!(ask(store, at, &says.put(&[(0, 1)])).await, NEWEST);
    }
    let seen = look(store, at).await.seen;
    let next = changed(&seen, Change::FoldBody(gone.writer()));
    let bodies =
        [(gone.writer(), None), (node.writer(), Some(made(10, &[(0, 8)]))), (NOBODYS, Some(made(9, &[(0, 9)])))];
    assert_eq!(ask(store, at, &gone.put(&[(1, 2)])).await, NEWEST, "a put that the swap has not seen");
    let before = look(store, at).await;
    let verdict = swap_bodies(store, at, seen.snapshot.version, &next, &bodies).await;
    assert_eq!(verdict, SwapVerdict::Moved, "by a put of a body");
    let after = look(store, at).await;
    assert_eq!((after.bodies, after.seen.snapshot), (before.bodies.clone(), before.seen.snapshot));
    swap(store, at, |row| row.base = Some(1)).await;
    let seen = look(store, at).await.seen;
    let version = Version { swaps: seen.snapshot.version.swaps - 1, ..seen.snapshot.version };
    assert_eq!(swap_bodies(store, at, version, &next, &bodies).await, SwapVerdict::Moved, "by a swap");
    let absent = swap_bodies(store, at, Version::ABSENT, &next, &bodies).await;
    assert_eq!(absent, SwapVerdict::Moved, "it was not there, and is now");
    let after = look(store, at).await;
    assert_eq!((after.bodies, after.seen.snapshot), (before.bodies, seen.snapshot));
    // One that was carried out is not carried out again.
    let seen = look(store, at).await.seen;
    let next = changed(&seen, Change::FoldBody(gone.writer()));
    assert_eq!(swap_bodies(store, at, seen.snapshot.version, &next, &bodies).await, SwapVerdict::Swapped);
    let done = look(store, at).await;
    let again = [(NOBODYS, None), (node.writer(), None)];
    assert_eq!(swap_bodies(store, at, seen.snapshot.version, &next, &again).await, SwapVerdict::Moved);
    let after = look(store, at).await;
    assert_eq!((after.bodies, after.seen.snapshot), (done.bodies, done.seen.snapshot));
    assert_eq!(swap_bodies(store, b"b:gone", seen.snapshot.version, &next, &bodies).await, SwapVerdict::Moved);
    let nothing = look(store, b"b:gone").await;
    assert_eq!((nothing.bodies, nothing.seen.snapshot), (Bodies::new(), Snapshot::default()), "no row is made of it");
}

async fn a_life_that_was_folded_puts_nothing_more(store: &impl Store) {
    let (at, mut says) = (b"b:closed", Says::of(life(1, 5, 3), 3_000));
    assert_eq!(ask(store, at, &says.put(&[(0, 1), (2, 3)])).await, NEWEST);
    let seen = look(store, at).await.seen;
    let next = changed(&seen, Change::FoldBody(says.writer()));
    assert!(next.spent[&says.cell].closed && !next.cells.contains_key(&says.cell));
    let bodies = [(says.writer(), None), (NOBODYS, Some(says.body.clone()))];
    assert_eq!(swap_bodies(store, at, seen.snapshot.version, &next, &bodies).await, SwapVerdict::Swapped);
    let before = look(store, at).await;
    assert_eq!(before.bodies, Bodies::from([(NOBODYS, says.body.clone())]));
    let closed = BodyVerdict::Told(Verdict::Closed { seq: Seq(1), value: 1 });
    let goes_on = says.put(&[(1, 2)]);
    assert_eq!(ask(store, at, &goes_on).await, closed, "one that goes on from what was folded");
    assert_eq!(ask(store, at, &BodyPut { from: None, whole: true, ..goes_on }).await, closed, "one that begins anew");
    let after = look(store, at).await;
    assert_eq!((after.bodies, after.seen.snapshot), (before.bodies, before.seen.snapshot));
}

async fn nothing_comes_back_of_a_body_that_was_replaced(store: &impl Store) {
    let (at, mut says, mut other) = (b"b:shorter", Says::new(1, 5_000), Says::of(life(1, 5, 0), 5_000));
    for says in [&mut says, &mut other] {
        assert_eq!(ask(store, at, &says.put(&[(0, 1), (1, 2), (3, 4), (4, 5)])).await, NEWEST);
    }
    let seen = look(store, at).await.seen;
    says.body = made(2_500, &[(1, 7)]);
    let bodies = [(says.writer(), Some(says.body.clone()))];
    let next = moved_on(&seen.snapshot);
    assert_eq!(swap_bodies(store, at, seen.snapshot.version, &next, &bodies).await, SwapVerdict::Swapped);
    let all = |says: &Says| Bodies::from([(says.writer(), says.body.clone()), (other.writer(), other.body.clone())]);
    assert_eq!(look(store, at).await.bodies, all(&says), "a page that is zeros now is zeros");
    says.grow(5_000);
    assert_eq!(ask(store, at, &says.put(&[(2, 9)])).await, NEWEST, "its writer goes on with it");
    assert_eq!(look(store, at).await.bodies, all(&says), "longer again, with zeros where nothing was put since");
}

async fn large_bodies_are_replaced_and_dropped(store: &impl Store) {
    const PAGES: u32 = 3_000;
    let (at, mut says, mut other) = (b"b:large:swap", Says::of(life(1, 5, 0), PAGES * 1_024), Says::new(1, 2_000));
    let pages = |step: u32| (0..PAGES).map(|page| (page, (page * step % 251) as u8)).collect::<Vec<_>>();
    assert_eq!(ask(store, at, &says.put(&pages(1))).await, NEWEST);
    assert_eq!(ask(store, at, &other.put(&[(1, 1)])).await, NEWEST);
    let seen = look(store, at).await.seen;
    let large = [says.writer(), life(1, 6, 1).writer, NOBODYS];
    let come = large.iter().zip([3, 5, 7]).map(|(writer, step)| (*writer, made(PAGES * 1_024 - step, &pages(step))));
    let mut expected: Bodies = come.collect();
    let bodies: Vec<_> = expected.iter().map(|(writer, body)| (*writer, Some(body.clone()))).collect();
    expected.insert(other.writer(), other.body.clone());
    let next = moved_on(&seen.snapshot);
    assert_eq!(swap_bodies(store, at, seen.snapshot.version, &next, &bodies).await, SwapVerdict::Swapped);
    let after = look(store, at).await;
    // Not shown: megabytes.
    assert!(after.bodies == expected, "one was replaced, and others came, three megabytes each");
    let next = moved_on(&after.seen.snapshot);
    let dropped = large.map(|writer| (writer, None));
    assert_eq!(swap_bodies(store, at, after.seen.snapshot.version, &next, &dropped).await, SwapVerdict::Swapped);
    assert!(look(store, at).await.bodies == Bodies::from([(other.writer(), other.body)]), "and all of them went");
}
