//! Holds the connections of a worker, by slot number.
//!
//! Invariant: a slot belongs to one connection at a time, and is freed once.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Waker;

use super::wake_queue::{WakeHandle, WakeQueue};
use crate::connection::Connection;

/// A detached connection: a future of its own, which returns the connection once it is idle.
pub(super) type DetachedFuture = Pin<Box<dyn Future<Output = Option<Box<Connection>>>>>;

/// Slots of a worker.
pub(super) struct ConnectionSlots {
    wake_queue: Arc<WakeQueue>,
    slots: Vec<ConnectionSlot>,
    /// Free slots.
    free: Vec<usize>,
}

/// One slot.
pub(super) struct ConnectionSlot {
    pub state: SlotState,
    pub wake_handle: Arc<WakeHandle>,
    pub waker: Waker,
}

/// State of a slot.
pub(super) enum SlotState {
    Free,
    /// The connection waits for bytes; their arrival wakes the slot.
    Idle(Box<Connection>),
    /// The connection waits for its replies to be sent; wake-ups have no effect until it is idle.
    Busy(Box<Connection>),
    Detached(DetachedFuture),
}

impl SlotState {
    /// Marks an idle connection busy after a read.
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

    /// Puts a connection without input into a free slot.
    pub fn insert(&mut self, connection: Box<Connection>) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            let (wake_handle, waker) = WakeHandle::new(self.slots.len(), &self.wake_queue);
            self.slots.push(ConnectionSlot { state: SlotState::Free, wake_handle, waker });
            self.slots.len() - 1
        });
        self.slots[slot].state = SlotState::Busy(connection);
        slot
    }

    /// Frees the slot after the connection's end.
    pub fn remove(&mut self, slot: usize) {
        if !matches!(mem::replace(&mut self.slots[slot].state, SlotState::Free), SlotState::Free) {
            self.free.push(slot);
        }
    }

    pub fn slot_mut(&mut self, slot: usize) -> &mut ConnectionSlot {
        &mut self.slots[slot]
    }

    /// The connection of a slot, if it waits for its replies.
    pub fn busy_mut(&mut self, slot: usize) -> Option<&mut Connection> {
        match &mut self.slots[slot].state {
            SlotState::Busy(connection) => Some(connection),
            _ => None,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Wakes all slots.
    pub fn wake_all(&self) {
        self.slots.iter().for_each(|slot| slot.waker.wake_by_ref());
    }
}
