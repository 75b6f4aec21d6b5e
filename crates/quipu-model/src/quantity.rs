//! Parses and formats sizes and durations in human-readable form: `16MiB`, `50ms`.

use std::time::Duration;

/// Bytes per unit; a number alone counts bytes.
const SIZES: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("KB", 1_000),
    ("B", 1),
];

/// Milliseconds per unit.
const TIMES: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Name of an absent timeout.
const OFF: &str = "off";

/// Parses a number of bytes.
pub fn read_bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let factor = if unit.is_empty() { Some(1) } else { factor(&SIZES, unit) };
    factor
        .and_then(|factor| number.parse::<u64>().ok()?.checked_mul(factor))
        .ok_or_else(|| format!("'{text}' is not a size: write 65536, 64KiB, 16MiB or 2GB"))
}

/// Parses a duration in whole milliseconds.
pub fn read_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    factor(&TIMES, unit)
        .and_then(|factor| number.parse::<u64>().ok()?.checked_mul(factor))
        .map(Duration::from_millis)
        .ok_or_else(|| format!("'{text}' is not a time: write 50ms, 10s, 5m or 1h"))
}

/// Parses a duration within bounds.
pub fn read_duration_between(text: &str, (least, most): (Duration, Duration)) -> Result<Duration, String> {
    match read_duration(text)? {
        duration if (least..=most).contains(&duration) => Ok(duration),
        _ => Err(format!("'{text}' is not a time from {} to {}", show_duration(least), show_duration(most))),
    }
}

/// Parses a duration, or `off`.
pub fn read_timeout(text: &str) -> Result<Option<Duration>, String> {
    if text == OFF {
        return Ok(None);
    }
    match read_duration(text) {
        // As in Redis, a timeout of 0 is none.
        Ok(duration) => Ok(Some(duration).filter(|duration| !duration.is_zero())),
        Err(error) => Err(format!("{error}, or {OFF}")),
    }
}

/// Formats bytes in the largest unit that divides them.
pub fn show_bytes(bytes: u64) -> String {
    match largest(&SIZES, bytes) {
        Some((unit, factor)) if factor > 1 => format!("{}{unit}", bytes / factor),
        _ => bytes.to_string(),
    }
}

/// Formats a duration in the largest unit that divides it.
pub fn show_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    match largest(&TIMES, millis) {
        Some((unit, factor)) => format!("{}{unit}", millis / factor),
        None => format!("{millis}ms"),
    }
}

/// Formats a duration, or `off`.
pub fn show_timeout(timeout: Option<Duration>) -> String {
    timeout.map_or_else(|| OFF.to_owned(), show_duration)
}

fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

fn factor(units: &[(&str, u64)], unit: &str) -> Option<u64> {
    units.iter().find(|(known, _)| *known == unit).map(|(_, factor)| *factor)
}

fn largest<'u>(units: &[(&'u str, u64)], number: u64) -> Option<(&'u str, u64)> {
    units.iter().copied().find(|(_, factor)| number != 0 && number.is_multiple_of(*factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_they_are_shown() {
        for (text, bytes) in [("0", 0), ("1023", 1023), ("64KiB", 65_536), ("16MiB", 16 << 20), ("3GiB", 3 << 30)] {
            assert_eq!(read_bytes(text), Ok(bytes));
            assert_eq!(show_bytes(bytes), text);
        }
        assert_eq!(read_bytes("65536"), Ok(65_536));
    }

    #[test]
    fn times_are_read_as_they_are_shown() {
        for (text, millis) in [("50ms", 50), ("1500ms", 1500), ("10s", 10_000), ("5m", 300_000), ("2h", 7_200_000)] {
            assert_eq!(read_duration(text), Ok(Duration::from_millis(millis)));
            assert_eq!(show_duration(Duration::from_millis(millis)), text);
        }
        assert_eq!(read_timeout("off"), Ok(None));
        assert_eq!(read_timeout("0s"), Ok(None));
        assert_eq!(show_timeout(None), "off");
    }

    #[test]
    fn bounds_are_part_of_the_range() {
        let bounds = (Duration::ZERO, Duration::from_secs(60));
        assert_eq!(read_duration_between("0ms", bounds), Ok(Duration::ZERO));
        assert_eq!(read_duration_between("1m", bounds), Ok(Duration::from_secs(60)));
        assert_eq!(read_duration_between("61s", bounds), Err("'61s' is not a time from 0ms to 1m".to_owned()));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "x", "-1", "1.5MiB", "10 s", "1kb", "99999999999999999999", "99999999999GiB"] {
            assert!(read_bytes(text).is_err(), "{text}");
        }
        for text in ["", "10", "s", "-1s", "1 s", "99999999999999999h"] {
            assert!(read_duration(text).is_err(), "{text}");
        }
    }
}
