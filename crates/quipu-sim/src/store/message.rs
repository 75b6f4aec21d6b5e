//! A call on its way to the store, and what comes back: the port's calls as data, so that they can wait, be late, and be repeated.

use std::fmt;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use quipu_model::shared::body::Body;
use quipu_model::shared::{
    BodyPut, BodyVerdict, CellId, Claim, ClaimEnd, ClaimVerdict, EndVerdict, Put, RegisterVerdict, Registration,
    RestoreVerdict, Seen, SeenBodies, Snapshot, SwapVerdict, Token, Version,
};
use quipu_model::{
    Answer, Call, Cursor, KeptName, MemoryStore, Millis, Name, Page, PutResult, Store, StoreError, Writer, Writers,
};

/// A call.
#[derive(Debug, Clone)]
pub(super) enum Message {
    Put(Vec<(KeptName, Put)>),
    Read(KeptName),
    PutBody(KeptName, Box<BodyPut>),
    ReadBodies(KeptName),
    Swap(KeptName, Version, Option<Box<Snapshot>>),
    SwapBodies(KeptName, Version, Box<Snapshot>, Vec<(Writer, Option<Body>)>),
    Scan(Option<Cursor>, usize),
    Claim(Claim),
    EndClaim(Token, Writer, u64, ClaimEnd),
    RestoreClaims(Vec<Claim>),
    History,
    Writers,
    Register(u64, Registration),
    Unregister(Writer, u64),
    Clock,
}

/// An answer.
#[derive(Debug)]
pub(super) enum Told {
    Verdicts(Vec<PutResult>),
    Seen(Box<Seen>),
    Body(BodyVerdict),
    Bodies(Box<SeenBodies>),
    Swapped(SwapVerdict),
    Page(Page),
    Claimed(ClaimVerdict),
    Ended(EndVerdict),
    Restored(Vec<RestoreVerdict>),
    History(u64),
    Writers(Writers),
    Registered(RegisterVerdict),
    At(Millis),
}

impl Message {
    pub(super) fn call(&self) -> Call {
        match self {
            Message::Put(_) => Call::Put,
            Message::Read(_) => Call::Read,
            Message::PutBody(..) => Call::PutBody,
            Message::ReadBodies(_) => Call::ReadBodies,
            Message::Swap(..) => Call::Swap,
            Message::SwapBodies(..) => Call::SwapBodies,
            Message::Scan(..) => Call::Scan,
            Message::Claim(_) => Call::Claim,
            Message::EndClaim(..) => Call::EndClaim,
            Message::RestoreClaims(_) => Call::RestoreClaims,
            Message::History => Call::History,
            Message::Writers => Call::Writers,
            Message::Register(..) => Call::Register,
            Message::Unregister(..) => Call::Unregister,
            Message::Clock => Call::Clock,
        }
    }

    /// Whether it matters that it arrives when nobody waits for its answer.
    pub(super) fn changes(&self) -> bool {
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

    /// Whether a store whose history has changed refuses it.
    pub(super) fn is_guarded(&self) -> bool {
        self.changes() && !matches!(self, Message::Register(..) | Message::Unregister(..))
    }

    /// Carries it out.
    pub(super) fn apply(&self, store: &MemoryStore) -> Result<Told, StoreError> {
        match self {
            Message::Put(puts) => {
                let puts: Vec<_> = puts.iter().map(|(kept, put)| (name(kept), *put)).collect();
                now(store.put(&puts)).map(Told::Verdicts)
            }
            Message::Read(kept) => now(store.read(name(kept))).map(|seen| Told::Seen(Box::new(seen))),
            Message::PutBody(kept, put) => now(store.put_body(name(kept), put)).map(Told::Body),
            Message::ReadBodies(kept) => now(store.read_bodies(name(kept))).map(|seen| Told::Bodies(Box::new(seen))),
            Message::Swap(kept, version, next) => {
                now(store.swap(name(kept), *version, next.as_deref())).map(Told::Swapped)
            }
            Message::SwapBodies(kept, version, next, bodies) => {
                now(store.swap_bodies(name(kept), *version, next, bodies)).map(Told::Swapped)
            }
            Message::Scan(from, names_max) => now(store.scan(from.as_ref(), *names_max)).map(Told::Page),
            Message::Claim(claim) => now(store.claim(claim)).map(Told::Claimed),
            Message::EndClaim(token, owner, attempt, end) => {
                now(store.end_claim(token, *owner, *attempt, end)).map(Told::Ended)
            }
            Message::RestoreClaims(claims) => now(store.restore_claims(claims)).map(Told::Restored),
            // The simulated store answers it: a memory store has no history.
            Message::History => Ok(Told::History(0)),
            Message::Writers => now(store.writers()).map(Told::Writers),
            Message::Register(version, next) => now(store.register(*version, next)).map(Told::Registered),
            Message::Unregister(writer, version) => now(store.unregister(*writer, *version)).map(Told::Registered),
            Message::Clock => now(store.clock()).map(Told::At),
        }
    }
}

/// The name in a message.
pub(super) fn name(kept: &KeptName) -> Name<'_> {
    Name::new(kept).expect("it was a name when it was sent")
}

