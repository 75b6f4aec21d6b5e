//! The store: where nodes meet.
//!
//! In: running values, rows computed by [`shared`](crate::shared), claims and registrations. Out: verdicts, rows, and the store's
//! time.
//!
//! What every store promises:
//! - each call on one counter, one token or one writer is atomic, and its effect is seen by every later call;
//! - it compares, copies and replaces; the only numbers it makes are its clock and [`RowVersion::puts`](crate::shared::RowVersion);
//! - an answer is the truth; an error says whether the call may have been carried out, now or later;
//! - a call may be repeated.
//!
//! [`MemoryStore`](crate::MemoryStore) is this contract, executable. Futures are boxed and of std alone, so that an adapter may use any
//! runtime, a simulator may answer late, and the engine may hold any store behind one pointer. A future does nothing before it is polled,
//! and one that is dropped half-way is a call of unknown outcome.
//!
//! Not here: retries, caches, batches and metrics: the engine does these once for all stores.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;

use crate::shared::body::StoredBody;
use crate::shared::{
    BodyPut, BodyVerdict, Claim, ClaimEnd, ClaimEndVerdict, ClaimToken, ClaimVerdict, FetchedRow, Put, RegisterVerdict,
    Registration, RestoreVerdict, RowVersion, RowWithBodies, Snapshot, SwapVerdict, Verdict,
};
use crate::{Millis, Name, NodeId, Writer};

/// Most cells in one put. Enough to spread a round trip thin; few enough that a script or a transaction holding them is short.
pub const PUTS_MAX: usize = 1_024;

/// Most claims in one call of [`Store::restore_claims`], for the same reason.
pub const RESTORED_CLAIMS_MAX: usize = 256;

/// Most names in one page of a scan, for the same reason.
pub const SCAN_NAMES_MAX: usize = 1_024;

/// Longest name of a node: a host name and a port.
pub const NODE_NAME_BYTES_MAX: usize = 64;

/// What people call nodes.
pub type NodeNames = BTreeMap<NodeId, String>;

/// The outcome of one put in a call: a verdict, or the reason why this one has none.
pub type PutResult = Result<Verdict, StoreError>;

/// The identity of each server's data, by server. Equal histories: the servers still hold all data that they confirmed,
/// unless someone deleted it. A restart, a failover or a restore may have lost data, and gives a server another identity.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History(pub BTreeMap<String, String>);

/// An answer that may take its time.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A cause, of whatever type the driver has.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Where nodes meet.
pub trait Store: Send + Sync {
    /// Puts cells, at most [`PUTS_MAX`]; a result each, in order. Cells of one counter are put in order, each put is atomic by
    /// itself, and a put without a verdict takes no verdict from the others. After an error of the whole call with unknown
    /// outcome any of them may have been put.
    fn put<'a>(&'a self, puts: &'a [(Name<'a>, Put)]) -> StoreFuture<'a, Vec<PutResult>>;

    /// As [`Store::put`], where a put without a verdict fails the call: with its own error if nothing was put, else with an unknown outcome. It
    /// may be repeated.
    fn put_all<'a>(&'a self, puts: &'a [(Name<'a>, Put)]) -> StoreFuture<'a, Vec<Verdict>> {
        Box::pin(async move {
            let mut results = self.put(puts).await?;
            let is_refused = results.iter().all(|result| matches!(result, Err(StoreError::NotApplied { .. })));
            if is_refused && let Some(Err(error)) = results.pop() {
                return Err(error);
            }
            let verdicts: Result<Vec<Verdict>, StoreError> = results.into_iter().collect();
            verdicts.map_err(|error| StoreError::Unknown { call: StoreCall::Put, source: Box::new(error) })
        })
    }

    /// The counter's row, as of one moment, or the default row if there is none; and the store's time. The row has passed
    /// [`Snapshot::checked`].
    fn read<'a>(&'a self, name: Name<'a>) -> StoreFuture<'a, FetchedRow>;

    /// Puts a body of a sketch, by [`put_body`](crate::shared::body::put_body). Its pages are within its length.
    fn put_body<'a>(&'a self, name: Name<'a>, put: &'a BodyPut) -> StoreFuture<'a, BodyVerdict>;

    /// As [`Store::read`], and the bodies beside the row, as of the same moment.
    fn read_bodies<'a>(&'a self, name: Name<'a>) -> StoreFuture<'a, RowWithBodies>;

    /// Replaces the row that has this version by another, or by none. Bodies beside it stay if the next one has the same epoch, and are dropped if it has not.
    fn swap<'a>(
        &'a self,
        name: Name<'a>,
        version: RowVersion,
        next: Option<&'a Snapshot>,
    ) -> StoreFuture<'a, SwapVerdict>;

    /// As [`Store::swap`], by a row of the same epoch, together with some of the bodies beside it: each of these is replaced, or dropped. What is swapped and what is replaced is one step.
    fn swap_bodies<'a>(
        &'a self,
        name: Name<'a>,
        version: RowVersion,
        next: &'a Snapshot,
        bodies: &'a [(Writer, Option<StoredBody>)],
    ) -> StoreFuture<'a, SwapVerdict>;

    /// Names of rows, at most [`SCAN_NAMES_MAX`], from the beginning or from where the last page ended. A row that is there from the
    /// first page to the last is named at least once; a page may be empty and not the last.
    fn scan<'a>(&'a self, from: Option<&'a Cursor>, names_max: usize) -> StoreFuture<'a, ScanPage>;

    /// Claims a token, by [`claim`](crate::shared::claim::claim).
    fn claim<'a>(&'a self, claim: &'a Claim) -> StoreFuture<'a, ClaimVerdict>;

    /// Ends a claim, by [`end`](crate::shared::claim::end).
    fn end_claim<'a>(
        &'a self,
        token: &'a ClaimToken,
        owner: Writer,
        attempt: u64,
        end: &'a ClaimEnd,
    ) -> StoreFuture<'a, ClaimEndVerdict>;

    /// Puts claims back that the store may have lost, at most [`RESTORED_CLAIMS_MAX`], each with its reply; a verdict each, in
    /// order, by [`restore`](crate::shared::claim::restore).
    fn restore_claims<'a>(&'a self, claims: &'a [Claim]) -> StoreFuture<'a, Vec<RestoreVerdict>>;

    /// The identity of the store's data. From the first call on, the store refuses each put, swap, claim, and end or
    /// restoration of a claim with [`StoreError::HistoryChanged`] while a server's identity differs from the one that this
    /// call returned last: the caller asks again, and puts back what may be lost.
    fn history(&self) -> StoreFuture<'_, History>;

    /// What is wrong with the store's servers, in sentences for an operator: settings with which they do not keep what they
    /// confirmed. Empty if nothing is known to be wrong.
    fn problems(&self) -> StoreFuture<'_, Vec<String>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// All registrations, and the store's time.
    fn writers(&self) -> StoreFuture<'_, WriterList>;

    /// Puts a registration in the place of the one that has this version (0: of none).
    fn register<'a>(&'a self, version: u64, next: &'a Registration) -> StoreFuture<'a, RegisterVerdict>;

    /// Removes the registration that has this version.
    fn unregister(&self, writer: Writer, version: u64) -> StoreFuture<'_, RegisterVerdict>;

    /// Says what people call a node, in the place of what was said before; `None`: nobody speaks of it any more. At most
    /// [`NODE_NAME_BYTES_MAX`] bytes. Nothing is decided by names.
    fn name_node<'a>(&'a self, node: NodeId, name: Option<&'a str>) -> StoreFuture<'a, ()>;

    /// The names of all nodes that have one.
    fn node_names(&self) -> StoreFuture<'_, NodeNames>;

    /// The store's clock. All expiry, leases and grace are by this one. It does not go back by more than its machine's does.
    fn clock(&self) -> StoreFuture<'_, Millis>;
}

