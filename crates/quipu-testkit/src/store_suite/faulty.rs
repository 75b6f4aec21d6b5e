//! Wraps a store in a faulty network.
//!
//! In: any store, and a seed. Out: the same store, which answers each changing call in one of four
//! ways:
//!
//! - not applied, and answered so;
//! - applied and answered;
//! - applied, with the answer lost;
//! - applied late, after later calls, with the answer lost.
//!
//! Of a put with a lost answer, any part may have been put.
//!
//! Invariants:
//! - every answer is the inner store's;
//! - a call answered as not applied is never applied;
//! - after [`FaultyStore::calm`] no call is under way any more.

use std::sync::{Mutex, MutexGuard, PoisonError};

use quipu_model::shared::body::StoredBody;
use quipu_model::shared::{
    BodyPut, BodyVerdict, Claim, ClaimEnd, ClaimEndVerdict, ClaimToken, ClaimVerdict, FetchedRow, Put, RegisterVerdict,
    Registration, RestoreVerdict, RowVersion, RowWithBodies, Snapshot, SwapVerdict,
};
use quipu_model::{
    Cursor, History, Millis, Name, NodeId, NodeNames, PutResult, ScanPage, Store, StoreCall, StoreError, StoreFuture,
    Writer, WriterList,
};

use crate::SeededRng;

/// Most late calls under way; past it a call is applied at once, and its answer lost. More than a
/// schedule sends in the longest delay.
const LATE_MAX: usize = 256;

/// Longest delay, in calls: several swaps and puts of all nodes fit in between.
const LATE_BY_MAX: usize = 24;

/// A store behind faults.
pub struct FaultyStore<S> {
    inner: S,
    rng: SeededRng,
    percent: usize, // percentage of calls that meet a fault
    state: Mutex<FaultyState>,
}

#[derive(Default)]
struct FaultyState {
    calm: bool,
    calls: u64,
    late: Vec<(u64, LateCall)>, // with the number of the call at which it arrives
    tally: StoreTally,
}

/// Number of calls by fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreTally {
    /// Refused, and answered so.
    pub not_applied: u64,
    /// Applied and answered.
    pub applied: u64,
    /// Applied at once, without an answer.
    pub lost: u64,
    /// Applied after later calls, without an answer.
    pub late: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreFault {
    NotApplied,
    None,
    Lost,
    Late,
}

enum LateCall {
    Put(Vec<(Box<[u8]>, Put)>),
    PutBody(Box<[u8]>, Box<BodyPut>),
    Swap(Box<[u8]>, RowVersion, Option<Snapshot>),
    SwapBodies(Box<[u8]>, RowVersion, Box<Snapshot>, Vec<(Writer, Option<StoredBody>)>),
    Claim(Claim),
    RestoreClaims(Vec<Claim>),
    EndClaim(ClaimToken, Writer, u64, ClaimEnd),
    Register(u64, Registration),
    Unregister(Writer, u64),
    NameNode(NodeId, Option<String>),
}

/// Stands for a driver's error.
#[derive(Debug, thiserror::Error)]
#[error("a fault was injected")]
struct InjectedFault;

impl<S: Store> FaultyStore<S> {
    /// Creates a store that meets a fault in `percent` of its calls, as the seed decides.
    pub fn new(inner: S, seed: u64, percent: usize) -> FaultyStore<S> {
        FaultyStore { inner, rng: SeededRng::new(seed), percent, state: Mutex::default() }
    }

    /// The inner store.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Stops all faults; every late call arrives, in any order.
    pub async fn calm(&self) {
        let mut late = {
            let mut state = self.state();
            state.calm = true;
            std::mem::take(&mut state.late)
        };
        self.rng.shuffle(&mut late);
        for (_, call) in late {
            self.apply_late_call(call).await;
        }
    }

    /// Number of calls so far, by fault.
    pub fn tally(&self) -> StoreTally {
        self.state().tally
    }

