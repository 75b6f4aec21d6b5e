//! Slots act as a map, under any order of inserts, removals, moves and splits into extras.

use std::collections::BTreeMap;

use proptest::prelude::*;
use quipu_model::{Epoch, Millis, NodeId};

use crate::table::slots::*;

/// The model's state of a name.
#[derive(Debug, Clone, Default, PartialEq)]
struct ModelSlot {
    cell: Option<Cell>,
    own: bool,
    changed: bool,
}

fn name(n: u8) -> Vec<u8> {
    // Around the longest name that fits a slot, with the same beginning.
    let mut name = vec![b'n'; SHORT_BYTES_MAX - 2];
    name.extend(std::iter::repeat_n(n, usize::from(n % 5) + 1));
    name
}

fn cells() -> impl Strategy<Value = Option<Cell>> {
    // More epochs than there are numbers.
    let epoch = (0u64..24).prop_map(|millis| Epoch { millis, node: NodeId(millis % 3) });
    let cell = (epoch, any::<i64>(), proptest::option::weighted(0.2, (0u64..9).prop_map(Millis)));
    proptest::option::weighted(0.8, cell.prop_map(|(epoch, value, expires_at)| Cell { epoch, value, expires_at }))
}

fn check(slots: &SlotTable, model: &BTreeMap<u8, ModelSlot>) -> Result<(), TestCaseError> {
    prop_assert_eq!(slots.len(), model.len());
    for (n, expected) in model {
        let name = name(*n);
        let hash = xxh3_64_with_seed(&name, 7);
        let at = slots.find(hash, &name);
        prop_assert!(at.is_some(), "{} is there", n);
        let at = at.unwrap_or_default();
        prop_assert_eq!((slots.name(at), slots.hash(at)), (&name[..], hash));
        prop_assert_eq!(slots.cell(at), expected.cell);
        prop_assert_eq!(slots.own_cells(at).is_some(), expected.own);
        prop_assert_eq!(slots.has(at, SlotFlag::Changed), expected.changed);
    }
    Ok(())
}

proptest! {
    #[test]
    fn slots_are_a_map(ops in proptest::collection::vec((0u8..6, 0u8..150, cells()), 0..500)) {
        let mut slots = SlotTable::new(7, 0, Arc::new(SpareChunks::default()));
        let mut model: BTreeMap<u8, ModelSlot> = BTreeMap::new();
        for (op, n, cell) in ops {
            let name = name(n);
            let hash = xxh3_64_with_seed(&name, 7);
            slots.prefetch_bucket(hash);
            let (guess, found) = (slots.likely_slot(hash), slots.find(hash, &name));
            // Nearly always the right slot; `None` only if there is none; a wrong guess is
            // detected.
            prop_assert!(guess.is_some() || found.is_none());
            if let Some(guess) = guess {
                let cell = slots.cell(guess).filter(|cell| found == Some(guess) && cell.expires_at.is_none());
                let fast = slots.find_plain(guess, &name);
                prop_assert!(fast.is_none_or(|plain| Some(plain) == cell.map(|cell| (cell.value, cell.epoch))));
                prop_assert!(fast.is_some() || cell.is_none() || slots.slot(guess).has(HAS_EXTRA));
            }
            let Some(at) = found else {
                prop_assert!(!model.contains_key(&n));
                let at = slots.insert(hash, &name);
                slots.set_cell(at, cell);
                model.insert(n, ModelSlot { cell, ..ModelSlot::default() });
                continue;
            };
            let expected = model.get_mut(&n).expect("what is found was put");
            match op {
                0 => {
                    let expected = model.remove(&n).expect("it is there");
                    let RemovedSlot { name: gone, cell, own } = slots.remove(at);
                    prop_assert_eq!((&*gone, cell, own.is_some()), (&name[..], expected.cell, expected.own));
                }
                1 => {
                    prop_assert_eq!(slots.set_own_cells(at, Some(Box::default())).is_some(), expected.own);
                    expected.own = true;
                }
                2 => {
                    prop_assert_eq!(slots.take_own_cells(at).is_some(), expected.own);
                    expected.own = false;
                }
                3 if expected.cell.is_some() => {
                    slots.set_value(at, i64::from(n));
                    expected.changed = true;
                    expected.cell = expected.cell.map(|cell| Cell { value: i64::from(n), ..cell });
                }
                4 => {
                    prop_assert_eq!(slots.take(at, SlotFlag::Changed), expected.changed);
                    slots.set(at, SlotFlag::Changed);
                    expected.changed = true;
                }
                _ => {
                    prop_assert_eq!(slots.set_cell(at, cell), expected.cell);
                    expected.cell = cell;
                }
            }
            slots.shrink();
        }
        check(&slots, &model)?;
        slots.clear();
        prop_assert_eq!((slots.len(), slots.chunks.len()), (0, 0));
    }

    /// Hashes that agree in the bits that choose a bucket, so that long probe sequences are built
    /// and taken apart.
    #[test]
    fn an_index_finds_what_is_in_it(ops in proptest::collection::vec((any::<bool>(), 0u32..60), 0..300)) {
        // Of one shard of four, at its two ends and in the middle.
        let hash_of = |number: u32| 2 << 62 | (u64::from(number % 5) << 60).saturating_sub(1) | u64::from(number % 7);
        let mut index = SlotIndex::new(2);
        let mut model = std::collections::BTreeSet::new();
        for (insert, number) in ops {
            match (insert, model.contains(&number)) {
                (true, false) => {
                    index.insert(hash_of(number), number, hash_of);
                    model.insert(number);
                }
                (false, true) => {
                    index.remove(hash_of(number), number, hash_of);
                    model.remove(&number);
                    index.shrink(hash_of);
                }
                _ => {}
            }
            for other in 0..60 {
                let found = index.find(hash_of(other), |at| at == other);
                prop_assert_eq!(found, model.contains(&other).then_some(other));
            }
            let mut from = 2 << 62;
            let mut met = std::collections::BTreeSet::new();
            loop {
                let (found, end) = index.range_from(from, 3, hash_of);
                prop_assert!(found.iter().all(|(hash, at)| met.insert(*at) && *hash >= from && end.is_none_or(|end| *hash < end)));
                match end {
                    Some(end) => from = end,
                    None => break,
                }
            }
            prop_assert_eq!(&met, &model);
        }
    }
}

proptest! {
    #[test]
    fn names_are_the_same_when_all_their_bytes_are(
        a in proptest::collection::vec(0u8..3, 0..40), flip in proptest::option::of(any::<prop::sample::Index>()), more: bool,
    ) {
        let mut b = a.clone();
        if let Some(at) = flip.filter(|_| !a.is_empty()) {
            let at = at.index(b.len());
            b[at] ^= 4;
        }
        b.extend(more.then_some(0));
        prop_assert_eq!(names_equal(&a, &b), a == b);
    }
}

#[test]
fn a_slot_takes_half_a_line_of_memory() {
    assert_eq!((size_of::<CounterSlot>(), size_of::<Chunk>()), (32, 32 * CHUNK_SLOTS));
}
