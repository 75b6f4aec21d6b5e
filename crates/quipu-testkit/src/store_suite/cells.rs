//! Tests the store's answers to puts.

use std::collections::BTreeSet;

use quipu_model::ports::store::PUTS_MAX;
use quipu_model::shared::{CellId, Put, Seq, Shard, Verdict};
use quipu_model::{Epoch, Incarnation, Name, NodeId, Store, StoreError, Writer};

pub(super) fn name(bytes: &[u8]) -> Name<'_> {
    Name::new(bytes).expect("names of the suite are short")
}

pub(super) fn writer(node: u64) -> Writer {
    Writer { node: NodeId(node), incarnation: Incarnation(u64::MAX) }
}

pub(super) fn cell(node: u64) -> CellId {
    CellId { writer: writer(node), shard: Shard(0) }
}

pub(super) fn make_put(node: u64, epoch: Epoch, seq: u64, value: i128) -> Put {
    Put { cell: cell(node), epoch, seq: Seq(seq), value, total: value }
}

/// Puts one cell; returns its verdict.
pub(super) async fn put(store: &impl Store, at: &[u8], put: Put) -> Verdict {
    let verdicts = put_all(store, &[(name(at), put)]).await;
    let [verdict] = verdicts[..] else { panic!("one put has one verdict, not {verdicts:?}") };
    verdict
}

