//! Walking over all names, a shard at a time.

use quipu_model::{Cell, ListNames, Millis, Refusal, Reply, Scan};

use super::table::{ORDER_BITS, Shard, Table};
use crate::journal::format::Position;

/// Access to one shard after another: held all along by a transaction, locked in passing by a plain command.
pub trait Shards {
    /// Looks at a shard.
    fn look<T>(&mut self, index: usize, look: impl FnOnce(&Shard) -> T) -> T;

    /// A counter was left out because it has expired.
    fn note_hidden(&mut self);
}

/// Locks each shard only while it is looked at, and notes the newest record of those it saw.
pub struct Passing<'t> {
    /// All shards.
    pub table: &'t Table,
    /// The end of the newest record of any shard seen so far.
    pub newest: Position,
    /// Whether a counter was left out because it has expired.
    pub hidden: bool,
}

impl Shards for Passing<'_> {
    fn look<T>(&mut self, index: usize, look: impl FnOnce(&Shard) -> T) -> T {
        let shard = self.table.lock(index);
        self.newest = self.newest.max(shard.newest);
        look(&shard)
    }

    fn note_hidden(&mut self) {
        self.hidden = true;
    }
}

/// One step over the names in the order of their hashes. A name there from the first step to the last is met.
pub fn scan(shards: &mut impl Shards, table: &Table, command: &Scan<'_>, now: Millis) -> Reply {
    let shard_bits = table.shard_count().trailing_zeros();
    let mut names = Vec::new();
    let mut left = command.count.max(1);
    let mut from = command.cursor;
    if from >> ORDER_BITS != 0 {
        return Reply::Page(0, names);
    }
    let matcher = command.pattern.map(|pattern| pattern.matcher());
    let mut index = (from >> (ORDER_BITS - shard_bits)) as usize;
    while left > 0 && index < table.shard_count() {
        let mut hidden = false;
        let last = shards.look(index, |shard| {
            let page = shard.names_from(from, left);
            left = left.saturating_sub(page.len());
            for (_, name) in &page {
                if matcher.as_ref().is_none_or(|matcher| matcher.matches(name)) {
                    let cell = shard.get(table.hash(name), name);
                    match cell.is_some_and(|cell| is_alive(&cell, now)) {
                        true => names.push(Box::from(*name)),
                        false => hidden = true,
                    }
                }
            }
            page.iter().map(|(key, _)| *key).max()
        });
        if hidden {
            shards.note_hidden();
        }
        match last {
            // The page may have been cut short: go on behind its last key.
            Some(last) if left == 0 => {
                from = last + 1;
                index = (from >> (ORDER_BITS - shard_bits)) as usize;
            }
            _ => {
                index += 1;
                from = (index as u64) << (ORDER_BITS - shard_bits);
            }
        }
    }
    let done = index >= table.shard_count();
    Reply::Page(if done { 0 } else { from }, names)
}

/// All names that match, or a refusal if they are too many bytes.
pub fn list_names(
    shards: &mut impl Shards,
    table: &Table,
    command: &ListNames<'_>,
    now: Millis,
) -> Result<Reply, Refusal> {
    let (mut names, mut bytes) = (Vec::new(), 0);
    let matcher = command.pattern.matcher();
    for index in 0..table.shard_count() {
        let mut hidden = false;
        shards.look(index, |shard| {
            for (name, cell) in shard.cells() {
                if bytes <= command.bytes_max && matcher.matches(name) {
                    if is_alive(&cell, now) {
                        bytes += name.len() + NAME_OVERHEAD_BYTES;
                        names.push(Box::from(name));
                    } else {
                        hidden = true;
                    }
                }
            }
        });
        if hidden {
            shards.note_hidden();
        }
        if bytes > command.bytes_max {
            return Err(Refusal::ReplyTooLarge { bytes_max: command.bytes_max });
        }
    }
    Ok(Reply::Names(names))
}

/// What a protocol puts around a name: a length and line ends.
const NAME_OVERHEAD_BYTES: usize = 10;

fn is_alive(cell: &Cell, now: Millis) -> bool {
    cell.expires_at.is_none_or(|at| at > now)
}
