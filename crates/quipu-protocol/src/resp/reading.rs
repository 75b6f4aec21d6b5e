//! Writes a reading over RESP: a flat map, so that RESP2 clients too find every key by name.

use quipu_model::{Millis, Name, Reading, SamplingInfo, WindowCoverage};

use super::RespWriter;
use crate::json::display;

impl RespWriter<'_> {
    /// Writes a reading. Times are milliseconds since 1970, Booleans are 1 and 0, an unknown value
    /// is null. A kind leaves out the keys that it does not have.
    pub fn reading(&mut self, name: Name<'_>, reading: &Reading) {
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
        let millis = |at: &Millis| at.0 as i64;
        let some =
            usize::from(error.is_some()) + 2 * usize::from(sampled.is_some()) + 4 * usize::from(window.is_some());
        self.map(15 + some);
        self.key("name").bulk(name.bytes());
        self.key("kind").bulk(kind.name().as_bytes());
        self.key("value").integer(*value);
        self.key("exists").integer((*exists).into());
        self.key("exact").integer((*exact).into());
        self.key("as_of").integer(millis(as_of));
        self.key("lag_ms").integer_or_null(lag.map(|lag| lag.as_millis() as i64));
        self.key("bound_low").integer_or_null(bound.map(|(low, _)| low));
        self.key("bound_high").integer_or_null(bound.map(|(_, high)| high));
        if let Some(error) = error {
            self.key("error").natural(*error);
        }
        if let Some(SamplingInfo { rate, deviation }) = sampled {
            self.key("sampled_rate").natural((*rate).into());
            self.key("sampled_deviation").natural(*deviation);
        }
        if let Some(WindowCoverage { from, to, panes, late }) = window {
            self.key("window_from").integer(millis(from));
            self.key("window_to").integer(millis(to));
            self.key("window_panes").natural((*panes).into());
            self.key("window_late").natural(*late);
        }
        self.key("shards_seen").integer(shards.seen as i64);
        self.key("shards_total").integer(shards.total as i64);
        self.key("writers_seen").integer(writers.seen as i64);
        self.key("writers_total").integer(writers.total as i64);
        self.key("expires_at").integer_or_null(expires_at.as_ref().map(millis));
        self.key("display").bulk(display(*value).as_bytes());
    }

    pub(super) fn key(&mut self, key: &str) -> &mut Self {
        self.bulk(key.as_bytes());
        self
    }

    pub(super) fn integer_or_null(&mut self, value: Option<i64>) {
        match value {
            Some(value) => self.integer(value),
            None => self.null(),
        }
    }
}
