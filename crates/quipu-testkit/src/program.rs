//! Runs the built program as a child process: starts, kills and stops it.
//!
//! Invariants:
//! - a dropped program is killed: no test leaves one behind;
//! - every wait has a bound.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use quipu_model::Durability;
use rustix::process::{Pid, Signal, kill_process};

/// Timeout of a start: recovery of the suites' small journals takes milliseconds, on a busy machine
/// seconds.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout of a clean stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Text before the RESP address in the program's ready line.
const READY_MARK: &str = "resp://";

/// Text before the HTTP address in the same line.
const HTTP_MARK: &str = "http://";

/// Text before the report on the data directory, before the program serves.
const FOUND_MARK: &str = "found ";

/// Default segment length: small, so that a short incarnation rotates and recycles segments.
const SEGMENT_BYTES: u64 = 64 << 10;

/// Settings of a start.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The executable.
    pub binary: PathBuf,
    /// The program that runs the executable, with its arguments, such as `nohup`; empty for none.
    pub wrapper: Vec<OsString>,
    /// The data directory.
    pub data: PathBuf,
    /// The server's default durability.
    pub durability: Durability,
    /// Length of a journal segment.
    pub segment_bytes: u64,
    /// Further arguments, after the common ones.
    pub arguments: Vec<OsString>,
    /// Environment variables beside those of the test.
    pub variables: Vec<(OsString, OsString)>,
}

/// Error of starting a program, with all its stderr output.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// It could not be run.
    #[error("cannot run {binary}")]
    Run {
        /// The executable.
        binary: String,
        /// Cause of the failure.
        source: std::io::Error,
    },
    /// It ended before it served.
    #[error("the program ended ({status}) before it served:\n{stderr}")]
    Ended {
        /// Its exit status.
        status: ExitStatus,
        /// Its stderr output.
        stderr: String,
    },
    /// It did not serve in time.
    #[error("the program did not serve in time:\n{stderr}")]
    TimedOut {
        /// Its stderr output.
        stderr: String,
    },
}

/// A running program.
#[derive(Debug)]
pub struct Program {
    child: Child,
    address: SocketAddr,
    http: Option<SocketAddr>,
    directory_report: String,
    ready_after: Duration,
    stderr: Option<JoinHandle<String>>, // ends with the process
}

impl Launch {
    /// Settings for the program under test: `QUIPU_TEST_BIN` if set, else the one built with the
    /// test.
    pub fn new(built: &str, data: &Path, durability: Durability) -> Launch {
        let binary = std::env::var_os("QUIPU_TEST_BIN").map_or_else(|| PathBuf::from(built), PathBuf::from);
        let (data, segment_bytes) = (data.to_path_buf(), SEGMENT_BYTES);
        let (wrapper, arguments, variables) = Default::default();
        Launch { binary, wrapper, data, durability, segment_bytes, arguments, variables }
    }

    /// Starts it on free ports, with two workers, and waits until it serves.
    pub fn start(&self) -> Result<Program, LaunchError> {
        let began = now();
        let mut child = self.spawn(Stdio::piped())?;
        let stderr = collect_stderr(child.stderr.take().expect("stderr was piped"));
        let (serves, ready) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().expect("stdout was piped"));
        // Keeps reading after the address was found, so that the program never waits for a full
        // pipe.
        thread::spawn(move || {
            let mut directory_report = String::new();
            for line in stdout.lines().map_while(Result::ok) {
                if let Some(text) = line.trim().strip_prefix(FOUND_MARK) {
                    directory_report = text.trim().to_owned();
                }
                if let Some(address) = find_address(&line, READY_MARK) {
                    let _ = serves.send((address, find_address(&line, HTTP_MARK), directory_report.clone()));
                }
            }
        });
        match ready.recv_timeout(READY_TIMEOUT) {
            Ok((address, http, directory_report)) => Ok(Program {
                child,
                address,
                http,
                directory_report,
                ready_after: began.elapsed(),
                stderr: Some(stderr),
            }),
            Err(error) => {
                if error == mpsc::RecvTimeoutError::Timeout {
                    let _ = child.kill();
                }
                let status = child.wait().map_err(|source| LaunchError::Run { binary: "wait".to_owned(), source })?;
                let stderr = stderr.join().unwrap_or_default();
                Err(match error {
                    mpsc::RecvTimeoutError::Timeout => LaunchError::TimedOut { stderr },
                    mpsc::RecvTimeoutError::Disconnected => LaunchError::Ended { status, stderr },
                })
            }
        }
    }

    /// Starts it and kills it after this time, whether it serves by then or still recovers.
    pub fn start_and_kill(&self, length: Duration) -> Result<(), LaunchError> {
        let mut child = self.spawn(Stdio::null())?;
        let stderr = collect_stderr(child.stderr.take().expect("stderr was piped"));
        thread::sleep(length);
        let _ = child.kill();
        let ended = child.wait();
        let _ = stderr.join();
        ended.map(|_| ()).map_err(|source| LaunchError::Run { binary: "wait".to_owned(), source })
    }

    fn spawn(&self, stdout: Stdio) -> Result<Child, LaunchError> {
        let mut words = self.wrapper.iter().map(OsString::as_os_str).chain([self.binary.as_os_str()]);
        let mut command = Command::new(words.next().expect("the executable has a name"));
        // The program would reject the test's own variables as mistakes.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("QUIPU_")) {
            command.env_remove(name);
        }
        command
            .args(words)
            .args(["serve", "--resp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--workers", "2"])
            .args(["--segment-bytes", &self.segment_bytes.to_string(), "--durability", self.durability.name()])
            .arg("--data")
            .arg(&self.data)
            .args(&self.arguments)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| LaunchError::Run { binary: self.binary.display().to_string(), source })
    }
}

