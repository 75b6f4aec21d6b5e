//! `cargo xtask bench`: compares Quipu with other servers, beyond the scope of `quipu bench`.
//!
//! Invariants:
//! - the shipped program is built first: nothing else is worth measuring;
//! - every started process has ended when a bench returns, also after Ctrl-C or a closed terminal.

mod bars;
mod http;
mod instructions;
mod memory;
mod postgres;
mod server;
mod store;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

pub use self::bars::bars;
pub use self::http::{bare_writes, http};
pub use self::instructions::{BUILD as INSTRUCTIONS_BUILD, FiguresMode, PERCENT_MAX, check_instructions, instructions};
pub use self::memory::memory;
pub use self::postgres::{Options as PostgresOptions, postgres};
pub use self::store::store;
use crate::parts::cargo;
use crate::paths::target;
use crate::run::run;

/// A flag that a signal sets.
struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// From now on a signal does not end this program; the next check of the flag does.
    fn listen() -> anyhow::Result<StopFlag> {
        let is_requested = Arc::new(AtomicBool::new(false));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&is_requested)).context("listen for signals")?;
        }
        Ok(StopFlag(is_requested))
    }

    fn check(&self) -> anyhow::Result<()> {
        if self.0.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }
}

/// Builds the shipped program; returns its path.
fn build() -> anyhow::Result<PathBuf> {
    run("build", &cargo("build --profile dist -p quipu", &[]))?.expect_success("the build of the shipped program")?;
    Ok(target().join("dist/quipu"))
}

/// Runs `quipu bench` with these arguments; returns its document.
fn quipu_bench(label: &str, quipu: &Path, arguments: &[&str]) -> anyhow::Result<Value> {
    let mut command = Command::new(quipu);
    command.args(["bench", "--json"]).args(arguments);
    let outcome = run(label, &command)?.expect_success("quipu bench")?;
    let document =
        outcome.lines.iter().find(|line| line.starts_with('{')).context("quipu bench printed no document")?;
    serde_json::from_str(document).context("read what quipu bench printed")
}

/// A table with right-aligned columns from this one on.
fn table_text(mut table: Table, figures_from: usize) -> String {
    for column in table.column_iter_mut().skip(figures_from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.load_style(NOTHING).trim_fmt()
}

/// The middle one, or the mean of the middle two; 0 without values.
fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}
