//! The arithmetic of the kind `count`: signed 64-bit, checked, never wrapping.

use crate::Refusal;

/// Adds, or refuses with the value unchanged.
pub fn add(value: i64, delta: i64) -> Result<i64, Refusal> {
    value.checked_add(delta).ok_or(Refusal::Overflow)
}

/// The value after an add that must stay within bounds, or `None` if it would leave them and `saturate` is off.
///
/// A value already outside the bounds is not moved by a saturating add away from them, only towards them.
pub fn add_within(value: i64, delta: i64, bounds: (i64, i64), saturate: bool) -> Option<i64> {
    let (lower, upper) = bounds;
    let sum = i128::from(value) + i128::from(delta);
    if i128::from(lower) <= sum && sum <= i128::from(upper) {
        return i64::try_from(sum).ok();
    }
    if !saturate {
        return None;
    }
    let capped = if sum > i128::from(upper) { upper } else { lower };
    // An increment never lowers a value, a decrement never raises it: a value past the bound stays where it is.
    Some(if delta >= 0 { capped.max(value) } else { capped.min(value) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn overflow_is_refused_at_both_ends() {
        assert_eq!(add(i64::MAX, 1), Err(Refusal::Overflow));
        assert_eq!(add(i64::MIN, -1), Err(Refusal::Overflow));
        assert_eq!(add(i64::MAX, i64::MIN), Ok(-1));
        assert_eq!(add(i64::MIN, i64::MAX), Ok(-1));
    }

    #[test]
    fn an_add_within_bounds_is_capped_only_when_asked() {
        assert_eq!(add_within(8, 5, (0, 10), false), None);
        assert_eq!(add_within(8, 5, (0, 10), true), Some(10));
        assert_eq!(add_within(2, -5, (0, 10), true), Some(0));
        assert_eq!(add_within(i64::MAX, i64::MAX, (i64::MIN, i64::MAX), true), Some(i64::MAX));
        assert_eq!(add_within(15, 1, (0, 10), true), Some(15), "a value past the bound is not pulled down by an add");
    }

    proptest! {
        #[test]
        fn an_add_within_bounds_never_leaves_them(value: i64, delta: i64, a: i64, b: i64, saturate: bool) {
            let bounds = (a.min(b), a.max(b));
            prop_assume!(bounds.0 <= value && value <= bounds.1);
            if let Some(after) = add_within(value, delta, bounds, saturate) {
                prop_assert!(bounds.0 <= after && after <= bounds.1);
            }
        }
    }
}
