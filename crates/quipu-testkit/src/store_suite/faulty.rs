//! A store behind a network that does what networks do.
//!
//! In: any store, and a seed. Out: the same store, which answers each changing call in one of four ways: not applied and said so; applied;
//! applied, and the answer lost; applied late, after later calls, and the answer lost. Of a put whose answer is lost, any part may have
//! been put.
//!
//! Invariants:
//! - an answer that is given is the inner store's;
//! - what was said not to be applied never is;
//! - after [`FaultyStore::calm`] nothing is under way any more.

use std::sync::{Mutex, MutexGuard, PoisonError};

use quipu_model::shared::body::Body;
use quipu_model::shared::{
    BodyPut, BodyVerdict, Claim, ClaimEnd, ClaimVerdict, EndVerdict, Put, RegisterVerdict, Registration,
    RestoreVerdict, Seen, SeenBodies, Snapshot, SwapVerdict, Token, Version,
};
use quipu_model::{
    Answer, Call, Cursor, History, Millis, Name, NodeId, NodeNames, Page, PutResult, Store, StoreError, Writer, Writers,
};

use crate::Dice;

/// Most calls under way at once; past it an answer is lost and nothing is late. More than a schedule sends in the longest delay.
const LATE_MAX: usize = 256;

/// Longest delay, in calls: several swaps and puts of everybody fit in between.
const LATE_BY_MAX: usize = 24;

/// A store behind faults.
pub struct FaultyStore<S> {
    inner: S,
    dice: Dice,
    percent: usize, // of calls that meet a fault
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    calm: bool,
    calls: u64,
    late: Vec<(u64, LateCall)>, // at which call it arrives
    tally: Tally,
}

/// How many calls met which fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Refused, and said so.
    pub not_applied: u64,
    /// Answered.
    pub applied: u64,
    /// Applied at once, and not answered.
    pub lost: u64,
    /// Applied after later calls, and not answered.
    pub late: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    NotApplied,
    None,
    Lost,
    Late,
}

enum LateCall {
    Put(Vec<(Box<[u8]>, Put)>),
    PutBody(Box<[u8]>, Box<BodyPut>),
    Swap(Box<[u8]>, Version, Option<Snapshot>),
    SwapBodies(Box<[u8]>, Version, Box<Snapshot>, Vec<(Writer, Option<Body>)>),
    Claim(Claim),
    RestoreClaims(Vec<Claim>),
    EndClaim(Token, Writer, u64, ClaimEnd),
    Register(u64, Registration),
    Unregister(Writer, u64),
    NameNode(NodeId, Option<String>),
}

/// What stands for a driver's error.
#[derive(Debug, thiserror::Error)]
#[error("a fault was injected")]
struct Injected;

impl<S: Store> FaultyStore<S> {
    /// A store that meets a fault in that many calls of a hundred, as the seed decides.
    pub fn new(inner: S, seed: u64, percent: usize) -> FaultyStore<S> {
        FaultyStore { inner, dice: Dice::new(seed), percent, state: Mutex::default() }
    }

    /// The store itself.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// No more faults, and everything that is under way arrives, in any order.
    pub async fn calm(&self) {
        let mut late = {
            let mut state = self.state();
            state.calm = true;
            std::mem::take(&mut state.late)
        };
        self.dice.shuffle(&mut late);
        for (_, call) in late {
            self.arrive(call).await;
        }
    }

