use super::*;

const KEY: Key = Key(*b"a key of a test.");

fn add(top: &mut Top, item: &str, weight: u64) -> Option<String> {
    let expelled = top.add(&KEY, item.as_bytes(), weight, &mut Edits::new()).unwrap();
    expelled.map(|item| String::from_utf8(item).unwrap())
}

fn listed(top: &Top) -> Vec<(String, u64)> {
    top.list().into_iter().map(|row| (String::from_utf8(row.item).unwrap(), row.at_most)).collect()
}

#[test]
fn replies_are_those_of_redisbloom() {
    let mut top = Top::reserve(2, 8, 7, 0.9).unwrap();
    assert_eq!(["a", "b", "c"].map(|item| add(&mut top, item, 1)), [None, None, Some("a".into())]);
    assert_eq!([add(&mut top, "c", 1), add(&mut top, "c", 1), add(&mut top, "b", 10)], [None, None, None]);
    assert_eq!(listed(&top), [("b".into(), 11), ("c".into(), 3)]);
    assert_eq!(["a", "c"].map(|item| top.contains(&KEY, item.as_bytes())), [false, true]);
    assert_eq!(["a", "c", "zzz"].map(|item| top.bounds(&KEY, item.as_bytes()).at_most), [1, 3, 0]);
    let info = top.info();
    assert_eq!((info.k, info.width, info.depth, info.decay, info.n), (2, 8, 7, 0.9, 15));
    assert_eq!(add(&mut top, "b", 0), None);
}

#[test]
fn a_weight_is_one_step() {
    let mut top = Top::reserve(2, 8, 7, 0.9).unwrap();
    let mut edits = Edits::new();
    top.add(&KEY, b"x", 100_000, &mut edits).unwrap();
    assert!(edits.len() <= 3);
    for _ in 0..100_000 {
        add(&mut top, "y", 1_000_000_000_000);
    }
    assert_eq!(listed(&top), [("y".into(), 100_000_000_000_000_000), ("x".into(), 100_000)]);
}

#[test]
fn counts_that_do_not_fit_are_refused() {
    let mut top = Top::new(1, 2, 1).unwrap();
    add(&mut top, "x", u64::MAX);
    let before = top.bytes().to_vec();
    assert_eq!(top.add(&KEY, b"x", 1, &mut Edits::new()), Err(SketchError::Overflow));
    assert_eq!(top.bytes(), before);
}

#[test]
fn items_are_kept_up_to_their_limit() {
    let mut top = Top::new(2, 4, 4).unwrap();
    for len in [0, 1, 8, 9, 100, ITEM_BYTES_MAX] {
        top.add(&KEY, &vec![b'x'; len], len as u64 + 1, &mut Edits::new()).unwrap();
    }
    assert_eq!(top.list()[0].item.len(), ITEM_BYTES_MAX);
    assert_eq!(Top::from_bytes(top.bytes().to_vec()).unwrap().list(), top.list());
    let long = vec![b'x'; ITEM_BYTES_MAX + 1];
    assert!(matches!(top.add(&KEY, &long, 1, &mut Edits::new()), Err(SketchError::ItemTooLong { bytes: 1025 })));
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    assert!(Top::reserve(0, 8, 7, 0.9).is_err());
    assert!(Top::reserve(1, 0, 7, 0.9).is_err());
    assert!(Top::reserve(1, 8, 0, 0.9).is_err());
    assert!(Top::reserve(1, 8, 7, f64::NAN).is_err());
    assert!(Top::reserve(u32::MAX, 8, 7, 0.9).is_err());
    assert!(matches!(Top::reserve(1, u32::MAX, u32::MAX, 0.9), Err(SketchError::TooLarge { .. })));
    assert!(matches!(Top::reserve(10_000_000, 8, 7, 0.9), Err(SketchError::TooLarge { .. })));
    assert!(Top::new(10, 19, 5).is_err());
    assert!(Top::new(10, 20, 5).is_ok());
    let mut top = Top::new(20_000, 200_000, 1).unwrap();
    let long = vec![b'x'; ITEM_BYTES_MAX];
    assert!(matches!(top.add(&KEY, &long, 1, &mut Edits::new()), Err(SketchError::TooLarge { .. })));
    assert_eq!(top.n(), 0);
}