    fn state(&self) -> MutexGuard<'_, FaultyState> {
        // Each change is one assignment, so the state is never half-written.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies the due late calls, and draws the fault of the next call.
    async fn draw_fault(&self) -> StoreFault {
        let due: Vec<LateCall> = {
            let mut state = self.state();
            state.calls += 1;
            let now = state.calls;
            state.late.extract_if(.., |(at, _)| *at <= now).map(|(_, call)| call).collect()
        };
        for call in due {
            self.apply_late_call(call).await;
        }
        let mut state = self.state();
        let fault = match self.rng.below(3) {
            _ if state.calm || !self.rng.chance(self.percent) => StoreFault::None,
            0 => StoreFault::NotApplied,
            1 => StoreFault::Lost,
            _ if state.late.len() >= LATE_MAX => StoreFault::Lost,
            _ => StoreFault::Late,
        };
        let tally = &mut state.tally;
        *match fault {
            StoreFault::NotApplied => &mut tally.not_applied,
            StoreFault::None => &mut tally.applied,
            StoreFault::Lost => &mut tally.lost,
            StoreFault::Late => &mut tally.late,
        } += 1;
        fault
    }

    async fn apply_late_call(&self, call: LateCall) {
        // No caller waits for the answer, and the contract allows any.
        let _ = match &call {
            LateCall::Put(puts) => self.put_some(puts).await.map(drop),
            LateCall::PutBody(name, put) => match Name::new(name) {
                Ok(name) => self.inner.put_body(name, put).await.map(drop),
                Err(_) => Ok(()),
            },
            LateCall::Swap(name, version, next) => match Name::new(name) {
                Ok(name) => self.inner.swap(name, *version, next.as_ref()).await.map(drop),
                Err(_) => Ok(()),
            },
            LateCall::SwapBodies(name, version, next, bodies) => match Name::new(name) {
                Ok(name) => self.inner.swap_bodies(name, *version, next, bodies).await.map(drop),
                Err(_) => Ok(()),
            },
            LateCall::Claim(claim) => self.inner.claim(claim).await.map(drop),
            LateCall::RestoreClaims(claims) => self.inner.restore_claims(claims).await.map(drop),
            LateCall::EndClaim(token, owner, attempt, end) => {
                self.inner.end_claim(token, *owner, *attempt, end).await.map(drop)
            }
            LateCall::Register(version, next) => self.inner.register(*version, next).await.map(drop),
            LateCall::Unregister(writer, version) => self.inner.unregister(*writer, *version).await.map(drop),
            LateCall::NameNode(node, name) => self.inner.name_node(*node, name.as_deref()).await,
        };
    }

    /// Puts any part of the cells, as a connection that breaks half-way does.
    async fn put_some(&self, puts: &[(Box<[u8]>, Put)]) -> Result<(), StoreError> {
        let mut some = Vec::new();
        for (name, put) in puts {
            if let Ok(name) = Name::new(name)
                && (puts.len() == 1 || self.rng.chance(70))
            {
                some.push((name, *put));
            }
        }
        self.inner.put(&some).await.map(drop)
    }

    /// Runs a changing call through its fault.
    async fn run_change<T>(
        &self,
        call: StoreCall,
        now: impl Future<Output = Result<T, StoreError>>,
        late: impl FnOnce() -> LateCall,
    ) -> Result<T, StoreError> {
        match self.draw_fault().await {
            StoreFault::None => now.await,
            StoreFault::NotApplied => Err(StoreError::NotApplied { call, source: Box::new(InjectedFault) }),
            StoreFault::Lost => {
                self.apply_late_call(late()).await;
                Err(StoreError::Unknown { call, source: Box::new(InjectedFault) })
            }
            StoreFault::Late => {
                let mut state = self.state();
                let at = state.calls + 1 + self.rng.below(LATE_BY_MAX) as u64;
                state.late.push((at, late()));
                Err(StoreError::Unknown { call, source: Box::new(InjectedFault) })
            }
        }
    }

    /// Runs a reading call: it is answered or not.
    async fn run_read<T>(
        &self,
        call: StoreCall,
        now: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match self.draw_fault().await {
            StoreFault::None => now.await,
            _ => Err(StoreError::NotApplied { call, source: Box::new(InjectedFault) }),
        }
    }
}

