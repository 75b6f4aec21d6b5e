//! Queues the commands between MULTI and EXEC.
//!
//! Invariant: the queue has bounds. A command beyond them is refused and aborts the transaction,
//! like any other mistake.

use quipu_protocol::resp::StoredArgs;
use quipu_protocol::{Args, Spec};

use super::error::ConnectionError;
use crate::Limits;

/// Commands that wait for EXEC.
#[derive(Default)]
pub(super) struct Transaction {
    arena: Vec<u8>,
    queued: Vec<(&'static Spec, StoredArgs)>,
    /// Work of the commands, in the unit of a turn's work.
    pub work: usize,
    /// Upper bound of the replies' length.
    reply_bytes: usize,
    /// True after a refused command: EXEC will be refused.
    pub spoiled: bool,
}

/// Longest reply for one argument: the smallest number, as a bulk string.
const VALUE_BYTES_MAX: usize = 27;

/// Longest reply for one argument where the reply may name an expelled item.
const ITEM_BYTES_MAX: usize = 1_024 + 16;

/// Longest reply for one argument where the reply has two values per item.
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
            // EXEC will refuse the transaction in any case.
            return Ok(());
        }
        // Only an echoed argument can make a reply longer.
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

    /// Makes EXEC fail, and drops the queue.
    pub fn spoil(&mut self) {
        *self = Transaction { spoiled: true, ..Transaction::default() };
    }

    pub fn len(&self) -> usize {
        self.queued.len()
    }

    /// Commands in order.
    pub fn commands(&self) -> impl Iterator<Item = (&'static Spec, Args<'_>)> {
        self.queued.iter().map(|(spec, stored)| (*spec, stored.args(&self.arena)))
    }
}
