//! Bounds on the resources of clients, by name.

use std::time::Duration;

/// Connections at once. Redis's number; lowered at start if the process may not open as many files.
pub const CONNECTIONS_MAX: u32 = 10_000;

/// Output of one connection buffered before it is sent. A pipeline continues after that.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// Time that a reply waits for its client to read the next part. A client that reads nothing for
/// this time is gone or hostile.
pub const WRITE_TIME_MAX: Duration = Duration::from_secs(10);

/// Time that a command may take to arrive, from its first byte to its last.
pub const PARTIAL_TIME_MAX: Duration = Duration::from_secs(5);

/// Bytes queued between MULTI and EXEC; 30,000 increments of short names.
pub const QUEUE_BYTES_MAX: usize = 1 << 20;

/// Commands queued between MULTI and EXEC: with the memory for each, about 2 MiB.
pub const QUEUE_COMMANDS_MAX: usize = 16_384;

/// Counters watched by one connection.
pub const WATCHES_MAX: usize = 4_096;

/// Time that a stop waits for replies in flight.
pub const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);

/// HTTP connections at once; half of them may watch. Lowered at start if the process may not open
/// as many files.
pub const HTTP_CONNECTIONS_MAX: usize = 2_048;

/// Time that an HTTP client may take to send its headers.
pub const HTTP_HEADER_TIME_MAX: Duration = Duration::from_secs(5);

/// Time that an HTTP client may take to send the body of a request.
pub const HTTP_BODY_TIME_MAX: Duration = Duration::from_secs(10);

/// Time that an HTTP connection is kept without a request. Longer than the minute of proxies and
/// pools, so that the client's side closes first. A request cannot then meet a connection that the
/// server is closing.
pub const HTTP_IDLE_TIME_MAX: Duration = Duration::from_secs(75);

/// Body of a batch. Those of single operations are 4 KiB at most.
pub const HTTP_BODY_BYTES_MAX: usize = 1 << 20;

/// Bounds of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Size of one command.
    pub frame: quipu_protocol::Limits,
    /// Connections at once.
    pub connections_max: u32,
    /// Output of one turn of one connection before it is sent.
    pub output_bytes_max: usize,
    /// Time without a byte read by a client with a pending reply.
    pub write_time_max: Duration,
    /// Time from a command's first byte to its last.
    pub partial_time_max: Duration,
    /// Time without a command, in whole seconds; none by default, since pools keep connections for
    /// hours.
    pub idle_time_max: Option<Duration>,
    /// Bytes between MULTI and EXEC.
    pub queue_bytes_max: usize,
    /// Commands between MULTI and EXEC.
    pub queue_commands_max: usize,
    /// Counters under WATCH.
    pub watches_max: usize,
    /// Time of a stop.
    pub drain_time_max: Duration,
    /// HTTP connections at once.
    pub http_connections_max: usize,
    /// Time for the headers of an HTTP request.
    pub http_header_time_max: Duration,
    /// Time for the body of an HTTP request.
    pub http_body_time_max: Duration,
    /// Time without a request on an HTTP connection.
    pub http_idle_time_max: Duration,
    /// Bytes of the body of a batch.
    pub http_body_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            frame: quipu_protocol::Limits::default(),
            connections_max: CONNECTIONS_MAX,
            output_bytes_max: OUTPUT_BYTES_MAX,
            write_time_max: WRITE_TIME_MAX,
            partial_time_max: PARTIAL_TIME_MAX,
            idle_time_max: None,
            queue_bytes_max: QUEUE_BYTES_MAX,
            queue_commands_max: QUEUE_COMMANDS_MAX,
            watches_max: WATCHES_MAX,
            drain_time_max: DRAIN_TIME_MAX,
            http_connections_max: HTTP_CONNECTIONS_MAX,
            http_header_time_max: HTTP_HEADER_TIME_MAX,
            http_body_time_max: HTTP_BODY_TIME_MAX,
            http_idle_time_max: HTTP_IDLE_TIME_MAX,
            http_body_bytes_max: HTTP_BODY_BYTES_MAX,
        }
    }
}
