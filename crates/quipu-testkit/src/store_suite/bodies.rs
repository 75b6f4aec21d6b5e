//! Tests puts and swaps of bodies: the store's answers, and the bodies afterwards.

use std::time::Duration;

use quipu_model::shared::body::{BodyShape, FOLDED_BODY_WRITER, INCARNATION_BODIES_MAX, PAGE_BYTES, StoredBody};
use quipu_model::shared::{
    Bodies, BodyPut, BodyVerdict, CellId, Change, FetchedRow, NO_WRITERS, NextRow, Put, RowVersion, RowWithBodies, Seq,
    Snapshot, SwapContext, SwapId, SwapVerdict, Verdict, incarnation_cell, node_cell, plan_swap,
};
use quipu_model::{Epoch, Incarnation, Millis, NodeId, Store, Writer};

use super::cells::{make_put, name, put};

const NEWEST: BodyVerdict = BodyVerdict::Cell(Verdict::Newest);

/// The expected body of a cell, and the source of its puts.
struct BodyAuthor {
    cell: CellId,
    epoch: Epoch,
    seq: u64,
    body: StoredBody,
}

impl BodyAuthor {
    /// Creates the author of a node's own body.
    fn new(node: u64, length: u32) -> BodyAuthor {
        BodyAuthor::for_cell(node_cell(NodeId(node)), length)
    }

    /// Creates the author of a node's body or of an incarnation's.
    fn for_cell(cell: CellId, length: u32) -> BodyAuthor {
        let shape = BodyShape { kind: 3, key: u64::MAX, length };
        BodyAuthor { cell, epoch: Epoch::FIRST, seq: 0, body: StoredBody::new(shape).expect("it is short") }
    }

    fn writer(&self) -> Writer {
        self.cell.writer
    }

    /// Builds a put that replaces these pages, each filled with its byte.
    fn put(&mut self, pages: &[(u32, u8)]) -> BodyPut {
        let from = Some(Seq(self.seq)).filter(|seq| seq.0 > 0);
        self.seq += 1;
        let mut put_pages = Vec::new();
        for &(page, byte) in pages {
            let length = (self.body.bytes.len() - page as usize * PAGE_BYTES).min(PAGE_BYTES);
            let bytes: Box<[u8]> = if byte == 0 { Box::default() } else { vec![byte; length].into() };
            self.body.write_page(page, &bytes).expect("it is within the body");
            put_pages.push((page, bytes));
        }
        let put = Put {
            cell: self.cell,
            epoch: self.epoch,
            seq: Seq(self.seq),
            value: self.seq.into(),
            total: self.seq.into(),
        };
        BodyPut { put, from, whole: false, shape: self.body.shape, pages: put_pages }
    }

    /// Changes the length of the body.
    fn grow(&mut self, length: u32) {
        self.body.shape.length = length;
        self.body.bytes.resize(length as usize, 0);
    }
}

async fn put_body(store: &impl Store, at: &[u8], body: &BodyPut) -> BodyVerdict {
    store.put_body(name(at), body).await.expect("a store without faults puts bodies")
}

async fn read_bodies(store: &impl Store, at: &[u8]) -> RowWithBodies {
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
    a_put_of_an_ended_epoch_gets_the_kept_value(store).await;
    a_row_that_is_due_takes_no_bodies(store).await;
    lives_of_a_node_have_bodies_beside_its_own(store).await;
    bodies_are_swapped_together_with_their_row(store).await;
    a_row_that_moved_keeps_its_bodies(store).await;
    a_life_that_was_folded_puts_nothing_more(store).await;
    nothing_comes_back_of_a_body_that_was_replaced(store).await;
    large_bodies_are_replaced_and_dropped(store).await;
}

