use std::collections::BTreeMap;

use proptest::prelude::*;

use quipu_model::SealedCell;

use super::*;
use crate::bodies::own_cells::OwnCells;
use crate::table::Table;

fn cell(value: i64, expires: Option<u64>) -> Cell {
    Cell { epoch: Epoch::FIRST, value, expires_at: expires.map(Millis) }
}

#[derive(Debug, Clone)]
enum ShardOp {
    Put(u8, i64, Option<u64>),
    Remove(u8),
    Seal(bool),
    Evict,
}

fn ops() -> impl Strategy<Value = Vec<ShardOp>> {
    let put = (0u8..24, any::<i64>(), proptest::option::of(0u64..50)).prop_map(|(n, v, e)| ShardOp::Put(n, v, e));
    let seal = any::<bool>().prop_map(ShardOp::Seal);
    let op = prop_oneof![6 => put, 2 => (0u8..24).prop_map(ShardOp::Remove), 1 => seal, 1 => Just(ShardOp::Evict)];
    proptest::collection::vec(op, 0..150)
}

proptest! {
    /// A shard and a ledger together act as a map, under any order of seals, failed seals and
    /// evictions.
    #[test]
    fn a_shard_over_a_ledger_is_a_map(ops in ops(), now in 0u64..60) {
        let table = Table::new(1, 7);
        let mut shard = table.lock(0);
        let mut model: BTreeMap<u8, Cell> = BTreeMap::new();
        let mut ledger: BTreeMap<u8, Cell> = BTreeMap::new();
        let (mut batch, mut done) = (0, 0);
        let known = |shard: &mut Shard, ledger: &BTreeMap<u8, Cell>, n: u8| {
            let hash = table.hash(&[n]);
            if shard.find(hash, &[n]) == Residency::NotResident {
                shard.load(hash, &[n], ledger.get(&n).copied(), None);
            }
            shard.find(hash, &[n])
        };
        for op in ops {
            match op {
                ShardOp::Put(n, value, expires) => {
                    let cell = cell(value, expires);
                    known(&mut shard, &ledger, n);
                    shard.put(table.hash(&[n]), &[n], cell);
                    model.insert(n, cell);
                }
                ShardOp::Remove(n) => {
                    known(&mut shard, &ledger, n);
                    shard.remove(table.hash(&[n]), &[n]);
                    model.remove(&n);
                }
                ShardOp::Seal(works) => {
                    batch += 1;
                    let mut sealed = Vec::new();
                    shard.collect(batch, done, &mut sealed);
                    if works {
                        for SealedCell { name, cell, .. } in sealed {
                            match cell {
                                Some(cell) => ledger.insert(name[0], cell),
                                None => ledger.remove(&name[0]),
                            };
                        }
                        done = batch;
                        shard.purge(done);
                    } else {
                        shard.undo_collect(batch);
                    }
                }
                ShardOp::Evict => { shard.evict(done); }
            }
            prop_assert_eq!(shard.counters as usize, model.len());
        }
        for n in 0..24 {
            let expected = model.get(&n).map_or(Residency::Absent, |cell| Residency::Present(*cell));
            prop_assert_eq!(known(&mut shard, &ledger, n), expected);
        }
        let first = model.iter().filter_map(|(n, c)| Some((c.expires_at?, *n))).min();
        let overdue = first.filter(|(at, _)| at.0 <= now).map(|(_, n)| NameBuf::from(&[n][..]));
        prop_assert_eq!(shard.overdue(Millis(now), 1).next(), overdue);
        prop_assert_eq!(shard.deadlines.len(), model.values().filter(|c| c.expires_at.is_some()).count());
        let deadlines = shard.deadlines.len();
        prop_assert_eq!(shard.names_bytes, (shard.slots.len() + deadlines) * name_bytes(b"n") + deadlines * DEADLINE_BYTES);
    }
}

/// A shared store's own cells keep a slot: a purge that could not remove it must not be asked for
/// again and again.
#[test]
fn absent_counters_with_own_state_call_for_one_purge() {
    let table = Table::new(1, 7);
    let mut shard = table.lock(0);
    for n in 0..1_000_u32 {
        let own = OwnCells { pins: 1, ..OwnCells::default() };
        shard.load(table.hash(&n.to_be_bytes()), &n.to_be_bytes(), None, Some(Box::new(own)));
    }
    assert!(shard.needs_purge());
    shard.purge(0);
    assert!(!shard.needs_purge());
    assert!(shard.has_slot(table.hash(&7_u32.to_be_bytes()), &7_u32.to_be_bytes()));
}
