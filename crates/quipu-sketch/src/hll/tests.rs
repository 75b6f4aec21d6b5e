use super::*;

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn filled(items: std::ops::Range<u32>) -> Hll {
    let mut sketch = Hll::new();
    for item in items {
        sketch.add(format!("item:{item}").as_bytes(), &mut Edits::new());
    }
    sketch
}

#[test]
fn after_every_addition_the_string_is_the_one_of_redis() {
    let steps = golden("hll-steps.bin");
    let mut sketch = Hll::new();
    let mut switched = None;
    for (n, step) in steps.as_chunks::<8>().0.iter().enumerate() {
        assert_eq!(fnv(sketch.redis_string()), u64::from_le_bytes(*step), "after {n} items");
        if sketch.is_dense() {
            switched.get_or_insert(n);
        }
        sketch.add(format!("item:{n}").as_bytes(), &mut Edits::new());
    }
    assert!(switched.is_some_and(|n| (1500..1800).contains(&n)), "it became dense after {switched:?}");
}

#[test]
fn whole_strings_are_those_of_redis() {
    for n in [0, 1, 3, 100, 1000, 50_000] {
        assert!(filled(0..n).redis_string() == golden(&format!("hll-{n}.bin")), "{n} items");
    }
    let mut lengths = Hll::new();
    for len in 0..64usize {
        let item: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
        lengths.add(&item, &mut Edits::new());
    }
    assert_eq!(lengths.redis_string(), golden("hll-lengths.bin"));
}

#[test]
fn without_a_history_the_count_is_the_one_of_redis() {
    let mut sketch = Hll::new();
    let mut added = 0;
    for line in String::from_utf8(golden("hll-counts.txt")).unwrap().lines().skip(1) {
        let (n, count) = line.split_once(' ').unwrap();
        let n: u32 = n.parse().unwrap();
        for item in added..n {
            sketch.add(format!("item:{item}").as_bytes(), &mut Edits::new());
        }
        added = n;
        assert_eq!(Hll::from_redis_string(sketch.redis_string()).unwrap().count().to_string(), count, "{n} items");
        assert!((sketch.estimate() / f64::from(n) - 1.0).abs() < 0.02, "{n} items: {}", sketch.estimate());
    }
}

#[test]
fn merges_are_those_of_redis() {
    for line in String::from_utf8(golden("hll-merges.txt")).unwrap().lines().skip(1) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u32>().unwrap();
        let mut one = filled(number(0)..number(1));
        let two = filled(number(2)..number(3));
        let together = Hll::union_estimate(&[&one, &two]);
        one.merge(&[&two], &mut Edits::new());
        assert_eq!(
            format!("{:016x} {}", fnv(one.redis_string()), one.count()),
            format!("{} {}", words[4], words[5]),
            "{line}"
        );
        assert_eq!(one.estimate(), together);
    }
}

#[test]
fn a_count_that_redis_kept_stays_until_something_changes() {
    let counted = golden("hll-50000-counted.bin");
    let mut sketch = Hll::from_redis_string(&counted).unwrap();
    let mut edits = Edits::new();
    assert!(!sketch.add(b"item:7", &mut edits));
    assert!(edits.is_empty());
    assert_eq!(sketch.redis_string(), counted);
    let new = (50_000..).find(|item| sketch.add(format!("item:{item}").as_bytes(), &mut edits)).unwrap();
    assert!(new < 50_100);
    assert_eq!(sketch.redis_string()[15], counted[15] | 0x80);
    assert_eq!(sketch.redis_string()[8..15], counted[8..15]);
}

#[test]
fn a_merge_ends_the_history_for_good() {
    let mut one = filled(0..1000);
    assert!(one.has_history());
    let mut edits = Edits::new();
    one.merge(&[], &mut edits);
    assert!(one.has_history() && edits.is_empty());
    one.merge(&[&filled(0..10)], &mut edits);
    assert!(!one.has_history() && !edits.is_empty());
    edits.clear();
    one.merge(&[&filled(0..10)], &mut edits);
    assert!(edits.is_empty(), "what is known already changes nothing");
    assert!(!Hll::from_redis_string(filled(0..5).redis_string()).unwrap().has_history());
}

#[test]
fn strings_that_are_none_are_refused() {
    let sparse = filled(0..100);
    let dense = filled(0..5000);
    for good in [sparse.redis_string(), dense.redis_string()] {
        assert!(Hll::from_redis_string(good).is_ok());
        assert!(Hll::from_redis_string(&good[..good.len() - 1]).is_err());
        assert!(Hll::from_redis_string(&[good, &[0]].concat()).is_err());
        let mut other = good.to_vec();
        other[4] = 2;
        assert!(Hll::from_redis_string(&other).is_err());
        other[4] ^= 2 ^ good[4] ^ 1;
        assert!(Hll::from_redis_string(&other).is_err(), "the other form");
        other[0] = b'h';
        assert!(Hll::from_redis_string(&other).is_err());
    }
    assert!(Hll::from_redis_string(b"").is_err());
    let mut high = dense.redis_string().to_vec();
    high[16] = 0x3f;
    assert!(Hll::from_redis_string(&high).is_err());
}

#[test]
fn sizes_stay_below_the_bar() {
    assert_eq!(filled(0..50_000).bytes().len(), 12_320);
    assert_eq!(filled(0..100).bytes().len(), 16 + golden("hll-100.bin").len());
}

#[test]
fn the_highest_ranks_are_counted() {
    let mut sketch = Hll::new();
    let mut edits = Edits::new();
    assert!(sketch.add_hash(5, &mut edits));
    assert!(sketch.is_dense(), "no run holds 51");
    assert!(!sketch.add_hash(5, &mut edits));
    for register in 0..REGISTERS as u64 {
        sketch.add_hash(register, &mut edits);
    }
    assert!(sketch.estimate().is_finite());
    assert_eq!(sketch.tally.room, 0);
    let again = Hll::from_bytes(sketch.bytes().to_vec()).unwrap();
    assert_eq!(again.tally, sketch.tally);
    sketch.end_history(&mut edits);
    assert_eq!(sketch.count(), u64::MAX, "more than registers can express");
}
