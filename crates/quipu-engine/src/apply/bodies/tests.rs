use std::collections::BTreeMap;

use proptest::prelude::*;
use quipu_model::{AuxRecord, Epoch};
use quipu_sketch::count_min::Update;
use quipu_sketch::{CountMin, Edits, Hll, Key, Sketch, Top, Unique};

use crate::bodies::body_map::{Body, BodyMap};
use crate::bodies::stored_page::{PAGE_BYTES, StoredPage, page_count};

const KEY: Key = Key([7; 16]);

fn sketch(kind: usize) -> Sketch {
    match kind % 4 {
        0 => Sketch::Hll(Hll::new()),
        1 => Sketch::Unique(Unique::new()),
        2 => Sketch::Cms(CountMin::by_size(Update::Linear, 700, 3).unwrap()),
        _ => Sketch::Top(Top::reserve(20, 8, 7, 0.9).unwrap()),
    }
}

fn count(sketch: &mut Sketch, item: &[u8], edits: &mut Edits) {
    match sketch {
        Sketch::Hll(hll) => drop(hll.add(item, edits).then_some(())),
        Sketch::Unique(unique) => drop(unique.add(&KEY, item, edits).then_some(())),
        Sketch::Cms(counts) | Sketch::Frequency(counts) => drop(counts.add(&KEY, item, 1, edits)),
        Sketch::TopK(top) | Sketch::Top(top) => drop(top.add(&KEY, item, 1, edits)),
        Sketch::Ring(_) | Sketch::Replayed(..) => unreachable!(),
    }
}

#[derive(Debug, Clone)]
enum BodyOp {
    Make(u8, usize),
    Count(u8, u16, u16),
    Remove(u8),
    Seal(bool),
}

fn ops() -> impl Strategy<Value = Vec<BodyOp>> {
    let op = prop_oneof![
        2 => (0..4u8, 0..4usize).prop_map(|(name, kind)| BodyOp::Make(name, kind)),
        8 => (0..4u8, any::<u16>(), prop_oneof![1..5u16, 1..900u16]).prop_map(|(name, from, many)| BodyOp::Count(name, from, many)),
        1 => (0..4u8).prop_map(BodyOp::Remove),
        3 => any::<bool>().prop_map(BodyOp::Seal),
    ];
    prop::collection::vec(op, 0..60)
}

fn bytes(map: &BodyMap) -> BTreeMap<Vec<u8>, Vec<u8>> {
    map.iter().map(|(name, body)| (name.to_vec(), body.bytes().to_vec())).collect()
}

proptest! {
    /// Sealed pages, written over the earlier ones, equal the bodies, even after failed seals.
    #[test]
    fn a_body_map_comes_back_from_its_pages(ops in ops()) {
        let (mut map, mut ledger) = (BodyMap::for_shown(), BTreeMap::<Box<[u8]>, Box<[u8]>>::new());
        let hash = |name: &[u8]| u64::from(name[0]) << 40;
        let mut seal = |map: &mut BodyMap, works: bool| {
            let mut notes = Vec::new();
            map.collect_pages(hash, &mut notes);
            let unsealed = notes.len();
            let mut keys: Vec<_> = notes.iter().map(|note| note.key.clone()).collect();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), notes.len(), "each note once");
            if !works {
                map.undo_collect();
                return unsealed;
            }
            for AuxRecord { key, value } in notes {
                match value {
                    Some(value) => drop(ledger.insert(key, value)),
                    // A failed seal may have deleted the page all the same.
                    None => drop(ledger.remove(&key)),
                }
            }
            map.mark_sealed();
            let mut reloaded = BodyMap::for_shown();
            for (key, value) in &ledger {
                reloaded.load_page(&StoredPage::decode(key, value).unwrap()).unwrap();
            }
            reloaded.parse_bodies().unwrap();
            assert_eq!(bytes(&reloaded), bytes(map));
            unsealed
        };
        for op in ops {
            match op {
                BodyOp::Make(name, kind) => map.insert(&[name], Body::new(sketch(kind), Epoch::FIRST, 1)),
                BodyOp::Count(name, from, many) => {
                    let Some(body) = map.get_mut(&[name]) else { continue };
                    let (length, mut edits) = (body.bytes().len(), Edits::new());
                    for n in from..from.saturating_add(many) {
                        count(body.sketch_mut(), &n.to_le_bytes(), &mut edits);
                    }
                    if !edits.is_empty() {
                        body.record_edits(length, &edits);
                        body.version += 1;
                    }
                    map.update_size(&[name]);
                }
                BodyOp::Remove(name) => map.remove(&[name]),
                BodyOp::Seal(works) => drop(Some(seal(&mut map, works))),
            }
        }
        seal(&mut map, true);
        prop_assert_eq!(seal(&mut map, true), 0, "nothing is left");
        for name in 0..4 {
            map.remove(&[name]);
        }
        prop_assert_eq!(map.bytes(), 0);
        seal(&mut map, true);
        prop_assert!(ledger.is_empty());
    }

    #[test]
    fn any_bytes_are_a_page_or_none(key in prop::collection::vec(any::<u8>(), 0..60), value: Vec<u8>) {
        let _ = StoredPage::decode(&key, &value);
        let keyed: Vec<u8> = [&[5], &key[..]].concat();
        let _ = StoredPage::decode(&keyed, &value);
    }
}

#[test]
fn pages_are_counted_from_bytes() {
    for (bytes, pages) in [(0, 0), (1, 1), (PAGE_BYTES, 1), (PAGE_BYTES + 1, 2)] {
        assert_eq!(page_count(bytes), pages);
    }
}
