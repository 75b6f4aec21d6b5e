//! Asks the processor for a line of memory ahead of its use.
//!
//! A hint: it changes nothing that a program can see, on machines without it nothing happens, and whoever goes without it gets the same answers later.

#![allow(unsafe_code, reason = "the instruction has no safe form")]

/// Bytes of a line.
const LINE_BYTES: usize = 64;

/// Brings the line of this reference near.
#[inline(always)]
pub fn prefetch<T>(at: &T) {
    prefetch_line(std::ptr::from_ref(at).cast());
}

/// Brings the first two lines of this reference near.
#[inline(always)]
pub fn prefetch_two<T>(at: &T) {
    prefetch(at);
    prefetch_line(std::ptr::from_ref(at).cast::<u8>().wrapping_add(LINE_BYTES));
}

#[inline(always)]
fn prefetch_line(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the instruction reads and writes nothing that the program can see, and does nothing at an address that is not valid.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = line;
}
