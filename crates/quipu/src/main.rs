//! The program `quipu`: serves counters, and runs the commands around a server.
//!
//! The commands call a running server, inspect and copy a data directory, and inspect a shared
//! store. Others move counters in and out of a store, or measure speed.
//!
//! In: a command line. Out: an exit status. 0: done. 1: failed, with the reason on stderr. 2: an
//! invalid command line.
//!
//! Not here: the meaning of a flag (`args`, `config`), the work of a command (a module each).

mod args;
mod config;

mod backends;
mod serve;

mod chain;
mod client;
mod resp_client;

mod audit;
mod backup;
mod clock;
mod inspect;
mod offline_engine;
mod offline_read;
mod read_only;
mod readings;
mod restore;
mod writers;

mod stores;

#[cfg(feature = "bench")]
mod bench;

mod docs;
mod json;
mod log;
mod progress;
mod terminal;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, ClockTask, ConfigTask, ServerCall, Task};
use crate::stores::args::WritersTask;

fn main() -> ExitCode {
    end_on_panic();
    // Reads FAILPOINTS; the engine passes the steps that it names.
    #[cfg(feature = "failpoints")]
    let _scenario = fail::FailScenario::setup();
    let cli = Cli::parse();
    let mut out = BufWriter::new(io::stdout());
    let done = match cli.task {
        Task::Serve(flags) => serve::serve(&flags, &mut out),
        Task::Config(ConfigTask::Check(flags)) => config::check::check(&flags, &mut out),
        Task::Inspect(target) => inspect::inspect(&target, &mut out),
        Task::Writers(flags) => match (&flags.task, &flags.place.store) {
            (Some(WritersTask::Retire(flags)), _) => stores::registry::retire(flags, &mut out),
            (Some(WritersTask::Adopt(flags)), _) => stores::adopt::adopt(flags, &mut out),
            (None, Some(url)) => stores::registry::writers(url, flags.place.directory.json, &mut out),
            (None, None) => writers::writers(&flags.place.directory, &mut out),
        },
        Task::Clock(flags) => match &flags.task {
            Some(ClockTask::Lower(flags)) => clock::lower(flags, &mut out),
            None => clock::clock(&flags.directory, &mut out),
        },
        Task::Audit(target) => match &target.store {
            Some(url) => stores::audit::audit(url, target.directory.json, &mut out),
            None => audit::audit(&target.directory, &mut out),
        },
        Task::Shards(flags) => stores::shards::shards(&flags, &mut out),
        Task::Import(flags) => stores::import::import(&flags, &mut out),
        Task::Copy(flags) => stores::copy::copy(&flags, &mut out),
        Task::Export(flags) => stores::export::export(&flags, &mut out),
        Task::Backup(target) => backup::backup(&target, &mut out),
        Task::Restore(target) => restore::restore(&target, &mut out),
        Task::Docs { page } => docs::docs(page, &mut out),
        #[cfg(feature = "bench")]
        Task::Bench(flags) => bench::bench(&flags, &mut out),
        #[cfg(feature = "bench")]
        Task::BenchFloor(flags) => bench::floor(&flags, &mut out),
        Task::Add(call) => run_server_command(&call, &mut out),
        Task::Get(call) => run_server_command(&call, &mut out),
        Task::Del(call) => run_server_command(&call, &mut out),
        Task::Reset(call) => run_server_command(&call, &mut out),
        Task::List(call) => run_server_command(&call, &mut out),
        Task::Health(call) => run_server_command(&call, &mut out),
    };
    match done.and_then(|code| Ok(out.flush().map(|()| code)?)) {
        Ok(code) => code,
        // The reader of our output has closed the pipe: `quipu list | head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quipu: {}", chain::one_line(&error));
            ExitCode::FAILURE
        }
    }
}

fn run_server_command<T: client::ServerCommand>(
    call: &ServerCall<T>,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    client::call_server(&call.target, &call.question, out)?;
    Ok(ExitCode::SUCCESS)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Makes a panic in one thread end the process, so that the others never serve its half-done
/// changes. Release builds abort by themselves; builds that unwind need this.
fn end_on_panic() {
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        default_hook(panic);
        std::process::abort();
    }));
}