async fn a_counter_without_bodies_has_none(store: &impl Store) {
    assert_eq!(read_bodies(store, b"b:none").await.bodies, Bodies::new());
    put(store, b"b:count", make_put(1, Epoch::FIRST, 1, 7)).await;
    let current = read_bodies(store, b"b:count").await;
    assert_eq!((current.bodies.len(), current.row.snapshot.sum()), (0, 7));
    assert_eq!(current.row.snapshot, store.read(name(b"b:count")).await.expect("a store reads").snapshot);
}

async fn a_body_is_what_its_puts_come_to(store: &impl Store) {
    let (at, mut author) = (b"b:pages", BodyAuthor::new(1, 3_000));
    assert_eq!(put_body(store, at, &author.put(&[(0, 1), (2, 3)])).await, NEWEST);
    let first = read_bodies(store, at).await;
    assert_eq!(
        first.bodies,
        Bodies::from([(author.writer(), author.body.clone())]),
        "a page that was not put is zeros"
    );
    assert_eq!(first.row.snapshot.cells[&author.cell].seq, Seq(1), "its cell is in the row");
    let second = author.put(&[(1, 2)]);
    assert_eq!(put_body(store, at, &second).await, NEWEST);
    let current = read_bodies(store, at).await;
    assert_eq!(current.bodies[&author.writer()], author.body, "pages that did not change stay");
    assert_ne!(current.row.snapshot.version, first.row.snapshot.version, "and the version of the row has moved");
    assert_eq!(put_body(store, at, &second).await, NEWEST, "the same put again");
    assert_eq!(
        read_bodies(store, at).await.row.snapshot,
        current.row.snapshot,
        "changes nothing, not even the version"
    );
    author.grow(5_000);
    assert_eq!(put_body(store, at, &author.put(&[(2, 9), (4, 8)])).await, NEWEST);
    assert_eq!(
        read_bodies(store, at).await.bodies[&author.writer()],
        author.body,
        "longer, and what came is zeros where nothing was put"
    );
    author.grow(1_500);
    assert_eq!(put_body(store, at, &author.put(&[(0, 0), (1, 6)])).await, NEWEST);
    assert_eq!(read_bodies(store, at).await.bodies[&author.writer()], author.body, "shorter, and a page became zeros");
    author.grow(5_000);
    assert_eq!(put_body(store, at, &author.put(&[])).await, NEWEST);
    assert_eq!(
        read_bodies(store, at).await.bodies[&author.writer()],
        author.body,
        "of what was cut off nothing comes back"
    );
}

async fn a_put_that_does_not_go_on_from_what_is_there_changes_nothing(store: &impl Store) {
    let (at, mut author) = (b"b:gap", BodyAuthor::new(1, 2_000));
    let first = author.put(&[(0, 1)]);
    let second = author.put(&[(1, 2)]);
    assert_eq!(put_body(store, at, &second).await, BodyVerdict::Gap { held: None }, "the first is not there");
    assert!(!read_bodies(store, at).await.row.snapshot.exists(), "and no row is made of it");
    assert_eq!(put_body(store, at, &first).await, NEWEST);
    let third = author.put(&[(0, 3)]);
    assert_eq!(put_body(store, at, &third).await, BodyVerdict::Gap { held: Some(Seq(1)) });
    assert_eq!(put_body(store, at, &second).await, NEWEST);
    assert_eq!(put_body(store, at, &third).await, NEWEST, "in order it is put");
    let current = read_bodies(store, at).await;
    assert_eq!(put_body(store, at, &second).await, BodyVerdict::Cell(Verdict::Older), "a put that was overtaken");
    assert_eq!(read_bodies(store, at).await.bodies, current.bodies);
    assert_eq!(current.bodies[&author.writer()], author.body);
}

async fn a_body_may_be_put_anew_as_a_whole(store: &impl Store) {
    let (at, mut author) = (b"b:whole", BodyAuthor::new(1, 4_000));
    assert_eq!(put_body(store, at, &author.put(&[(0, 1), (3, 4)])).await, NEWEST);
    let mut anew = BodyAuthor { seq: 1, ..BodyAuthor::new(1, 2_500) };
    let put = BodyPut { whole: true, ..anew.put(&[(1, 7)]) };
    assert_eq!(put_body(store, at, &put).await, NEWEST);
    assert_eq!(read_bodies(store, at).await.bodies[&anew.writer()], anew.body, "nothing is left of the one before");
}

