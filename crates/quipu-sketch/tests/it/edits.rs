//! Tests edits for every kind and operation. The old bytes with the edits are the new bytes. A
//! sketch decoded from bytes behaves like the original.

use proptest::prelude::*;
use quipu_sketch::count_min::Update;
use quipu_sketch::ring::RingMode;
use quipu_sketch::window::Panes;
use quipu_sketch::{CountMin, Edits, Hll, Key, Ring, Sketch, SketchKind, Top, Unique};

pub const KEY: Key = Key(*b"a key of a test.");

#[derive(Debug, Clone)]
pub enum Step {
    /// Items from, how many, weight, bytes that make the item longer.
    Add(u64, u16, u64, u8),
    Merge(u64, u16),
    EndHistory,
}

pub fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u64..3000, 1u16..40, prop_oneof![Just(0u64), 1u64..5, 1u64 << 20..1 << 40], prop_oneof![9 => Just(0u8), 1 => 0u8..80])
            .prop_map(|(from, count, weight, longer)| Step::Add(from, count, weight, longer)),
        1 => (0u64..3000, 1500u16..2500).prop_map(|(from, count)| Step::Add(from, count, 1, 0)),
        1 => (0u64..3000, 0u16..2500).prop_map(|(from, count)| Step::Merge(from, count)),
        1 => Just(Step::EndHistory),
    ]
}

pub fn empty(kind: SketchKind) -> Sketch {
    match kind {
        SketchKind::Hll => Sketch::Hll(Hll::new()),
        SketchKind::Unique => Sketch::Unique(Unique::new()),
        SketchKind::Cms => Sketch::Cms(CountMin::by_size(Update::Linear, 50, 3).expect("it is small")),
        SketchKind::Frequency => {
            Sketch::Frequency(CountMin::by_size(Update::Conservative, 50, 3).expect("it is small"))
        }
        SketchKind::TopK => Sketch::TopK(Top::reserve(3, 8, 7, 0.9).expect("it is small")),
        SketchKind::Ring => {
            let panes = Panes::parse("10s/5").expect("it is a window");
            Sketch::Ring(Ring::new(RingMode::Panes(panes), &empty(SketchKind::Top)).expect("it is small"))
        }
        _ => Sketch::Top(Top::new(5, 17, 30).expect("it is small")),
    }
}

fn item(n: u64, longer: u8) -> Vec<u8> {
    let mut item = n.to_le_bytes().to_vec();
    item.resize(8 + longer as usize, b'+');
    item
}

/// What a step answered, so that two sketches can be compared.
pub fn run(sketch: &mut Sketch, step: &Step, edits: &mut Edits) -> Vec<String> {
    match (step, sketch) {
        (Step::Add(from, count, weight, longer), sketch) => (*from..from + u64::from(*count))
            .map(|n| {
                let item = item(n, *longer);
                match sketch {
                    Sketch::Hll(sketch) => sketch.add(&item, edits).to_string(),
                    Sketch::Unique(sketch) => sketch.add(&KEY, &item, edits).to_string(),
                    Sketch::Cms(sketch) | Sketch::Frequency(sketch) => {
                        format!("{:?}", sketch.add(&KEY, &item, *weight, edits))
                    }
                    Sketch::TopK(sketch) | Sketch::Top(sketch) => {
                        format!("{:?}", sketch.add(&KEY, &item, *weight, edits))
                    }
                    Sketch::Ring(ring) => {
                        let (time, now) = (n * 100, n * 100 + weight % 20_000);
                        let place = ring.locate(time, now);
                        match place {
                            Some((_, true)) => ring.begin(time, edits),
                            Some((_, false)) => {}
                            None => ring.add_late(*weight, edits),
                        }
                        format!("{place:?} {:?}", ring.expire(now, edits))
                    }
                    Sketch::Replayed(..) => unreachable!(),
                }
            })
            .collect(),
        (Step::Merge(from, count), sketch) => {
            let mut other = empty(sketch.kind());
            run(&mut other, &Step::Add(*from, *count, 2, 0), &mut Edits::new());
            let reply = match (sketch, &other) {
                (Sketch::Hll(sketch), Sketch::Hll(other)) => format!("{:?}", sketch.merge(&[other], edits)),
                (Sketch::Unique(sketch), Sketch::Unique(other)) => format!("{:?}", sketch.merge(&[other], edits)),
                (Sketch::Cms(sketch), Sketch::Cms(other)) => {
                    let mine = sketch.clone();
                    format!("{:?}", sketch.set_to_sum(&[(&mine, 2), (other, -1)], edits))
                }
                (Sketch::Frequency(sketch), Sketch::Frequency(other)) => format!("{:?}", sketch.merge(&[other], edits)),
                (Sketch::TopK(sketch), Sketch::TopK(other)) | (Sketch::Top(sketch), Sketch::Top(other)) => {
                    format!("{:?}", sketch.merge(&KEY, &[other], edits))
                }
                (Sketch::Ring(_), _) => String::new(),
                _ => unreachable!(),
            };
            vec![reply]
        }
        (Step::EndHistory, Sketch::Hll(sketch)) => vec![format!("{:?}", sketch.end_history(edits))],
        (Step::EndHistory, Sketch::Unique(sketch)) => vec![format!("{:?}", sketch.end_history(edits))],
        (Step::EndHistory, Sketch::TopK(sketch) | Sketch::Top(sketch)) => vec![format!("{:?}", sketch.halve(3, edits))],
        (Step::EndHistory, _) => Vec::new(),
    }
}

