//! Plans the faults of a running disk: failed operations, a full disk.

use std::collections::HashMap;
use std::io;

use super::recording::OpKind;

/// Kind of failure of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFault {
    /// An I/O error; nothing was done.
    Eio,
    /// An I/O error after this many bytes of a write; any other operation did nothing.
    ShortWrite(usize),
    /// No space left; nothing was done.
    NoSpace,
    /// The process has too many files open; nothing was done.
    NoDescriptors,
    /// An I/O error from a sync; the writes it should have covered stay in doubt, though later
    /// syncs return success.
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

/// Planned failures.
#[derive(Debug, Default)]
pub(super) struct DiskFaultPlan {
    /// Per kind: the number of successful operations first, and the failure of the next one.
    planned: HashMap<OpKind, Vec<(usize, DiskFault)>>,
}

impl DiskFaultPlan {
    pub(super) fn plan(&mut self, kind: OpKind, after: usize, fault: DiskFault) {
        self.planned.entry(kind).or_default().push((after, fault));
    }

    /// Returns the fault of the next operation, if any; called once for each operation.
    pub(super) fn take_due(&mut self, kind: OpKind) -> Option<DiskFault> {
        let planned = self.planned.get_mut(&kind)?;
        let due = planned.iter().position(|(after, _)| *after == 0).map(|index| planned.remove(index).1);
        for (after, _) in planned {
            *after = after.saturating_sub(1);
        }
        due
    }
}

/// Error of a full disk.
pub(super) fn full() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error())
}
