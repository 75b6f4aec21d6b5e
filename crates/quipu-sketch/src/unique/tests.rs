use super::*;

const KEY: Key = Key(*b"a key of a test.");

fn filled(items: std::ops::Range<u32>) -> Unique {
    let mut sketch = Unique::new();
    for item in items {
        sketch.add(&KEY, &item.to_le_bytes(), &mut Edits::new());
    }
    sketch
}

#[test]
fn a_short_list_counts_exactly_and_is_small() {
    assert_eq!(filled(0..0).count(), 0);
    assert_eq!(filled(0..1).count(), 1);
    let (hundred, thousand) = (filled(0..100), filled(0..1000));
    assert_eq!((hundred.count(), hundred.bytes().len()), (100, 416));
    assert_eq!((thousand.count(), thousand.bytes().len()), (1000, 4016));
}

#[test]
fn one_token_more_than_the_list_holds_makes_registers() {
    let mut sketch = filled(0..TOKENS_MAX as u32);
    assert!(!sketch.is_dense());
    assert_eq!(sketch.count(), 2000);
    let by_hand = {
        let mut registers = [0u8; REGISTERS];
        for item in 0..=TOKENS_MAX as u32 {
            let (index, rank) = register::split(KEY.hash(&item.to_le_bytes()));
            registers[index] = register::with_rank(registers[index], rank);
        }
        registers
    };
    assert!(!sketch.add(&KEY, &7u32.to_le_bytes(), &mut Edits::new()), "an item of the list changes nothing");
    assert!(sketch.add(&KEY, &(TOKENS_MAX as u32).to_le_bytes(), &mut Edits::new()));
    assert!(sketch.is_dense());
    assert_eq!(sketch.bytes()[HEADER..], by_hand, "the registers are those of the hashes");
    assert_eq!(sketch.count(), 2001, "the estimate goes on where the list ended");
    assert!((sketch.likely() / 2001.0 - 1.0).abs() < 0.03);
    assert_eq!(sketch.bytes().len(), 8208);
}

#[test]
fn a_merge_is_a_union_and_ends_the_history() {
    let (a, b) = (filled(0..30_000), filled(20_000..50_000));
    let mut one = a.clone();
    let mut edits = Edits::new();
    one.merge(&[&b], &mut edits);
    assert!(!one.has_history());
    let mut other = b.clone();
    other.merge(&[&a], &mut Edits::new());
    assert_eq!(one.bytes(), other.bytes());
    let mut all = filled(0..50_000);
    all.end_history(&mut Edits::new());
    assert_eq!(one.bytes(), all.bytes());
    assert_eq!(Unique::union(&[&a, &b]).estimate, one.estimate());
    edits.clear();
    one.merge(&[&b, &a], &mut edits);
    assert!(edits.is_empty());
    assert!((one.estimate() / 50_000.0 - 1.0).abs() < 0.03);
}

#[test]
fn lists_merge_into_a_list_or_into_registers() {
    let mut few = filled(0..700);
    few.merge(&[&filled(500..1500)], &mut Edits::new());
    assert!(!few.is_dense());
    assert_eq!(few.count(), 1500);
    few.merge(&[&filled(1000..2500)], &mut Edits::new());
    assert!(few.is_dense());
    let mut all = filled(0..2500);
    all.end_history(&mut Edits::new());
    assert_eq!(few.bytes(), all.bytes());
    assert_eq!(Unique::union(&[&filled(0..1800), &filled(1000..3000)]).estimate.round(), 3000.0);
}

#[test]
fn what_two_sets_share_has_limits() {
    let (a, b) = (filled(0..60_000), filled(40_000..100_000));
    let both = Unique::intersection(&a, &b);
    assert!(both.lower < 20_000.0 && 20_000.0 < both.upper && !both.is_below_resolution(), "{both:?}");
    let only = Unique::difference(&a, &b);
    assert!(only.lower < 40_000.0 && 40_000.0 < only.upper, "{only:?}");
    assert!(Unique::intersection(&a, &filled(200_000..300_000)).is_below_resolution());
    assert!(Unique::difference(&filled(0..50_000), &a).is_below_resolution());
    let few = Unique::intersection(&filled(0..1000), &filled(900..1900));
    assert!((few.estimate - 100.0).abs() < 0.5 && !few.is_below_resolution(), "{few:?}");
}

#[test]
fn everything_that_can_happen_may_happen() {
    let mut sketch = filled(0..3000);
    for register in 0..REGISTERS as u64 {
        for rank in 1..=register::RANK_MAX {
            let rest = if rank == register::RANK_MAX { 0 } else { 1 << (51 - rank) };
            sketch.add_hash(register << 51 | rest, &mut Edits::new());
        }
    }
    assert_eq!(sketch.room, 0);
    assert!(sketch.estimate().is_finite());
    assert_eq!(sketch.likely(), f64::INFINITY);
    assert!(!sketch.add_hash(1, &mut Edits::new()));
}
