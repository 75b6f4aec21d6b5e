//! Pins server and load to a core each, and reads the CPU time of processes.
//!
//! On a shared core they would measure one another. A child inherits the affinity of the thread
//! that starts it. So the thread moves to the server's core, starts the server, and moves away.
//! Every thread of the server then begins there.
//!
//! Not here: the started programs (`peers`).

use std::collections::BTreeMap;
use std::time::Duration;

#[cfg(target_os = "linux")]
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cores {
    /// The server's.
    pub server: usize,
    /// The load's.
    pub load: usize,
}

impl Cores {
    /// The first two cores that this process may use. `None` if there is only one, or if the system
    /// does not list them.
    #[cfg(target_os = "linux")]
    pub fn find() -> Option<Cores> {
        let allowed = sched_getaffinity(None).ok()?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
        Some(Cores { server: cores.next()?, load: cores.next()? })
    }

    /// Pinning is implemented for Linux only.
    #[cfg(not(target_os = "linux"))]
    pub fn find() -> Option<Cores> {
        None
    }

    /// Runs `work` on the server's core; the processes that it starts stay there.
    pub fn on_server_core<T>(self, work: impl FnOnce() -> T) -> std::io::Result<T> {
        move_to(self.server)?;
        let done = work();
        move_to(self.load)?;
        Ok(done)
    }

    /// Moves this thread to the load's core.
    pub fn take_load_core(self) -> std::io::Result<()> {
        move_to(self.load)
    }
}

#[cfg(target_os = "linux")]
fn move_to(core: usize) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(not(target_os = "linux"))]
fn move_to(_core: usize) -> std::io::Result<()> {
    Ok(())
}

/// CPU time of the threads of a process so far, by thread.
pub struct CpuTimes(BTreeMap<u64, Duration>);

impl CpuTimes {
    /// Reads it; `None` if the system does not provide it.
    pub fn read(pid: u32) -> Option<CpuTimes> {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let each = threads.flatten().filter_map(|thread| {
            let id = thread.file_name().to_str()?.parse().ok()?;
            // A thread that has ended since is left out.
            Some((id, running(&std::fs::read_to_string(thread.path().join("schedstat")).ok()?)?))
        });
        Some(CpuTimes(each.collect()))
    }

    /// CPU time used since `before`. A thread that did not exist then counts in full.
    pub fn since(&self, before: &CpuTimes) -> Duration {
        let each = self.0.iter().map(|(thread, spent)| match before.0.get(thread) {
            Some(earlier) => spent.saturating_sub(*earlier),
            None => *spent,
        });
        each.sum()
    }
}

/// CPU time of the calling thread so far.
pub fn own_thread() -> Option<Duration> {
    running(&std::fs::read_to_string("/proc/thread-self/schedstat").ok()?)
}

/// The first of the three numbers: nanoseconds on a core.
fn running(schedstat: &str) -> Option<Duration> {
    schedstat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spent(threads: &[(u64, u64)]) -> CpuTimes {
        CpuTimes(threads.iter().map(|&(thread, nanos)| (thread, Duration::from_nanos(nanos))).collect())
    }

    #[test]
    fn threads_that_come_count_and_threads_that_go_do_not_subtract() {
        let before = spent(&[(1, 100), (2, 1000)]);
        let after = spent(&[(1, 150), (3, 7)]);
        assert_eq!(after.since(&before), Duration::from_nanos(57));
    }

    #[test]
    fn the_first_number_is_the_time_on_a_core() {
        assert_eq!(running("123456 78 9\n"), Some(Duration::from_nanos(123_456)));
        assert_eq!(running(""), None);
    }
}