/// Where a scan goes on: bytes of the store's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(pub Box<[u8]>);

/// One step of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanPage {
    /// Names, some perhaps met before.
    pub names: Vec<Box<[u8]>>,
    /// Where to go on; none after the last page.
    pub next: Option<Cursor>,
}

/// The registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriterList {
    /// All of it, in any order.
    pub registrations: Vec<Registration>,
    /// The store's clock.
    pub at: Millis,
}

/// Which call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreCall {
    /// [`Store::put`].
    Put,
    /// [`Store::read`].
    Read,
    /// [`Store::put_body`].
    PutBody,
    /// [`Store::read_bodies`].
    ReadBodies,
    /// [`Store::swap_bodies`].
    SwapBodies,
    /// [`Store::swap`].
    Swap,
    /// [`Store::scan`].
    Scan,
    /// [`Store::claim`].
    Claim,
    /// [`Store::end_claim`].
    EndClaim,
    /// [`Store::restore_claims`].
    RestoreClaims,
    /// [`Store::history`].
    History,
    /// [`Store::problems`].
    Problems,
    /// [`Store::writers`].
    Writers,
    /// [`Store::register`].
    Register,
    /// [`Store::unregister`].
    Unregister,
    /// [`Store::name_node`].
    NameNode,
    /// [`Store::node_names`].
    NodeNames,
    /// [`Store::clock`].
    Clock,
}

impl fmt::Display for StoreCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreCall::Put => "put",
            StoreCall::Read => "read",
            StoreCall::PutBody => "put of a body",
            StoreCall::ReadBodies => "read of bodies",
            StoreCall::SwapBodies => "swap of bodies",
            StoreCall::Swap => "swap",
            StoreCall::Scan => "scan",
            StoreCall::Claim => "claim",
            StoreCall::EndClaim => "end of a claim",
            StoreCall::RestoreClaims => "restoration of claims",
            StoreCall::History => "history",
            StoreCall::Problems => "check of its settings",
            StoreCall::Writers => "list of writers",
            StoreCall::Register => "registration",
            StoreCall::Unregister => "removal of a registration",
            StoreCall::NameNode => "name of a node",
            StoreCall::NodeNames => "list of names",
            StoreCall::Clock => "clock",
        })
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Certainly not applied, and it will not be.
    #[error("the store did not apply the {call}")]
    NotApplied {
        /// Which call.
        call: StoreCall,
        /// Why.
        source: BoxError,
    },
    /// Certainly not applied: a server's data may have changed since [`Store::history`] was asked last.
    #[error("the store did not apply the {call}: a server was restarted, replaced or restored meanwhile")]
    HistoryChanged {
        /// Which call.
        call: StoreCall,
    },
    /// May have been applied, or may be later: ask again. Whatever a driver says that is not known to mean otherwise.
    #[error("the store may have applied the {call}")]
    Unknown {
        /// Which call.
        call: StoreCall,
        /// Why.
        source: BoxError,
    },
}

/// A call that asks for more than its bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{asked} asked for, at most {most} are allowed")]
pub struct TooMany {
    /// How many were asked for.
    pub asked: usize,
    /// The bound.
    pub most: usize,
}

/// Refuses a call past its bound, certainly not applied: what every adapter checks first.
pub fn check_bound(call: StoreCall, asked: usize, most: usize) -> Result<(), StoreError> {
    if asked <= most {
        return Ok(());
    }
    Err(StoreError::NotApplied { call, source: Box::new(TooMany { asked, most }) })
}