impl Program {
    /// Its RESP address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its HTTP address, unless HTTP is off.
    pub fn http(&self) -> Option<SocketAddr> {
        self.http
    }

    /// Its report on the data directory.
    pub fn directory_report(&self) -> &str {
        &self.directory_report
    }

    /// Number of journal records that the start replayed; `None` if the report does not contain it.
    pub fn records_replayed(&self) -> Option<u64> {
        let before = self
            .directory_report
            .split(" records")
            .next()
            .filter(|before| before.len() < self.directory_report.len())?;
        before.rsplit(' ').next()?.parse().ok()
    }

    /// Duration of the start until it served.
    pub fn ready_after(&self) -> Duration {
        self.ready_after
    }

    /// Largest memory in use so far (the kernel's high-water mark of the resident set), in bytes.
    pub fn memory_bytes_most(&self) -> std::io::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
        kilobytes.map(|kilobytes| kilobytes << 10).ok_or_else(|| std::io::Error::other("the kernel does not say VmHWM"))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it, as `kill -9` does, and waits until it is gone.
    pub fn kill9(mut self) -> String {
        self.kill_and_wait()
    }

    /// Waits until it ends by itself; returns its exit status and stderr output.
    pub fn wait(mut self) -> std::io::Result<(ExitStatus, String)> {
        let pid = Pid::from_child(&self.child);
        self.wait_for_exit(pid)
    }

    /// Asks it to stop, as `kill` does, and waits; returns its exit status and stderr output.
    pub fn terminate(self) -> std::io::Result<(ExitStatus, String)> {
        self.stop_with(Signal::TERM)
    }

    /// Asks it to stop, as a closing terminal does; otherwise like `terminate`.
    pub fn hang_up(self) -> std::io::Result<(ExitStatus, String)> {
        self.stop_with(Signal::HUP)
    }

    fn stop_with(mut self, signal: Signal) -> std::io::Result<(ExitStatus, String)> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal)?;
        self.wait_for_exit(pid)
    }

    fn wait_for_exit(&mut self, pid: Pid) -> std::io::Result<(ExitStatus, String)> {
        let (alive, ended) = mpsc::channel::<()>();
        // A hanging program is killed, which its status then shows.
        let watch = thread::spawn(move || {
            if ended.recv_timeout(STOP_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = kill_process(pid, Signal::KILL);
            }
        });
        let status = self.child.wait()?;
        drop(alive);
        let _ = watch.join();
        let stderr = self.stderr.take().and_then(|reader| reader.join().ok()).unwrap_or_default();
        Ok((status, stderr))
    }

    fn kill_and_wait(&mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.stderr.take().and_then(|reader| reader.join().ok()).unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill_and_wait();
    }
}

/// Collects the program's stderr until it ends.
fn collect_stderr(mut stderr: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stderr.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Current time, to measure durations.
#[allow(clippy::disallowed_methods, reason = "a real program is waited for, nothing here is simulated")]
fn now() -> Instant {
    Instant::now()
}

fn find_address(line: &str, mark: &str) -> Option<SocketAddr> {
    let after = &line[line.find(mark)? + mark.len()..];
    let end = after.find(|c: char| !c.is_ascii_digit() && !".:[]".contains(c)).unwrap_or(after.len());
    after[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_the_line_that_says_it() {
        let expected = "127.0.0.1:4711".parse().unwrap();
        for line in
            ["ready resp://127.0.0.1:4711 http://127.0.0.1:4712", "resp://127.0.0.1:4711", "a resp://127.0.0.1:4711, b"]
        {
            assert_eq!(find_address(line, READY_MARK), Some(expected), "{line}");
        }
        assert_eq!(find_address("starting", READY_MARK), None);
        assert_eq!(find_address("resp://nowhere", READY_MARK), None);
        let both = "ready resp://127.0.0.1:4712 http://127.0.0.1:4711";
        assert_eq!(find_address(both, HTTP_MARK), Some(expected));
    }

    #[test]
    fn a_program_that_ends_at_once_is_reported_with_its_output() {
        let launch = Launch {
            binary: "/bin/false".into(),
            wrapper: Vec::new(),
            data: "unused".into(),
            durability: Durability::Durable,
            segment_bytes: SEGMENT_BYTES,
            arguments: Vec::new(),
            variables: Vec::new(),
        };
        assert!(matches!(launch.start(), Err(LaunchError::Ended { .. })));
        let absent = Launch { binary: "/nonexistent/quipu".into(), ..launch };
        assert!(matches!(absent.start(), Err(LaunchError::Run { .. })));
    }
}
