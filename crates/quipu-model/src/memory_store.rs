//! In-memory store: the executable contract of [`Store`].
//!
//! In: calls of the port. Out: the results that [`shared`](crate::shared) computes.
//!
//! Every other store returns the same results, given the same calls and the same time. The suite of
//! `quipu-testkit` tests them against this one. A dropped store loses its data, so it serves tests,
//! the simulator, and nodes of one process.
//!
//! Not here: faults (`quipu-testkit`).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ports::store::{
    History, NODE_NAME_BYTES_MAX, NodeNames, PUTS_MAX, PutResult, RESTORED_CLAIMS_MAX, SCAN_NAMES_MAX, check_bound,
};
use crate::shared::body::StoredBody;
use crate::shared::claim::CLAIM_REPLY_BYTES_MAX;
use crate::shared::registry::REGISTRATIONS_MAX;
use crate::shared::{
    Bodies, BodyPut, BodyVerdict, Claim, ClaimEnd, ClaimEndVerdict, ClaimToken, ClaimVerdict, FetchedRow, Put,
    RegisterVerdict, Registration, RestoreVerdict, RowVersion, RowWithBodies, Snapshot, SwapVerdict, Verdict, body,
    claim, put,
};
use crate::{
    Clock, Cursor, Millis, Name, NodeId, ScanPage, Store, StoreCall, StoreError, StoreFuture, Writer, WriterList,
};

/// Most claims held at once: enough for tests and nodes of one process, and some 20 MB at the
/// longest token. At the bound the store drops claims with an expired window. If there are none it
/// refuses new tokens; it never forgets live ones.
pub const CLAIMS_MAX: usize = 1 << 16;

/// An in-memory store.
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    state: Mutex<StoreState>,
}

/// Copy of a store's whole state, for simulations in which stores lose data.
#[derive(Clone)]
pub struct MemoryStoreBackup(StoreState);

#[derive(Clone, Default)]
struct StoreState {
    rows: BTreeMap<Box<[u8]>, Snapshot>,
    bodies: BTreeMap<Box<[u8]>, Bodies>,
    claims: BTreeMap<ClaimToken, Claim>,
    writers: BTreeMap<Writer, Registration>,
    names: NodeNames,
    // The newest time shown to any caller: a counter that expired for one stays expired for all.
    at: Millis,
}

impl MemoryStore {
    /// Creates an empty store with this clock.
    pub fn new(clock: Arc<dyn Clock>) -> MemoryStore {
        MemoryStore { clock, state: Mutex::default() }
    }

    /// Copies the present state.
    pub fn backup(&self) -> MemoryStoreBackup {
        MemoryStoreBackup(self.state().clone())
    }

    /// Restores the state of a backup; only the store's time goes on.
    pub fn restore_backup(&self, backup: &MemoryStoreBackup) {
        let mut state = self.state();
        *state = StoreState { at: state.at, ..backup.0.clone() };
    }

    /// Passes the stored row to `inspect`.
    pub fn with_row<T>(&self, name: Name<'_>, inspect: impl FnOnce(Option<&Snapshot>) -> T) -> T {
        inspect(self.state().rows.get(name.bytes()))
    }

    fn state(&self) -> MutexGuard<'_, StoreState> {
        // Each change is one assignment after all steps that can fail, so a poisoned state is
        // consistent.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.at = state.at.max(self.clock.wall());
        state
    }
}

