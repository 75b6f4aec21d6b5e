//! Locks, atomics and threads, from the standard library or, for the tests that try every meeting of threads, from shuttle.
//!
//! Everything in this crate that threads share goes through here, so the scheduler's tests run the shipped types.

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

/// Locks. A poisoned lock means that a thread panicked half-way through a step: what it guards may be half-applied, so
/// nobody may go on from it; the journal is the truth, and the next start replays it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("a thread panicked while it held this lock; its state must not be used")
}

/// Locks if nobody else holds it.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Poisoned(_)) => {
            panic!("a thread panicked while it held this lock; its state must not be used")
        }
    }
}
