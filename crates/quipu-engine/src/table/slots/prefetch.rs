//! Asks the processor for a cache line ahead of its use.
//!
//! A hint: it changes no state that a program can see. On machines without it nothing happens, and
//! the answers are the same but later.

#![allow(unsafe_code, reason = "the instruction has no safe form")]

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Prefetches the line of this reference.
#[inline(always)]
pub fn prefetch<T>(at: &T) {
    prefetch_line(std::ptr::from_ref(at).cast());
}

/// Prefetches the first two lines of this reference.
#[inline(always)]
pub fn prefetch_two<T>(at: &T) {
    prefetch(at);
    prefetch_line(std::ptr::from_ref(at).cast::<u8>().wrapping_add(LINE_BYTES));
}

#[inline(always)]
fn prefetch_line(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the instruction reads and writes no memory that the program can see, and has no
    // effect at an invalid address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = line;
}
