//! `quipu clock`: compares the newest time in a data directory with the wall clock.
//! `quipu clock lower` sets it back.
//!
//! Exit status of `clock` 0: the newest time is at or behind the wall clock, or at most a minute
//! ahead. 1: it is more than a minute ahead, so a start would continue in the future.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};
use quipu_engine::{Environment, STEP_MAX, SystemClock, SystemLedger, TimeCorrection};
use quipu_model::Clock;

use crate::args::{ClockLowerArgs, DirectoryArgs};
use crate::backends::StoreUrl;
use crate::json::Json;
use crate::read_only::ReadOnlyDisk;
use crate::{offline_engine, offline_read, terminal};

/// Prints both times.
pub fn clock(target: &DirectoryArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let data = &target.data;
    let read = || quipu_engine::offline::newest_time(&ReadOnlyDisk, data, &mut || SystemLedger::open_read_only(data));
    let newest = offline_read::read("read the newest time of", data, read, |_| false)?;
    let wall = SystemClock::default().wall();
    let ahead_millis = i128::from(newest.0) - i128::from(wall.0);
    let ahead_seconds = ahead_millis / 1_000;
    let is_ahead = ahead_millis > STEP_MAX.as_millis() as i128;
    if target.json {
        let document = Json::Object(vec![
            ("data", Json::text(data.display())),
            ("newest_millis", Json::count(newest.0)),
            ("wall_millis", Json::count(wall.0)),
            ("ahead_seconds", Json::Number(ahead_seconds)),
            ("is_ahead", Json::Bool(is_ahead)),
        ]);
        writeln!(out, "{document}")?;
    } else {
        writeln!(out, "{}", terminal::bold(&data.display().to_string()))?;
        writeln!(out, "newest time  {}", terminal::format_time(newest))?;
        writeln!(out, "wall clock   {}", terminal::format_time(wall))?;
        let verdict = match is_ahead {
            true => terminal::bad(&format!(
                "the directory is {ahead_seconds} s ahead: if the wall clock is right, see `quipu clock --help`"
            )),
            false => terminal::good("a start goes on with the wall clock"),
        };
        writeln!(out, "{verdict}")?;
    }
    Ok(if is_ahead { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Sets the time back, and prints the consequences.
pub fn lower(flags: &ClockLowerArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let data = &flags.directory.data;
    let shown = data.display();
    offline_engine::check(data)?;
    let store = flags.store.as_ref().map(|url| StoreUrl::new(url).context("--store")?.open()).transpose()?;
    let engine = offline_engine::open_engine(data, Environment { store, ..Environment::system() })?;
    let lowered = engine.lower_time();
    engine.close().with_context(|| format!("close {shown}"))?;
    let Some(TimeCorrection { from, to }) = lowered.with_context(|| format!("put back the time of {shown}"))? else {
        let most = STEP_MAX.as_secs();
        bail!("{shown} is not more than {most} s ahead of the wall clock: there is nothing to lower");
    };
    if flags.directory.json {
        let document = Json::Object(vec![
            ("data", Json::text(shown)),
            ("from_millis", Json::count(from.0)),
            ("to_millis", Json::count(to.0)),
        ]);
        writeln!(out, "{document}")?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "{shown} goes on from {} instead of {}", terminal::format_time(to), terminal::format_time(from))?;
    writeln!(out, "tokens that carry an earlier time are refused; those that carry none may be applied again")?;
    writeln!(out, "expiry that was set meanwhile stays; windows with events of the future count none until then")?;
    Ok(ExitCode::SUCCESS)
}
