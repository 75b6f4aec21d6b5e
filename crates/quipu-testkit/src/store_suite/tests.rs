use std::sync::Arc;

use quipu_model::shared::body::{BodyShape, NODE_INCARNATION, StoredBody};
use quipu_model::shared::{
    BodyPut, BodyVerdict, Claim, ClaimEnd, ClaimEndVerdict, ClaimToken, ClaimVerdict, FetchedRow, Put, RegisterVerdict,
    Registration, RestoreVerdict, RowVersion, RowWithBodies, Snapshot, SwapId, SwapVerdict, node_cell,
};
use quipu_model::{
    Cursor, History, MemoryStore, Millis, Name, NodeId, NodeNames, PutResult, ScanPage, StoreError, StoreFuture,
    Writer, WriterList,
};

use super::*;
use crate::SimClock;

/// Schedules of one test run.
const SEEDS: u64 = 400;

fn memory() -> MemoryStore {
    MemoryStore::new(Arc::new(SimClock::new(Millis(1_000))))
}

#[test]
fn the_memory_store_keeps_every_promise_of_the_port() {
    block_on(store_suite(async || memory()));
}

#[test]
fn a_calm_faulty_store_is_the_store_itself() {
    block_on(store_suite(async || {
        let store = FaultyStore::new(memory(), 1, 100);
        store.calm().await;
        store
    }));
}

#[test]
fn each_add_is_counted_once_behind_faults() {
    let mut total = Harvest::default();
    for seed in 0..SEEDS {
        let harvest = block_on(harvest(memory(), seed));
        total.returned += harvest.returned;
        total.carried += harvest.carried;
        total.late += harvest.late;
    }
    let busy = total.returned > 0 && total.carried > SEEDS && total.late > SEEDS / 4;
    assert!(busy, "the schedules exercise what they are meant to: {total:?}");
}

#[test]
fn a_faulty_store_answers_in_four_ways_and_loses_nothing_that_was_applied() {
    let name = Name::new(b"four").unwrap();
    let store = FaultyStore::new(memory(), 7, 60);
    let sent = |seq: u64| Put {
        seq: quipu_model::shared::Seq(seq),
        ..cells::make_put(1, Default::default(), seq, seq.into())
    };
    let (mut newest_acked, mut newest_refused) = (0, 0);
    for seq in 1..=200 {
        match block_on(store.put(&[(name, sent(seq))])) {
            Ok(_) => newest_acked = seq,
            Err(StoreError::NotApplied { .. }) => newest_refused = seq,
            Err(_) => {}
        }
    }
    block_on(store.calm());
    let StoreTally { not_applied, applied, lost, late } = store.tally();
    assert!([not_applied, applied, lost, late].iter().all(|&count| count > 10), "{:?}", store.tally());
    let stored = block_on(store.inner().read(name)).unwrap().snapshot.sum();
    assert!(stored >= newest_acked.into(), "what was acknowledged is there");
    assert_ne!(stored, newest_refused.into(), "what was refused is not");
}

#[test]
fn a_faulty_store_swaps_bodies_in_four_ways_and_always_with_their_row() {
    let name = Name::new(b"four").unwrap();
    let store = FaultyStore::new(memory(), 7, 60);
    let node = node_cell(NodeId(1)).writer;
    let mut late = 0;
    for id in 1..=200_u8 {
        let current = block_on(store.inner().read_bodies(name)).unwrap();
        let mut next = Snapshot { base: Some(id.into()), ..current.row.snapshot.clone() };
        next.version.swaps += 1;
        next.swaps = vec![SwapId(id.into())];
        let body = StoredBody { shape: BodyShape { length: 1, ..BodyShape::default() }, bytes: vec![id] };
        let sent = block_on(store.swap_bodies(name, current.row.snapshot.version, &next, &[(node, Some(body))]));
        let after = block_on(store.inner().read_bodies(name)).unwrap();
        let is_in = after.row.snapshot.swaps == next.swaps;
        match sent {
            Ok(verdict) => assert_eq!(verdict == SwapVerdict::Swapped, is_in),
            Err(StoreError::NotApplied { .. }) => assert!(!is_in),
            Err(_) => late += u32::from(!is_in),
        }
        let stored = after.bodies.get(&node).map(|body| i128::from(body.bytes[0]));
        assert_eq!(after.row.snapshot.base, stored, "the row and the body are of one swap");
    }
    let StoreTally { not_applied, applied, lost, late: late_calls } = store.tally();
    assert!([not_applied, applied, lost, late_calls].iter().all(|&count| count > 10), "{:?}", store.tally());
    assert!(late > 10, "some are under way when their caller gives up: {late}");
}

