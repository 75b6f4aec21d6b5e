//! `quipu export`: writes the counters of a store, or of a running server, for other programs.
//!
//! In: a store, or an address. Out: NDJSON or CSV, a line per counter, in no order; the number of
//! skipped counters, by reason.
//!
//! Invariants:
//! - a counter is written once; one that exists throughout the export is written, or counted as
//!   skipped;
//! - an output file exists once it is complete.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quipu_engine::dump_bodies;
use quipu_model::Pattern;
use xxhash_rust::xxh3::xxh3_128;

use crate::backends::StoreUrl;
use crate::json::Json;
use crate::progress::Progress;
use crate::readings::NAMES_PER_PIPELINE;
use crate::resp_client::{RespClient, Value, expect_success};
use crate::stores::args::{ExportArgs, ExportFormat};
use crate::stores::rows::{self, RowWalk};

/// Names per request to a server.
const NAMES_PER_CALL: &str = "1000";

/// Prefix of a server's refusal that concerns one counter. All others concern the server, and end
/// the export.
const ONE_COUNTER: &str = "ERR ";

/// Refusal of a server that is too old for an export.
const UNKNOWN_COMMAND: &str = "ERR unknown command";

/// Exports, and prints the numbers of exported and skipped counters.
pub fn export(flags: &ExportArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    if flags.pattern.as_ref().is_some_and(|pattern| pattern.len() > Pattern::BYTES_MAX) {
        bail!("--match has at most {} bytes", Pattern::BYTES_MAX);
    }
    let summary = match &flags.out {
        None => write_export(flags, out)?,
        Some(path) => {
            let part = partial_path(path);
            let describe = || format!("write {}", part.display());
            let mut file = BufWriter::new(File::create(&part).with_context(describe)?);
            let written = write_export(flags, &mut file).and_then(|summary| {
                file.flush().with_context(describe)?;
                file.get_ref().sync_all().with_context(describe)?;
                std::fs::rename(&part, path).with_context(|| format!("rename it to {}", path.display()))?;
                Ok(summary)
            });
            if written.is_err() {
                let _ = std::fs::remove_file(&part); // A partial file is useless.
            }
            written?
        }
    };
    if flags.out.is_some() {
        writeln!(out, "{} counters", summary.count)?;
    }
    out.flush()?;
    for (reason, count) in &summary.skipped {
        eprintln!("left out {count}: {reason}");
    }
    Ok(if flags.strict && !summary.skipped.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Name of the file until it is complete.
fn partial_path(path: &Path) -> PathBuf {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    part.into()
}

fn write_export(flags: &ExportArgs, out: &mut impl Write) -> anyhow::Result<ExportSummary> {
    let progress = Progress::for_unknown_count("exporting");
    let mut writer = ExportWriter { format: flags.format, out, progress, summary: ExportSummary::default() };
    writer.write_header()?;
    match (&flags.store, &flags.from) {
        (Some(url), _) => export_store(&StoreUrl::new(url).context("--store")?, flags, &mut writer)?,
        (None, Some(address)) => export_server(address, flags, &mut writer)?,
        (None, None) => bail!("name a store with --store, or a server with --from"),
    }
    Ok(writer.summary)
}

fn export_store<W: Write>(url: &StoreUrl, flags: &ExportArgs, writer: &mut ExportWriter<'_, W>) -> anyhow::Result<()> {
    let store = url.open()?;
    let mut walk = RowWalk::new(&*store, flags.pattern.as_deref());
    while let Some(page) = walk.next_page().with_context(|| format!("export {url}"))? {
        for row in page {
            let (name, mut read_row) = rows::require_readable(row)?;
            let mut bodies = None;
            if read_row.snapshot.is_sketch() {
                // Row and bodies of one snapshot.
                let both = rows::read_bodies(&*store, &name).with_context(|| format!("export {url}"))?;
                (read_row, bodies) = (both.row, Some(both.bodies));
            }
            let row = read_row.snapshot.as_of(read_row.at);
            if !row.exists() {
                continue;
            }
            let content = match bodies.filter(|_| row.is_sketch()) {
                None => CounterContent::Count(row.sum()),
                Some(bodies) => match dump_bodies(&bodies, &flags.secret.store_secret) {
                    Ok(dump) => CounterContent::Sketch {
                        kind: dump.kind.name().to_owned(),
                        form: dump.form.name().to_owned(),
                        key: format!("{:016x}", dump.key),
                        body: dump.body,
                    },
                    Err(reason) => {
                        writer.skip(&reason.to_string());
                        continue;
                    }
                },
            };
            writer.write_counter(&ExportedCounter {
                name: &name,
                content,
                expires_at: row.expires_at.map(|at| at.0),
            })?;
        }
    }
    Ok(())
}

fn export_server<W: Write>(address: &str, flags: &ExportArgs, writer: &mut ExportWriter<'_, W>) -> anyhow::Result<()> {
    let mut client = RespClient::connect(address, flags.password.as_deref())?;
    let (mut cursor, mut visited) = (b"0".to_vec(), HashSet::new());
    let pattern = flags.pattern.as_deref().unwrap_or("*").as_bytes();
    loop {
        let reply = client.call(&[b"SCAN", &cursor, b"MATCH", pattern, b"COUNT", NAMES_PER_CALL.as_bytes()])?;
        let Value::Array(parts) = reply else { bail!("the server sent {reply:?} for a step of a walk") };
        let Ok([Value::Bulk(next), Value::Array(page)]) = <[Value; 2]>::try_from(parts) else {
            bail!("the server sent something else for a step of a walk");
        };
        let mut names = Vec::with_capacity(page.len());
        for name in page {
            let Value::Bulk(name) = name else { bail!("the server sent {name:?} for a name") };
            if visited.insert(xxh3_128(&name)) {
                names.push(name);
            }
        }
        for names in names.chunks(NAMES_PER_PIPELINE) {
            export_page(&mut client, names, writer)?;
        }
        if next == b"0" {
            return Ok(());
        }
        cursor = next;
    }
}

fn export_page<W: Write>(
    client: &mut RespClient,
    names: &[Vec<u8>],
    writer: &mut ExportWriter<'_, W>,
) -> anyhow::Result<()> {
    let commands: Vec<Vec<&[u8]>> = names.iter().map(|name| vec![&b"QUIPU.DUMP"[..], name]).collect();
    client.pipeline(&commands, |at, reply| match reply {
        // It was deleted in between.
        Value::Null => Ok(()),
        Value::Error(text) if text.starts_with(UNKNOWN_COMMAND) => {
            bail!("the server is older than this program and cannot be exported: it has no QUIPU.DUMP")
        }
        Value::Error(text) if text.starts_with(ONE_COUNTER) => {
            writer.skip(&text[ONE_COUNTER.len()..]);
            Ok(())
        }
        reply => {
            let reply = expect_success(reply)?;
            let counter =
                ExportedCounter::parse(&names[at], reply).context("the server sent something else for a dump")?;
            writer.write_counter(&counter)
        }
    })
}

/// A counter to be written.
struct ExportedCounter<'n> {
    name: &'n [u8],
    content: CounterContent,
    /// Milliseconds since 1970.
    expires_at: Option<u64>,
}

/// Content of a counter.
enum CounterContent {
    Count(i128),
    Sketch { kind: String, form: String, key: String, body: Vec<u8> },
}

impl<'n> ExportedCounter<'n> {
    /// Parses the reply of `QUIPU.DUMP`.
    fn parse(name: &'n [u8], dump: Value) -> Option<ExportedCounter<'n>> {
        let text = |key| dump.field(key)?.bytes().and_then(|bytes| String::from_utf8(bytes.to_vec()).ok());
        let content = match dump.field("value")?.number() {
            Some(value) => CounterContent::Count(value.into()),
            None => {
                let body = dump.field("body")?.bytes()?.to_vec();
                CounterContent::Sketch { kind: text("kind")?, form: text("form")?, key: text("key")?, body }
            }
        };
        let expires_at = dump.field("expires_at")?.number().and_then(|at| u64::try_from(at).ok());
        Some(ExportedCounter { name, content, expires_at })
    }

    fn json(&self) -> Json {
        let mut fields = vec![Json::name_field(self.name)];
        match &self.content {
            CounterContent::Count(value) => {
                fields.extend([("kind", Json::text("count")), ("value", Json::Number(*value))])
            }
            CounterContent::Sketch { kind, form, key, body } => fields.extend([
                ("kind", Json::text(kind)),
                ("form", Json::text(form)),
                ("key", Json::text(key)),
                ("body_base64", Json::Text(STANDARD.encode(body))),
            ]),
        }
        fields.push(("expires_at", self.expires_at.map_or(Json::Null, Json::count)));
        Json::Object(fields)
    }

    fn csv(&self) -> String {
        let (name, base64) = match std::str::from_utf8(self.name) {
            Ok(text) => (quote_csv(text), String::new()),
            Err(_) => (String::new(), STANDARD.encode(self.name)),
        };
        let expires_at = self.expires_at.map_or_else(String::new, |at| at.to_string());
        match &self.content {
            CounterContent::Count(value) => format!("{name},{base64},{value},{expires_at},count,,,"),
            CounterContent::Sketch { kind, form, key, body } => {
                format!("{name},{base64},,{expires_at},{kind},{form},{key},{}", STANDARD.encode(body))
            }
        }
    }
}

/// The summary of an export.
#[derive(Default)]
struct ExportSummary {
    count: u64,
    /// Number of counters that could not be exported, by reason.
    skipped: BTreeMap<String, u64>,
}

/// Writes the lines of an export.
struct ExportWriter<'o, W> {
    format: ExportFormat,
    out: &'o mut W,
    progress: Progress,
    summary: ExportSummary,
}

impl<W: Write> ExportWriter<'_, W> {
    fn write_header(&mut self) -> anyhow::Result<()> {
        if self.format == ExportFormat::Csv {
            writeln!(self.out, "name,name_base64,value,expires_at,kind,form,key,body_base64")?;
        }
        Ok(())
    }

    fn write_counter(&mut self, counter: &ExportedCounter<'_>) -> anyhow::Result<()> {
        match self.format {
            ExportFormat::Ndjson => writeln!(self.out, "{}", counter.json())?,
            ExportFormat::Csv => writeln!(self.out, "{}", counter.csv())?,
        }
        self.summary.count += 1;
        self.progress.add(1);
        Ok(())
    }

    fn skip(&mut self, reason: &str) {
        *self.summary.skipped.entry(reason.to_owned()).or_default() += 1;
    }
}

