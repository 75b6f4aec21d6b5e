//! Implements the store port for one node: its calls become messages and wait.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use quipu_model::shared::body::StoredBody;
use quipu_model::shared::{
    BodyPut, BodyVerdict, Claim, ClaimEnd, ClaimEndVerdict, ClaimToken, ClaimVerdict, FetchedRow, Put, RegisterVerdict,
    Registration, RestoreVerdict, RowVersion, RowWithBodies, Snapshot, SwapVerdict,
};
use quipu_model::{
    Cursor, History, Millis, Name, NodeId, NodeNames, PutResult, ScanPage, Store, StoreError, StoreFuture, Writer,
    WriterList,
};

use super::message::{Message, StoreReply};
use super::{ReplySlot, SimStore};

/// A node's port to the store.
pub struct StorePort {
    store: Arc<SimStore>,
    node: usize,
    /// The history that this node fetched last; [`NO_HISTORY`] before the first fetch.
    history: AtomicU64,
}

/// Value before the node has fetched the store's history.
const NO_HISTORY: u64 = u64::MAX;

/// Waits for the answer to a message.
struct CallFuture<'d> {
    port: &'d StorePort,
    message: Option<Message>, // until the first poll sends it
    slot: Arc<ReplySlot>,
}

impl Future for CallFuture<'_> {
    type Output = Result<StoreReply, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(message) = self.message.take() {
            let history = Some(self.port.history.load(Ordering::Relaxed)).filter(|history| *history != NO_HISTORY);
            self.port.store.send(self.port.node, message, history, &self.slot);
        }
        let mut state = self.slot.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.reply.take() {
            Some(reply) => Poll::Ready(reply),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl StorePort {
    pub(super) fn new(store: Arc<SimStore>, node: usize) -> StorePort {
        StorePort { store, node, history: AtomicU64::new(NO_HISTORY) }
    }

    fn call(&self, message: Message) -> CallFuture<'_> {
        CallFuture { port: self, message: Some(message), slot: Arc::default() }
    }
}

/// Unwraps the reply of the expected kind.
macro_rules! expect_reply {
    ($waiting:expr, $kind:ident) => {
        match $waiting.await? {
            StoreReply::$kind(reply) => Ok(reply),
            other => unreachable!("{other:?} answers another call"),
        }
    };
}

impl Store for StorePort {
    fn put<'a>(&'a self, puts: &'a [(Name<'a>, Put)]) -> StoreFuture<'a, Vec<PutResult>> {
        Box::pin(async move {
            let puts = puts.iter().map(|(name, put)| (name.bytes().into(), *put)).collect();
            expect_reply!(self.call(Message::Put(puts)), Verdicts)
        })
    }

    fn read<'a>(&'a self, name: Name<'a>) -> StoreFuture<'a, FetchedRow> {
        Box::pin(async move {
            let result: Result<Box<FetchedRow>, StoreError> =
                expect_reply!(self.call(Message::Read(name.bytes().into())), Seen);
            result.map(|result| *result)
        })
    }

    fn put_body<'a>(&'a self, name: Name<'a>, put: &'a BodyPut) -> StoreFuture<'a, BodyVerdict> {
        Box::pin(
            async move { expect_reply!(self.call(Message::PutBody(name.bytes().into(), Box::new(put.clone()))), Body) },
        )
    }

    fn read_bodies<'a>(&'a self, name: Name<'a>) -> StoreFuture<'a, RowWithBodies> {
        Box::pin(async move {
            let result: Result<Box<RowWithBodies>, StoreError> =
                expect_reply!(self.call(Message::ReadBodies(name.bytes().into())), Bodies);
            result.map(|result| *result)
        })
    }

    fn swap<'a>(
        &'a self,
        name: Name<'a>,
        version: RowVersion,
        next: Option<&'a Snapshot>,
    ) -> StoreFuture<'a, SwapVerdict> {
        Box::pin(async move {
            let next = next.cloned().map(Box::new);
            expect_reply!(self.call(Message::Swap(name.bytes().into(), version, next)), Swapped)
        })
    }

    fn swap_bodies<'a>(
        &'a self,
        name: Name<'a>,
        version: RowVersion,
        next: &'a Snapshot,
        bodies: &'a [(Writer, Option<StoredBody>)],
    ) -> StoreFuture<'a, SwapVerdict> {
        Box::pin(async move {
            let next = Box::new(next.clone());
            expect_reply!(self.call(Message::SwapBodies(name.bytes().into(), version, next, bodies.to_vec())), Swapped)
        })
    }

    fn scan<'a>(&'a self, from: Option<&'a Cursor>, names_max: usize) -> StoreFuture<'a, ScanPage> {
        Box::pin(async move { expect_reply!(self.call(Message::Scan(from.cloned(), names_max)), Page) })
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> StoreFuture<'a, ClaimVerdict> {
        Box::pin(async move { expect_reply!(self.call(Message::Claim(claim.clone())), Claimed) })
    }

    fn end_claim<'a>(
        &'a self,
        token: &'a ClaimToken,
        owner: Writer,
        attempt: u64,
        end: &'a ClaimEnd,
    ) -> StoreFuture<'a, ClaimEndVerdict> {
        Box::pin(async move {
            expect_reply!(self.call(Message::EndClaim(token.clone(), owner, attempt, end.clone())), Ended)
        })
    }

    fn restore_claims<'a>(&'a self, claims: &'a [Claim]) -> StoreFuture<'a, Vec<RestoreVerdict>> {
        Box::pin(async move { expect_reply!(self.call(Message::RestoreClaims(claims.to_vec())), Restored) })
    }

    fn history(&self) -> StoreFuture<'_, History> {
        Box::pin(async move {
            let reply: Result<u64, StoreError> = expect_reply!(self.call(Message::History), History);
            let history = reply?;
            self.history.store(history, Ordering::Relaxed);
            Ok(History(BTreeMap::from([("store".to_owned(), history.to_string())])))
        })
    }

    fn writers(&self) -> StoreFuture<'_, WriterList> {
        Box::pin(async move { expect_reply!(self.call(Message::Writers), Writers) })
    }

    fn register<'a>(&'a self, version: u64, next: &'a Registration) -> StoreFuture<'a, RegisterVerdict> {
        Box::pin(async move { expect_reply!(self.call(Message::Register(version, *next)), Registered) })
    }

    fn unregister(&self, writer: Writer, version: u64) -> StoreFuture<'_, RegisterVerdict> {
        Box::pin(async move { expect_reply!(self.call(Message::Unregister(writer, version)), Registered) })
    }

    // Names decide nothing: their calls are no messages, so they change no schedule.
    fn name_node<'a>(&'a self, node: NodeId, name: Option<&'a str>) -> StoreFuture<'a, ()> {
        self.store.memory.name_node(node, name)
    }

    fn node_names(&self) -> StoreFuture<'_, NodeNames> {
        self.store.memory.node_names()
    }

    fn clock(&self) -> StoreFuture<'_, Millis> {
        Box::pin(async move { expect_reply!(self.call(Message::Clock), At) })
    }
}
