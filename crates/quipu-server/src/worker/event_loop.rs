//! Runs a worker's event loop, in rounds over all ready connections.
//!
//! In: sockets, and wake-ups of connections with input. Out: replies.
//!
//! A round reads from each ready connection, runs the commands, commits once for all, and sends the
//! replies. Simple input of several connections runs as one batch (`connection/command_batch.rs`).
//! So one commit serves all, and one wake-up from the journal covers many replies.
//!
//! Invariants:
//! - A reply leaves after its whole content is as durable as required, and waits for no other
//!   connection's durability.
//! - The loop reads nothing from a connection with unsent replies.
//! - A connection that needs more than a round is detached: its own future serves it, and no other
//!   connection waits.

use std::cell::Cell;
use std::future::poll_fn;
use std::mem;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use quipu_engine::Wait;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

use super::connection_slots::{ConnectionSlot, ConnectionSlots, SlotState};
use super::wake_queue::{WakeHandle, WakeQueue};
use super::{ACCEPT_QUEUE_MAX, AcceptedSocket};
use crate::cached_clock;
use crate::connection::{CommandBatch, Connection, EntryProgress, TurnEnd, TurnOutcome, with_read_buffer};
use crate::server_state::{ServerState, add_stat};

/// Slot number of the acceptor; connections are numbered from 0.
const ACCEPTOR: usize = usize::MAX;

/// Slot number of the journal, woken by its progress.
const JOURNAL: usize = usize::MAX - 1;

/// Most slots and bytes of one round, about a millisecond's work: the first connections of a round
/// wait for the last.
const ROUND_SLOTS_MAX: usize = 256;
const ROUND_BYTES_MAX: usize = 256 << 10;

/// A larger reply buffer is released after a round.
const REPLIES_KEPT_BYTES: usize = 64 << 10;

/// Event loop of a worker.
pub(super) struct EventLoop {
    server: Arc<ServerState>,
    accepted_sockets: mpsc::Receiver<AcceptedSocket>,
    shutdown: Pin<Box<dyn Future<Output = ()>>>,
    acceptor: (Arc<WakeHandle>, Waker),
    journal: (Arc<WakeHandle>, Waker),
    /// True after the acceptor's end.
    acceptor_ended: bool,
    stopping: Rc<Cell<bool>>,
    wake_queue: Arc<WakeQueue>,
    /// Woken slots that the loop has not polled yet.
    woken: Vec<usize>,
    /// Slots to read from in this round.
    ready: Vec<usize>,
    slots: ConnectionSlots,
    /// Progress of each batch entry.
    progress: Vec<EntryProgress>,
    /// Replies of this round.
    pending_replies: Vec<PendingReply>,
    /// Bytes of the batch's replies.
    replies: Vec<u8>,
    /// Replies that wait for the journal, of this round and earlier ones. The bytes of earlier ones
    /// are in their connections.
    awaiting_commit: Vec<PendingReply>,
}

/// Reply of one connection.
struct PendingReply {
    slot: usize,
    outcome: TurnOutcome,
    /// Range of its bytes in `EventLoop::replies`; empty if the connection holds them.
    replies: Range<usize>,
}

impl EventLoop {
    pub fn new(
        accepted_sockets: mpsc::Receiver<AcceptedSocket>,
        mut stopped: watch::Receiver<bool>,
        server: Arc<ServerState>,
    ) -> EventLoop {
        let wake_queue = Arc::<WakeQueue>::default();
        let [acceptor, journal] = [ACCEPTOR, JOURNAL].map(|slot| WakeHandle::new(slot, &wake_queue));
        // Sockets admitted before the first poll wake no waker.
        acceptor.1.wake_by_ref();
        EventLoop {
            server,
            accepted_sockets,
            shutdown: Box::pin(async move {
                // The sender outlives the acceptor.
                let _ = stopped.wait_for(|stopped| *stopped).await;
            }),
            acceptor,
            journal,
            acceptor_ended: false,
            stopping: Rc::default(),
            slots: ConnectionSlots::new(Arc::clone(&wake_queue)),
            wake_queue,
            woken: Vec::new(),
            ready: Vec::new(),
            progress: Vec::new(),
            pending_replies: Vec::new(),
            replies: Vec::new(),
            awaiting_commit: Vec::new(),
        }
    }