async fn nodes_have_bodies_of_their_own(store: &impl Store) {
    let (at, mut one, mut two) = (b"b:nodes", BodyAuthor::new(1, 1_000), BodyAuthor::new(u64::MAX, 2_000));
    for _ in 0..2 {
        assert_eq!(put_body(store, at, &one.put(&[(0, 5)])).await, NEWEST);
        assert_eq!(put_body(store, at, &two.put(&[(0, 6), (1, 7)])).await, NEWEST);
    }
    let bodies = Bodies::from([(one.writer(), one.body), (two.writer(), two.body)]);
    assert_eq!(read_bodies(store, at).await.bodies, bodies);
}

async fn a_large_body_comes_back_as_it_was(store: &impl Store) {
    let (at, mut author) = (b"b:large", BodyAuthor::new(1, 3_000_001));
    let pages: Vec<(u32, u8)> = (0..2_930).map(|page| (page, (page % 251) as u8)).collect();
    assert_eq!(put_body(store, at, &author.put(&pages)).await, NEWEST);
    assert!(read_bodies(store, at).await.bodies[&author.writer()] == author.body, "three megabytes come back");
}

async fn swap(store: &impl Store, at: &[u8], bend: impl FnOnce(&mut Snapshot)) {
    let current = read_bodies(store, at).await.row;
    let mut next = current.snapshot.clone();
    bend(&mut next);
    next.version.swaps += 1;
    next.swaps.push(SwapId(7));
    let swapped = store.swap(name(at), current.snapshot.version, Some(&next)).await.expect("a store swaps");
    assert_eq!(swapped, SwapVerdict::Swapped);
}

async fn a_change_that_keeps_the_epoch_keeps_bodies_and_any_other_drops_them(store: &impl Store) {
    let (at, mut author) = (b"b:swap", BodyAuthor::new(1, 2_000));
    assert_eq!(put_body(store, at, &author.put(&[(0, 1), (1, 2)])).await, NEWEST);
    swap(store, at, |row| row.expires_at = Some(Millis(i64::MAX as u64))).await;
    let current = read_bodies(store, at).await;
    assert_eq!(
        (&current.bodies[&author.writer()], current.bodies.len()),
        (&author.body, 1),
        "an expiry keeps the epoch"
    );
    assert_eq!(put_body(store, at, &author.put(&[(1, 5)])).await, NEWEST, "and it goes on");
    let moved = Epoch { millis: 5, node: NodeId(2) };
    swap(store, at, |row| {
        row.cells.clear();
        row.epoch = moved;
    })
    .await;
    assert_eq!(read_bodies(store, at).await.bodies, Bodies::new(), "another epoch has none of them");
    let mut anew = BodyAuthor { epoch: moved, seq: 0, ..BodyAuthor::new(1, 2_000) };
    assert_eq!(put_body(store, at, &anew.put(&[(0, 9)])).await, NEWEST);
    assert_eq!(read_bodies(store, at).await.bodies[&author.writer()], anew.body, "nor of their pages");
    let version = read_bodies(store, at).await.row.snapshot.version;
    assert_eq!(store.swap(name(at), version, None).await.expect("a store swaps"), SwapVerdict::Swapped);
    let current = read_bodies(store, at).await;
    assert_eq!(
        (current.bodies, current.row.snapshot),
        (Bodies::new(), Snapshot::default()),
        "a row that is gone has none"
    );
    let mut last = BodyAuthor::new(1, 2_000);
    assert_eq!(put_body(store, at, &last.put(&[(1, 4)])).await, NEWEST);
    assert_eq!(
        read_bodies(store, at).await.bodies[&last.writer()],
        last.body,
        "a row that is made anew has nothing of the old one"
    );
}

