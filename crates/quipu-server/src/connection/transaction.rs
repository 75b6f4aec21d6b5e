//! What is queued between MULTI and EXEC.
//!
//! Invariants:
//! - the queue has bounds; a command past them is refused and spoils the transaction, as any other mistake would.

use quipu_protocol::resp::StoredArgs;
use quipu_protocol::{Args, Spec};

use super::error::ConnectionError;
use crate::Limits;

/// Commands that wait for EXEC.
#[derive(Default)]
pub(super) struct Transaction {
    arena: Vec<u8>,
    queued: Vec<(&'static Spec, StoredArgs)>,
    /// What the commands will take, in the unit of a turn's work.
    pub work: usize,
    /// What the replies may take at most.
    reply_bytes: usize,
    /// A command was refused, so EXEC will be.
    pub spoiled: bool,
}

/// The longest reply for one argument: the least number there is, as a bulk string.
const VALUE_BYTES_MAX: usize = 27;

/// The same, where the reply may name an item that has left a list.
const ITEM_BYTES_MAX: usize = 1_024 + 16;

/// The same, where the reply says two things of an item.
const FREQUENCY_BYTES_MAX: usize = 96;

impl Transaction {
    /// Queues a command.
    pub fn push(
        &mut self,
        spec: &'static Spec,
        args: &Args<'_>,
        work: usize,
        limits: &Limits,
    ) -> Result<(), ConnectionError> {
        let (commands_max, bytes_max) = (limits.queue_commands_max, limits.queue_bytes_max);
        if self.spoiled {
            // EXEC will refuse it whatever is in it.
            return Ok(());
        }
        // What is said back is longer than that only for what is told to be said back.
        let echoed = if matches!(spec.name, "echo" | "ping") { args.bytes() } else { 0 };
        let value_bytes_max = match spec.name {
            "topk.add" | "topk.incrby" | "quipu.top.add" | "quipu.top.add.at" => ITEM_BYTES_MAX,
            "quipu.freq.read" => FREQUENCY_BYTES_MAX,
            _ => VALUE_BYTES_MAX,
        };
        self.reply_bytes += value_bytes_max * args.len() + echoed;
        let too_long = self.arena.len() + args.bytes() > bytes_max || self.reply_bytes > limits.output_bytes_max;
        if self.queued.len() >= commands_max || too_long {
            self.spoil();
            return Err(ConnectionError::QueueFull { commands_max, bytes_max });
        }
        self.queued.push((spec, args.store(&mut self.arena)));
        self.work = self.work.saturating_add(work);
        Ok(())
    }

    /// Makes EXEC fail; what was queued is no longer needed.
    pub fn spoil(&mut self) {
        *self = Transaction { spoiled: true, ..Transaction::default() };
    }

    pub fn len(&self) -> usize {
        self.queued.len()
    }

    /// The commands, in order.
    pub fn commands(&self) -> impl Iterator<Item = (&'static Spec, Args<'_>)> {
        self.queued.iter().map(|(spec, stored)| (*spec, stored.args(&self.arena)))
    }
}