impl Store for MemoryStore {
    fn put<'a>(&'a self, puts: &'a [(Name<'a>, Put)]) -> StoreFuture<'a, Vec<PutResult>> {
        Box::pin(async move {
            check_bound(StoreCall::Put, puts.len(), PUTS_MAX)?;
            let mut state = self.state();
            Ok(puts.iter().map(|(name, put)| Ok(state.put(*name, put))).collect())
        })
    }

    fn read<'a>(&'a self, name: Name<'a>) -> StoreFuture<'a, FetchedRow> {
        Box::pin(async move {
            let state = self.state();
            Ok(FetchedRow { snapshot: state.rows.get(name.bytes()).cloned().unwrap_or_default(), at: state.at })
        })
    }

    fn put_body<'a>(&'a self, name: Name<'a>, put: &'a BodyPut) -> StoreFuture<'a, BodyVerdict> {
        Box::pin(async move { Ok(self.state().put_body(name, put)) })
    }

    fn read_bodies<'a>(&'a self, name: Name<'a>) -> StoreFuture<'a, RowWithBodies> {
        Box::pin(async move {
            let state = self.state();
            let snapshot = state.rows.get(name.bytes()).cloned().unwrap_or_default();
            let bodies = state.bodies.get(name.bytes()).cloned().unwrap_or_default();
            Ok(RowWithBodies { row: FetchedRow { snapshot, at: state.at }, bodies })
        })
    }

    fn swap<'a>(
        &'a self,
        name: Name<'a>,
        version: RowVersion,
        next: Option<&'a Snapshot>,
    ) -> StoreFuture<'a, SwapVerdict> {
        Box::pin(async move { Ok(self.state().swap(name, version, next)) })
    }

    fn swap_bodies<'a>(
        &'a self,
        name: Name<'a>,
        version: RowVersion,
        next: &'a Snapshot,
        bodies: &'a [(Writer, Option<StoredBody>)],
    ) -> StoreFuture<'a, SwapVerdict> {
        Box::pin(async move {
            let mut state = self.state();
            let verdict = state.swap(name, version, Some(next));
            if verdict == SwapVerdict::Swapped {
                let beside = state.bodies.entry(name.bytes().into()).or_default();
                for (writer, body) in bodies {
                    beside.remove(writer);
                    beside.extend(body.clone().map(|body| (*writer, body)));
                }
            }
            Ok(verdict)
        })
    }

    fn scan<'a>(&'a self, from: Option<&'a Cursor>, names_max: usize) -> StoreFuture<'a, ScanPage> {
        Box::pin(async move {
            check_bound(StoreCall::Scan, names_max, SCAN_NAMES_MAX)?;
            let from = from.map_or(Bound::Unbounded, |Cursor(last)| Bound::Excluded(&**last));
            let state = self.state();
            let mut names: Vec<Box<[u8]>> = Vec::new();
            let mut rest = state.rows.range::<[u8], _>((from, Bound::Unbounded)).map(|(name, _)| name);
            names.extend(rest.by_ref().take(names_max.max(1)).cloned());
            let next = rest.next().and(names.last()).map(|last| Cursor(last.clone()));
            Ok(ScanPage { names, next })
        })
    }

    fn claim<'a>(&'a self, asked: &'a Claim) -> StoreFuture<'a, ClaimVerdict> {
        Box::pin(async move {
            let mut state = self.state();
            let at = state.at;
            state.make_room_for(StoreCall::Claim, &asked.token)?;
            let mut known = state.claims.remove(&asked.token);
            let verdict = claim::claim(&mut known, asked, at);
            state.claims.extend(known.map(|known| (asked.token.clone(), known)));
            Ok(verdict)
        })
    }

    fn end_claim<'a>(
        &'a self,
        token: &'a ClaimToken,
        owner: Writer,
        attempt: u64,
        end: &'a ClaimEnd,
    ) -> StoreFuture<'a, ClaimEndVerdict> {
        Box::pin(async move {
            if let ClaimEnd::Done(reply) = end {
                check_bound(StoreCall::EndClaim, reply.len(), CLAIM_REPLY_BYTES_MAX)?;
            }
            let mut state = self.state();
            let mut known = state.claims.remove(token);
            let verdict = claim::end(&mut known, owner, attempt, end);
            state.claims.extend(known.map(|known| (token.clone(), known)));
            Ok(verdict)
        })
    }

    fn restore_claims<'a>(&'a self, claims: &'a [Claim]) -> StoreFuture<'a, Vec<RestoreVerdict>> {
        Box::pin(async move {
            check_bound(StoreCall::RestoreClaims, claims.len(), RESTORED_CLAIMS_MAX)?;
            let mut state = self.state();
            let at = state.at;
            let mut verdicts = Vec::with_capacity(claims.len());
            for asked in claims {
                state.make_room_for(StoreCall::RestoreClaims, &asked.token)?;
                let mut known = state.claims.remove(&asked.token);
                verdicts.push(claim::restore(&mut known, asked, at));
                state.claims.extend(known.map(|known| (asked.token.clone(), known)));
            }
            Ok(verdicts)
        })
    }

    fn history(&self) -> StoreFuture<'_, History> {
        // An in-memory store ends with its process, so its history never changes.
        Box::pin(async move { Ok(History::default()) })
    }

    fn writers(&self) -> StoreFuture<'_, WriterList> {
        Box::pin(async move {
            let state = self.state();
            Ok(WriterList { registrations: state.writers.values().copied().collect(), at: state.at })
        })
    }

    fn register<'a>(&'a self, version: u64, next: &'a Registration) -> StoreFuture<'a, RegisterVerdict> {
        Box::pin(async move {
            let mut state = self.state();
            let present = state.writers.get(&next.writer).map_or(0, |known| known.version);
            if present != version {
                return Ok(RegisterVerdict::Moved);
            }
            if present == 0 && state.writers.len() >= REGISTRATIONS_MAX {
                return Ok(RegisterVerdict::Full);
            }
            state.writers.insert(next.writer, *next);
            Ok(RegisterVerdict::Registered)
        })
    }

    fn unregister(&self, writer: Writer, version: u64) -> StoreFuture<'_, RegisterVerdict> {
        Box::pin(async move {
            let mut state = self.state();
            if state.writers.get(&writer).is_none_or(|known| known.version != version) {
                return Ok(RegisterVerdict::Moved);
            }
            state.writers.remove(&writer);
            Ok(RegisterVerdict::Registered)
        })
    }

    fn name_node<'a>(&'a self, node: NodeId, name: Option<&'a str>) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            check_bound(StoreCall::NameNode, name.map_or(0, str::len), NODE_NAME_BYTES_MAX)?;
            let names = &mut self.state().names;
            match name {
                Some(name) => drop(names.insert(node, name.to_owned())),
                None => drop(names.remove(&node)),
            }
            Ok(())
        })
    }

    fn node_names(&self) -> StoreFuture<'_, NodeNames> {
        Box::pin(async move { Ok(self.state().names.clone()) })
    }

    fn clock(&self) -> StoreFuture<'_, Millis> {
        Box::pin(async move { Ok(self.state().at) })
    }
}

