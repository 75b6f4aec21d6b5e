//! Decides subset sums: possible totals of adds that may each have been counted or not.

/// Returns true if some subset of the adds sums to `wanted`. It takes one bit per sum: adds of a
/// run are small, and few of them are in doubt.
pub fn is_subset_sum(wanted: i128, adds: impl IntoIterator<Item = i64>) -> bool {
    // Take all negative adds first; leaving one of them out then adds its size.
    let mut rest = wanted;
    let mut sizes = Vec::new();
    for add in adds {
        rest -= i128::from(add.min(0));
        sizes.push(usize::try_from(add.unsigned_abs()).unwrap_or(usize::MAX));
    }
    let most: usize = sizes.iter().sum();
    let Ok(rest) = usize::try_from(rest) else { return false };
    if rest > most {
        return false;
    }
    let mut sums = vec![0_u64; most / 64 + 1];
    sums[0] = 1;
    for size in sizes {
        let (words, bits) = (size / 64, size % 64);
        for at in (words..sums.len()).rev() {
            let low = sums[at - words] << bits;
            let high = if bits > 0 && at > words { sums[at - words - 1] >> (64 - bits) } else { 0 };
            sums[at] |= low | high;
        }
    }
    sums[rest / 64] >> (rest % 64) & 1 == 1
}

#[cfg(test)]
mod tests {
    use quipu_testkit::SeededRng;

    use super::*;

    #[test]
    fn a_sum_is_reached_exactly_when_some_subset_has_it() {
        let reached: Vec<i128> = (-5..=15).filter(|&sum| is_subset_sum(sum, [3, -2, 10])).collect();
        assert_eq!(reached, [-2, 0, 1, 3, 8, 10, 11, 13]);
        assert!(is_subset_sum(0, []) && !is_subset_sum(1, []) && !is_subset_sum(-1, []));
    }

    #[test]
    fn it_agrees_with_trying_every_subset() {
        let rng = SeededRng::new(5);
        for _ in 0..50 {
            let adds: Vec<i64> = (0..rng.below(9)).map(|_| rng.between(-200..=300)).collect();
            let every = |wanted: i128| {
                (0..1_usize << adds.len()).any(|subset| {
                    let chosen = adds.iter().enumerate().filter(|(at, _)| subset >> at & 1 == 1);
                    chosen.map(|(_, add)| i128::from(*add)).sum::<i128>() == wanted
                })
            };
            for wanted in -300..700 {
                assert_eq!(is_subset_sum(wanted, adds.iter().copied()), every(wanted), "{wanted} of {adds:?}");
            }
        }
    }
}
