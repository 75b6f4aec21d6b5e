//! Walks over all names, one shard at a time: resident names, and those in the ledger if there are
//! any.
//!
//! A walk meets every name that exists throughout, even if counters are created, removed, sealed or
//! evicted meanwhile: it reads a shard before the ledger, and a name evicted in between is in the
//! ledger by then.

use std::ops::ControlFlow;

use quipu_model::{Cell, Ledger, ListNames, Millis, Refusal, Reply, Scan};

use crate::journal::format::Position;
use crate::table::{ORDER_BITS, ResidentName, Table, order_key};

/// Protocol overhead of a name: a length and line ends.
const NAME_OVERHEAD_BYTES: usize = 10;

/// A walk; locks each shard only while it reads it.
pub struct ShardWalk<'t> {
    /// All shards.
    pub table: &'t Table,
    /// The ledger; `None` if all counters are resident.
    pub ledger: Option<&'t dyn Ledger>,
    /// The time of the walk.
    pub now: Millis,
    /// End of the newest record of all shards read so far, for which the walk's reply waits.
    pub newest: Position,
    /// An expired counter was left out.
    pub has_hidden_expired: bool,
}

/// A page of one shard's names, in order.
struct NamePage {
    names: Vec<(u64, Box<[u8]>)>,
    /// Order key of the next page.
    next: u64,
}

/// One step over the names in the order of their hashes. A name that exists from the first step to
/// the last is returned.
pub fn scan(walk: &mut ShardWalk<'_>, command: &Scan<'_>) -> Result<Reply, Refusal> {
    let matcher = command.pattern.map(|pattern| pattern.matcher());
    let (mut names, mut left, mut from) = (Vec::new(), command.count.max(1), command.cursor);
    while left > 0 && from >> ORDER_BITS == 0 {
        let page = walk.next_page(from, left)?;
        left = left.saturating_sub(page.names.len());
        let found = page.names.into_iter().map(|(_, name)| name);
        names.extend(found.filter(|name| matcher.as_ref().is_none_or(|matcher| matcher.matches(name))));
        from = page.next;
    }
    Ok(Reply::Page(if from >> ORDER_BITS == 0 { from } else { 0 }, names))
}

/// All matching names, or a refusal if they exceed `bytes_max`.
pub fn list_names(walk: &mut ShardWalk<'_>, command: &ListNames<'_>) -> Result<Reply, Refusal> {
    let matcher = command.pattern.matcher();
    let (mut names, mut bytes, mut from) = (Vec::new(), 0, 0);
    while from >> ORDER_BITS == 0 {
        let page = walk.next_page(from, usize::MAX)?;
        for (_, name) in page.names.into_iter().filter(|(_, name)| matcher.matches(name)) {
            bytes += name.len() + NAME_OVERHEAD_BYTES;
            if bytes > command.bytes_max {
                return Err(Refusal::ReplyTooLarge { bytes_max: command.bytes_max });
            }
            names.push(name);
        }
        from = page.next;
    }
    Ok(Reply::Names(names))
}

impl ShardWalk<'_> {
    /// The next names of this order key's shard: about `count`, and all that share the last one's
    /// key.
    fn next_page(&mut self, from: u64, count: usize) -> Result<NamePage, Refusal> {
        let shard_bits = self.table.shard_count().trailing_zeros();
        let index = (from >> (ORDER_BITS - shard_bits)) as usize;
        let end = ((index + 1) as u64) << (ORDER_BITS - shard_bits);
        let shard = self.table.lock(index);
        self.newest = self.newest.max(shard.newest);
        let (resident, resident_end) = shard.names_from(from << (64 - ORDER_BITS), count);
        let ledger = self.ledger.filter(|_| shard.unloaded);
        drop(shard);
        let end = resident_end.map_or(end, |hash| order_key(hash).min(end));
        let at_rest = match ledger {
            Some(ledger) => LedgerNames::read(ledger, (from, end), count)?,
            None => LedgerNames { cells: Vec::new(), end },
        };
        Ok(merge_page(resident, at_rest, count, self.now, &mut self.has_hidden_expired))
    }
}

/// Merges the resident names over the ledger's names.
fn merge_page(
    mut resident: Vec<ResidentName>,
    at_rest: LedgerNames,
    count: usize,
    now: Millis,
    hidden: &mut bool,
) -> NamePage {
    let mut is_alive = |cell: &Cell| {
        let alive = cell.expires_at.is_none_or(|at| at > now);
        *hidden |= !alive;
        alive
    };
    let LedgerNames { mut cells, end: mut next } = at_rest;
    if !cells.is_empty() {
        resident.sort_unstable_by(|a, b| (a.0, &*a.1).cmp(&(b.0, &*b.1)));
        // For a resident name the table decides, also if the counter was removed.
        cells.retain(|(hash, name, _)| {
            resident.binary_search_by(|other| (other.0, &*other.1).cmp(&(*hash, &**name))).is_err()
        });
    }
    cells.retain(|(_, _, cell)| is_alive(cell));
    resident.retain(|(hash, _, cell)| order_key(*hash) < next && cell.is_some_and(|cell| is_alive(&cell)));
    if resident.len() + cells.len() > count {
        let keys = resident.iter().map(|(hash, ..)| *hash).chain(cells.iter().map(|(hash, ..)| *hash));
        let mut keys: Vec<u64> = keys.map(order_key).collect();
        let (_, last, _) = keys.select_nth_unstable(count - 1);
        next = *last + 1;
    }
    let cells = cells.into_iter().map(|(hash, name, _)| (order_key(hash), name));
    let resident = resident.into_iter().map(|(hash, name, _)| (order_key(hash), name));
    let mut names: Vec<(u64, Box<[u8]>)> = cells.filter(|(key, _)| *key < next).collect();
    names.extend(resident.filter(|(key, _)| *key < next).map(|(key, name)| (key, Box::from(&*name))));
    names.sort_unstable();
    NamePage { names, next }
}

/// Ledger cells with order keys below `end`.
struct LedgerNames {
    cells: Vec<(u64, Box<[u8]>, Cell)>,
    /// End of the shard, or the order key where the read stopped.
    end: u64,
}

impl LedgerNames {
    fn read(ledger: &dyn Ledger, (from, end): (u64, u64), count: usize) -> Result<LedgerNames, Refusal> {
        let mut at_rest = LedgerNames { cells: Vec::new(), end };
        ledger
            .range(from << (64 - ORDER_BITS), &mut |hash, name, cell| {
                let key = order_key(hash);
                if key >= end {
                    return ControlFlow::Break(());
                }
                let full = at_rest.cells.len() >= count
                    && at_rest.cells.last().is_some_and(|(last, ..)| order_key(*last) < key);
                if full {
                    at_rest.end = key;
                    return ControlFlow::Break(());
                }
                at_rest.cells.push((hash, Box::from(name), cell));
                ControlFlow::Continue(())
            })
            .map_err(|error| Refusal::AtRest { reason: error.to_string() })?;
        Ok(at_rest)
    }
}