/// The next row after a change.
fn changed(current: &FetchedRow, change: Change) -> Snapshot {
    let by = SwapContext { id: SwapId(9), node: NodeId(2), grace: Duration::from_secs(60), registered: &NO_WRITERS };
    let computed = plan_swap(current, &by, &change).expect("the suite's changes are for sketches, too");
    let NextRow::Row(next) = computed.next else { panic!("{computed:?}") };
    next
}

async fn a_put_of_an_ended_epoch_gets_the_kept_value(store: &impl Store) {
    let (at, mut author) = (b"b:stale", BodyAuthor::new(1, 2_000));
    assert_eq!(put_body(store, at, &author.put(&[(0, 1)])).await, NEWEST);
    let current = read_bodies(store, at).await.row;
    let next = changed(&current, Change::Delete);
    let swapped = store.swap(name(at), current.snapshot.version, Some(&next)).await.expect("a store swaps");
    assert_eq!(swapped, SwapVerdict::Swapped);
    let verdict = put_body(store, at, &author.put(&[(1, 2)])).await;
    assert_eq!(verdict, BodyVerdict::Cell(Verdict::Stale { epoch: next.epoch, kept: 1, expired: None }));
    let current = read_bodies(store, at).await;
    assert_eq!((current.bodies.len(), current.row.snapshot.exists()), (0, false));
}

async fn a_row_that_is_due_takes_no_bodies(store: &impl Store) {
    let (at, mut author) = (b"b:due", BodyAuthor::new(1, 2_000));
    assert_eq!(put_body(store, at, &author.put(&[(0, 1)])).await, NEWEST);
    swap(store, at, |row| row.expires_at = Some(Millis(1))).await;
    let verdict = put_body(store, at, &author.put(&[(1, 2)])).await;
    assert_eq!(verdict, BodyVerdict::Cell(Verdict::Behind { epoch: Epoch::FIRST }));
}

/// The cell of a node's incarnation.
fn cell_of_incarnation(node: u64, incarnation: u64, number: u16) -> CellId {
    incarnation_cell(Writer { node: NodeId(node), incarnation: Incarnation(incarnation) }, number)
}

/// A body that no put created, each of these pages filled with its byte.
fn made(length: u32, pages: &[(u32, u8)]) -> StoredBody {
    let mut author = BodyAuthor::new(0, length);
    author.put(pages);
    author.body
}

async fn swap_bodies(
    store: &impl Store,
    at: &[u8],
    version: RowVersion,
    next: &Snapshot,
    bodies: &[(Writer, Option<StoredBody>)],
) -> SwapVerdict {
    store.swap_bodies(name(at), version, next, bodies).await.expect("a store without faults swaps bodies")
}

/// The row with the next version.
fn with_next_version(row: &Snapshot) -> Snapshot {
    let mut next = row.clone();
    next.version.swaps += 1;
    next
}

async fn lives_of_a_node_have_bodies_beside_its_own(store: &impl Store) {
    let at = b"b:lives";
    // A long incarnation and a short one; the first number that a node gives to a body, and the
    // last.
    let cells = [
        node_cell(NodeId(1)),
        cell_of_incarnation(1, 1, 0),
        cell_of_incarnation(1, u64::MAX, INCARNATION_BODIES_MAX - 1),
        cell_of_incarnation(2, 1, 0),
    ];
    let mut all = cells.map(|cell| BodyAuthor::for_cell(cell, 3_000));
    for round in 0..2 {
        for (author, byte) in all.iter_mut().zip(1 + 10 * round..) {
            let put = author.put(&[(round.into(), byte)]);
            assert_eq!(put_body(store, at, &put).await, NEWEST);
            assert_eq!(put_body(store, at, &put).await, NEWEST, "the same put again");
        }
    }
    // Changing one body leaves the others alone.
    all[1].grow(500);
    assert_eq!(put_body(store, at, &all[1].put(&[(0, 77)])).await, NEWEST);
    let mut anew = BodyAuthor { seq: 2, ..BodyAuthor::for_cell(cells[2], 2_000) };
    assert_eq!(put_body(store, at, &BodyPut { whole: true, ..anew.put(&[(1, 78)]) }).await, NEWEST);
    all[2] = anew;
    let current = read_bodies(store, at).await;
    assert_eq!(current.bodies, all.iter().map(|author| (author.writer(), author.body.clone())).collect());
    let seqs: Vec<_> =
        cells.iter().map(|cell| current.row.snapshot.cells.get(cell).map(|row_cell| row_cell.seq.0)).collect();
    assert_eq!(seqs, [Some(2), Some(3), Some(3), Some(2)], "each has a cell of its own");
    assert_eq!(current.row.snapshot.cells.len(), cells.len());
}

