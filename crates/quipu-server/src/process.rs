//! Manages the process: open files, memory, and its end after a panic.

use std::sync::Once;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Limits;

/// Files reserved for the engine: its lock, its control file, and the few journal segments that it
/// keeps open at once.
const FILES_ENGINE: u64 = 128;

/// Files of one runtime: epoll, a waker, and the socket pair for signals; and one for files opened
/// briefly.
const FILES_RUNTIME: u64 = 4;

/// Runtimes besides the workers': the acceptor's and that of HTTP.
const RUNTIMES_BESIDES: u64 = 2;

/// Standard streams, listeners, and on each listener one connection about to be refused; rounded
/// up.
const FILES_FIXED: u64 = 16;

/// A panic in a thread with this name prefix ends the process.
pub(crate) const WORKER_THREAD_PREFIX: &str = "quipu-worker-";

/// When files are few, HTTP connections may take one in four of those left for connections.
const HTTP_SHARE: u64 = 4;

/// Number of files that are not for connections.
fn fixed_files(workers: usize) -> u64 {
    let runtimes = workers as u64 + RUNTIMES_BESIDES;
    FILES_ENGINE + FILES_FIXED + FILES_RUNTIME * runtimes
}

/// Number of HTTP connections that the open files allow beside those of RESP.
pub(crate) fn http_connections_possible(files: u64, workers: usize) -> usize {
    let possible = files.saturating_sub(fixed_files(workers)) / HTTP_SHARE;
    usize::try_from(possible).unwrap_or(usize::MAX)
}

/// Number of files that are not for RESP connections. While these stay reserved, no number of
/// connections deprives the journal of a file.
pub(crate) fn files_reserved(limits: &Limits, workers: usize) -> u64 {
    fixed_files(workers).saturating_add(limits.http_connections_max as u64)
}

/// Number of connections that the open files allow.
pub(crate) fn connections_possible(files: u64, reserved: u64) -> Option<u32> {
    match files.saturating_sub(reserved) {
        0 => None,
        possible => Some(u32::try_from(possible).unwrap_or(u32::MAX)),
    }
}

/// Raises the limit of open files to the system's maximum, and returns it.
pub(crate) fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let mut current = limit.current;
    if limit.current < limit.maximum || limit.maximum.is_none() {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            current = limit.maximum;
        }
    }
    current.unwrap_or(u64::MAX)
}

/// Ends the process when a worker panics. The panic may have interrupted a turn: its locks and its
/// range in the journal are then in a state that no code handles. The next start replays the
/// journal.
pub(crate) fn abort_on_worker_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous_hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            previous_hook(info);
            if std::thread::current().name().is_some_and(|name| name.starts_with(WORKER_THREAD_PREFIX)) {
                std::process::abort();
            }
        }));
    });
}

/// Resident memory, if the system reports it.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHILD: &str = "QUIPU_TEST_PANICKING_WORKER";

    #[test]
    fn a_panic_in_a_worker_ends_the_process() {
        if std::env::var_os(CHILD).is_some() {
            abort_on_worker_panic();
            let worker = std::thread::Builder::new().name(format!("{WORKER_THREAD_PREFIX}0"));
            let _ = worker.spawn(|| panic!("half-way through a turn")).expect("a thread can be started").join();
            // Reached only if the process survived the panic.
            std::process::exit(0);
        }
        let test = "process::tests::a_panic_in_a_worker_ends_the_process";
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(!output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("half-way through a turn"), "{output:?}");
    }

    #[test]
    fn what_is_reserved_grows_with_what_else_is_served() {
        let limits = Limits::default();
        let reserved = files_reserved(&limits, 2);
        assert_eq!(reserved, 128 + 16 + 4 * 4 + 2_048);
        assert_eq!(files_reserved(&Limits { http_connections_max: 2_049, ..limits.clone() }, 2), reserved + 1);
        assert_eq!(http_connections_possible(128 + 16 + 4 * 4 + 40, 2), 10);
        assert_eq!(http_connections_possible(10, 2), 0);
        assert_eq!(files_reserved(&limits, 3), reserved + FILES_RUNTIME);
        assert_eq!(connections_possible(reserved, reserved), None);
        assert_eq!(connections_possible(reserved + 1, reserved), Some(1));
        assert_eq!(connections_possible(u64::MAX, reserved), Some(u32::MAX));
    }

    #[test]
    fn resident_memory_is_known_on_linux() {
        assert!(!cfg!(target_os = "linux") || resident_bytes().is_some_and(|bytes| bytes > 0));
    }
}