    /// What the calls so far have met.
    pub fn tally(&self) -> Tally {
        self.state().tally
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here can be half done: each change is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets arrive what is due, and decides what becomes of the next call.
    async fn begin(&self) -> Fault {
        let due: Vec<LateCall> = {
            let mut state = self.state();
            state.calls += 1;
            let now = state.calls;
            state.late.extract_if(.., |(at, _)| *at <= now).map(|(_, call)| call).collect()
        };
        for call in due {
            self.arrive(call).await;
        }
        let mut state = self.state();
        let fault = match self.dice.below(3) {
            _ if state.calm || !self.dice.chance(self.percent) => Fault::None,
            0 => Fault::NotApplied,
            1 => Fault::Lost,
            _ if state.late.len() >= LATE_MAX => Fault::Lost,
            _ => Fault::Late,
        };
        let tally = &mut state.tally;
        *match fault {
            Fault::NotApplied => &mut tally.not_applied,
            Fault::None => &mut tally.applied,
            Fault::Lost => &mut tally.lost,
            Fault::Late => &mut tally.late,
        } += 1;
        fault
    }

    async fn arrive(&self, call: LateCall) {
        // Nobody waits for the answer, and the contract lets it be anything.
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

    /// Puts any part of them: what a connection that breaks half-way leaves behind.
    async fn put_some(&self, puts: &[(Box<[u8]>, Put)]) -> Result<(), StoreError> {
        let mut some = Vec::new();
        for (name, put) in puts {
            if let Ok(name) = Name::new(name)
                && (puts.len() == 1 || self.dice.chance(70))
            {
                some.push((name, *put));
            }
        }
        self.inner.put(&some).await.map(drop)
    }

    /// Carries a changing call through whatever it meets.
    async fn change<T>(
        &self,
        call: Call,
        now: impl Future<Output = Result<T, StoreError>>,
        late: impl FnOnce() -> LateCall,
    ) -> Result<T, StoreError> {
        match self.begin().await {
            Fault::None => now.await,
            Fault::NotApplied => Err(StoreError::NotApplied { call, source: Box::new(Injected) }),
            Fault::Lost => {
                self.arrive(late()).await;
                Err(StoreError::Unknown { call, source: Box::new(Injected) })
            }
            Fault::Late => {
                let mut state = self.state();
                let at = state.calls + 1 + self.dice.below(LATE_BY_MAX) as u64;
                state.late.push((at, late()));
                Err(StoreError::Unknown { call, source: Box::new(Injected) })
            }
        }
    }

    /// Carries a call that changes nothing: it is answered or not.
    async fn look<T>(&self, call: Call, now: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        match self.begin().await {
            Fault::None => now.await,
            _ => Err(StoreError::NotApplied { call, source: Box::new(Injected) }),
        }
    }
}

impl<S: Store> Store for FaultyStore<S> {
    fn put<'a>(&'a self, puts: &'a [(Name<'a>, Put)]) -> Answer<'a, Vec<PutResult>> {
        let late = || LateCall::Put(puts.iter().map(|(name, put)| (name.bytes().into(), *put)).collect());
        Box::pin(self.change(Call::Put, self.inner.put(puts), late))
    }

    fn read<'a>(&'a self, name: Name<'a>) -> Answer<'a, Seen> {
        Box::pin(self.look(Call::Read, self.inner.read(name)))
    }

    fn put_body<'a>(&'a self, name: Name<'a>, put: &'a BodyPut) -> Answer<'a, BodyVerdict> {
        let late = move || LateCall::PutBody(name.bytes().into(), Box::new(put.clone()));
        Box::pin(self.change(Call::PutBody, self.inner.put_body(name, put), late))
    }

    fn read_bodies<'a>(&'a self, name: Name<'a>) -> Answer<'a, SeenBodies> {
        Box::pin(self.look(Call::ReadBodies, self.inner.read_bodies(name)))
    }

    fn swap<'a>(&'a self, name: Name<'a>, version: Version, next: Option<&'a Snapshot>) -> Answer<'a, SwapVerdict> {
        let late = move || LateCall::Swap(name.bytes().into(), version, next.cloned());
        Box::pin(self.change(Call::Swap, self.inner.swap(name, version, next), late))
    }

    fn swap_bodies<'a>(
        &'a self,
        name: Name<'a>,
        version: Version,
        next: &'a Snapshot,
        bodies: &'a [(Writer, Option<Body>)],
    ) -> Answer<'a, SwapVerdict> {
        let late = move || LateCall::SwapBodies(name.bytes().into(), version, Box::new(next.clone()), bodies.to_vec());
        Box::pin(self.change(Call::SwapBodies, self.inner.swap_bodies(name, version, next, bodies), late))
    }

    fn scan<'a>(&'a self, from: Option<&'a Cursor>, names_max: usize) -> Answer<'a, Page> {
        Box::pin(self.look(Call::Scan, self.inner.scan(from, names_max)))
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ClaimVerdict> {
        Box::pin(self.change(Call::Claim, self.inner.claim(claim), || LateCall::Claim(claim.clone())))
    }

    fn end_claim<'a>(
        &'a self,
        token: &'a Token,
        owner: Writer,
        attempt: u64,
        end: &'a ClaimEnd,
    ) -> Answer<'a, EndVerdict> {
        let late = move || LateCall::EndClaim(token.clone(), owner, attempt, end.clone());
        Box::pin(self.change(Call::EndClaim, self.inner.end_claim(token, owner, attempt, end), late))
    }

    fn restore_claims<'a>(&'a self, claims: &'a [Claim]) -> Answer<'a, Vec<RestoreVerdict>> {
        let late = || LateCall::RestoreClaims(claims.to_vec());
        Box::pin(self.change(Call::RestoreClaims, self.inner.restore_claims(claims), late))
    }

    fn history(&self) -> Answer<'_, History> {
        Box::pin(self.look(Call::History, self.inner.history()))
    }

    fn problems(&self) -> Answer<'_, Vec<String>> {
        Box::pin(self.look(Call::Problems, self.inner.problems()))
    }

    fn writers(&self) -> Answer<'_, Writers> {
        Box::pin(self.look(Call::Writers, self.inner.writers()))
    }

    fn register<'a>(&'a self, version: u64, next: &'a Registration) -> Answer<'a, RegisterVerdict> {
        let late = move || LateCall::Register(version, *next);
        Box::pin(self.change(Call::Register, self.inner.register(version, next), late))
    }

    fn unregister(&self, writer: Writer, version: u64) -> Answer<'_, RegisterVerdict> {
        let late = move || LateCall::Unregister(writer, version);
        Box::pin(self.change(Call::Unregister, self.inner.unregister(writer, version), late))
    }

    fn name_node<'a>(&'a self, node: NodeId, name: Option<&'a str>) -> Answer<'a, ()> {
        let late = move || LateCall::NameNode(node, name.map(str::to_owned));
        Box::pin(self.change(Call::NameNode, self.inner.name_node(node, name), late))
    }

    fn node_names(&self) -> Answer<'_, NodeNames> {
        Box::pin(self.look(Call::NodeNames, self.inner.node_names()))
    }

    fn clock(&self) -> Answer<'_, Millis> {
        Box::pin(self.look(Call::Clock, self.inner.clock()))
    }
}