impl StoreState {
    /// Makes room for a claim of this token; refuses the call if all claims are live.
    fn make_room_for(&mut self, call: StoreCall, token: &ClaimToken) -> Result<(), StoreError> {
        if self.claims.len() >= CLAIMS_MAX && !self.claims.contains_key(token) {
            let at = self.at;
            self.claims.retain(|_, claim| claim.forget_at > at);
            check_bound(call, self.claims.len() + 1, CLAIMS_MAX)?;
        }
        Ok(())
    }

    fn swap(&mut self, name: Name<'_>, version: RowVersion, next: Option<&Snapshot>) -> SwapVerdict {
        let before = self.rows.get(name.bytes());
        if before.map_or(RowVersion::ABSENT, |row| row.version) != version {
            return SwapVerdict::Moved;
        }
        if next.map(|next| next.epoch) != before.map(|row| row.epoch) {
            self.bodies.remove(name.bytes());
        }
        match next {
            Some(next) => self.rows.insert(name.bytes().into(), next.clone()),
            None => self.rows.remove(name.bytes()),
        };
        SwapVerdict::Swapped
    }

    fn put_body(&mut self, name: Name<'_>, asked: &BodyPut) -> BodyVerdict {
        let at = self.at;
        let mut row = self.rows.remove(name.bytes());
        let mut bodies = self.bodies.remove(name.bytes()).unwrap_or_default();
        let verdict = body::put_body(&mut row, &mut bodies, asked, at);
        self.rows.extend(row.map(|row| (name.bytes().into(), row)));
        if !bodies.is_empty() {
            self.bodies.insert(name.bytes().into(), bodies);
        }
        verdict
    }

