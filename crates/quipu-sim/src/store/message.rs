//! Represents the port's calls and replies as messages, which can wait, be late, and be repeated.

use std::fmt;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use quipu_model::shared::body::StoredBody;
use quipu_model::shared::{
    BodyPut, BodyVerdict, CellId, Claim, ClaimEnd, ClaimEndVerdict, ClaimToken, ClaimVerdict, FetchedRow, Put,
    RegisterVerdict, Registration, RestoreVerdict, RowVersion, RowWithBodies, Snapshot, SwapVerdict,
};
use quipu_model::{
    Cursor, MemoryStore, Millis, Name, NameBuf, PutResult, ScanPage, Store, StoreCall, StoreError, StoreFuture, Writer,
    WriterList,
};

/// A call.
#[derive(Debug, Clone)]
pub(super) enum Message {
    Put(Vec<(NameBuf, Put)>),
    Read(NameBuf),
    PutBody(NameBuf, Box<BodyPut>),
    ReadBodies(NameBuf),
    Swap(NameBuf, RowVersion, Option<Box<Snapshot>>),
    SwapBodies(NameBuf, RowVersion, Box<Snapshot>, Vec<(Writer, Option<StoredBody>)>),
    Scan(Option<Cursor>, usize),
    Claim(Claim),
    EndClaim(ClaimToken, Writer, u64, ClaimEnd),
    RestoreClaims(Vec<Claim>),
    History,
    Writers,
    Register(u64, Registration),
    Unregister(Writer, u64),
    Clock,
}

/// A reply.
#[derive(Debug)]
pub(super) enum StoreReply {
    Verdicts(Vec<PutResult>),
    Seen(Box<FetchedRow>),
    Body(BodyVerdict),
    Bodies(Box<RowWithBodies>),
    Swapped(SwapVerdict),
    Page(ScanPage),
    Claimed(ClaimVerdict),
    Ended(ClaimEndVerdict),
    Restored(Vec<RestoreVerdict>),
    History(u64),
    Writers(WriterList),
    Registered(RegisterVerdict),
    At(Millis),
}

impl Message {
    pub(super) fn call(&self) -> StoreCall {
        match self {
            Message::Put(_) => StoreCall::Put,
            Message::Read(_) => StoreCall::Read,
            Message::PutBody(..) => StoreCall::PutBody,
            Message::ReadBodies(_) => StoreCall::ReadBodies,
            Message::Swap(..) => StoreCall::Swap,
            Message::SwapBodies(..) => StoreCall::SwapBodies,
            Message::Scan(..) => StoreCall::Scan,
            Message::Claim(_) => StoreCall::Claim,
            Message::EndClaim(..) => StoreCall::EndClaim,
            Message::RestoreClaims(_) => StoreCall::RestoreClaims,
            Message::History => StoreCall::History,
            Message::Writers => StoreCall::Writers,
            Message::Register(..) => StoreCall::Register,
            Message::Unregister(..) => StoreCall::Unregister,
            Message::Clock => StoreCall::Clock,
        }
    }

    /// Returns true if its arrival matters even when the caller no longer waits.
    pub(super) fn is_change(&self) -> bool {
        !matches!(
            self,
            Message::Read(_)
                | Message::ReadBodies(_)
                | Message::Scan(..)
                | Message::History
                | Message::Writers
                | Message::Clock
        )
    }

    /// Returns true if a store with a changed history refuses it.
    pub(super) fn is_guarded(&self) -> bool {
        self.is_change() && !matches!(self, Message::Register(..) | Message::Unregister(..))
    }

    /// Applies the call to a memory store.
    pub(super) fn apply(&self, store: &MemoryStore) -> Result<StoreReply, StoreError> {
        match self {
            Message::Put(puts) => {
                let puts: Vec<_> = puts.iter().map(|(name_buf, put)| (as_name(name_buf), *put)).collect();
                now(store.put(&puts)).map(StoreReply::Verdicts)
            }
            Message::Read(name_buf) => {
                now(store.read(as_name(name_buf))).map(|current| StoreReply::Seen(Box::new(current)))
            }
            Message::PutBody(name_buf, put) => now(store.put_body(as_name(name_buf), put)).map(StoreReply::Body),
            Message::ReadBodies(name_buf) => {
                now(store.read_bodies(as_name(name_buf))).map(|current| StoreReply::Bodies(Box::new(current)))
            }
            Message::Swap(name_buf, version, next) => {
                now(store.swap(as_name(name_buf), *version, next.as_deref())).map(StoreReply::Swapped)
            }
            Message::SwapBodies(name_buf, version, next, bodies) => {
                now(store.swap_bodies(as_name(name_buf), *version, next, bodies)).map(StoreReply::Swapped)
            }
            Message::Scan(from, names_max) => now(store.scan(from.as_ref(), *names_max)).map(StoreReply::Page),
            Message::Claim(claim) => now(store.claim(claim)).map(StoreReply::Claimed),
            Message::EndClaim(token, owner, attempt, end) => {
                now(store.end_claim(token, *owner, *attempt, end)).map(StoreReply::Ended)
            }
            Message::RestoreClaims(claims) => now(store.restore_claims(claims)).map(StoreReply::Restored),
            // The simulated store answers it: a memory store has no history.
            Message::History => Ok(StoreReply::History(0)),
            Message::Writers => now(store.writers()).map(StoreReply::Writers),
            Message::Register(version, next) => now(store.register(*version, next)).map(StoreReply::Registered),
            Message::Unregister(writer, version) => {
                now(store.unregister(*writer, *version)).map(StoreReply::Registered)
            }
            Message::Clock => now(store.clock()).map(StoreReply::At),
        }
    }
}

