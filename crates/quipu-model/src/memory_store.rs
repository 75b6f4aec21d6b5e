//! A store in memory: the contract of [`Store`], executable.
//!
//! In: calls of the port. Out: what [`shared`](crate::shared) says they come to.
//!
//! Every other store answers as this one does, given the same calls and the same time; the suite of `quipu-testkit` holds both to
//! it. Nothing is kept when it is dropped, so it serves tests, the simulator, and nodes of one process.
//!
//! Not here: faults (`quipu-testkit`).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ports::store::{
    History, NODE_NAME_BYTES_MAX, NodeNames, PUTS_MAX, PutResult, RESTORED_CLAIMS_MAX, SCAN_NAMES_MAX, within,
};
use crate::shared::body::Body;
use crate::shared::claim::CLAIM_REPLY_BYTES_MAX;
use crate::shared::registry::REGISTRATIONS_MAX;
use crate::shared::{
    Bodies, BodyPut, BodyVerdict, Claim, ClaimEnd, ClaimVerdict, EndVerdict, Put, RegisterVerdict, Registration,
    RestoreVerdict, Seen, SeenBodies, Snapshot, SwapVerdict, Token, Verdict, Version, body, claim, put,
};
use crate::{Answer, Call, Clock, Cursor, Millis, Name, NodeId, Page, Store, StoreError, Writer, Writers};

/// Most claims held at once: enough for tests and nodes of one process, and some 20 MB at the longest token. When full, those
/// whose window is over make room, and if none is, new tokens are refused; live ones are never forgotten.
pub const CLAIMS_MAX: usize = 1 << 16;

/// The store.
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

/// All that a store held at one moment, for a simulation in which stores lose data.
#[derive(Clone)]
pub struct Kept(State);

#[derive(Clone, Default)]
struct State {
    rows: BTreeMap<Box<[u8]>, Snapshot>,
    bodies: BTreeMap<Box<[u8]>, Bodies>,
    claims: BTreeMap<Token, Claim>,
    writers: BTreeMap<Writer, Registration>,
    names: NodeNames,
    at: Millis, // the newest time shown to anyone: what has expired for one does not come back for another
}

impl MemoryStore {
    /// An empty store that goes by this clock.
    pub fn new(clock: Arc<dyn Clock>) -> MemoryStore {
        MemoryStore { clock, state: Mutex::default() }
    }

    /// What it holds now.
    pub fn keep(&self) -> Kept {
        Kept(self.state().clone())
    }

    /// Goes back to what it held then; only its time goes on.
    pub fn go_back(&self, kept: &Kept) {
        let mut state = self.state();
        *state = State { at: state.at, ..kept.0.clone() };
    }