/// Puts several cells; returns a verdict each.
async fn put_all(store: &impl Store, puts: &[(Name<'_>, Put)]) -> Vec<Verdict> {
    let results = store.put(puts).await.expect("a store without faults answers");
    results.into_iter().map(|result| result.expect("a store without faults puts")).collect()
}

pub(super) async fn prove(store: &impl Store) {
    a_counter_that_nobody_put_has_no_row(store).await;
    the_newest_by_seq_stays(store).await;
    writers_and_shards_have_cells_of_their_own(store).await;
    one_call_puts_into_several_counters_in_order(store).await;
    rows_of_other_puts_have_other_versions(store).await;
    values_may_be_wider_than_a_reply(store).await;
    names_may_have_any_bytes(store).await;
    a_put_past_the_bound_is_refused_whole(store).await;
}

async fn a_counter_that_nobody_put_has_no_row(store: &impl Store) {
    let current = store.read(name(b"nobody")).await.expect("a store reads");
    assert_eq!(current.snapshot, Default::default(), "the row of a counter that nobody put");
}

async fn the_newest_by_seq_stays(store: &impl Store) {
    let at = b"newest";
    assert_eq!(put(store, at, make_put(1, Epoch::FIRST, 5, 50)).await, Verdict::Newest, "the first put");
    let first = store.read(name(at)).await.expect("a store reads").snapshot;
    assert_eq!(put(store, at, make_put(1, Epoch::FIRST, 4, 99)).await, Verdict::Older, "a put that was overtaken");
    assert_eq!(put(store, at, make_put(1, Epoch::FIRST, 5, 50)).await, Verdict::Newest, "the same put again");
    let again = store.read(name(at)).await.expect("a store reads").snapshot;
    assert_eq!(again, first, "a put that moved no cell changes nothing, not even the version");
    assert_eq!(put(store, at, make_put(1, Epoch::FIRST, 6, -3)).await, Verdict::Newest, "newer, though smaller");
    let last = store.read(name(at)).await.expect("a store reads").snapshot;
    assert_eq!((last.sum(), last.epoch, last.version.swaps), (-3, Epoch::FIRST, 0), "the newest stays");
    assert_ne!(last.version, first.version, "a put that moved a cell moves the version");
    assert!(last.version.born_at > Default::default(), "a row knows when it was made");
}

async fn writers_and_shards_have_cells_of_their_own(store: &impl Store) {
    let at = b"own";
    let mut other = make_put(1, Epoch::FIRST, 1, 2);
    other.cell.shard = Shard(u16::MAX);
    let mut earlier = make_put(1, Epoch::FIRST, 1, 4);
    earlier.cell.writer.incarnation = Incarnation(0);
    for next_put in [make_put(1, Epoch::FIRST, 1, 1), other, earlier, make_put(u64::MAX, Epoch::FIRST, 1, 8)] {
        assert_eq!(put(store, at, next_put).await, Verdict::Newest, "{next_put:?}");
    }
    let row = store.read(name(at)).await.expect("a store reads").snapshot;
    assert_eq!((row.cells.len(), row.sum()), (4, 15), "four cells");
    assert!(row.cells.contains_key(&other.cell) && row.cells.contains_key(&earlier.cell), "{row:?}");
}

async fn rows_of_other_puts_have_other_versions(store: &impl Store) {
    // One put each: a store that lost one put and took another must show another version.
    let puts = [
        (b"v:1", make_put(1, Epoch::FIRST, 1, 5)),
        (b"v:2", make_put(1, Epoch::FIRST, 2, 5)),
        (b"v:3", make_put(2, Epoch::FIRST, 1, 5)),
    ];
    let mut versions = BTreeSet::new();
    for (at, next_put) in puts {
        assert_eq!(put(store, at, next_put).await, Verdict::Newest);
        versions.insert(store.read(name(at)).await.expect("it is read").snapshot.version.puts);
    }
    assert_eq!(versions.len(), puts.len(), "{versions:?}");
}

async fn one_call_puts_into_several_counters_in_order(store: &impl Store) {
    let puts = [
        (name(b"many:1"), make_put(1, Epoch::FIRST, 2, 20)),
        (name(b"many:2"), make_put(1, Epoch::FIRST, 1, 7)),
        (name(b"many:1"), make_put(1, Epoch::FIRST, 1, 10)),
    ];
    let verdicts = put_all(store, &puts).await;
    assert_eq!(verdicts, [Verdict::Newest, Verdict::Newest, Verdict::Older], "verdicts come in the order of the puts");
    assert_eq!(put_all(store, &[]).await, [], "no puts, no verdicts");
}

async fn values_may_be_wider_than_a_reply(store: &impl Store) {
    for value in [i128::from(i64::MAX) * 2, i128::from(i64::MIN) * 2, 0] {
        let at = format!("wide:{value}");
        put(store, at.as_bytes(), make_put(1, Epoch::FIRST, u64::MAX / 2, value)).await;
        let row = store.read(name(at.as_bytes())).await.expect("a store reads").snapshot;
        assert_eq!((row.cells[&cell(1)].value, row.cells[&cell(1)].seq), (value, Seq(u64::MAX / 2)));
        assert!(row.exists(), "a cell of {value} makes a counter");
    }
}

async fn names_may_have_any_bytes(store: &impl Store) {
    let longest = [0xff; quipu_model::NAME_BYTES_MAX];
    for (value, at) in [&b""[..], b"\0", b"a b{c}\r\n", b"\xc3\x28", &longest].into_iter().enumerate() {
        assert_eq!(put(store, at, make_put(1, Epoch::FIRST, 1, value as i128)).await, Verdict::Newest, "{at:?}");
        let row = store.read(name(at)).await.expect("a store reads").snapshot;
        assert_eq!(row.sum(), value as i128, "{at:?}");
    }
}

async fn a_put_past_the_bound_is_refused_whole(store: &impl Store) {
    let at = name(b"bound");
    let mut puts: Vec<_> = (1..=PUTS_MAX as u64 + 1).map(|seq| (at, make_put(1, Epoch::FIRST, seq, 1))).collect();
    match store.put(&puts).await {
        Err(StoreError::NotApplied { .. }) => {}
        other => panic!("{} puts in one call: {other:?}", puts.len()),
    }
    assert!(!store.read(at).await.expect("a store reads").snapshot.exists(), "nothing of a refused call is put");
    puts.pop();
    assert_eq!(store.put(&puts).await.expect("as many as are allowed").len(), PUTS_MAX);
}
