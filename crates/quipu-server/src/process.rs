//! What belongs to the process as a whole: open files, memory, and the end after a panic.

use std::sync::Once;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files kept for the journal, the listeners, standard streams and runtimes.
const FILES_RESERVED: u64 = 64;

/// Threads whose name begins so take the process with them when they panic.
pub(crate) const WORKER_THREAD_PREFIX: &str = "quipu-worker-";

/// Raises the limit of open files to what the system allows; returns how many connections fit.
pub(crate) fn raise_open_files() -> u32 {
    let limit = getrlimit(Resource::Nofile);
    let mut current = limit.current;
    if limit.current < limit.maximum || limit.maximum.is_none() {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            current = limit.maximum;
        }
    }
    let fits = current.map_or(u64::MAX, |files| files.saturating_sub(FILES_RESERVED).max(1));
    u32::try_from(fits).unwrap_or(u32::MAX)
}

/// A worker that panics may have stopped in the middle of a turn. Its locks and its place in the journal are then in a state that
/// no code has been written for, so the process ends; the next start replays the journal.
pub(crate) fn end_with_a_panicking_worker() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            print(info);
            if std::thread::current().name().is_some_and(|name| name.starts_with(WORKER_THREAD_PREFIX)) {
                std::process::abort();
            }
        }));
    });
}

/// Resident memory, if the system tells.
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
            end_with_a_panicking_worker();
            let worker = std::thread::Builder::new().name(format!("{WORKER_THREAD_PREFIX}0"));
            let _ = worker.spawn(|| panic!("half-way through a turn")).expect("a thread can be started").join();
            // Reached only if the panic was survived.
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
    fn resident_memory_is_known_on_linux() {
        assert!(!cfg!(target_os = "linux") || resident_bytes().is_some_and(|bytes| bytes > 0));
    }
}
