//! Arithmetic of the kind `count`: signed 64-bit, checked, never wrapping.

use crate::Refusal;

/// Adds, or refuses with the value unchanged.
pub fn add(value: i64, delta: i64) -> Result<i64, Refusal> {
    value.checked_add(delta).ok_or(Refusal::Overflow)
}

/// Result of an add within bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoundedAdd {
    /// Value after the add.
    pub after: i64,
    /// Amount that was added.
    pub delta: i64,
}

/// Adds within bounds; `None` if the sum would leave them and `saturate` is off.
///
/// If the value is already outside the bounds, a saturating add moves it only towards them, never
/// away. That distance can exceed 64 bits. The add is then refused, because neither the reply nor
/// the journal could hold the difference.
pub fn add_within(value: i64, delta: i64, bounds: (i64, i64), saturate: bool) -> Result<Option<BoundedAdd>, Refusal> {
    let (lower, upper) = bounds;
    if let Some(after) = value.checked_add(delta).filter(|sum| (lower..=upper).contains(sum)) {
        return Ok(Some(BoundedAdd { after, delta }));
    }
    if !saturate {
        return Ok(None);
    }
    let sum = i128::from(value) + i128::from(delta);
    let capped = if sum > i128::from(upper) { upper } else { lower };
    // An increment never lowers a value and a decrement never raises it. A value past the bound
    // stays.
    let after = if delta >= 0 { capped.max(value) } else { capped.min(value) };
    let delta = after.checked_sub(value).ok_or(Refusal::Overflow)?;
    Ok(Some(BoundedAdd { after, delta }))
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
        let after = |value, delta, saturate| {
            add_within(value, delta, (0, 10), saturate).unwrap().map(|BoundedAdd { after, delta }| (after, delta))
        };
        assert_eq!(after(8, 5, false), None);
        assert_eq!(after(8, 5, true), Some((10, 2)));
        assert_eq!(after(2, -5, true), Some((0, -2)));
        assert_eq!(after(15, 1, true), Some((15, 0)), "a value past the bound is not pulled down by an add");
        let widest = (i64::MIN, i64::MAX);
        let full = BoundedAdd { after: i64::MAX, delta: 0 };
        assert_eq!(add_within(i64::MAX, i64::MAX, widest, true), Ok(Some(full)));
    }

    #[test]
    fn a_difference_beyond_64_bits_is_refused() {
        let far = 5_000_000_000_000_000_000;
        assert_eq!(add_within(far, -1, (i64::MIN, -far), true), Err(Refusal::Overflow));
        assert_eq!(add_within(-far, 1, (far, i64::MAX), true), Err(Refusal::Overflow));
        assert_eq!(add_within(far, -1, (i64::MIN, -far), false), Ok(None));
        let back = BoundedAdd { after: far - i64::MAX, delta: -i64::MAX };
        assert_eq!(add_within(far, -1, (i64::MIN, far - i64::MAX), true), Ok(Some(back)), "the longest that fits");
    }

    proptest! {
        #[test]
        fn an_add_within_bounds_never_leaves_them(value: i64, delta: i64, a: i64, b: i64, saturate: bool) {
            let bounds = (a.min(b), a.max(b));
            prop_assume!(bounds.0 <= value && value <= bounds.1);
            if let Some(added) = add_within(value, delta, bounds, saturate).unwrap() {
                prop_assert!(bounds.0 <= added.after && added.after <= bounds.1);
            }
        }

        #[test]
        fn what_an_add_within_bounds_says_it_added_is_the_difference(
            value in number(),
            delta in number(),
            a in number(),
            b in number(),
            saturate: bool,
        ) {
            let (lower, upper) = (a.min(b), a.max(b));
            let sum = i128::from(value) + i128::from(delta);
            let capped = sum.clamp(lower.into(), upper.into());
            // A value past the bound moves neither further away nor across its previous position.
            let after = if delta >= 0 { capped.max(value.into()) } else { capped.min(value.into()) };
            let difference = after - i128::from(value);
            let expected = match (sum == capped, saturate) {
                (true, _) => Ok(Some((sum, i128::from(delta)))),
                (false, false) => Ok(None),
                (false, true) if i64::try_from(difference).is_ok() => Ok(Some((after, difference))),
                (false, true) => Err(Refusal::Overflow),
            };
            let found = add_within(value, delta, (lower, upper), saturate);
            let found = found.map(|added| added.map(|added| (i128::from(added.after), i128::from(added.delta))));
            prop_assert_eq!(found, expected);
        }
    }

    /// Numbers, many of them near the ends of the range.
    fn number() -> impl Strategy<Value = i64> {
        prop_oneof![any::<i64>(), -9..9_i64, i64::MIN..i64::MIN + 9, i64::MAX - 9..=i64::MAX]
    }
}
