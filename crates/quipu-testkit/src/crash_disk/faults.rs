//! Faults of a disk that runs: an operation that fails, a disk that is full.

use std::collections::HashMap;
use std::io;

use super::recording::OpKind;

/// How an operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFault {
    /// An I/O error; nothing was done.
    Eio,
    /// An I/O error after this many bytes of a write; of any other operation, nothing was done.
    ShortWrite(usize),
    /// No space is left; nothing was done.
    NoSpace,
    /// The process has too many files open; nothing was done.
    NoDescriptors,
    /// An I/O error from a sync; what it should have covered stays in doubt for ever, though later syncs return success.
    FsyncFails,
}

impl DiskFault {
    pub(super) fn error(self) -> io::Error {
        match self {
            DiskFault::NoSpace => full(),
            DiskFault::NoDescriptors => io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error()),
            DiskFault::Eio | DiskFault::ShortWrite(_) | DiskFault::FsyncFails => {
                io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error())
            }
        }
    }
}

/// Which operations are going to fail.
#[derive(Debug, Default)]
pub(super) struct DiskFaultPlan {
    /// Per kind: how many of them go well first, and how the one after fails.
    planned: HashMap<OpKind, Vec<(usize, DiskFault)>>,
}

impl DiskFaultPlan {
    pub(super) fn plan(&mut self, kind: OpKind, after: usize, fault: DiskFault) {
        self.planned.entry(kind).or_default().push((after, fault));
    }

    /// Called once for each operation; the fault it meets, if any.
    pub(super) fn take_due(&mut self, kind: OpKind) -> Option<DiskFault> {
        let planned = self.planned.get_mut(&kind)?;
        let due = planned.iter().position(|(after, _)| *after == 0).map(|index| planned.remove(index).1);
        for (after, _) in planned {
            *after = after.saturating_sub(1);
        }
        due
    }
}

/// What a full disk answers.
pub(super) fn full() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error())
}