/// A memory store answers at the first poll.
fn now<T>(answer: Answer<'_, T>) -> Result<T, StoreError> {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("a memory store has nothing to wait for"),
    }
}

impl Told {
    /// What the reader of a log wants to know of it.
    pub(super) fn in_short(&self) -> String {
        match self {
            Told::Seen(seen) => {
                let version = seen.snapshot.version;
                format!("{}.{} at {}: {}", version.swaps, version.puts, seen.at, row_in_short(&seen.snapshot))
            }
            Told::Bodies(told) => {
                let SeenBodies { seen, bodies } = &**told;
                let lengths: Vec<usize> = bodies.values().map(|body| body.bytes.len()).collect();
                format!("bodies {lengths:?} of {} at {}", row_in_short(&seen.snapshot), seen.at)
            }
            Told::Writers(writers) => {
                let stage =
                    |known: &Registration| format!("{:04x} {:?}", known.writer.incarnation.0 >> 48, known.stage);
                writers.registrations.iter().map(stage).collect::<Vec<_>>().join(", ")
            }
            other => format!("{other:?}"),
        }
    }
}

/// All of a row that the reader of a log wants to know.
fn row_in_short(row: &Snapshot) -> String {
    let mut text = format!("{} @{}", row.sum(), row.epoch.millis);
    if let Some(base) = row.base {
        text += &format!(", base {base}");
    }
    if let Some(at) = row.expires_at {
        text += &format!(", until {at}");
    }
    let closed = |closed: bool| if closed { " closed" } else { "" };
    for (id, held) in &row.cells {
        let value = running(held.value, held.total);
        text += &format!(", [{:04x}/{}]={value} #{}{}", short(id), id.shard.0, held.seq.0, closed(held.closed));
    }
    for (id, spent) in &row.spent {
        let (value, epoch) = (running(spent.value, spent.total), spent.epoch.millis);
        let expired = if spent.expired.is_some() { " expired" } else { "" };
        let (shard, seq, closed) = (id.shard.0, spent.seq.0, closed(spent.closed));
        text += &format!(", spent [{:04x}/{shard}]={value} #{seq} @{epoch}{closed}{expired}", short(id));
    }
    text
}

/// A running value, and that of the whole life if it is another.
fn running(value: i128, total: i128) -> String {
    if value == total { value.to_string() } else { format!("{value} of {total}") }
}

/// Enough of a writer's random number to tell it from the others of a run.
fn short(id: &CellId) -> u64 {
    id.writer.incarnation.0 >> 48
}

/// For the reader of a log: one line.
impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Message::Put(puts) => {
                write!(f, "put")?;
                for (kept, put) in puts {
                    let Put { cell, epoch, seq, value, total } = put;
                    let (name, value) = (name(kept), running(*value, *total));
                    let (writer, shard, seq, epoch) = (short(cell), cell.shard.0, seq.0, epoch.millis);
                    write!(f, " {name}[{writer:04x}/{shard}]={value} #{seq} @{epoch}")?;
                }
                Ok(())
            }
            Message::Read(kept) => write!(f, "read {}", name(kept)),
            Message::ReadBodies(kept) => write!(f, "read bodies {}", name(kept)),
            Message::PutBody(kept, body) => {
                let Put { cell, epoch, seq, value, .. } = body.put;
                let (name, from, pages) = (name(kept), body.from.map_or(0, |seq| seq.0), body.pages.len());
                let whole = if body.whole { " whole" } else { "" };
                let (node, life) = (cell.writer.node.0 >> 48, short(&cell));
                write!(
                    f,
                    "put body {name}[{node:04x}.{life:04x}]={value} #{from}..{} @{}: {pages} pages{whole}",
                    seq.0, epoch.millis
                )
            }
            Message::Swap(kept, version, Some(next)) => {
                let (id, name) = (next.swaps.last().map_or(0, |id| id.0 >> 112), name(kept));
                write!(f, "swap {name} {}.{} ({id:04x}) -> {}", version.swaps, version.puts, row_in_short(next))
            }
            Message::SwapBodies(kept, version, next, bodies) => {
                let (id, name) = (next.swaps.last().map_or(0, |id| id.0 >> 112), name(kept));
                let (swaps, puts, row) = (version.swaps, version.puts, row_in_short(next));
                write!(f, "swap {name} {swaps}.{puts} ({id:04x}) -> {row}, and {} bodies", bodies.len())
            }
            Message::Swap(kept, version, None) => {
                write!(f, "swap {} {}.{} -> gone", name(kept), version.swaps, version.puts)
            }
            Message::Register(version, next) => {
                let writer = next.writer.incarnation.0 >> 48;
                write!(f, "register {writer:04x} {:?} until {} on {version}", next.stage, next.lease_until)
            }
            other => write!(f, "{}", other.call()),
        }
    }
}
