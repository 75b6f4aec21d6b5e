//! Parses the reply of `QUIPU.READ`: a value and its quality.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quipu_model::{Coverage, SamplingInfo};
use quipu_protocol::resp::Value;

/// A reading of a counter.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reading {
    /// The value; 0 for a counter that does not exist.
    pub value: i64,
    /// True if the counter exists.
    pub exists: bool,
    /// True if the value includes every operation that was acknowledged before the read began.
    pub exact: bool,
    /// The kind of the counter.
    pub kind: String,
    /// Time of the reading, by the server's clock.
    pub as_of: SystemTime,
    /// Age of the server's data of other nodes; zero without other nodes, `None` if it has none of
    /// their data.
    pub lag: Option<Duration>,
    /// Least and greatest possible value, if known.
    pub bound: Option<(i64, i64)>,
    /// The sampling rate and error of a sampled count.
    pub sampled: Option<SamplingInfo>,
    /// The counter's shards, and those included in the value.
    pub shards: Coverage,
    /// The writers that may have added to it, and those included in the value.
    pub writers: Coverage,
    /// The counter's expiry, if any.
    pub expires_at: Option<SystemTime>,
    /// The value for people: `1.2M`.
    pub display: String,
}

impl Reading {
    /// Parses the map of a reply; `None` if a field is missing. Unknown fields are skipped: newer
    /// servers send more.
    pub(crate) fn from_reply(reply: &Value) -> Option<Reading> {
        let pairs = reply.pairs();
        let get =
            |name: &str| pairs.iter().find(|(key, _)| key.bytes() == Some(name.as_bytes())).map(|(_, value)| *value);
        let number = |name: &str| get(name)?.number();
        let natural = |name: &str| u64::try_from(number(name)?).ok();
        let text = |name: &str| Some(String::from_utf8_lossy(get(name)?.bytes()?).into_owned());
        let seen = |seen: &str, total: &str| Some(Coverage { seen: natural(seen)?, total: natural(total)? });
        // The outer level: the field is present. The inner level: it is not null.
        let maybe = |name: &str| match get(name)? {
            Value::Null => Some(None),
            value => Some(Some(u64::try_from(value.number()?).ok()?)),
        };
        let time = |millis: u64| UNIX_EPOCH + Duration::from_millis(millis);
        Some(Reading {
            value: number("value")?,
            exists: number("exists")? != 0,
            exact: number("exact")? != 0,
            kind: text("kind")?,
            as_of: time(natural("as_of")?),
            lag: maybe("lag_ms")?.map(Duration::from_millis),
            bound: number("bound_low").zip(number("bound_high")),
            sampled: number("sampled_rate")
                .and_then(|rate| u32::try_from(rate).ok())
                .zip(natural("sampled_deviation"))
                .map(|(rate, deviation)| SamplingInfo { rate, deviation }),
            shards: seen("shards_seen", "shards_total")?,
            writers: seen("writers_seen", "writers_total")?,
            expires_at: maybe("expires_at")?.map(time),
            display: text("display")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use quipu_model::{Epoch, Kind, Millis, Name};
    use quipu_protocol::resp::ReplyReader;
    use quipu_protocol::{RespVersion, RespWriter};

    use super::*;

    #[test]
    fn what_a_server_writes_is_read_in_both_dialects() {
        let response = quipu_model::Reading {
            kind: Kind::Count,
            value: -1_234_567,
            exists: true,
            exact: true,
            bound: Some((-1_234_567, -1_234_567)),
            error: None,
            sampled: Some(quipu_model::SamplingInfo { rate: 10, deviation: 77 }),
            window: None,
            as_of: Millis(1_700_000_000_123),
            lag: None,
            shards: quipu_model::Coverage { seen: 2, total: 3 },
            writers: quipu_model::Coverage::ONE,
            epoch: Epoch::default(),
            expires_at: Some(Millis(1_700_000_001_000)),
        };
        for version in [RespVersion::Resp2, RespVersion::Resp3] {
            let mut bytes = Vec::new();
            RespWriter::new(&mut bytes, version).reading(Name::new(b"likes:42").unwrap(), &response);
            let mut reader = ReplyReader::default();
            reader.feed(&bytes);
            let reply = reader.take().unwrap().expect("a whole reply");
            let reading = Reading::from_reply(&reply).expect("a whole reading");
            assert_eq!((reading.value, reading.exists, reading.exact), (-1_234_567, true, true));
            assert_eq!((reading.lag, reading.bound), (None, Some((-1_234_567, -1_234_567))));
            assert_eq!(reading.shards, Coverage { seen: 2, total: 3 });
            assert_eq!(reading.sampled, Some(SamplingInfo { rate: 10, deviation: 77 }));
            assert_eq!(reading.as_of, UNIX_EPOCH + Duration::from_millis(1_700_000_000_123));
            assert_eq!(reading.expires_at, Some(UNIX_EPOCH + Duration::from_secs(1_700_000_001)));
            assert_eq!((reading.kind.as_str(), reading.display.as_str()), ("count", "-1.2M"));
        }
        assert_eq!(Reading::from_reply(&Value::Array(vec![])), None);
        assert_eq!(Reading::from_reply(&Value::Null), None);
    }
}
