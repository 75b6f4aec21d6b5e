//! Starts a server on a free port, waits until it is ready, and ends it in every case.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::StopFlag;
use crate::run::{command_line, now};

/// Most time for a start.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Most time for a stop before a kill.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// Poll interval while a server starts or stops.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// A running server. A drop stops it, and kills it after a timeout.
pub struct BenchServer {
    child: Child,
    log: PathBuf,
    stop_with: Signal,
}

impl BenchServer {
    /// Starts it and waits until its log, a file in this directory, contains `ready`. `stop_with`
    /// is its stop signal.
    pub fn start(
        command: &mut Command,
        home: &Path,
        ready: &str,
        stop_with: Signal,
        stop: &StopFlag,
    ) -> anyhow::Result<BenchServer> {
        let log = home.join("log");
        let written = File::create(&log).with_context(|| format!("make {}", log.display()))?;
        command.stdin(Stdio::null()).stderr(written.try_clone()?).stdout(written);
        let child = command.spawn().with_context(|| format!("run {}", command_line(command)))?;
        let mut server = BenchServer { child, log, stop_with };
        let began = now();
        while !server.read_log().contains(ready) {
            stop.check()?;
            if let Some(status) = server.child.try_wait().context("look after a server")? {
                bail!("{} ended ({status}) before it served:\n{}", command_line(command), server.read_log());
            }
            if began.elapsed() > READY_TIMEOUT {
                bail!("{} did not serve in time:\n{}", command_line(command), server.read_log());
            }
            thread::sleep(POLL_EVERY);
        }
        Ok(server)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its whole log.
    pub fn read_log(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Its resident memory, in bytes.
    pub fn resident_bytes(&self) -> anyhow::Result<u64> {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).context("look at a process")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes: Option<u64> = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
        kilobytes.map(|kilobytes| kilobytes << 10).context("the kernel does not say VmRSS")
    }
}

impl BenchServer {
    /// CPU time so far of all its threads that have not ended. The kernel's figure of a whole
    /// process is in hundredths of a second: too coarse for a turn of a few changes.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        let mut nanos = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id())).context("look at a process")? {
            // A thread may end during the reading.
            let Ok(stat) = std::fs::read_to_string(task.context("look at a thread")?.path().join("schedstat")) else {
                continue;
            };
            let first = stat.split_whitespace().next().and_then(|field| field.parse::<u64>().ok());
            nanos += first.context("the kernel does not say how much CPU time")?;
        }
        ensure!(nanos > 0, "the kernel does not say how much CPU time");
        Ok(Duration::from_nanos(nanos))
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        let began = now();
        let _ = kill_process(Pid::from_child(&self.child), self.stop_with);
        while began.elapsed() < STOP_TIMEOUT {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(POLL_EVERY);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that was free just now.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
