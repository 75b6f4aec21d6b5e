//! `quipu inspect`: checks journal and ledger of a stopped or crashed server, and prints their
//! content.
//!
//! In: a data directory. Out: the content of its files, and a verdict in the words of the server's
//! own refusal.
//!
//! Invariant: it writes nothing and keeps no lock. It refuses a directory in use, since the journal
//! changes during the read.

use std::fmt;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use quipu_engine::journal::control::{CONTROL_FILE, ControlState};
use quipu_engine::journal::format::{Entry, PriorExistence};
use quipu_engine::journal::reader::{Record, Tail};
use quipu_engine::journal::segments::Segment;
use quipu_engine::offline::inspect::{Inspection, UncheckedRange};
use quipu_engine::{Damage, JournalError, LOCK_FILE, SystemLedger, TokenKey, is_in_use};
use quipu_model::{Epoch, LedgerStats, NAMESPACE_KEYS};

use crate::args;
use crate::progress::Progress;
use crate::read_only::ReadOnlyDisk;
use crate::terminal;

/// The locks of this machine, on Linux.
const LOCKS: &str = "/proc/locks";

/// Prints the report; exit status 1 if there is no journal or the server would refuse it.
pub fn inspect(target: &args::InspectArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let data = &target.data;
    if let Some(holder) = holder(data) {
        bail!("{} is in use: held by {holder}; stop it to inspect its journal", data.display());
    }
    let mut written = Ok(());
    let inspection = inspect_directory(data, |segment, record| {
        if target.dump && written.is_ok() {
            written = print_record(segment, record, out);
        }
        Ok(())
    });
    written?;
    let inspection = inspection.map_err(|error| anyhow!("cannot inspect {}: {error}", data.display()))?;
    print_report(data, &inspection, out)?;
    // A check of a backup needs a journal that exists.
    let is_whole = inspection.control.is_some() && inspection.verdict.is_ok();
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads everything, and verifies the ledger's checksums on the way.
pub fn inspect_directory(
    data: &Path,
    visit: impl FnMut(&Segment, &Record<'_>) -> Result<(), Damage>,
) -> Result<Inspection, JournalError> {
    let open_ledger = || {
        let progress = Progress::new("verifying the ledger", 0);
        SystemLedger::verify(data, |done, bytes| progress.set(done, bytes))?;
        SystemLedger::open_read_only(data)
    };
    quipu_engine::offline::inspect::inspect(&ReadOnlyDisk, data, open_ledger, visit)
}

/// The process that uses a data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryHolder {
    /// Its id; `None` if unknown, for example for a process of another container.
    pub pid: Option<u32>,
}

impl fmt::Display for DirectoryHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "process {pid}"),
            None => write!(f, "another process"),
        }
    }
}

/// The process that uses the directory, if any.
pub fn holder(data: &Path) -> Option<DirectoryHolder> {
    if !is_in_use(data) {
        return None;
    }
    let paths = [data.to_owned(), data.join(CONTROL_FILE), data.join(LOCK_FILE)];
    let inodes: Vec<u64> = paths.iter().filter_map(|path| Some(std::fs::metadata(path).ok()?.ino())).collect();
    // The process that the file names, if it still has one of the files open: after a crash its
    // number may be another's.
    let named = std::fs::read_to_string(&paths[2]).ok().and_then(|text| text.trim().parse().ok());
    let named = named.filter(|pid| has_open(*pid, &paths));
    let locks = std::fs::read_to_string(LOCKS).unwrap_or_default();
    Some(DirectoryHolder { pid: lock_holder(&locks, &inodes, named) })
}

fn has_open(pid: u32, paths: &[PathBuf]) -> bool {
    let paths: Vec<PathBuf> = paths.iter().filter_map(|path| path.canonicalize().ok()).collect();
    let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    files.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|open| paths.contains(&open)))
}