    /// Serves until the acceptor's end.
    pub async fn run_until_acceptor_ends(&mut self) {
        poll_fn(|context| {
            self.poll_wakeups(context);
            if self.acceptor_ended { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Serves until the last connection has closed.
    pub async fn run_until_empty(&mut self) {
        poll_fn(|context| {
            self.poll_wakeups(context);
            if self.slots.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Signals the server's stop to every connection.
    pub fn stop(&mut self) {
        self.stopping.set(true);
        self.slots.wake_all();
    }

    /// Polls the slots woken since the last call.
    fn poll_wakeups(&mut self, context: &mut Context<'_>) {
        self.wake_queue.drain_into(context, &mut self.woken);
        if self.woken.is_empty() {
            return;
        }
        cached_clock::invalidate();
        let (mut woken, mut ready) = (mem::take(&mut self.woken), mem::take(&mut self.ready));
        for slot in woken.drain(..woken.len().min(ROUND_SLOTS_MAX)) {
            match slot {
                ACCEPTOR => self.accept_connections(),
                JOURNAL => {
                    self.journal.0.clear();
                    self.commit_and_send();
                }
                _ => {
                    let ConnectionSlot { state, wake_handle, .. } = self.slots.slot_mut(slot);
                    wake_handle.clear();
                    match state {
                        SlotState::Idle(_) if self.stopping.get() => self.detach(slot, None),
                        SlotState::Idle(_) => ready.push(slot),
                        SlotState::Detached(_) => self.poll_detached(slot),
                        SlotState::Busy(_) | SlotState::Free => {}
                    }
                }
            }
        }
        let served = self.serve_ready(&ready);
        // The rest of this round stands before later wake-ups.
        woken.splice(0..0, ready.drain(..).skip(served));
        if !woken.is_empty() {
            context.waker().wake_by_ref();
        }
        (self.woken, self.ready) = (woken, ready);
    }

    /// Reads, runs and replies for the first of these; returns their number.
    fn serve_ready(&mut self, ready: &[usize]) -> usize {
        let (mut rest, mut bytes) = (ready.iter().copied(), 0);
        with_read_buffer(|buffer| {
            while rest.len() > 0 && bytes < ROUND_BYTES_MAX {
                bytes += self.read_and_run(&mut rest, buffer);
            }
        });
        let mut pending_replies = mem::take(&mut self.pending_replies);
        let awaiting_before = self.awaiting_commit.len();
        for reply in pending_replies.drain(..) {
            if reply.outcome.wait == Wait::default() {
                self.send_reply(reply);
            } else {
                self.awaiting_commit.push(reply);
            }
        }
        self.pending_replies = pending_replies;
        if self.awaiting_commit.len() > awaiting_before {
            self.commit_and_send();
            self.park_replies();
        }
        self.replies.clear();
        self.replies.shrink_to(REPLIES_KEPT_BYTES);
        ready.len() - rest.len()
    }

    /// Reads from the next connections and runs their commands together, up to the first that must
    /// run alone. Returns the number of bytes read.
    fn read_and_run(&mut self, ready: &mut impl Iterator<Item = usize>, buffer: &mut [u8]) -> usize {
        let EventLoop { server, slots, pending_replies, progress, replies, .. } = self;
        let (mut turn, mut command_batch, mut alone) = (None, CommandBatch::default(), None);
        let (room_bytes, mut room) = (buffer.len(), buffer);
        while !command_batch.is_full()
            && let Some(slot) = ready.next()
        {
            let ConnectionSlot { state, waker, .. } = slots.slot_mut(slot);
            let SlotState::Idle(connection) = state else { continue };
            let received = match connection.poll_receive(&mut Context::from_waker(waker), room) {
                // A spurious wake-up, or one for bytes already read.
                Poll::Pending => continue,
                Poll::Ready(Ok(received)) if received > 0 => received,
                Poll::Ready(_) => {
                    slots.remove(slot);
                    continue;
                }
            };
            let (input, rest) = mem::take(&mut room).split_at_mut(received);
            room = rest;
            let is_batched = connection.may_batch() && {
                let turn = turn.get_or_insert_with(|| server.engine.turn_at(cached_clock::now(&server.engine)));
                connection.add_to_batch(&mut command_batch, slot, input, turn)
            };
            state.mark_busy();
            if !is_batched {
                alone = Some((slot, &*input));
                break;
            }
        }
        if let Some(mut turn) = turn.filter(|_| !command_batch.is_empty()) {
            let mut from = replies.len();
            let counts = command_batch.run(&mut turn, &server.hot_keys, replies, progress);
            let (now, wait) = (turn.now(), turn.finish());
            add_stat(&server.stats.commands, counts.commands);
            server.stats.record_overflows(counts.errors);
            for (entry, progress) in command_batch.entries().iter().zip(progress) {
                let range = mem::replace(&mut from, progress.replies_end)..progress.replies_end;
                let Some(connection) = slots.busy_mut(entry.slot) else { continue };
                connection.record_batch(progress.command, now);
                let is_whole = progress.bytes == entry.input.len();
                // A connection that did not run in the batch does not wait for its commit.
                let wait = if progress.bytes > 0 { wait } else { Wait::default() };
                pending_replies.push(if is_whole {
                    PendingReply { slot: entry.slot, outcome: TurnOutcome { wait, end: TurnEnd::Idle }, replies: range }
                } else {
                    let outcome = connection.run(&entry.input[progress.bytes..], &replies[range]);
                    PendingReply { slot: entry.slot, outcome: outcome.with_wait(wait), replies: 0..0 }
                });
            }
        }
        if let Some((slot, input)) = alone
            && let Some(connection) = slots.busy_mut(slot)
        {
            pending_replies.push(PendingReply { slot, outcome: connection.run(input, &[]), replies: 0..0 });
        }
        room_bytes - room.len()
    }

    /// Commits for all waiting replies, and sends those that the journal covers.
    ///
    /// Called only for new replies or after a wake-up from the journal: each pending commit adds
    /// one more waker to the journal.
    fn commit_and_send(&mut self) {
        // Replies that need no sync first.
        for synced in [false, true] {
            self.send_committed(|wait| (wait.synced != Wait::default().synced) == synced);
        }
    }

    fn send_committed(&mut self, selects: impl Fn(&Wait) -> bool) {
        let mut awaiting_commit = mem::take(&mut self.awaiting_commit);
        let waits = awaiting_commit.iter().map(|reply| reply.outcome.wait).filter(&selects);
        if let Some(all) = waits.reduce(Wait::and) {
            let (server, waker, mut later) = (Arc::clone(&self.server), self.journal.1.clone(), None::<Wait>);
            let mut context = Context::from_waker(&waker);
            let mut committed = |wait| pin!(server.engine.commit_until(wait)).poll(&mut context);
            let is_all = matches!(committed(all), Poll::Ready(Ok(())));
            awaiting_commit.retain_mut(|PendingReply { slot, outcome, replies }| {
                // If an earlier position is not committed, a later one is not either.
                let comes_after =
                    |later: Wait| later.written <= outcome.wait.written && later.synced <= outcome.wait.synced;
                if !selects(&outcome.wait) || later.is_some_and(comes_after) {
                    return true;
                }
                match if is_all { Poll::Ready(Ok(())) } else { committed(outcome.wait) } {
                    Poll::Ready(Ok(())) => {
                        let end = mem::replace(&mut outcome.end, TurnEnd::Idle);
                        let outcome = TurnOutcome { wait: Wait::default(), end };
                        self.send_reply(PendingReply { slot: *slot, outcome, replies: mem::take(replies) });
                    }
                    // Outcome unknown: the connection closes without a reply.
                    Poll::Ready(Err(_)) => self.slots.remove(*slot),
                    Poll::Pending => {
                        later = Some(outcome.wait);
                        return true;
                    }
                }
                false
            });
        }
        self.awaiting_commit = awaiting_commit;
    }

    /// Moves the bytes of waiting replies into their connections, since the next round reuses the
    /// buffer.
    fn park_replies(&mut self) {
        for PendingReply { slot, replies, .. } in &mut self.awaiting_commit {
            let replies = mem::take(replies);
            if let Some(connection) = self.slots.busy_mut(*slot) {
                connection.buffer_replies(&self.replies[replies]);
            }
        }
    }

    /// Sends a reply that waits for nothing.
    fn send_reply(&mut self, reply: PendingReply) {
        let PendingReply { slot, outcome, replies } = reply;
        let Some(connection) = self.slots.busy_mut(slot) else { return };
        if outcome.end != TurnEnd::Idle {
            return self.detach(slot, Some(outcome));
        }
        match connection.try_send(&self.replies[replies]) {
            Ok(true) if connection.is_idle() => self.return_to_idle(slot),
            Ok(true) => self.detach(slot, None),
            Ok(false) => self.detach(slot, Some(outcome)),
            Err(_) => self.slots.remove(slot),
        }
    }

    /// Detaches a connection: its own future serves it from here on.
    fn detach(&mut self, slot: usize, outcome: Option<TurnOutcome>) {
        let state = &mut self.slots.slot_mut(slot).state;
        *state = match mem::replace(state, SlotState::Free) {
            SlotState::Idle(connection) | SlotState::Busy(connection) => {
                SlotState::Detached(Box::pin(connection.serve(outcome)))
            }
            other => other,
        };
        self.poll_detached(slot);
    }

    /// Polls a detached connection.
    fn poll_detached(&mut self, slot: usize) {
        let ConnectionSlot { state, waker, .. } = self.slots.slot_mut(slot);
        let SlotState::Detached(future) = state else { return };
        match future.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Pending => {}
            Poll::Ready(None) => self.slots.remove(slot),
            Poll::Ready(Some(connection)) => {
                *state = SlotState::Busy(connection);
                self.return_to_idle(slot);
            }
        }
    }

    /// Makes a connection idle after its replies: its next bytes wake the slot.
    fn return_to_idle(&mut self, slot: usize) {
        let ConnectionSlot { state, waker, .. } = self.slots.slot_mut(slot);
        *state = match mem::replace(state, SlotState::Free) {
            SlotState::Busy(connection) => {
                if connection.poll_readable(&mut Context::from_waker(waker)).is_ready() {
                    waker.wake_by_ref();
                }
                SlotState::Idle(connection)
            }
            other => other,
        };
    }

    /// Puts the admitted sockets into slots.
    fn accept_connections(&mut self) {
        let (wake_handle, waker) = self.acceptor.clone();
        let mut context = Context::from_waker(&waker);
        wake_handle.clear();
        if !self.stopping.get() && self.shutdown.as_mut().poll(&mut context).is_ready() {
            self.stop();
        }
        for _ in 0..ACCEPT_QUEUE_MAX {
            let Poll::Ready(next) = self.accepted_sockets.poll_recv(&mut context) else { return };
            let Some((socket, client)) = next else {
                self.acceptor_ended = true;
                return;
            };
            // An unusable socket means that the client has gone.
            let Ok(stream) = TcpStream::from_std(socket) else { continue };
            let connection = Connection::new(stream, client, Arc::clone(&self.server), Rc::clone(&self.stopping));
            let slot = self.slots.insert(connection);
            self.detach(slot, None);
        }
        // More sockets may wait; the connections accepted so far come first.
        waker.wake_by_ref();
    }
}