#[test]
fn the_same_seed_is_the_same_schedule() {
    assert_eq!(block_on(harvest(memory(), 3)), block_on(harvest(memory(), 3)));
}

/// Kinds of defects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoreDefect {
    AddsInsteadOfReplacing,
    SwapsOverPuts,
    ForgetsWhatItKept,
    ForgetsItsSwaps,
    HandsATokenToEveryone,
    GivesANodeOneBody,
    LeavesBodiesWhenTheRowIsSwapped,
    DropsBodiesThatWereNotNamed,
    ReplacesBodiesBesideARowThatMoved,
    ForgetsWhoWasFolded,
    LaysBodiesOverThoseBefore,
}

/// A store with one defect, which the suite must catch.
struct DefectiveStore(MemoryStore, StoreDefect);

impl DefectiveStore {
    async fn put_adding(&self, puts: &[(Name<'_>, Put)]) -> Result<Vec<PutResult>, StoreError> {
        let mut verdicts = Vec::new();
        for (name, put) in puts {
            let stored = self.0.read(*name).await?.snapshot.cells.get(&put.cell).map_or(0, |stored| stored.value);
            let put = Put { value: put.value + stored, total: put.value + stored, ..*put };
            verdicts.extend(self.0.put(&[(*name, put)]).await?);
        }
        Ok(verdicts)
    }

    async fn swap_with_defect(
        &self,
        name: Name<'_>,
        version: RowVersion,
        next: Option<&Snapshot>,
    ) -> Result<SwapVerdict, StoreError> {
        let mut next = next.cloned();
        let mut expected = version;
        match (self.1, &mut next) {
            (StoreDefect::ForgetsWhatItKept, Some(next)) => next.spent.clear(),
            (StoreDefect::ForgetsItsSwaps, Some(next)) => next.swaps.clear(),
            (StoreDefect::SwapsOverPuts, _) => {
                let present = self.0.read(name).await?.snapshot.version;
                expected = if present.swaps == version.swaps { present } else { version };
            }
            _ => {}
        }
        self.0.swap(name, expected, next.as_ref()).await
    }

    async fn swap_bodies_with_defect(
        &self,
        name: Name<'_>,
        version: RowVersion,
        next: &Snapshot,
        bodies: &[(Writer, Option<StoredBody>)],
    ) -> Result<SwapVerdict, StoreError> {
        let (mut next, mut bodies) = (next.clone(), bodies.to_vec());
        let RowWithBodies { row: current, bodies: before } = self.0.read_bodies(name).await?;
        match self.1 {
            StoreDefect::LeavesBodiesWhenTheRowIsSwapped => bodies.clear(),
            StoreDefect::DropsBodiesThatWereNotNamed => {
                let named: Vec<Writer> = bodies.iter().map(|(writer, _)| *writer).collect();
                bodies.extend(before.keys().filter(|writer| !named.contains(writer)).map(|writer| (*writer, None)));
            }
            StoreDefect::ReplacesBodiesBesideARowThatMoved if current.snapshot.version != version => {
                self.0.swap_bodies(name, current.snapshot.version, &current.snapshot, &bodies).await?;
            }
            StoreDefect::ForgetsWhoWasFolded => next.spent.clear(),
            StoreDefect::LaysBodiesOverThoseBefore => {
                for (writer, body) in &mut bodies {
                    let (Some(body), Some(before)) = (body, before.get(writer)) else { continue };
                    let both = body.bytes.iter_mut().zip(&before.bytes);
                    both.filter(|(byte, _)| **byte == 0).for_each(|(byte, before)| *byte = *before);
                }
            }
            _ => {}
        }
        self.0.swap_bodies(name, version, &next, &bodies).await
    }

    async fn read_bodies_of_nodes(&self, name: Name<'_>) -> Result<RowWithBodies, StoreError> {
        let RowWithBodies { row: current, bodies } = self.0.read_bodies(name).await?;
        let of_node = |writer: Writer| Writer { incarnation: NODE_INCARNATION, ..writer };
        Ok(RowWithBodies {
            row: current,
            bodies: bodies.into_iter().map(|(writer, body)| (of_node(writer), body)).collect(),
        })
    }
}

impl Store for DefectiveStore {
    fn put<'a>(&'a self, puts: &'a [(Name<'a>, Put)]) -> StoreFuture<'a, Vec<PutResult>> {
        match self.1 {
            StoreDefect::AddsInsteadOfReplacing => Box::pin(self.put_adding(puts)),
            _ => self.0.put(puts),
        }
    }

    fn read<'a>(&'a self, name: Name<'a>) -> StoreFuture<'a, FetchedRow> {
        self.0.read(name)
    }

    fn put_body<'a>(&'a self, name: Name<'a>, put: &'a BodyPut) -> StoreFuture<'a, BodyVerdict> {
        self.0.put_body(name, put)
    }

    fn read_bodies<'a>(&'a self, name: Name<'a>) -> StoreFuture<'a, RowWithBodies> {
        match self.1 {
            StoreDefect::GivesANodeOneBody => Box::pin(self.read_bodies_of_nodes(name)),
            _ => self.0.read_bodies(name),
        }
    }

    fn swap<'a>(
        &'a self,
        name: Name<'a>,
        version: RowVersion,
        next: Option<&'a Snapshot>,
    ) -> StoreFuture<'a, SwapVerdict> {
        Box::pin(self.swap_with_defect(name, version, next))
    }

    fn swap_bodies<'a>(
        &'a self,
        name: Name<'a>,
        version: RowVersion,
        next: &'a Snapshot,
        bodies: &'a [(Writer, Option<StoredBody>)],
    ) -> StoreFuture<'a, SwapVerdict> {
        Box::pin(self.swap_bodies_with_defect(name, version, next, bodies))
    }

    fn scan<'a>(&'a self, from: Option<&'a Cursor>, names_max: usize) -> StoreFuture<'a, ScanPage> {
        self.0.scan(from, names_max)
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> StoreFuture<'a, ClaimVerdict> {
        match self.1 {
            StoreDefect::HandsATokenToEveryone => Box::pin(async { Ok(ClaimVerdict::Claimed) }),
            _ => self.0.claim(claim),
        }
    }

    fn end_claim<'a>(
        &'a self,
        token: &'a ClaimToken,
        owner: Writer,
        attempt: u64,
        end: &'a ClaimEnd,
    ) -> StoreFuture<'a, ClaimEndVerdict> {
        self.0.end_claim(token, owner, attempt, end)
    }

    fn restore_claims<'a>(&'a self, claims: &'a [Claim]) -> StoreFuture<'a, Vec<RestoreVerdict>> {
        self.0.restore_claims(claims)
    }

    fn history(&self) -> StoreFuture<'_, History> {
        self.0.history()
    }

    fn writers(&self) -> StoreFuture<'_, WriterList> {
        self.0.writers()
    }

    fn register<'a>(&'a self, version: u64, next: &'a Registration) -> StoreFuture<'a, RegisterVerdict> {
        self.0.register(version, next)
    }

    fn unregister(&self, writer: Writer, version: u64) -> StoreFuture<'_, RegisterVerdict> {
        self.0.unregister(writer, version)
    }

    fn name_node<'a>(&'a self, node: NodeId, name: Option<&'a str>) -> StoreFuture<'a, ()> {
        self.0.name_node(node, name)
    }

    fn node_names(&self) -> StoreFuture<'_, NodeNames> {
        self.0.node_names()
    }

    fn clock(&self) -> StoreFuture<'_, Millis> {
        self.0.clock()
    }
}

