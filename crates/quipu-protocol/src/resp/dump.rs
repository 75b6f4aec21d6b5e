//! Writes a dump over RESP: a flat map of fixed keys, so that RESP2 clients too find every key by
//! name.

use quipu_model::{Dump, DumpContent};

use super::RespWriter;

impl RespWriter<'_> {
    /// Writes a dump; null for an absent counter. A key that the kind does not have is null.
    pub fn dump(&mut self, dump: Option<&Dump>) {
        let Some(dump) = dump else { return self.null() };
        let (sketch, value) = match &dump.content {
            DumpContent::Count(value) => (None, Some(*value)),
            DumpContent::Sketch(sketch) => (Some(sketch), None),
        };
        self.map(6);
        self.key("kind").bulk(dump.kind().name().as_bytes());
        self.key("form").bulk_or_null(sketch.map(|sketch| sketch.form.name().as_bytes()));
        self.key("key").bulk_or_null(sketch.map(|sketch| format!("{:016x}", sketch.key)).as_deref().map(str::as_bytes));
        self.key("body").bulk_or_null(sketch.map(|sketch| &sketch.body[..]));
        self.key("value").integer_or_null(value);
        self.key("expires_at").integer_or_null(dump.expires_at.map(|at| at.0 as i64));
    }

    fn bulk_or_null(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }
}