/// The process that holds an exclusive lock on one of the files. It is found by inode, or by the
/// process id in the lock file.
///
/// Some file systems show other inodes in the table of locks. A process of another container has
/// another number there.
fn lock_holder(locks: &str, inodes: &[u64], named: Option<u32>) -> Option<u32> {
    // 1: FLOCK  ADVISORY  WRITE 4711 08:01:1234567 0 EOF
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        if words.next() != Some("FLOCK") || words.nth(1) != Some("WRITE") {
            return None;
        }
        let holder: u32 = words.next()?.parse().ok()?;
        let locked: u64 = words.next()?.rsplit(':').next()?.parse().ok()?;
        (inodes.contains(&locked) || named == Some(holder)).then_some(holder)
    })
}

fn print_report(data: &Path, inspection: &Inspection, out: &mut impl Write) -> io::Result<()> {
    let Inspection { control, segments, records, verdict, counters, .. } = inspection;
    writeln!(out, "{}", terminal::bold(&data.display().to_string()))?;
    if let Some(control) = control {
        print_control(control, out)?;
    }
    if !segments.is_empty() {
        let mut table = terminal::table(["file", "base", "end", "records"]);
        for (segment, records) in segments {
            let file = segment.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            table.add_row([file, segment.base.to_string(), segment.end.to_string(), records.to_string()]);
        }
        writeln!(out, "{}", terminal::render_table(table))?;
    }
    if control.is_some() {
        writeln!(out, "records     {records}")?;
    }
    if let (Some(_), Ok(tail)) = (control, verdict) {
        writeln!(out, "synced to   {}, at least", tail.synced)?;
        writeln!(out, "ends at     {}", tail.position)?;
    }
    print_ledger(inspection, out)?;
    if let (Some(_), Ok(_)) = (control, verdict) {
        writeln!(out, "counters    {counters}")?;
    }
    for (index, UncheckedRange { file, from, to, reason }) in inspection.unchecked.iter().enumerate() {
        let label = if index == 0 { "not checked" } else { "" };
        let file = file.file_name().unwrap_or_default().to_string_lossy();
        writeln!(out, "{label:<11} {file} from byte {from} to {to}: {reason}")?;
    }
    let verdict = match (control, verdict) {
        (_, Err(error)) => terminal::bad(&format!("damaged: {error}")),
        (None, Ok(_)) => terminal::bad("no journal: this is neither a data directory nor a backup"),
        (_, Ok(Tail { torn: Some(torn), .. })) => {
            let (file, offset, reason) = (torn.file.display(), torn.offset, torn.reason);
            terminal::good(&format!("torn tail at {file} byte {offset} (will be cut): {reason}"))
        }
        (_, Ok(_)) => terminal::good("whole"),
    };
    writeln!(out, "{verdict}")
}

fn print_control(control: &ControlState, out: &mut impl Write) -> io::Result<()> {
    let end = if control.clean { "a clean stop" } else { "a crash, or a backup of a running server" };
    writeln!(out, "node        {}", control.node)?;
    writeln!(out, "incarnation {}", control.incarnation)?;
    writeln!(out, "ended with  {end}")?;
    writeln!(out, "starts at   {}", control.start)?;
    writeln!(out, "control     generation {}, synced to {}", control.generation, control.synced)
}

/// Prints the ledger's figures. A ledger that could not be opened has none; the verdict gives the
/// reason.
fn print_ledger(inspection: &Inspection, out: &mut impl Write) -> io::Result<()> {
    let Some(ledger) = &inspection.ledger else { return Ok(()) };
    let LedgerStats { disk_bytes, tables, runs, .. } = ledger.stats();
    writeln!(
        out,
        "ledger      {tables} tables, {disk_bytes} bytes, {runs} ingestions waiting to be merged; checksums right"
    )?;
    match &inspection.watermark {
        Some(watermark) => {
            let counters: u64 = watermark.shards.iter().map(|shard| shard.counters).sum();
            writeln!(
                out,
                "sealed to   {}, {counters} counters, at {}",
                watermark.position,
                terminal::format_time(watermark.time)
            )
        }
        None => writeln!(out, "sealed to   nothing was sealed yet"),
    }
}