    /// Looks at a row as it is.
    pub fn look<T>(&self, name: Name<'_>, look: impl FnOnce(Option<&Snapshot>) -> T) -> T {
        look(self.state().rows.get(name.bytes()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is made by one assignment after all that could fail: a poisoned state is whole.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.at = state.at.max(self.clock.wall());
        state
    }
}

impl Store for MemoryStore {
    fn put<'a>(&'a self, puts: &'a [(Name<'a>, Put)]) -> Answer<'a, Vec<PutResult>> {
        Box::pin(async move {
            within(Call::Put, puts.len(), PUTS_MAX)?;
            let mut state = self.state();
            Ok(puts.iter().map(|(name, put)| Ok(state.put(*name, put))).collect())
        })
    }

    fn read<'a>(&'a self, name: Name<'a>) -> Answer<'a, Seen> {
        Box::pin(async move {
            let state = self.state();
            Ok(Seen { snapshot: state.rows.get(name.bytes()).cloned().unwrap_or_default(), at: state.at })
        })
    }

    fn put_body<'a>(&'a self, name: Name<'a>, put: &'a BodyPut) -> Answer<'a, BodyVerdict> {
        Box::pin(async move { Ok(self.state().put_body(name, put)) })
    }

    fn read_bodies<'a>(&'a self, name: Name<'a>) -> Answer<'a, SeenBodies> {
        Box::pin(async move {
            let state = self.state();
            let snapshot = state.rows.get(name.bytes()).cloned().unwrap_or_default();
            let bodies = state.bodies.get(name.bytes()).cloned().unwrap_or_default();
            Ok(SeenBodies { seen: Seen { snapshot, at: state.at }, bodies })
        })
    }

    fn swap<'a>(&'a self, name: Name<'a>, version: Version, next: Option<&'a Snapshot>) -> Answer<'a, SwapVerdict> {
        Box::pin(async move { Ok(self.state().swap(name, version, next)) })
    }

    fn swap_bodies<'a>(
        &'a self,
        name: Name<'a>,
        version: Version,
        next: &'a Snapshot,
        bodies: &'a [(Writer, Option<Body>)],
    ) -> Answer<'a, SwapVerdict> {
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

    fn scan<'a>(&'a self, from: Option<&'a Cursor>, names_max: usize) -> Answer<'a, Page> {
        Box::pin(async move {
            within(Call::Scan, names_max, SCAN_NAMES_MAX)?;
            let from = from.map_or(Bound::Unbounded, |Cursor(last)| Bound::Excluded(&**last));
            let state = self.state();
            let mut names: Vec<Box<[u8]>> = Vec::new();
            let mut rest = state.rows.range::<[u8], _>((from, Bound::Unbounded)).map(|(name, _)| name);
            names.extend(rest.by_ref().take(names_max.max(1)).cloned());
            let next = rest.next().and(names.last()).map(|last| Cursor(last.clone()));
            Ok(Page { names, next })
        })
    }

    fn claim<'a>(&'a self, asked: &'a Claim) -> Answer<'a, ClaimVerdict> {
        Box::pin(async move {
            let mut state = self.state();
            let at = state.at;
            state.make_room_for(Call::Claim, &asked.token)?;
            let mut known = state.claims.remove(&asked.token);
            let verdict = claim::claim(&mut known, asked, at);
            state.claims.extend(known.map(|known| (asked.token.clone(), known)));
            Ok(verdict)
        })
    }

    fn end_claim<'a>(
        &'a self,
        token: &'a Token,
        owner: Writer,
        attempt: u64,
        end: &'a ClaimEnd,
    ) -> Answer<'a, EndVerdict> {
        Box::pin(async move {
            if let ClaimEnd::Done(reply) = end {
                within(Call::EndClaim, reply.len(), CLAIM_REPLY_BYTES_MAX)?;
            }
            let mut state = self.state();
            let mut known = state.claims.remove(token);
            let verdict = claim::end(&mut known, owner, attempt, end);
            state.claims.extend(known.map(|known| (token.clone(), known)));
            Ok(verdict)
        })
    }

    fn restore_claims<'a>(&'a self, claims: &'a [Claim]) -> Answer<'a, Vec<RestoreVerdict>> {
        Box::pin(async move {
            within(Call::RestoreClaims, claims.len(), RESTORED_CLAIMS_MAX)?;
            let mut state = self.state();
            let at = state.at;
            let mut verdicts = Vec::with_capacity(claims.len());
            for asked in claims {
                state.make_room_for(Call::RestoreClaims, &asked.token)?;
                let mut known = state.claims.remove(&asked.token);
                verdicts.push(claim::restore(&mut known, asked, at));
                state.claims.extend(known.map(|known| (asked.token.clone(), known)));
            }
            Ok(verdicts)
        })
    }

    fn history(&self) -> Answer<'_, History> {
        // It lives as long as its process does.
        Box::pin(async move { Ok(History::default()) })
    }

    fn writers(&self) -> Answer<'_, Writers> {
        Box::pin(async move {
            let state = self.state();
            Ok(Writers { registrations: state.writers.values().copied().collect(), at: state.at })
        })
    }

    fn register<'a>(&'a self, version: u64, next: &'a Registration) -> Answer<'a, RegisterVerdict> {
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

    fn unregister(&self, writer: Writer, version: u64) -> Answer<'_, RegisterVerdict> {
        Box::pin(async move {
            let mut state = self.state();
            if state.writers.get(&writer).is_none_or(|known| known.version != version) {
                return Ok(RegisterVerdict::Moved);
            }
            state.writers.remove(&writer);
            Ok(RegisterVerdict::Registered)
        })
    }

    fn name_node<'a>(&'a self, node: NodeId, name: Option<&'a str>) -> Answer<'a, ()> {
        Box::pin(async move {
            within(Call::NameNode, name.map_or(0, str::len), NODE_NAME_BYTES_MAX)?;
            let names = &mut self.state().names;
            match name {
                Some(name) => drop(names.insert(node, name.to_owned())),
                None => drop(names.remove(&node)),
            }
            Ok(())
        })
    }

    fn node_names(&self) -> Answer<'_, NodeNames> {
        Box::pin(async move { Ok(self.state().names.clone()) })
    }

    fn clock(&self) -> Answer<'_, Millis> {
        Box::pin(async move { Ok(self.state().at) })
    }
}

impl State {
    /// Makes room for a claim of this token; refuses the call if all claims are live.
    fn make_room_for(&mut self, call: Call, token: &Token) -> Result<(), StoreError> {
        if self.claims.len() >= CLAIMS_MAX && !self.claims.contains_key(token) {
            let at = self.at;
            self.claims.retain(|_, claim| claim.forget_at > at);
            within(call, self.claims.len() + 1, CLAIMS_MAX)?;
        }
        Ok(())
    }