#[test]
fn a_wrong_store_is_caught_by_the_suite_and_by_the_harvest() {
    for defect in [
        StoreDefect::AddsInsteadOfReplacing,
        StoreDefect::SwapsOverPuts,
        StoreDefect::ForgetsWhatItKept,
        StoreDefect::ForgetsItsSwaps,
        StoreDefect::HandsATokenToEveryone,
    ] {
        let caught = |run: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err();
        assert!(
            caught(&|| block_on(store_suite(async || DefectiveStore(memory(), defect)))),
            "by the suite: {}",
            defect as u8
        );
        let harvested = caught(&|| {
            for seed in 0..SEEDS {
                block_on(harvest(DefectiveStore(memory(), defect), seed));
            }
        });
        assert!(harvested, "by the harvest: {}", defect as u8);
    }
}

#[test]
fn a_store_that_is_wrong_about_bodies_is_caught() {
    for defect in [
        StoreDefect::GivesANodeOneBody,
        StoreDefect::LeavesBodiesWhenTheRowIsSwapped,
        StoreDefect::DropsBodiesThatWereNotNamed,
        StoreDefect::ReplacesBodiesBesideARowThatMoved,
        StoreDefect::ForgetsWhoWasFolded,
        StoreDefect::LaysBodiesOverThoseBefore,
    ] {
        let prove = || block_on(bodies::prove(&DefectiveStore(memory(), defect)));
        assert!(std::panic::catch_unwind(prove).is_err(), "{}", defect as u8);
    }
}