async fn bodies_are_swapped_together_with_their_row(store: &impl Store) {
    let at = b"b:fold";
    let (mut node, mut gone, mut stays) = (
        BodyAuthor::new(1, 2_000),
        BodyAuthor::for_cell(cell_of_incarnation(1, 5, 0), 2_500),
        BodyAuthor::for_cell(cell_of_incarnation(1, 6, 1), 2_500),
    );
    for (author, byte) in [(&mut node, 1), (&mut gone, 2), (&mut stays, 3)] {
        assert_eq!(put_body(store, at, &author.put(&[(0, byte), (1, byte)])).await, NEWEST);
    }
    let current = read_bodies(store, at).await.row;
    let next = changed(&current, Change::FoldBody(gone.writer()));
    let folded = made(2_500, &[(0, 2), (2, 9)]);
    let bodies = [(gone.writer(), None), (FOLDED_BODY_WRITER, Some(folded.clone()))];
    assert_eq!(swap_bodies(store, at, current.snapshot.version, &next, &bodies).await, SwapVerdict::Swapped);
    let after = read_bodies(store, at).await;
    let left = [(node.writer(), node.body.clone()), (stays.writer(), stays.body.clone()), (FOLDED_BODY_WRITER, folded)];
    assert_eq!(after.bodies, Bodies::from(left), "one is dropped, one has come, the others are as they were");
    assert_eq!(after.row.snapshot, next, "and the row is the next one");
    assert_eq!(put_body(store, at, &stays.put(&[(2, 4)])).await, NEWEST, "others go on");
    // The second folded body replaces the first one, even with another kind and length.
    let current = read_bodies(store, at).await.row;
    let next = changed(&current, Change::FoldBody(stays.writer()));
    let mut other = made(5_000, &[(4, 7)]);
    (other.shape.kind, other.shape.key) = (u8::MAX, 5);
    let bodies = [(FOLDED_BODY_WRITER, Some(other.clone())), (stays.writer(), None)];
    assert_eq!(swap_bodies(store, at, current.snapshot.version, &next, &bodies).await, SwapVerdict::Swapped);
    let after = read_bodies(store, at).await;
    assert_eq!(after.bodies, Bodies::from([(node.writer(), node.body.clone()), (FOLDED_BODY_WRITER, other)]));
    assert_eq!(after.row.snapshot, next);
    swap(store, at, |row| row.expires_at = Some(Millis(i64::MAX as u64))).await;
    assert_eq!(read_bodies(store, at).await.bodies, after.bodies, "a swap without bodies keeps them");
    // The last bodies are dropped, and the row stays.
    let current = read_bodies(store, at).await.row;
    let mut next = with_next_version(&current.snapshot);
    next.cells.clear();
    let bodies = [(node.writer(), None), (FOLDED_BODY_WRITER, None)];
    assert_eq!(swap_bodies(store, at, current.snapshot.version, &next, &bodies).await, SwapVerdict::Swapped);
    let after = read_bodies(store, at).await;
    assert_eq!((after.bodies, after.row.snapshot), (Bodies::new(), next));
    let mut anew = BodyAuthor::new(1, 2_000);
    assert_eq!(put_body(store, at, &anew.put(&[(1, 6)])).await, NEWEST);
    assert_eq!(read_bodies(store, at).await.bodies, Bodies::from([(anew.writer(), anew.body)]), "one may be put again");
}