/// Everything that can be asked without changing it.
pub fn ask(sketch: &Sketch) -> String {
    match sketch {
        Sketch::Hll(sketch) => format!(
            "{:?} {} {} {}",
            sketch.estimate(),
            sketch.count(),
            sketch.rse(),
            Hll::union_estimate(&[sketch, sketch])
        ),
        Sketch::Unique(sketch) => format!(
            "{:?} {} {} {:?} {:?} {:?}",
            sketch.estimate(),
            sketch.count(),
            sketch.rse(),
            Unique::union(&[sketch, sketch]),
            Unique::intersection(sketch, sketch),
            Unique::difference(sketch, &Unique::new()),
        ),
        Sketch::Cms(sketch) | Sketch::Frequency(sketch) => {
            let answers: Vec<_> = (0..50).map(|n| sketch.query(&KEY, &item(n, 0))).collect();
            format!("{} {answers:?}", sketch.n())
        }
        Sketch::TopK(sketch) | Sketch::Top(sketch) => {
            let answers: Vec<_> =
                (0..50).map(|n| (sketch.bounds(&KEY, &item(n, 0)), sketch.contains(&KEY, &item(n, 0)))).collect();
            format!("{:?} {:?} {answers:?}", sketch.info(), sketch.list())
        }
        Sketch::Ring(ring) => {
            format!("{:?} {} {:?}", ring.mode(), ring.late(), ring.covered(50_000).collect::<Vec<_>>())
        }
        Sketch::Replayed(..) => unreachable!(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn edits_are_all_that_changed(kind in 0usize..7, steps in prop::collection::vec(step(), 1..8)) {
        let kind = SketchKind::ALL[kind];
        let mut sketch = empty(kind);
        let mut replayed = empty(kind);
        for step in &steps {
            let mut again = Sketch::from_bytes(kind, sketch.bytes().to_vec()).unwrap();
            let (mut edits, mut other) = (Edits::new(), Edits::new());
            let before = sketch.bytes().to_vec();
            let replies = run(&mut sketch, step, &mut edits);
            // Of a ring, one item's pane may go for another's, and the other way round.
            prop_assert!(edits.is_empty() == (before == sketch.bytes()) || kind == SketchKind::Ring && !edits.is_empty());
            if edits.is_whole() {
                replayed = Sketch::from_bytes(kind, sketch.bytes().to_vec()).unwrap();
            }
            for edit in edits.iter() {
                replayed.replay_edit(edit).unwrap();
            }
            prop_assert!(replayed.bytes() == sketch.bytes(), "{kind:?}: edits lead elsewhere after {step:?}");
            prop_assert_eq!(replies, run(&mut again, step, &mut other));
            prop_assert!(again.bytes() == sketch.bytes(), "{kind:?}: made from bytes, it went elsewhere after {step:?}");
            prop_assert_eq!(ask(&again), ask(&sketch));
            prop_assert_eq!(ask(replayed.ready().expect("it is small")), ask(&sketch));
            prop_assert!(sketch.memory() >= sketch.bytes().len());
        }
    }
}

#[test]
fn codes_stand_for_kinds() {
    assert_eq!(SketchKind::ALL.map(SketchKind::code), [1, 2, 3, 4, 5, 6, 7]);
    for kind in SketchKind::ALL {
        assert_eq!(SketchKind::from_code(kind.code()), Some(kind));
        assert_eq!(empty(kind).kind(), kind);
    }
    assert_eq!(SketchKind::from_code(0), None);
    let linear = empty(SketchKind::Cms).into_bytes();
    assert!(Sketch::from_bytes(SketchKind::Frequency, linear).is_err());
}
