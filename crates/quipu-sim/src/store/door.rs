//! What one node reaches the store through: the port, whose calls become messages and wait.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use quipu_model::shared::body::Body;
use quipu_model::shared::{
    BodyPut, BodyVerdict, Claim, ClaimEnd, ClaimVerdict, EndVerdict, Put, RegisterVerdict, Registration,
    RestoreVerdict, Seen, SeenBodies, Snapshot, SwapVerdict, Token, Version,
};
use quipu_model::{
    Answer, Cursor, History, Millis, Name, NodeId, NodeNames, Page, PutResult, Store, StoreError, Writer, Writers,
};

use super::message::{Message, Told};
use super::{SimStore, Slot};

/// What one node reaches the store through.
pub struct Door {
    store: Arc<SimStore>,
    node: usize,
    /// The history that this node learnt last; [`NO_HISTORY`] before it asked.
    history: AtomicU64,
}

/// Of a door whose node has not asked for the store's history.
const NO_HISTORY: u64 = u64::MAX;

/// Waits for the answer to a message.
struct Waiting<'d> {
    door: &'d Door,
    message: Option<Message>, // until it is sent, by the first poll
    slot: Arc<Slot>,
}

impl Future for Waiting<'_> {
    type Output = Result<Told, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(message) = self.message.take() {
            let history = Some(self.door.history.load(Ordering::Relaxed)).filter(|history| *history != NO_HISTORY);
            self.door.store.send(self.door.node, message, history, &self.slot);
        }
        let mut state = self.slot.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.told.take() {
            Some(told) => Poll::Ready(told),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Door {
    pub(super) fn new(store: Arc<SimStore>, node: usize) -> Door {
        Door { store, node, history: AtomicU64::new(NO_HISTORY) }
    }

    fn call(&self, message: Message) -> Waiting<'_> {
        Waiting { door: self, message: Some(message), slot: Arc::default() }
    }
}

/// The answer of the kind that was asked for.
macro_rules! told {
    ($waiting:expr, $kind:ident) => {
        match $waiting.await? {
            Told::$kind(told) => Ok(told),
            other => unreachable!("{other:?} answers another call"),
        }
    };
}

impl Store for Door {
    fn put<'a>(&'a self, puts: &'a [(Name<'a>, Put)]) -> Answer<'a, Vec<PutResult>> {
        Box::pin(async move {
            let puts = puts.iter().map(|(name, put)| (name.bytes().into(), *put)).collect();
            told!(self.call(Message::Put(puts)), Verdicts)
        })
    }

    fn read<'a>(&'a self, name: Name<'a>) -> Answer<'a, Seen> {
        Box::pin(async move {
            let seen: Result<Box<Seen>, StoreError> = told!(self.call(Message::Read(name.bytes().into())), Seen);
            seen.map(|seen| *seen)
        })
    }

    fn put_body<'a>(&'a self, name: Name<'a>, put: &'a BodyPut) -> Answer<'a, BodyVerdict> {
        Box::pin(async move { told!(self.call(Message::PutBody(name.bytes().into(), Box::new(put.clone()))), Body) })
    }

    fn read_bodies<'a>(&'a self, name: Name<'a>) -> Answer<'a, SeenBodies> {
        Box::pin(async move {
            let seen: Result<Box<SeenBodies>, StoreError> =
                told!(self.call(Message::ReadBodies(name.bytes().into())), Bodies);
            seen.map(|seen| *seen)
        })
    }

    fn swap<'a>(&'a self, name: Name<'a>, version: Version, next: Option<&'a Snapshot>) -> Answer<'a, SwapVerdict> {
        Box::pin(async move {
            let next = next.cloned().map(Box::new);
            told!(self.call(Message::Swap(name.bytes().into(), version, next)), Swapped)
        })
    }

    fn swap_bodies<'a>(
        &'a self,
        name: Name<'a>,
        version: Version,
        next: &'a Snapshot,
        bodies: &'a [(Writer, Option<Body>)],
    ) -> Answer<'a, SwapVerdict> {
        Box::pin(async move {
            let next = Box::new(next.clone());
            told!(self.call(Message::SwapBodies(name.bytes().into(), version, next, bodies.to_vec())), Swapped)
        })
    }

    fn scan<'a>(&'a self, from: Option<&'a Cursor>, names_max: usize) -> Answer<'a, Page> {
        Box::pin(async move { told!(self.call(Message::Scan(from.cloned(), names_max)), Page) })
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ClaimVerdict> {
        Box::pin(async move { told!(self.call(Message::Claim(claim.clone())), Claimed) })
    }

    fn end_claim<'a>(
        &'a self,
        token: &'a Token,
        owner: Writer,
        attempt: u64,
        end: &'a ClaimEnd,
    ) -> Answer<'a, EndVerdict> {
        Box::pin(async move { told!(self.call(Message::EndClaim(token.clone(), owner, attempt, end.clone())), Ended) })
    }

    fn restore_claims<'a>(&'a self, claims: &'a [Claim]) -> Answer<'a, Vec<RestoreVerdict>> {
        Box::pin(async move { told!(self.call(Message::RestoreClaims(claims.to_vec())), Restored) })
    }

    fn history(&self) -> Answer<'_, History> {
        Box::pin(async move {
            let told: Result<u64, StoreError> = told!(self.call(Message::History), History);
            let history = told?;
            self.history.store(history, Ordering::Relaxed);
            Ok(History(BTreeMap::from([("store".to_owned(), history.to_string())])))
        })
    }

    fn writers(&self) -> Answer<'_, Writers> {
        Box::pin(async move { told!(self.call(Message::Writers), Writers) })
    }

    fn register<'a>(&'a self, version: u64, next: &'a Registration) -> Answer<'a, RegisterVerdict> {
        Box::pin(async move { told!(self.call(Message::Register(version, *next)), Registered) })
    }

    fn unregister(&self, writer: Writer, version: u64) -> Answer<'_, RegisterVerdict> {
        Box::pin(async move { told!(self.call(Message::Unregister(writer, version)), Registered) })
    }

    // Nothing is decided by names: they are no messages, so that they change no schedule.
    fn name_node<'a>(&'a self, node: NodeId, name: Option<&'a str>) -> Answer<'a, ()> {
        self.store.memory.name_node(node, name)
    }

    fn node_names(&self) -> Answer<'_, NodeNames> {
        self.store.memory.node_names()
    }

    fn clock(&self) -> Answer<'_, Millis> {
        Box::pin(async move { told!(self.call(Message::Clock), At) })
    }
}
