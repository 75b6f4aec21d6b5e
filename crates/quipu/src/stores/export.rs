//! `quipu export`: the counters of a store, or of a server that runs, for other programs.
//!
//! In: a store, or an address. Out: NDJSON or CSV, a line for each counter, in no order.
//!
//! Invariants:
//! - a counter is written once; one that is there all the while is written;
//! - a file is there when it is whole.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quipu_model::Pattern;
use xxhash_rust::xxh3::xxh3_128;

use crate::backends::StoreUrl;
use crate::json::Json;
use crate::progress::Progress;
use crate::resp_client::{Client, Value};
use crate::stores::args::{Export, Format};
use crate::stores::rows::{self, Rows};

/// Names that a server is asked for at a time.
const NAMES_PER_CALL: &str = "1000";

/// What a server answers for a counter that never expires, or is gone.
const NO_EXPIRY: i64 = -1;

/// Exports, and tells how many there were.
pub fn export(flags: &Export, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    if flags.pattern.as_ref().is_some_and(|pattern| pattern.len() > Pattern::BYTES_MAX) {
        bail!("--match has at most {} bytes", Pattern::BYTES_MAX);
    }
    let count = match &flags.out {
        None => write(flags, out)?,
        Some(path) => {
            let part = part(path);
            let told = || format!("write {}", part.display());
            let mut file = BufWriter::new(File::create(&part).with_context(told)?);
            let written = write(flags, &mut file).and_then(|count| {
                file.flush().with_context(told)?;
                file.get_ref().sync_all().with_context(told)?;
                std::fs::rename(&part, path).with_context(|| format!("rename it to {}", path.display()))?;
                Ok(count)
            });
            if written.is_err() {
                let _ = std::fs::remove_file(&part); // Half of it is of use to nobody.
            }
            written?
        }
    };
    if flags.out.is_some() {
        writeln!(out, "{count} counters")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Where a file grows before it has its name.
fn part(path: &Path) -> PathBuf {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    part.into()
}

fn write(flags: &Export, out: &mut impl Write) -> anyhow::Result<u64> {
    let mut lines = Lines { format: flags.format, out, count: 0, progress: Progress::of_many("exporting") };
    lines.begin()?;
    match (&flags.store, &flags.from) {
        (Some(url), _) => of_store(&StoreUrl::new(url).context("--store")?, flags, &mut lines)?,
        (None, Some(address)) => of_server(address, flags, &mut lines)?,
        (None, None) => bail!("name a store with --store, or a server with --from"),
    }
    Ok(lines.count)
}

fn of_store<W: Write>(url: &StoreUrl, flags: &Export, lines: &mut Lines<'_, W>) -> anyhow::Result<()> {
    let store = url.open()?;
    let mut walk = Rows::new(&*store, flags.pattern.as_deref());
    while let Some(page) = walk.page().with_context(|| format!("export {url}"))? {
        for row in page {
            let (name, seen) = rows::sound(row)?;
            let row = seen.snapshot.as_of(seen.at);
            // A sketch has no value.
            if row.exists() && !row.is_sketch() {
                lines.line(&name, row.sum(), row.expires_at.map(|at| at.0))?;
            }
        }
    }
    Ok(())
}

fn of_server<W: Write>(address: &str, flags: &Export, lines: &mut Lines<'_, W>) -> anyhow::Result<()> {
    let mut client = Client::connect(address, flags.password.as_deref())?;
    let (mut cursor, mut met) = (b"0".to_vec(), HashSet::new());
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
            if met.insert(xxh3_128(&name)) {
                names.push(name);
            }
        }
        page_of_server(&mut client, &names, lines)?;
        if next == b"0" {
            return Ok(());
        }
        cursor = next;
    }
}

fn page_of_server<W: Write>(client: &mut Client, names: &[Vec<u8>], lines: &mut Lines<'_, W>) -> anyhow::Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let mut asked: Vec<Vec<&[u8]>> = names.iter().map(|name| vec![&b"PEXPIRETIME"[..], name]).collect();
    asked.push(std::iter::once(&b"MGET"[..]).chain(names.iter().map(Vec::as_slice)).collect());
    let mut answers = client.pipeline(&asked)?;
    let values = match answers.pop() {
        Some(Value::Array(values)) if values.len() == names.len() => values,
        other => bail!("the server sent {other:?} for {} values", names.len()),
    };
    for ((name, value), expiry) in names.iter().zip(values).zip(answers) {
        // One without a value is gone by now.
        let Some(value) = value.number() else { continue };
        let expires_at = expiry.number().filter(|&at| at > NO_EXPIRY).and_then(|at| u64::try_from(at).ok());
        lines.line(name, value.into(), expires_at)?;
    }
    Ok(())
}

/// Where lines go.
struct Lines<'o, W> {
    format: Format,
    out: &'o mut W,
    count: u64,
    progress: Progress,
}

impl<W: Write> Lines<'_, W> {
    fn begin(&mut self) -> anyhow::Result<()> {
        if self.format == Format::Csv {
            writeln!(self.out, "name,name_base64,value,expires_at")?;
        }
        Ok(())
    }

    fn line(&mut self, name: &[u8], value: i128, expires_at: Option<u64>) -> anyhow::Result<()> {
        match self.format {
            Format::Ndjson => writeln!(self.out, "{}", json(name, value, expires_at))?,
            Format::Csv => writeln!(self.out, "{}", csv(name, value, expires_at))?,
        }
        self.count += 1;
        self.progress.add(1);
        Ok(())
    }
}

fn json(name: &[u8], value: i128, expires_at: Option<u64>) -> Json {
    let name = match std::str::from_utf8(name) {
        Ok(text) => ("name", Json::text(text)),
        Err(_) => ("name_base64", Json::Text(STANDARD.encode(name))),
    };
    Json::Object(vec![name, ("value", Json::Number(value)), ("expires_at", expires_at.map_or(Json::Null, Json::count))])
}

fn csv(name: &[u8], value: i128, expires_at: Option<u64>) -> String {
    let (name, base64) = match std::str::from_utf8(name) {
        Ok(text) => (quoted(text), String::new()),
        Err(_) => (String::new(), STANDARD.encode(name)),
    };
    format!("{name},{base64},{value},{}", expires_at.map_or_else(String::new, |at| at.to_string()))
}

/// As RFC 4180 has it.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) || text.is_empty() {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_bytes_stay_on_their_line_and_come_back() {
        assert_eq!(json(b"likes:1", 5, None).to_string(), r#"{"name":"likes:1","value":5,"expires_at":null}"#);
        assert_eq!(json(b"a\nb", -1, Some(7)).to_string(), r#"{"name":"a\u000ab","value":-1,"expires_at":7}"#);
        assert_eq!(json(b"\xff", 0, None).to_string(), r#"{"name_base64":"/w==","value":0,"expires_at":null}"#);
        assert_eq!(csv(b"likes:1", 5, None), "likes:1,,5,");
        assert_eq!(csv(b"a,\"b\"", 5, Some(9)), "\"a,\"\"b\"\"\",,5,9");
        assert_eq!(csv(b"\xff", 5, None), ",/w==,5,");
        assert_eq!(csv(b"", 5, None), "\"\",,5,");
    }
}