async fn a_row_that_moved_keeps_its_bodies(store: &impl Store) {
    let at = b"b:moved";
    let (mut node, mut gone) = (BodyAuthor::new(1, 2_000), BodyAuthor::for_cell(cell_of_incarnation(1, 5, 0), 2_000));
    for author in [&mut node, &mut gone] {
        assert_eq!(put_body(store, at, &author.put(&[(0, 1)])).await, NEWEST);
    }
    let current = read_bodies(store, at).await.row;
    let next = changed(&current, Change::FoldBody(gone.writer()));
    let bodies = [
        (gone.writer(), None),
        (node.writer(), Some(made(10, &[(0, 8)]))),
        (FOLDED_BODY_WRITER, Some(made(9, &[(0, 9)]))),
    ];
    assert_eq!(put_body(store, at, &gone.put(&[(1, 2)])).await, NEWEST, "a put that the swap has not seen");
    let before = read_bodies(store, at).await;
    let verdict = swap_bodies(store, at, current.snapshot.version, &next, &bodies).await;
    assert_eq!(verdict, SwapVerdict::Moved, "by a put of a body");
    let after = read_bodies(store, at).await;
    assert_eq!((after.bodies, after.row.snapshot), (before.bodies.clone(), before.row.snapshot));
    swap(store, at, |row| row.base = Some(1)).await;
    let current = read_bodies(store, at).await.row;
    let version = RowVersion { swaps: current.snapshot.version.swaps - 1, ..current.snapshot.version };
    assert_eq!(swap_bodies(store, at, version, &next, &bodies).await, SwapVerdict::Moved, "by a swap");
    let absent = swap_bodies(store, at, RowVersion::ABSENT, &next, &bodies).await;
    assert_eq!(absent, SwapVerdict::Moved, "it was not there, and is now");
    let after = read_bodies(store, at).await;
    assert_eq!((after.bodies, after.row.snapshot), (before.bodies, current.snapshot));
    // A swap that was carried out is not carried out again.
    let current = read_bodies(store, at).await.row;
    let next = changed(&current, Change::FoldBody(gone.writer()));
    assert_eq!(swap_bodies(store, at, current.snapshot.version, &next, &bodies).await, SwapVerdict::Swapped);
    let done = read_bodies(store, at).await;
    let again = [(FOLDED_BODY_WRITER, None), (node.writer(), None)];
    assert_eq!(swap_bodies(store, at, current.snapshot.version, &next, &again).await, SwapVerdict::Moved);
    let after = read_bodies(store, at).await;
    assert_eq!((after.bodies, after.row.snapshot), (done.bodies, done.row.snapshot));
    assert_eq!(swap_bodies(store, b"b:gone", current.snapshot.version, &next, &bodies).await, SwapVerdict::Moved);
    let nothing = read_bodies(store, b"b:gone").await;
    assert_eq!((nothing.bodies, nothing.row.snapshot), (Bodies::new(), Snapshot::default()), "no row is made of it");
}

async fn a_life_that_was_folded_puts_nothing_more(store: &impl Store) {
    let (at, mut author) = (b"b:closed", BodyAuthor::for_cell(cell_of_incarnation(1, 5, 3), 3_000));
    assert_eq!(put_body(store, at, &author.put(&[(0, 1), (2, 3)])).await, NEWEST);
    let current = read_bodies(store, at).await.row;
    let next = changed(&current, Change::FoldBody(author.writer()));
    assert!(next.spent[&author.cell].closed && !next.cells.contains_key(&author.cell));
    let bodies = [(author.writer(), None), (FOLDED_BODY_WRITER, Some(author.body.clone()))];
    assert_eq!(swap_bodies(store, at, current.snapshot.version, &next, &bodies).await, SwapVerdict::Swapped);
    let before = read_bodies(store, at).await;
    assert_eq!(before.bodies, Bodies::from([(FOLDED_BODY_WRITER, author.body.clone())]));
    let closed = BodyVerdict::Cell(Verdict::Closed { seq: Seq(1), value: 1 });
    let goes_on = author.put(&[(1, 2)]);
    assert_eq!(put_body(store, at, &goes_on).await, closed, "one that goes on from what was folded");
    assert_eq!(
        put_body(store, at, &BodyPut { from: None, whole: true, ..goes_on }).await,
        closed,
        "one that begins anew"
    );
    let after = read_bodies(store, at).await;
    assert_eq!((after.bodies, after.row.snapshot), (before.bodies, before.row.snapshot));
}

