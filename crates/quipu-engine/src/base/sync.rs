//! Provides locks, atomics and threads: from the standard library, or from shuttle for its tests.
//!
//! All shared state of this crate goes through these types, so shuttle's schedule tests run the
//! shipped code.

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering},
};
pub(crate) use std::sync::{Arc, OnceLock, TryLockError};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering},
};

/// Locks. A poisoned lock means that a thread panicked half-way through a step. The guarded state
/// may be half-applied, so no thread may continue from it. The journal is the truth, and the next
/// start replays it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("a thread panicked while it held this lock; its state must not be used")
}

/// Locks if no other thread holds the lock.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Poisoned(_)) => {
            panic!("a thread panicked while it held this lock; its state must not be used")
        }
    }
}

/// A pair of barriers with uneven costs. The frequent side orders its own accesses by
/// [`light_barrier`], which is no instruction at all. The rare side makes every thread of the
/// process pass a full barrier, by [`heavy_barrier`]. If two threads each write, pass their barrier
/// and then read the other's variable, at least one sees the other's write.
#[inline]
pub(crate) fn light_barrier() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

#[cfg(all(target_os = "linux", not(feature = "shuttle")))]
mod heavy {
    use std::sync::OnceLock;

    use rustix::thread::{MembarrierCommand, membarrier};

    /// Returns true if there is a heavy barrier here; a light one is worth nothing without it.
    pub(crate) fn has_heavy_barrier() -> bool {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        // Kernels before 4.14 do not have it, and a sandbox may not allow it.
        *REGISTERED.get_or_init(|| {
            membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
                && membarrier(MembarrierCommand::PrivateExpedited).is_ok()
        })
    }

    /// Makes every thread of the process pass a full barrier between the call and the return.
    pub(crate) fn heavy_barrier() {
        membarrier(MembarrierCommand::PrivateExpedited).expect("the process is registered, so the kernel does it");
    }
}

/// The scheduler's threads see each other's writes in the order in which they are made.
#[cfg(feature = "shuttle")]
mod heavy {
    pub(crate) fn has_heavy_barrier() -> bool {
        true
    }

    pub(crate) fn heavy_barrier() {}
}

#[cfg(not(any(target_os = "linux", feature = "shuttle")))]
mod heavy {
    pub(crate) fn has_heavy_barrier() -> bool {
        false
    }

    pub(crate) fn heavy_barrier() {}
}

pub(crate) use heavy::{has_heavy_barrier, heavy_barrier};