/// The name in a message.
pub(super) fn as_name(name_buf: &NameBuf) -> Name<'_> {
    Name::new(name_buf).expect("it was a name when it was sent")
}

/// Polls once: a memory store answers at the first poll.
fn now<T>(answer: StoreFuture<'_, T>) -> Result<T, StoreError> {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("a memory store has nothing to wait for"),
    }
}

impl StoreReply {
    /// Text of a reply for the event log.
    pub(super) fn to_log_text(&self) -> String {
        match self {
            StoreReply::Seen(current) => {
                let version = current.snapshot.version;
                format!("{}.{} at {}: {}", version.swaps, version.puts, current.at, row_to_log_text(&current.snapshot))
            }
            StoreReply::Bodies(reply) => {
                let RowWithBodies { row: current, bodies } = &**reply;
                let lengths: Vec<usize> = bodies.values().map(|body| body.bytes.len()).collect();
                format!("bodies {lengths:?} of {} at {}", row_to_log_text(&current.snapshot), current.at)
            }
            StoreReply::Writers(writers) => {
                let stage =
                    |known: &Registration| format!("{:04x} {:?}", known.writer.incarnation.0 >> 48, known.stage);
                writers.registrations.iter().map(stage).collect::<Vec<_>>().join(", ")
            }
            other => format!("{other:?}"),
        }
    }
}

/// Text of a row for the event log.
fn row_to_log_text(row: &Snapshot) -> String {
    let mut text = format!("{} @{}", row.sum(), row.epoch.millis);
    if let Some(base) = row.base {
        text += &format!(", base {base}");
    }
    if let Some(at) = row.expires_at {
        text += &format!(", until {at}");
    }
    let closed = |closed: bool| if closed { " closed" } else { "" };
    for (id, row_cell) in &row.cells {
        let value = value_text(row_cell.value, row_cell.total);
        text += &format!(
            ", [{:04x}/{}]={value} #{}{}",
            short_incarnation(id),
            id.shard.0,
            row_cell.seq.0,
            closed(row_cell.closed)
        );
    }
    for (id, spent) in &row.spent {
        let (value, epoch) = (value_text(spent.value, spent.total), spent.epoch.millis);
        let expired = if spent.expired.is_some() { " expired" } else { "" };
        let (shard, seq, closed) = (id.shard.0, spent.seq.0, closed(spent.closed));
        text += &format!(", spent [{:04x}/{shard}]={value} #{seq} @{epoch}{closed}{expired}", short_incarnation(id));
    }
    text
}

/// A running value, and the incarnation's total if it differs.
fn value_text(value: i128, total: i128) -> String {
    if value == total { value.to_string() } else { format!("{value} of {total}") }
}

/// The high bits of a writer's incarnation, enough to distinguish the writers of a run.
fn short_incarnation(id: &CellId) -> u64 {
    id.writer.incarnation.0 >> 48
}

/// One line for the event log.
impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Message::Put(puts) => {
                write!(f, "put")?;
                for (name_buf, put) in puts {
                    let Put { cell, epoch, seq, value, total } = put;
                    let (name, value) = (as_name(name_buf), value_text(*value, *total));
                    let (writer, shard, seq, epoch) = (short_incarnation(cell), cell.shard.0, seq.0, epoch.millis);
                    write!(f, " {name}[{writer:04x}/{shard}]={value} #{seq} @{epoch}")?;
                }
                Ok(())
            }
            Message::Read(name_buf) => write!(f, "read {}", as_name(name_buf)),
            Message::ReadBodies(name_buf) => write!(f, "read bodies {}", as_name(name_buf)),
            Message::PutBody(name_buf, body) => {
                let Put { cell, epoch, seq, value, .. } = body.put;
                let (name, from, pages) = (as_name(name_buf), body.from.map_or(0, |seq| seq.0), body.pages.len());
                let whole = if body.whole { " whole" } else { "" };
                let (node, incarnation) = (cell.writer.node.0 >> 48, short_incarnation(&cell));
                write!(
                    f,
                    "put body {name}[{node:04x}.{incarnation:04x}]={value} #{from}..{} @{}: {pages} pages{whole}",
                    seq.0, epoch.millis
                )
            }
            Message::Swap(name_buf, version, Some(next)) => {
                let (id, name) = (next.swaps.last().map_or(0, |id| id.0 >> 112), as_name(name_buf));
                write!(f, "swap {name} {}.{} ({id:04x}) -> {}", version.swaps, version.puts, row_to_log_text(next))
            }
            Message::SwapBodies(name_buf, version, next, bodies) => {
                let (id, name) = (next.swaps.last().map_or(0, |id| id.0 >> 112), as_name(name_buf));
                let (swaps, puts, row) = (version.swaps, version.puts, row_to_log_text(next));
                write!(f, "swap {name} {swaps}.{puts} ({id:04x}) -> {row}, and {} bodies", bodies.len())
            }
            Message::Swap(name_buf, version, None) => {
                write!(f, "swap {} {}.{} -> gone", as_name(name_buf), version.swaps, version.puts)
            }
            Message::Register(version, next) => {
                let writer = next.writer.incarnation.0 >> 48;
                write!(f, "register {writer:04x} {:?} until {} on {version}", next.stage, next.lease_until)
            }
            other => write!(f, "{}", other.call()),
        }
    }
}
