//! Formats a total for people: at most four characters and a sign.

const UNITS: [&str; 7] = ["", "K", "M", "B", "T", "P", "E"];

/// Formats `1234567` as `1.2M`. Truncates, never rounds up: a million is not shown before it is
/// reached.
pub fn display(value: i64) -> String {
    let (mut whole, mut tenth, mut unit) = (value.unsigned_abs(), 0, 0);
    while whole >= 1_000 {
        (whole, tenth, unit) = (whole / 1_000, whole % 1_000 / 100, unit + 1);
    }
    let sign = if value < 0 { "-" } else { "" };
    match unit > 0 && whole < 10 && tenth > 0 {
        true => format!("{sign}{whole}.{tenth}{}", UNITS[unit]),
        false => format!("{sign}{whole}{}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_cut_to_what_fits_a_button() {
        for (value, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1K"),
            (1_099, "1K"),
            (1_100, "1.1K"),
            (-1_999, "-1.9K"),
            (12_345, "12K"),
            (999_999, "999K"),
            (1_200_000, "1.2M"),
            (1_999_999_999, "1.9B"),
            (i64::MAX, "9.2E"),
            (i64::MIN, "-9.2E"),
        ] {
            assert_eq!(display(value), text);
        }
    }
}