    fn swap(&mut self, name: Name<'_>, version: Version, next: Option<&Snapshot>) -> SwapVerdict {
        let before = self.rows.get(name.bytes());
        if before.map_or(Version::ABSENT, |row| row.version) != version {
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
            // The row is lent to the law and put back, whatever it says.
            Some(row) => {
                let mut lent = Some(std::mem::take(row));
                let verdict = put::put(&mut lent, asked, at);
                *row = lent.unwrap_or_default();
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
    use crate::shared::{CellId, Holder, Seq, Shard, Stage};
    use crate::{Epoch, Incarnation, NodeId};

    struct Hand(AtomicU64);

    impl Clock for Hand {
        fn wall(&self) -> Millis {
            Millis(self.0.load(Ordering::SeqCst))
        }

        fn elapsed(&self) -> Duration {
            Duration::ZERO
        }
    }

    fn store() -> (MemoryStore, Arc<Hand>) {
        let clock = Arc::new(Hand(AtomicU64::new(1_000)));
        (MemoryStore::new(clock.clone()), clock)
    }

    /// A memory store answers at the first poll.
    fn now<T>(answer: Answer<'_, T>) -> Result<T, crate::StoreError> {
        match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
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
        now(store.put(&[put(1, 5)])).unwrap();
        let kept = store.keep();
        now(store.put(&[put(2, 8)])).unwrap();
        clock.0.store(2_000, Ordering::SeqCst);
        store.go_back(&kept);
        assert_eq!(store.look(name, |row| row.map(Snapshot::sum)), Some(5));
        assert_eq!(now(store.clock()).unwrap(), Millis(2_000));
    }

    #[test]
    fn a_call_that_nobody_polls_does_nothing() {
        let (store, _) = store();
        let next = Snapshot { version: Version { swaps: 1, ..Version::ABSENT }, base: Some(1), ..Snapshot::default() };
        drop(store.swap(Name::new(b"x").unwrap(), Version::ABSENT, Some(&next)));
        assert_eq!(now(store.read(Name::new(b"x").unwrap())).unwrap().snapshot, Snapshot::default());
    }

    #[test]
    fn its_time_does_not_go_back_when_the_clock_does() {
        let (store, clock) = store();
        assert_eq!(now(store.clock()).unwrap(), Millis(1_000));
        clock.0.store(10, Ordering::SeqCst);
        assert_eq!(now(store.clock()).unwrap(), Millis(1_000));
    }

    #[test]
    fn the_registry_is_full_at_its_bound_and_those_in_it_go_on() {
        let (store, _) = store();
        let registration = |node, version| Registration {
            writer: writer(node),
            holder: Some(Holder(1)),
            lease_until: Millis(5),
            stage: Stage::Live,
            version,
        };
        for node in 0..REGISTRATIONS_MAX as u64 {
            assert_eq!(now(store.register(0, &registration(node, 1))).unwrap(), RegisterVerdict::Registered);
        }
        let more = registration(u64::MAX, 1);
        assert_eq!(now(store.register(0, &more)).unwrap(), RegisterVerdict::Full);
        assert_eq!(now(store.register(1, &registration(7, 2))).unwrap(), RegisterVerdict::Registered);
        assert_eq!(now(store.unregister(writer(7), 2)).unwrap(), RegisterVerdict::Registered);
        assert_eq!(now(store.register(0, &more)).unwrap(), RegisterVerdict::Registered);
    }

    #[test]
    fn new_tokens_are_refused_at_the_bound_and_live_ones_never_forgotten() {
        let (store, clock) = store();
        let claim = |number: usize| Claim {
            token: Token::new(&number.to_be_bytes()).unwrap(),
            owner: writer(1),
            attempt: 1,
            payload: 1,
            forget_at: Millis(if number < 3 { 2_000 } else { 9_000 }),
            reply: None,
        };
        for number in 0..CLAIMS_MAX {
            assert_eq!(now(store.claim(&claim(number))).unwrap(), ClaimVerdict::Claimed);
        }
        assert!(matches!(now(store.claim(&claim(CLAIMS_MAX))), Err(crate::StoreError::NotApplied { .. })));
        let other = Claim { attempt: 2, ..claim(5) };
        assert_eq!(now(store.claim(&other)).unwrap(), ClaimVerdict::InFlight { owner: writer(1), attempt: 1 });
        clock.0.store(2_000, Ordering::SeqCst);
        assert_eq!(
            now(store.claim(&claim(CLAIMS_MAX))).unwrap(),
            ClaimVerdict::Claimed,
            "those that are over make room"
        );
    }
}