/// Prints one line per record, and one line per entry below it.
fn print_record(segment: &Segment, record: &Record<'_>, out: &mut impl Write) -> io::Result<()> {
    let file = segment.path.file_name().unwrap_or_default().to_string_lossy();
    let (position, bytes, time, synced) = (record.position, record.bytes, record.body.time, record.header.synced);
    writeln!(
        out,
        "{position}: {bytes} bytes in {file} at byte {}, time {time}, synced {synced}",
        segment.offset(position)
    )?;
    for entry in record.body.entries() {
        match entry {
            Ok(entry) => writeln!(out, "  {}", entry_text(&entry))?,
            // Unreachable: the reader has stopped at an invalid entry.
            Err(bad) => writeln!(out, "  {bad}")?,
        }
    }
    Ok(())
}

fn entry_text(entry: &Entry<'_>) -> String {
    match entry {
        Entry::Cell { name, epoch, value, expires_at, count, sum, before, .. } => {
            let expiry = expires_at.map(|at| format!(" expires {at}")).unwrap_or_default();
            let made = if *before == PriorExistence::Absent { " made" } else { "" };
            let name = terminal::format_name(name);
            format!("cell {name} = {value} epoch {}{expiry} count {count} sum {sum}{made}", epoch_text(*epoch))
        }
        Entry::Gone { name, epoch, .. } => format!("gone {} epoch {}", terminal::format_name(name), epoch_text(*epoch)),
        Entry::Flush { epoch } => format!("flush epoch {}", epoch_text(*epoch)),
        Entry::Joined { writer, at } => format!("joined {writer} at {at}"),
        Entry::Start { writer } => format!("start {writer}"),
        Entry::Namespace { name, settings } => {
            let pairs =
                NAMESPACE_KEYS.iter().filter_map(|key| Some(format!(" {} = {}", key.key, (key.show)(settings)?)));
            format!("namespace {}{}", terminal::format_name(name), pairs.collect::<String>())
        }
        Entry::Sampling { name, sampling } => {
            let by_value = if sampling.by_value { ", and by the value" } else { "" };
            let until = sampling.until.map(|until| format!(" up to epoch {}", epoch_text(until))).unwrap_or_default();
            format!("namespace {} is sampled, one in {}{by_value}{until}", terminal::format_name(name), sampling.p)
        }
        Entry::Sketch { name, kind, version, whole, edits, .. } => {
            let bytes: usize = edits.iter().map(|edit| edit.bytes.len()).sum();
            let (name, edits, whole) =
                (terminal::format_name(name), edits.iter().count(), if *whole { " whole" } else { "" });
            format!("sketch {name} kind {kind} version {version}{whole} edits {edits} bytes {bytes}")
        }
        Entry::Token { key, number: None, .. } => format!("token {}", key_text(*key)),
        Entry::Token { key, number: Some(number), .. } => format!("number {number} of producer {}", key_text(*key)),
    }
}

/// Tokens are kept as hashes only.
fn key_text(key: TokenKey) -> String {
    key.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn epoch_text(epoch: Epoch) -> String {
    if epoch == Epoch::FIRST { "first".to_owned() } else { format!("{}.{}", epoch.millis, epoch.node) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
1: POSIX  ADVISORY  WRITE 77 08:01:99 0 EOF
2: FLOCK  ADVISORY  READ 78 08:01:99 0 EOF
2: -> FLOCK  ADVISORY  WRITE 81 08:01:99 0 EOF
3: FLOCK  ADVISORY  WRITE 79 00:3f:1234 0 EOF
";

    #[test]
    fn the_holder_of_a_lock_is_found_by_file_or_by_name() {
        assert_eq!(lock_holder(TABLE, &[4, 1234], None), Some(79));
        assert_eq!(lock_holder(TABLE, &[5], Some(79)), Some(79));
        assert_eq!(lock_holder(TABLE, &[99], None), None, "neither a shared lock nor one of another kind is ours");
        assert_eq!(lock_holder(TABLE, &[5], Some(81)), None, "who waits for a lock does not hold it");
        assert_eq!(lock_holder("", &[5], Some(79)), None);
    }
}
