//! Port to the shared store, where nodes exchange cells.
//!
//! In: running values, rows computed by [`shared`](crate::shared), claims and registrations. Out:
//! verdicts, rows, and the store's time.
//!
//! Promises of every store:
//! - each call on one counter, one token or one writer is atomic, and every later call sees its
//!   effect;
//! - it compares, copies and replaces. The only numbers it makes are its clock and
//!   [`RowVersion::puts`](crate::shared::RowVersion);
//! - a reply is the truth. After an error the call may have been applied, or may be later, unless
//!   the error excludes it;
//! - a call may be repeated.
//!
//! [`MemoryStore`](crate::MemoryStore) is the executable form of this contract. Futures are boxed
//! and use std alone. An adapter may use any runtime, a simulator may reply late, and the engine
//! holds any store behind one pointer. A future does nothing before its first poll. A future
//! dropped half-way is a call of unknown outcome.
//!
//! Not here: retries, caches, batches and metrics; the engine does these once for all stores.

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

/// Most cells in one put: enough to amortise a round trip, and few enough that a script or
/// transaction holding them is short.
pub const PUTS_MAX: usize = 1_024;

/// Most claims in one call of [`Store::restore_claims`], for the same reason.
pub const RESTORED_CLAIMS_MAX: usize = 256;

/// Most names in one page of a scan, for the same reason.
pub const SCAN_NAMES_MAX: usize = 1_024;

/// Longest name of a node: a host name and a port.
pub const NODE_NAME_BYTES_MAX: usize = 64;

/// Human-readable names of nodes.
pub type NodeNames = BTreeMap<NodeId, String>;

/// Outcome of one put in a call: a verdict, or the error that prevented it.
pub type PutResult = Result<Verdict, StoreError>;

/// Identity of each server's data, by server. With equal histories the servers still hold all data
/// that they confirmed, unless someone deleted it. A restart, a failover or a restore may have lost
/// data, and gives a server another identity.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History(pub BTreeMap<String, String>);