#[test]
fn limits_hold_for_every_item_also_after_merges() {
    let mut truth: HashMap<String, u64> = HashMap::new();
    let mut tops: Vec<Top> = (0..3).map(|_| Top::new(10, 30, 64).unwrap()).collect();
    for n in 0..60_000u64 {
        let rank = 1 + rehash(n, 1) % (1 + rehash(n, 2) % (1 + rehash(n, 3) % 2000));
        let (item, weight) = (format!("item {rank}"), 1 + n % 4);
        *truth.entry(item.clone()).or_default() += weight;
        add(&mut tops[n as usize % 3], &item, weight);
    }
    let [mut one, two, three]: [Top; 3] = tops.try_into().unwrap();
    let mut other = three.clone();
    other.merge(&KEY, &[&one, &two], &mut Edits::new()).unwrap();
    one.merge(&KEY, &[&two, &three], &mut Edits::new()).unwrap();
    assert_eq!(one.bytes(), other.bytes(), "in any order");
    assert_eq!(one.n(), truth.values().sum::<u64>());
    for (item, count) in &truth {
        let Bounds { at_least, at_most } = one.bounds(&KEY, item.as_bytes());
        assert!(at_least <= *count && *count <= at_most, "{item}: {at_least} <= {count} <= {at_most}");
    }
    let mut counts: Vec<u64> = truth.values().copied().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    for row in one.list().iter().filter(|row| row.certain) {
        assert!(truth[std::str::from_utf8(&row.item).unwrap()] >= counts[9]);
    }
    assert!(one.list()[0].certain);
    assert_eq!(one.merge(&KEY, &[&Top::new(10, 30, 65).unwrap()], &mut Edits::new()), Err(SketchError::Mismatch));
}

#[test]
fn the_list_is_what_it_would_be_from_the_bytes() {
    let mut top = Top::new(5, 12, 16).unwrap();
    for n in 0..3_000u64 {
        let item = rehash(n, 1) % (1 + rehash(n, 2) % 100);
        let before: HashSet<Vec<u8>> = top.list().into_iter().map(|row| row.item).collect();
        let expelled = top.add(&KEY, &item.to_le_bytes(), 1, &mut Edits::new()).unwrap();
        let after: HashSet<Vec<u8>> = top.list().into_iter().map(|row| row.item).collect();
        assert_eq!(before.difference(&after).cloned().collect::<Vec<_>>(), Vec::from_iter(expelled));
        for row in top.list() {
            assert!(top.contains(&KEY, &row.item));
        }
        if n % 7 == 0 {
            top = Top::from_bytes(top.into_bytes()).unwrap();
        }
    }
}

#[test]
fn items_of_growing_length_lay_a_list_out_once() {
    let mut top = Top::reserve(50, 8, 7, 0.9).unwrap();
    let items: Vec<Vec<u8>> = (1..=128).map(|n| vec![b'x'; 8 * n]).collect();
    let (after, mut edits) = (top.bytes_after(128, 1024), Edits::new());
    top.add_among(&KEY, &items[0], 1, 1024, &mut edits).unwrap();
    assert!((top.bytes().len() as u64) < after, "it fits as it is");
    for item in &items[1..] {
        top.add_among(&KEY, item, 1, 1024, &mut edits).unwrap();
        assert_eq!(top.bytes().len() as u64, after);
    }
    assert!(edits.memory() <= 4 * top.bytes().len(), "{}", edits.memory());
    assert_eq!(Top::from_bytes(top.into_bytes()).unwrap().info().n, 128);
}

#[test]
fn an_index_changes_no_answer_and_no_memory() {
    let mut top = Top::reserve(5, 8, 7, 0.9).unwrap();
    (0..200).for_each(|n| drop(add(&mut top, &format!("{}", n % 40), n)));
    let walked = Top::from_bytes(top.bytes().to_vec()).unwrap();
    let mut indexed = walked.clone();
    indexed.index(&KEY);
    assert!(indexed.index.is_some());
    for n in 0..60 {
        let item = format!("{n}");
        let answers = |top: &Top| (top.contains(&KEY, item.as_bytes()), top.bounds(&KEY, item.as_bytes()));
        assert_eq!(answers(&indexed), answers(&walked), "{n}");
    }
    assert!(indexed.memory() <= walked.memory() + 512, "{} {}", indexed.memory(), walked.memory());
}

#[test]
fn cells_become_wider_and_limits_hold_at_every_width() {
    let mut truth: HashMap<u64, u64> = HashMap::new();
    let (mut top, mut widths) = (Top::new(4, 12, 8).unwrap(), Vec::new());
    let len = top.bytes().len();
    for n in 0..60_000u64 {
        let item = rehash(n, 1) % 60;
        // Weights begin small and grow to values of 64 bits.
        let weight = 1 + (1u64 << (n / 1_500)) * (rehash(n, 2) % 2);
        *truth.entry(item).or_default() += weight;
        let (before, may_change) = (top.layout, !top.stays_as_wide(weight));
        top.add(&KEY, &item.to_le_bytes(), weight, &mut Edits::new()).unwrap();
        assert!(may_change || top.layout == before, "it was said to stay as it is");
        assert!(top.bytes().len() == len || top.layout.bits == 64 || top.layout.number == 8);
        if widths.last() != Some(&top.layout.bits) {
            widths.push(top.layout.bits);
            let again = Top::from_bytes(top.bytes().to_vec()).unwrap();
            assert_eq!(again.list(), top.list());
            for (item, count) in &truth {
                let Bounds { at_least, at_most } = top.bounds(&KEY, &item.to_le_bytes());
                assert!(at_least <= *count && *count <= at_most, "{item}: {at_least} <= {count} <= {at_most}");
            }
        }
    }
    assert_eq!(widths, [2, 4, 8, 16, 32, 64]);
}

