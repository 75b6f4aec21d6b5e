//! Writes readings and totals as JSON.

use std::io::Write;

use quipu_model::{Reading, SamplingInfo, WindowCoverage};

use super::{display, percent_encode, rfc3339};

/// Largest whole number that every JSON reader keeps exact; readers that count in doubles round
/// beyond it.
pub const SAFE_INTEGER_MAX: u64 = 1 << 53;

/// Writes `"name":"…"`; for a name that is not text, also `"name_encoded"`, percent-encoded as in a
/// path.
pub fn write_name(out: &mut Vec<u8>, name: &[u8]) {
    write_bytes(out, "name", name);
}

/// Writes `"key":"…"`; for bytes that are not text, also `"key_encoded"`, percent-encoded as in a
/// path.
pub fn write_bytes(out: &mut Vec<u8>, key: &str, bytes: &[u8]) {
    put(out, format_args!("\"{key}\":"));
    match std::str::from_utf8(bytes) {
        Ok(text) => write_string(out, text),
        Err(_) => {
            write_string(out, &String::from_utf8_lossy(bytes));
            put(out, format_args!(",\"{key}_encoded\":"));
            write_string(out, &percent_encode(bytes));
        }
    }
}

/// Writes `"key":1,"key_string":"1"`.
pub fn write_total(out: &mut Vec<u8>, key: &str, value: i64) {
    put(out, format_args!("\"{key}\":"));
    write_number(out, value);
    put(out, format_args!(",\"{key}_string\":\"{value}\""));
}

/// Writes a reading.
pub fn write_reading(out: &mut Vec<u8>, name: &[u8], reading: &Reading) {
    let Reading {
        kind,
        value,
        exists,
        exact,
        bound,
        error,
        sampled,
        window,
        as_of,
        lag,
        shards,
        writers,
        epoch: _,
        expires_at,
    } = reading;
    out.push(b'{');
    write_name(out, name);
    put(out, format_args!(",\"kind\":\"{}\",", kind.name()));
    write_total(out, "value", *value);
    put(out, format_args!(",\"exists\":{exists},\"exact\":{exact},\"as_of\":\"{}\",\"lag_ms\":", rfc3339(*as_of)));
    match lag {
        Some(lag) => put(out, format_args!("{}", lag.as_millis())),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"bound\":");
    match bound {
        Some((low, high)) => {
            out.extend_from_slice(b"{\"low\":");
            write_number(out, *low);
            out.extend_from_slice(b",\"high\":");
            write_number(out, *high);
            out.push(b'}');
        }
        // Later adds by other nodes, positive and negative, have no bound, only an age.
        None => out.extend_from_slice(b"null"),
    }
    if let Some(error) = error {
        out.extend_from_slice(b",\"error\":");
        write_number(out, i64::try_from(*error).unwrap_or(i64::MAX));
    }
    if let Some(SamplingInfo { rate, deviation }) = sampled {
        put(out, format_args!(",\"sampled\":{{\"rate\":{rate},\"deviation\":"));
        write_number(out, i64::try_from(*deviation).unwrap_or(i64::MAX));
        out.push(b'}');
    }
    if let Some(WindowCoverage { from, to, panes, late }) = window {
        let (from, to) = (rfc3339(*from), rfc3339(*to));
        put(out, format_args!(",\"window\":{{\"from\":\"{from}\",\"to\":\"{to}\",\"panes\":{panes},\"late\":{late}}}"));
    }
    put(out, format_args!(",\"shards\":{{\"seen\":{},\"total\":{}}}", shards.seen, shards.total));
    put(out, format_args!(",\"writers\":{{\"seen\":{},\"total\":{}}}", writers.seen, writers.total));
    match expires_at {
        Some(at) => put(out, format_args!(",\"expires_at\":\"{}\"", rfc3339(*at))),
        None => out.extend_from_slice(b",\"expires_at\":null"),
    }
    put(out, format_args!(",\"display\":\"{}\"}}", display(*value)));
}

/// Writes text as a JSON string.
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("writing text to memory cannot fail");
}

fn write_number(out: &mut Vec<u8>, value: i64) {
    match value.unsigned_abs() <= SAFE_INTEGER_MAX {
        true => put(out, format_args!("{value}")),
        false => put(out, format_args!("\"{value}\"")),
    }
}

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to memory cannot fail");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quipu_model::{Coverage, Epoch, Kind, Millis};
    use serde_json::{Value, json};

    use super::*;

    fn reading(value: i64) -> Reading {
        Reading {
            kind: Kind::Count,
            value,
            exists: true,
            exact: true,
            bound: Some((value, value)),
            error: None,
            sampled: None,
            window: None,
            as_of: Millis(1_000),
            lag: Some(Duration::ZERO),
            shards: Coverage::ONE,
            writers: Coverage::ONE,
            epoch: Epoch::default(),
            expires_at: None,
        }
    }

    fn written(name: &[u8], reading: &Reading) -> Value {
        let mut out = Vec::new();
        write_reading(&mut out, name, reading);
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn a_reading_says_how_good_it_is() {
        let exact = json!({
            "name": "likes:42", "kind": "count", "value": 1_234, "value_string": "1234", "exists": true, "exact": true,
            "as_of": "1970-01-01T00:00:01.000Z", "lag_ms": 0, "bound": {"low": 1_234, "high": 1_234},
            "shards": {"seen": 1, "total": 1}, "writers": {"seen": 1, "total": 1}, "expires_at": null, "display": "1.2K",
        });
        assert_eq!(written(b"likes:42", &reading(1_234)), exact);
        let shared =
            Reading { exact: false, bound: None, lag: None, writers: Coverage { seen: 1, total: 3 }, ..reading(1) };
        let shared = written(b"a", &shared);
        assert_eq!((&shared["bound"], &shared["lag_ms"]), (&Value::Null, &Value::Null));
        assert_eq!(shared["writers"], json!({"seen": 1, "total": 3}));
        let sampled = Some(SamplingInfo { rate: 100, deviation: 351 });
        let sampled = written(b"a", &Reading { exact: false, bound: Some((400, 2_700)), sampled, ..reading(1_234) });
        assert_eq!((&sampled["exact"], &sampled["sampled"]), (&json!(false), &json!({"rate": 100, "deviation": 351})));
    }

    #[test]
    fn totals_beyond_what_doubles_keep_are_strings() {
        let last = written(b"a", &reading(1 << 53));
        assert_eq!(
            (&last["value"], &last["value_string"]),
            (&json!(9_007_199_254_740_992_i64), &json!("9007199254740992"))
        );
        let beyond = written(b"a", &reading(i64::MIN));
        assert_eq!(beyond["value"], json!("-9223372036854775808"));
        assert_eq!(beyond["bound"]["low"], json!("-9223372036854775808"));
    }

    #[test]
    fn a_name_that_is_not_text_has_its_encoded_form_beside_it() {
        let odd = written(b"a\"\xff", &reading(1));
        assert_eq!((&odd["name"], &odd["name_encoded"]), (&json!("a\"\u{fffd}"), &json!("a%22%FF")));
        assert_eq!(written("größe\n".as_bytes(), &reading(1)).get("name_encoded"), None);
    }
}