/// A field by RFC 4180.
fn quote_csv(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) || text.is_empty() {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(name: &[u8], value: i128, expires_at: Option<u64>) -> ExportedCounter<'_> {
        ExportedCounter { name, content: CounterContent::Count(value), expires_at }
    }

    #[test]
    fn names_of_any_bytes_stay_on_their_line_and_come_back() {
        for (name, value, expires_at, line) in [
            (&b"likes:1"[..], 5, None, r#"{"name":"likes:1","kind":"count","value":5,"expires_at":null}"#),
            (b"a\nb", -1, Some(7), r#"{"name":"a\u000ab","kind":"count","value":-1,"expires_at":7}"#),
            (b"\xff", 0, None, r#"{"name_base64":"/w==","kind":"count","value":0,"expires_at":null}"#),
        ] {
            assert_eq!(count(name, value, expires_at).json().to_string(), line);
        }
        assert_eq!(count(b"likes:1", 5, None).csv(), "likes:1,,5,,count,,,");
        assert_eq!(count(b"a,\"b\"", 5, Some(9)).csv(), "\"a,\"\"b\"\"\",,5,9,count,,,");
        assert_eq!(count(b"\xff", 5, None).csv(), ",/w==,5,,count,,,");
        assert_eq!(count(b"", 5, None).csv(), "\"\",,5,,count,,,");
    }
}
