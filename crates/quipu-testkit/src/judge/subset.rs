//! Decides subset sums: possible totals of adds that may each have been applied or not.

use std::collections::HashSet;

/// Returns true if some subset of the adds sums to `wanted`.
pub fn is_subset_sum(wanted: i128, adds: impl IntoIterator<Item = i64>) -> bool {
    let (mut low, mut high) = (0_i128, 0_i128);
    let adds: Vec<i64> = adds.into_iter().collect();
    for &add in &adds {
        if add < 0 { low += i128::from(add) } else { high += i128::from(add) }
    }
    if wanted < low || high < wanted {
        return false;
    }
    // Adds of the suites are small and few are unknown at once, so there are far fewer sums than
    // subsets.
    let mut sums = HashSet::from([0_i128]);
    for add in adds {
        let more: Vec<i128> = sums.iter().map(|sum| sum + i128::from(add)).collect();
        sums.extend(more);
        if sums.contains(&wanted) {
            return true;
        }
    }
    sums.contains(&wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_reached_exactly_when_some_subset_has_it() {
        let adds = [3, -2, 10];
        let reached: Vec<i128> = (-5..=15).filter(|&sum| is_subset_sum(sum, adds)).collect();
        assert_eq!(reached, [-2, 0, 1, 3, 8, 10, 11, 13]);
        assert!(is_subset_sum(0, []) && !is_subset_sum(1, []));
        assert!(is_subset_sum(2 * i128::from(i64::MAX), [i64::MAX, i64::MAX]));
    }
}
