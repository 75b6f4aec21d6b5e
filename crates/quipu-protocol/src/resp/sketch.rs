//! Writes replies of the approximate kinds over RESP. Those with several parts are flat maps, so
//! that RESP2 clients too find every key by name.

use quipu_model::{Estimate, Frequencies, Frequency, FrequencyInfo, TopInfo, TopItem};

use super::{ReplyShape, RespVersion, RespWriter};

impl RespWriter<'_> {
    /// Writes a number with its bounds, which hold with high probability.
    pub(super) fn estimate(&mut self, estimate: Estimate) {
        let Estimate { value, low, high } = estimate;
        self.map(4);
        self.key("value").natural(value);
        self.key("bound_low").natural(low);
        self.key("bound_high").natural(high);
        self.key("below_resolution").integer(estimate.is_below_resolution().into());
    }

    /// Writes item frequencies: a map of the common values, with a list of one map per item.
    pub(super) fn frequencies(&mut self, frequencies: &Frequencies) {
        let Frequencies { rows, total, error } = frequencies;
        self.map(3);
        self.key("total").natural(*total);
        self.key("error").natural(*error);
        self.key("items").array(rows.len());
        for Frequency { at_most, typical } in rows {
            self.map(2);
            self.key("at_most").natural(*at_most);
            self.key("typical").natural(*typical);
        }
    }

    /// Writes the reply of CMS.INFO.
    pub(super) fn frequency_info(&mut self, info: &FrequencyInfo) {
        self.map(3);
        self.key("width").natural(info.width);
        self.key("depth").natural(info.depth);
        self.key("count").natural(info.total);
    }

    /// Writes the most frequent items: in the shapes of TOPK.LIST, or with all bounds of each.
    pub(super) fn top_items(&mut self, rows: &[TopItem], shape: ReplyShape) {
        self.array(if shape == ReplyShape::ItemsWithCount { 2 * rows.len() } else { rows.len() });
        for TopItem { item, at_most, at_least, certain } in rows {
            match shape {
                ReplyShape::Items => self.bulk(item),
                ReplyShape::ItemsWithCount => {
                    self.bulk(item);
                    self.natural(*at_most);
                }
                _ => {
                    self.map(4);
                    self.key("item").bulk(item);
                    self.key("at_most").natural(*at_most);
                    self.key("at_least").natural(*at_least);
                    self.key("certain").integer((*certain).into());
                }
            }
        }
    }

    /// Writes the reply of TOPK.INFO.
    pub(super) fn top_info(&mut self, info: &TopInfo) {
        self.map(4);
        self.key("k").integer(info.size.k.into());
        self.key("width").integer(info.size.width.into());
        self.key("depth").integer(info.size.depth.into());
        self.key("decay").double(info.size.decay.get());
    }

    /// Writes a non-negative number, capped at the largest integer of RESP.
    pub(super) fn natural(&mut self, value: u64) {
        self.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }

    /// Writes a Boolean.
    pub(super) fn truth(&mut self, truth: bool) {
        match self.version() {
            RespVersion::Resp2 => self.integer(truth.into()),
            RespVersion::Resp3 => self.raw(if truth { b"#t\r\n" } else { b"#f\r\n" }),
        }
    }

    /// Writes a decimal number, with enough digits to restore it exactly.
    fn double(&mut self, number: f64) {
        let text = format!("{number}");
        match self.version() {
            RespVersion::Resp2 => self.bulk(text.as_bytes()),
            RespVersion::Resp3 => self.raw(format!(",{text}\r\n").as_bytes()),
        }
    }
}