async fn nothing_comes_back_of_a_body_that_was_replaced(store: &impl Store) {
    let (at, mut author, mut other) =
        (b"b:shorter", BodyAuthor::new(1, 5_000), BodyAuthor::for_cell(cell_of_incarnation(1, 5, 0), 5_000));
    for author in [&mut author, &mut other] {
        assert_eq!(put_body(store, at, &author.put(&[(0, 1), (1, 2), (3, 4), (4, 5)])).await, NEWEST);
    }
    let current = read_bodies(store, at).await.row;
    author.body = made(2_500, &[(1, 7)]);
    let bodies = [(author.writer(), Some(author.body.clone()))];
    let next = with_next_version(&current.snapshot);
    assert_eq!(swap_bodies(store, at, current.snapshot.version, &next, &bodies).await, SwapVerdict::Swapped);
    let all = |author: &BodyAuthor| {
        Bodies::from([(author.writer(), author.body.clone()), (other.writer(), other.body.clone())])
    };
    assert_eq!(read_bodies(store, at).await.bodies, all(&author), "a page that is zeros now is zeros");
    author.grow(5_000);
    assert_eq!(put_body(store, at, &author.put(&[(2, 9)])).await, NEWEST, "its writer goes on with it");
    assert_eq!(
        read_bodies(store, at).await.bodies,
        all(&author),
        "longer again, with zeros where nothing was put since"
    );
}

async fn large_bodies_are_replaced_and_dropped(store: &impl Store) {
    const PAGES: u32 = 3_000;
    let (at, mut author, mut other) =
        (b"b:large:swap", BodyAuthor::for_cell(cell_of_incarnation(1, 5, 0), PAGES * 1_024), BodyAuthor::new(1, 2_000));
    let pages = |step: u32| (0..PAGES).map(|page| (page, (page * step % 251) as u8)).collect::<Vec<_>>();
    assert_eq!(put_body(store, at, &author.put(&pages(1))).await, NEWEST);
    assert_eq!(put_body(store, at, &other.put(&[(1, 1)])).await, NEWEST);
    let current = read_bodies(store, at).await.row;
    let large = [author.writer(), cell_of_incarnation(1, 6, 1).writer, FOLDED_BODY_WRITER];
    let come = large.iter().zip([3, 5, 7]).map(|(writer, step)| (*writer, made(PAGES * 1_024 - step, &pages(step))));
    let mut expected: Bodies = come.collect();
    let bodies: Vec<_> = expected.iter().map(|(writer, body)| (*writer, Some(body.clone()))).collect();
    expected.insert(other.writer(), other.body.clone());
    let next = with_next_version(&current.snapshot);
    assert_eq!(swap_bodies(store, at, current.snapshot.version, &next, &bodies).await, SwapVerdict::Swapped);
    let after = read_bodies(store, at).await;
    // Compared without printing: megabytes.
    assert!(after.bodies == expected, "one was replaced, and others came, three megabytes each");
    let next = with_next_version(&after.row.snapshot);
    let dropped = large.map(|writer| (writer, None));
    assert_eq!(swap_bodies(store, at, after.row.snapshot.version, &next, &dropped).await, SwapVerdict::Swapped);
    assert!(
        read_bodies(store, at).await.bodies == Bodies::from([(other.writer(), other.body)]),
        "and all of them went"
    );
}
