//! Who sits where: the connections of a worker, by number.
//!
//! Invariant: a place is given to one connection at a time, and given back once.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Waker;

use super::wake_queue::{WakeHandle, WakeQueue};
use crate::connection::Connection;

/// A connection that is served apart from the others; it comes back when there is nothing to do but to wait.
pub(super) type DetachedFuture = Pin<Box<dyn Future<Output = Option<Box<Connection>>>>>;

/// The places of a worker.
pub(super) struct ConnectionSlots {
    wake_queue: Arc<WakeQueue>,
    slots: Vec<ConnectionSlot>,
    /// Those that nobody has.
    free: Vec<usize>,
}

/// One of them.
pub(super) struct ConnectionSlot {
    pub state: SlotState,
    pub wake_handle: Arc<WakeHandle>,
    pub waker: Waker,
}

/// What is going on there.
pub(super) enum SlotState {
    Free,
    /// It waits for bytes, and knocks when some have come.
    Idle(Box<Connection>),
    /// It waits for its replies to be sent; knocks are about nothing until it rests again.
    Busy(Box<Connection>),
    Detached(DetachedFuture),
}

impl SlotState {
    /// It was read from.
    pub fn mark_busy(&mut self) {
        *self = match mem::replace(self, SlotState::Free) {
            SlotState::Idle(connection) => SlotState::Busy(connection),
            other => other,
        };
    }
}

impl ConnectionSlots {
    pub fn new(wake_queue: Arc<WakeQueue>) -> ConnectionSlots {
        ConnectionSlots { wake_queue, slots: Vec::new(), free: Vec::new() }
    }

    /// Gives a place to a connection that has nothing to read yet.
    pub fn insert(&mut self, connection: Box<Connection>) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            let (wake_handle, waker) = WakeHandle::new(self.slots.len(), &self.wake_queue);
            self.slots.push(ConnectionSlot { state: SlotState::Free, wake_handle, waker });
            self.slots.len() - 1
        });
        self.slots[slot].state = SlotState::Busy(connection);
        slot
    }

    /// The connection there is over.
    pub fn remove(&mut self, slot: usize) {
        if !matches!(mem::replace(&mut self.slots[slot].state, SlotState::Free), SlotState::Free) {
            self.free.push(slot);
        }
    }

    pub fn slot_mut(&mut self, slot: usize) -> &mut ConnectionSlot {
        &mut self.slots[slot]
    }

    /// The connection there, if it waits for its replies.
    pub fn busy_mut(&mut self, slot: usize) -> Option<&mut Connection> {
        match &mut self.slots[slot].state {
            SlotState::Busy(connection) => Some(connection),
            _ => None,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Has everybody looked at.
    pub fn wake_all(&self) {
        self.slots.iter().for_each(|slot| slot.waker.wake_by_ref());
    }
}