#[test]
fn lists_with_cells_of_all_widths_are_merged() {
    let mut truth: HashMap<u64, u64> = HashMap::new();
    let mut tops: Vec<Top> = Vec::new();
    for (index, weight) in [1u64, 20, 3_000, 1 << 20, 1 << 33].into_iter().enumerate() {
        let mut top = Top::new(4, 12, 8).unwrap();
        for n in 0..150 {
            let item = rehash(n, index as u64) % 70;
            *truth.entry(item).or_default() += weight;
            top.add(&KEY, &item.to_le_bytes(), weight, &mut Edits::new()).unwrap();
        }
        tops.push(top);
    }
    let widths: HashSet<u32> = tops.iter().map(|top| top.layout.bits).collect();
    assert!(widths.len() >= 4, "{widths:?}");
    for into in 0..tops.len() {
        let mut merged = tops[into].clone();
        let others: Vec<&Top> = tops.iter().enumerate().filter(|(at, _)| *at != into).map(|(_, top)| top).collect();
        merged.merge(&KEY, &others, &mut Edits::new()).unwrap();
        let merged = Top::from_bytes(merged.into_bytes()).unwrap();
        for (item, count) in &truth {
            let Bounds { at_least, at_most } = merged.bounds(&KEY, &item.to_le_bytes());
            assert!(at_least <= *count && *count <= at_most, "{item}: {at_least} <= {count} <= {at_most}");
        }
    }
}

#[test]
fn a_list_from_before_cells_had_bits_goes_on() {
    let mut top = Top::new(4, 12, 8).unwrap();
    (0..500u64).for_each(|n| drop(add(&mut top, &format!("{}", rehash(n, 1) % 50), 10_000)));
    assert_eq!(top.layout.bits, 32);
    let mut bytes = top.bytes().to_vec();
    bytes[28] = 0;
    let mut old = Top::from_bytes(bytes).unwrap();
    assert_eq!(old.list(), top.list());
    for n in 0..100u64 {
        let item = format!("{}", rehash(n, 2) % 50);
        assert_eq!(add(&mut old, &item, 1 << 32), add(&mut top, &item, 1 << 32));
    }
    assert_eq!(old.list(), top.list());
    for bits in [1, 3, 6, 12, 128, 255] {
        let mut bytes = top.bytes().to_vec();
        bytes[28] = bits;
        assert!(Top::from_bytes(bytes).is_err(), "{bits}");
    }
}

#[test]
fn frequent_items_are_counted_nearly_exactly_from_the_beginning() {
    // A hundred items of 200 events each among 400,000 that come once or twice. Excess comes from
    // other items' counts in a cell before its item has a slot.
    let mut top = Top::in_bytes(100, 64 << 10).unwrap();
    let mut truth: HashMap<u64, u64> = HashMap::new();
    for n in 0..500_000u64 {
        let item = if rehash(n, 1).is_multiple_of(25) { rehash(n, 2) % 100 } else { 1_000 + rehash(n, 3) % 400_000 };
        *truth.entry(item).or_default() += 1;
        top.add(&KEY, &item.to_le_bytes(), 1, &mut Edits::new()).unwrap();
    }
    let too_high: u64 = (0..100u64).map(|item| top.bounds(&KEY, &item.to_le_bytes()).at_most - truth[&item]).sum();
    assert!(too_high <= 5, "{too_high}");
}

#[test]
fn limits_hold_of_what_was_halved() {
    let (mut top, mut truth) = (Top::new(4, 12, 8).unwrap(), HashMap::<u64, f64>::new());
    for n in 0..4_000u64 {
        let (item, weight) = (rehash(n, 1) % (1 + rehash(n, 2) % 60), 1 << 16);
        *truth.entry(item).or_default() += weight as f64;
        top.add(&KEY, &item.to_le_bytes(), weight, &mut Edits::new()).unwrap();
        if n % 1_000 == 999 {
            top.halve(8, &mut Edits::new());
            truth.values_mut().for_each(|count| *count /= 256.0);
            top = Top::from_bytes(top.into_bytes()).unwrap();
        }
    }
    for (item, count) in &truth {
        let Bounds { at_least, at_most } = top.bounds(&KEY, &item.to_le_bytes());
        // One for each rounding.
        assert!(at_least as f64 <= count + 4.0 && *count <= at_most as f64, "{item}: {at_least} {count} {at_most}");
    }
    top.halve(u32::MAX, &mut Edits::new());
    assert!(Top::from_bytes(top.into_bytes()).unwrap().list().iter().all(|row| row.at_most == 1));
}
