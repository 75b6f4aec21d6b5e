use std::sync::Arc;

use quipu_model::shared::{
    BodyPut, BodyVerdict, Claim, ClaimEnd, ClaimVerdict, EndVerdict, Put, RegisterVerdict, Registration, Seen,
    SeenBodies, Snapshot, SwapVerdict, Token, Verdict, Version,
};
use quipu_model::{Answer, Cursor, MemoryStore, Millis, Name, Page, Writer, Writers};

use super::*;
use crate::SimClock;

/// Schedules of one run of the tests.
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
    let said =
        |seq: u64| Put { seq: quipu_model::shared::Seq(seq), ..cells::said(1, Default::default(), seq, seq.into()) };
    let (mut newest_acked, mut newest_refused) = (0, 0);
    for seq in 1..=200 {
        match block_on(store.put(&[(name, said(seq))])) {
            Ok(_) => newest_acked = seq,
            Err(quipu_model::StoreError::NotApplied { .. }) => newest_refused = seq,
            Err(_) => {}
        }
    }
    block_on(store.calm());
    let Tally { not_applied, applied, lost, late } = store.tally();
    assert!([not_applied, applied, lost, late].iter().all(|&count| count > 10), "{:?}", store.tally());
    let held = block_on(store.inner().read(name)).unwrap().snapshot.sum();
    assert!(held >= newest_acked.into(), "what was acknowledged is there");
    assert_ne!(held, newest_refused.into(), "what was refused is not");
}

#[test]
fn the_same_seed_is_the_same_schedule() {
    assert_eq!(block_on(harvest(memory(), 3)), block_on(harvest(memory(), 3)));
}

/// Ways in which a store may be wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bend {
    AddsInsteadOfReplacing,
    SwapsOverPuts,
    ForgetsWhatItKept,
    ForgetsItsSwaps,
    HandsATokenToEveryone,
}

/// A store that is wrong in one way: what the suite is tested on.
struct Bent(MemoryStore, Bend);

impl Bent {
    async fn put_adding(&self, puts: &[(Name<'_>, Put)]) -> Result<Vec<Verdict>, quipu_model::StoreError> {
        let mut verdicts = Vec::new();
        for (name, put) in puts {
            let held = self.0.read(*name).await?.snapshot.cells.get(&put.cell).map_or(0, |held| held.value);
            let put = Put { value: put.value + held, total: put.value + held, ..*put };
            verdicts.extend(self.0.put(&[(*name, put)]).await?);
        }
        Ok(verdicts)
    }

    async fn swap_bent(
        &self,
        name: Name<'_>,
        version: Version,
        next: Option<&Snapshot>,
    ) -> Result<SwapVerdict, quipu_model::StoreError> {
        let mut next = next.cloned();
        let mut expected = version;
        match (self.1, &mut next) {
            (Bend::ForgetsWhatItKept, Some(next)) => next.spent.clear(),
            (Bend::ForgetsItsSwaps, Some(next)) => next.swaps.clear(),
            (Bend::SwapsOverPuts, _) => {
                let present = self.0.read(name).await?.snapshot.version;
                expected = if present.swaps == version.swaps { present } else { version };
            }
            _ => {}
        }
        self.0.swap(name, expected, next.as_ref()).await
    }
}

impl Store for Bent {
    fn put<'a>(&'a self, puts: &'a [(Name<'a>, Put)]) -> Answer<'a, Vec<Verdict>> {
        match self.1 {
            Bend::AddsInsteadOfReplacing => Box::pin(self.put_adding(puts)),
            _ => self.0.put(puts),
        }
    }

    fn read<'a>(&'a self, name: Name<'a>) -> Answer<'a, Seen> {
        self.0.read(name)
    }

    fn put_body<'a>(&'a self, name: Name<'a>, put: &'a BodyPut) -> Answer<'a, BodyVerdict> {
        self.0.put_body(name, put)
    }

    fn read_bodies<'a>(&'a self, name: Name<'a>) -> Answer<'a, SeenBodies> {
        self.0.read_bodies(name)
    }

    fn swap<'a>(&'a self, name: Name<'a>, version: Version, next: Option<&'a Snapshot>) -> Answer<'a, SwapVerdict> {
        Box::pin(self.swap_bent(name, version, next))
    }

    fn scan<'a>(&'a self, from: Option<&'a Cursor>, names_max: usize) -> Answer<'a, Page> {
        self.0.scan(from, names_max)
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ClaimVerdict> {
        match self.1 {
            Bend::HandsATokenToEveryone => Box::pin(async { Ok(ClaimVerdict::Claimed) }),
            _ => self.0.claim(claim),
        }
    }

    fn end_claim<'a>(
        &'a self,
        token: &'a Token,
        owner: Writer,
        attempt: u64,
        end: &'a ClaimEnd,
    ) -> Answer<'a, EndVerdict> {
        self.0.end_claim(token, owner, attempt, end)
    }

    fn writers(&self) -> Answer<'_, Writers> {
        self.0.writers()
    }

    fn register<'a>(&'a self, version: u64, next: &'a Registration) -> Answer<'a, RegisterVerdict> {
        self.0.register(version, next)
    }

    fn unregister(&self, writer: Writer, version: u64) -> Answer<'_, RegisterVerdict> {
        self.0.unregister(writer, version)
    }

    fn clock(&self) -> Answer<'_, Millis> {
        self.0.clock()
    }
}

#[test]
fn a_wrong_store_is_caught_by_the_suite_and_by_the_harvest() {
    for bend in [
        Bend::AddsInsteadOfReplacing,
        Bend::SwapsOverPuts,
        Bend::ForgetsWhatItKept,
        Bend::ForgetsItsSwaps,
        Bend::HandsATokenToEveryone,
    ] {
        let caught = |run: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err();
        assert!(caught(&|| block_on(store_suite(async || Bent(memory(), bend)))), "by the suite: {}", bend as u8);
        let harvested = caught(&|| {
            for seed in 0..SEEDS {
                block_on(harvest(Bent(memory(), bend), seed));
            }
        });
        assert!(harvested, "by the harvest: {}", bend as u8);
    }
}