/// Boxed future of a store's reply.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A cause, of the driver's error type.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A store shared by nodes.
pub trait Store: Send + Sync {
    /// Puts cells, at most [`PUTS_MAX`]; returns one result each, in order. Cells of one counter
    /// are put in order, and each put is atomic by itself. A put without a verdict does not affect
    /// the others. After an error of the whole call with unknown outcome, any of them may have been
    /// applied.
    fn put<'a>(&'a self, puts: &'a [(Name<'a>, Put)]) -> StoreFuture<'a, Vec<PutResult>>;

    /// As [`Store::put`], but a put without a verdict fails the call. The error is its own if
    /// nothing was put, else an unknown outcome. The call may be repeated.
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

    /// Returns the counter's row as of one moment, or the default row if there is none, and the
    /// store's time. The row has passed [`Snapshot::checked`].
    fn read<'a>(&'a self, name: Name<'a>) -> StoreFuture<'a, FetchedRow>;

    /// Puts a body of a sketch, by [`put_body`](crate::shared::body::put_body). Its pages are
    /// within its length.
    fn put_body<'a>(&'a self, name: Name<'a>, put: &'a BodyPut) -> StoreFuture<'a, BodyVerdict>;

    /// As [`Store::read`], with the bodies beside the row, as of the same moment.
    fn read_bodies<'a>(&'a self, name: Name<'a>) -> StoreFuture<'a, RowWithBodies>;

    /// Replaces the row of this version by another, or removes it. Bodies beside it stay if the
    /// next row has the same epoch; otherwise they are dropped.
    fn swap<'a>(
        &'a self,
        name: Name<'a>,
        version: RowVersion,
        next: Option<&'a Snapshot>,
    ) -> StoreFuture<'a, SwapVerdict>;

    /// As [`Store::swap`], by a row of the same epoch, together with some of the bodies beside it.
    /// Each listed body is replaced or dropped. Row and bodies change in one step.
    fn swap_bodies<'a>(
        &'a self,
        name: Name<'a>,
        version: RowVersion,
        next: &'a Snapshot,
        bodies: &'a [(Writer, Option<StoredBody>)],
    ) -> StoreFuture<'a, SwapVerdict>;

    /// Returns names of rows, at most [`SCAN_NAMES_MAX`], from the beginning or from the end of the
    /// last page. A row that exists from the first page to the last is named at least once. A page
    /// may be empty without being the last.
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

    /// Restores claims that the store may have lost, at most [`RESTORED_CLAIMS_MAX`], each with its
    /// reply. Returns a verdict each, in order, by [`restore`](crate::shared::claim::restore).
    fn restore_claims<'a>(&'a self, claims: &'a [Claim]) -> StoreFuture<'a, Vec<RestoreVerdict>>;

    /// Returns the identity of the store's data.
    ///
    /// From the first call on, the store compares the identity of its servers with the last
    /// returned one. While one differs, it refuses with [`StoreError::HistoryChanged`] each put,
    /// swap and claim, and each end or restoration of a claim. The caller then calls again, and
    /// restores the data that may be lost.
    fn history(&self) -> StoreFuture<'_, History>;

    /// Lists configuration problems of the store's servers, in sentences for an operator: settings
    /// with which they can lose confirmed data. Empty if none is known.
    fn problems(&self) -> StoreFuture<'_, Vec<String>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Returns all registrations, and the store's time.
    fn writers(&self) -> StoreFuture<'_, WriterList>;

    /// Replaces the registration of this version (0: there is none yet).
    fn register<'a>(&'a self, version: u64, next: &'a Registration) -> StoreFuture<'a, RegisterVerdict>;

    /// Removes the registration of this version.
    fn unregister(&self, writer: Writer, version: u64) -> StoreFuture<'_, RegisterVerdict>;

    /// Sets or replaces the human-readable name of a node; `None` removes it. At most
    /// [`NODE_NAME_BYTES_MAX`] bytes. No decision depends on names.
    fn name_node<'a>(&'a self, node: NodeId, name: Option<&'a str>) -> StoreFuture<'a, ()>;

    /// Returns the names of all nodes that have one.
    fn node_names(&self) -> StoreFuture<'_, NodeNames>;

    /// Returns the store's clock, which governs all expiry, leases and grace. It goes back at most
    /// as far as its machine's clock does.
    fn clock(&self) -> StoreFuture<'_, Millis>;
}

/// Position at which a scan continues, in the store's own encoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(pub Box<[u8]>);

/// One step of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanPage {
    /// Names; some may be repetitions.
    pub names: Vec<Box<[u8]>>,
    /// Cursor of the next page; none after the last page.
    pub next: Option<Cursor>,
}

/// All registrations of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriterList {
    /// Registrations, in any order.
    pub registrations: Vec<Registration>,
    /// The store's clock.
    pub at: Millis,
}

/// The kind of store call, for errors.
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

/// Failure of a store call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Certainly not applied, and it will not be later.
    #[error("the store did not apply the {call}")]
    NotApplied {
        /// The call.
        call: StoreCall,
        /// Cause.
        source: BoxError,
    },
    /// Certainly not applied: a server's data may have changed since the last call of
    /// [`Store::history`].
    #[error("the store did not apply the {call}: a server was restarted, replaced or restored meanwhile")]
    HistoryChanged {
        /// The call.
        call: StoreCall,
    },
    /// Outcome unknown: applied now, later or not at all. Ask again. Every driver error without a
    /// known other meaning is of this variant.
    #[error("the store may have applied the {call}")]
    Unknown {
        /// The call.
        call: StoreCall,
        /// Cause.
        source: BoxError,
    },
}

/// A call past its bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{asked} asked for, at most {most} are allowed")]
pub struct TooMany {
    /// Requested number.
    pub asked: usize,
    /// The bound.
    pub most: usize,
}

/// Refuses a call past its bound, certainly not applied. Every adapter checks this first.
pub fn check_bound(call: StoreCall, asked: usize, most: usize) -> Result<(), StoreError> {
    if asked <= most {
        return Ok(());
    }
    Err(StoreError::NotApplied { call, source: Box::new(TooMany { asked, most }) })
}