    fn put(&mut self, name: Name<'_>, asked: &Put) -> Verdict {
        let at = self.at;
        match self.rows.get_mut(name.bytes()) {
            // `put` works on an `Option`, so the row is taken out and put back after any verdict.
            Some(row) => {
                let mut slot = Some(std::mem::take(row));
                let verdict = put::put(&mut slot, asked, at);
                *row = slot.unwrap_or_default();
                verdict
            }
            None => {
                let mut made = None;
                let verdict = put::put(&mut made, asked, at);
                self.rows.extend(made.map(|row| (name.bytes().into(), row)));
                verdict
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use super::*;
    use crate::shared::{CellId, Holder, Seq, Shard, WriterStage};
    use crate::{Epoch, Incarnation, NodeId};

    struct ManualClock(AtomicU64);

    impl Clock for ManualClock {
        fn wall(&self) -> Millis {
            Millis(self.0.load(Ordering::SeqCst))
        }

        fn elapsed(&self) -> Duration {
            Duration::ZERO
        }
    }

    fn store() -> (MemoryStore, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock(AtomicU64::new(1_000)));
        (MemoryStore::new(clock.clone()), clock)
    }

    /// Polls once: a memory store is ready at the first poll.
    fn poll_once<T>(future: StoreFuture<'_, T>) -> Result<T, crate::StoreError> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("nothing to wait for"),
        }
    }

    fn writer(node: u64) -> Writer {
        Writer { node: NodeId(node), incarnation: Incarnation(1) }
    }

    #[test]
    fn a_store_goes_back_to_what_it_held_and_its_time_goes_on() {
        let (store, clock) = store();
        let (name, id) = (Name::new(b"a").unwrap(), Writer { node: NodeId(1), incarnation: Incarnation(1) });
        let cell = CellId { writer: id, shard: Shard(0) };
        let put = |seq, value| (name, Put { cell, epoch: Epoch::FIRST, seq: Seq(seq), value, total: value });
        poll_once(store.put(&[put(1, 5)])).unwrap();
        let backup = store.backup();
        poll_once(store.put(&[put(2, 8)])).unwrap();
        clock.0.store(2_000, Ordering::SeqCst);
        store.restore_backup(&backup);
        assert_eq!(store.with_row(name, |row| row.map(Snapshot::sum)), Some(5));
        assert_eq!(poll_once(store.clock()).unwrap(), Millis(2_000));
    }

    #[test]
    fn a_call_that_nobody_polls_does_nothing() {
        let (store, _) = store();
        let next =
            Snapshot { version: RowVersion { swaps: 1, ..RowVersion::ABSENT }, base: Some(1), ..Snapshot::default() };
        drop(store.swap(Name::new(b"x").unwrap(), RowVersion::ABSENT, Some(&next)));
        assert_eq!(poll_once(store.read(Name::new(b"x").unwrap())).unwrap().snapshot, Snapshot::default());
    }

    #[test]
    fn its_time_does_not_go_back_when_the_clock_does() {
        let (store, clock) = store();
        assert_eq!(poll_once(store.clock()).unwrap(), Millis(1_000));
        clock.0.store(10, Ordering::SeqCst);
        assert_eq!(poll_once(store.clock()).unwrap(), Millis(1_000));
    }

    #[test]
    fn the_registry_is_full_at_its_bound_and_those_in_it_go_on() {
        let (store, _) = store();
        let registration = |node, version| Registration {
            writer: writer(node),
            holder: Some(Holder(1)),
            lease_until: Millis(5),
            stage: WriterStage::Live,
            version,
        };
        for node in 0..REGISTRATIONS_MAX as u64 {
            assert_eq!(poll_once(store.register(0, &registration(node, 1))).unwrap(), RegisterVerdict::Registered);
        }
        let more = registration(u64::MAX, 1);
        assert_eq!(poll_once(store.register(0, &more)).unwrap(), RegisterVerdict::Full);
        assert_eq!(poll_once(store.register(1, &registration(7, 2))).unwrap(), RegisterVerdict::Registered);
        assert_eq!(poll_once(store.unregister(writer(7), 2)).unwrap(), RegisterVerdict::Registered);
        assert_eq!(poll_once(store.register(0, &more)).unwrap(), RegisterVerdict::Registered);
    }

    #[test]
    fn new_tokens_are_refused_at_the_bound_and_live_ones_never_forgotten() {
        let (store, clock) = store();
        let claim = |number: usize| Claim {
            token: ClaimToken::new(&number.to_be_bytes()).unwrap(),
            owner: writer(1),
            attempt: 1,
            payload: 1,
            forget_at: Millis(if number < 3 { 2_000 } else { 9_000 }),
            reply: None,
        };
        for number in 0..CLAIMS_MAX {
            assert_eq!(poll_once(store.claim(&claim(number))).unwrap(), ClaimVerdict::Claimed);
        }
        assert!(matches!(poll_once(store.claim(&claim(CLAIMS_MAX))), Err(crate::StoreError::NotApplied { .. })));
        let other = Claim { attempt: 2, ..claim(5) };
        assert_eq!(poll_once(store.claim(&other)).unwrap(), ClaimVerdict::InFlight { owner: writer(1), attempt: 1 });
        clock.0.store(2_000, Ordering::SeqCst);
        assert_eq!(
            poll_once(store.claim(&claim(CLAIMS_MAX))).unwrap(),
            ClaimVerdict::Claimed,
            "those that are over make room"
        );
    }
}
