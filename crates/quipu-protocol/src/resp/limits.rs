//! Bounds on the memory of one command.

/// Longest argument. A name is at most 512 bytes; the rest is room for ECHO and for clients that
/// benchmark with large payloads. Redis allows 512 MB, which would let one client take the heap.
pub const BULK_BYTES_MAX: usize = 1 << 20;

/// Most arguments of one command: an MGET of 32,767 names, whose longest reply still fits the
/// output bound of 1 MiB.
pub const ARGS_MAX: usize = 32_768;

/// Longest inline command, as in Redis: people type these, programs do not.
pub const INLINE_BYTES_MAX: usize = 64 << 10;

/// Longest command in total. Without it, arguments times their length would be 32 GiB.
pub const FRAME_BYTES_MAX: usize = 4 << 20;

/// Longest command of an unauthenticated client.
pub const UNAUTHENTICATED_BYTES_MAX: usize = 16 << 10;

/// Most arguments before authentication: `HELLO 3 AUTH user password SETNAME name` has seven.
/// Redis's number.
pub const UNAUTHENTICATED_ARGS_MAX: usize = 10;

/// Bounds for reading a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest argument.
    pub bulk_bytes_max: usize,
    /// Most arguments, the command's name included.
    pub args_max: usize,
    /// Longest inline command.
    pub inline_bytes_max: usize,
    /// Longest command in total; at most 4 GiB, since offsets are kept in 32 bits.
    pub frame_bytes_max: u32,
    /// True after authentication; selects the text of a refusal.
    pub authenticated: bool,
}

impl Limits {
    /// Limits before authentication.
    pub const UNAUTHENTICATED: Limits = Limits {
        bulk_bytes_max: UNAUTHENTICATED_BYTES_MAX,
        args_max: UNAUTHENTICATED_ARGS_MAX,
        inline_bytes_max: UNAUTHENTICATED_BYTES_MAX,
        frame_bytes_max: UNAUTHENTICATED_BYTES_MAX as u32,
        authenticated: false,
    };
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            bulk_bytes_max: BULK_BYTES_MAX,
            args_max: ARGS_MAX,
            inline_bytes_max: INLINE_BYTES_MAX,
            frame_bytes_max: FRAME_BYTES_MAX as u32,
            authenticated: true,
        }
    }
}