impl<S: Store> Store for FaultyStore<S> {
    fn put<'a>(&'a self, puts: &'a [(Name<'a>, Put)]) -> StoreFuture<'a, Vec<PutResult>> {
        let late = || LateCall::Put(puts.iter().map(|(name, put)| (name.bytes().into(), *put)).collect());
        Box::pin(self.run_change(StoreCall::Put, self.inner.put(puts), late))
    }

    fn read<'a>(&'a self, name: Name<'a>) -> StoreFuture<'a, FetchedRow> {
        Box::pin(self.run_read(StoreCall::Read, self.inner.read(name)))
    }

    fn put_body<'a>(&'a self, name: Name<'a>, put: &'a BodyPut) -> StoreFuture<'a, BodyVerdict> {
        let late = move || LateCall::PutBody(name.bytes().into(), Box::new(put.clone()));
        Box::pin(self.run_change(StoreCall::PutBody, self.inner.put_body(name, put), late))
    }

    fn read_bodies<'a>(&'a self, name: Name<'a>) -> StoreFuture<'a, RowWithBodies> {
        Box::pin(self.run_read(StoreCall::ReadBodies, self.inner.read_bodies(name)))
    }

    fn swap<'a>(
        &'a self,
        name: Name<'a>,
        version: RowVersion,
        next: Option<&'a Snapshot>,
    ) -> StoreFuture<'a, SwapVerdict> {
        let late = move || LateCall::Swap(name.bytes().into(), version, next.cloned());
        Box::pin(self.run_change(StoreCall::Swap, self.inner.swap(name, version, next), late))
    }

    fn swap_bodies<'a>(
        &'a self,
        name: Name<'a>,
        version: RowVersion,
        next: &'a Snapshot,
        bodies: &'a [(Writer, Option<StoredBody>)],
    ) -> StoreFuture<'a, SwapVerdict> {
        let late = move || LateCall::SwapBodies(name.bytes().into(), version, Box::new(next.clone()), bodies.to_vec());
        Box::pin(self.run_change(StoreCall::SwapBodies, self.inner.swap_bodies(name, version, next, bodies), late))
    }

    fn scan<'a>(&'a self, from: Option<&'a Cursor>, names_max: usize) -> StoreFuture<'a, ScanPage> {
        Box::pin(self.run_read(StoreCall::Scan, self.inner.scan(from, names_max)))
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> StoreFuture<'a, ClaimVerdict> {
        Box::pin(self.run_change(StoreCall::Claim, self.inner.claim(claim), || LateCall::Claim(claim.clone())))
    }

    fn end_claim<'a>(
        &'a self,
        token: &'a ClaimToken,
        owner: Writer,
        attempt: u64,
        end: &'a ClaimEnd,
    ) -> StoreFuture<'a, ClaimEndVerdict> {
        let late = move || LateCall::EndClaim(token.clone(), owner, attempt, end.clone());
        Box::pin(self.run_change(StoreCall::EndClaim, self.inner.end_claim(token, owner, attempt, end), late))
    }

    fn restore_claims<'a>(&'a self, claims: &'a [Claim]) -> StoreFuture<'a, Vec<RestoreVerdict>> {
        let late = || LateCall::RestoreClaims(claims.to_vec());
        Box::pin(self.run_change(StoreCall::RestoreClaims, self.inner.restore_claims(claims), late))
    }

    fn history(&self) -> StoreFuture<'_, History> {
        Box::pin(self.run_read(StoreCall::History, self.inner.history()))
    }

    fn problems(&self) -> StoreFuture<'_, Vec<String>> {
        Box::pin(self.run_read(StoreCall::Problems, self.inner.problems()))
    }

    fn writers(&self) -> StoreFuture<'_, WriterList> {
        Box::pin(self.run_read(StoreCall::Writers, self.inner.writers()))
    }

    fn register<'a>(&'a self, version: u64, next: &'a Registration) -> StoreFuture<'a, RegisterVerdict> {
        let late = move || LateCall::Register(version, *next);
        Box::pin(self.run_change(StoreCall::Register, self.inner.register(version, next), late))
    }

    fn unregister(&self, writer: Writer, version: u64) -> StoreFuture<'_, RegisterVerdict> {
        let late = move || LateCall::Unregister(writer, version);
        Box::pin(self.run_change(StoreCall::Unregister, self.inner.unregister(writer, version), late))
    }

    fn name_node<'a>(&'a self, node: NodeId, name: Option<&'a str>) -> StoreFuture<'a, ()> {
        let late = move || LateCall::NameNode(node, name.map(str::to_owned));
        Box::pin(self.run_change(StoreCall::NameNode, self.inner.name_node(node, name), late))
    }

    fn node_names(&self) -> StoreFuture<'_, NodeNames> {
        Box::pin(self.run_read(StoreCall::NodeNames, self.inner.node_names()))
    }

    fn clock(&self) -> StoreFuture<'_, Millis> {
        Box::pin(self.run_read(StoreCall::Clock, self.inner.clock()))
    }
}
