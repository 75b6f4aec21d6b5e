//! Measures a client's latency for a sample of the reads, from its bytes to its replies.
//!
//! Reading the clock twice takes as long as an add, so most reads are not timed. The choice does
//! not depend on the commands, so the histogram keeps its shape.

use std::cell::Cell;

use quipu_model::Name;
use quipu_protocol::{Decoder, Limits, lookup};
use tokio::time::Instant;

use crate::server_state::ServerState;

/// Each worker times one read in this many.
const READS_PER_SAMPLE: u32 = 256;

thread_local! {
    /// Reads until the next timed one.
    static READS_LEFT: Cell<u32> = const { Cell::new(0) };
}

/// A timed read, under its first command. In a box, since nearly every connection has none.
pub(super) struct LatencySample {
    since: Instant,
    command: &'static str,
    namespace: Box<[u8]>,
}

impl LatencySample {
    /// Starts a sample if the next read is due.
    #[inline]
    pub fn begin(input: &[u8], limits: &Limits) -> Option<Box<LatencySample>> {
        let left = READS_LEFT.get();
        READS_LEFT.set(left.checked_sub(1).unwrap_or(READS_PER_SAMPLE - 1));
        if left > 0 { None } else { LatencySample::from_input(input, limits).map(Box::new) }
    }

    #[cold]
    fn from_input(input: &[u8], limits: &Limits) -> Option<LatencySample> {
        let (since, mut decoder) = (Instant::now(), Decoder::default());
        // An incomplete or unknown command is not timed.
        let frame = decoder.decode(input, limits).ok()??;
        let spec = lookup(&frame.args).ok()?;
        let name = usize::try_from(spec.keys.first).ok().filter(|at| *at > 0).and_then(|at| frame.args.get(at));
        let name = name.and_then(|name| Name::new(name).ok());
        let namespace = name.map_or_else(Box::default, |name| name.namespace().into());
        Some(LatencySample { since, command: spec.name, namespace })
    }

    /// Records the time after its replies were sent.
    pub fn end(self, server: &ServerState) {
        server.command_latencies.record(self.command, &self.namespace, self.since.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_read_in_so_many_is_timed_under_its_first_command() {
        let limits = Limits::default();
        READS_LEFT.set(0);
        let input = b"*2\r\n$4\r\nINCR\r\n$7\r\nlikes:1\r\n*1\r\n$4\r\nPING\r\n";
        let timed: Vec<Box<LatencySample>> =
            (0..2 * READS_PER_SAMPLE).filter_map(|_| LatencySample::begin(input, &limits)).collect();
        assert_eq!(timed.len(), 2);
        assert_eq!((timed[0].command, &*timed[0].namespace), ("incr", &b"likes"[..]));
        let ping = LatencySample::from_input(b"PING\r\n", &limits).unwrap();
        assert_eq!((ping.command, &*ping.namespace), ("ping", &b""[..]));
        for none in [&b"*2\r\n$4\r\nINCR\r\n"[..], b"NOSUCH a\r\n", b"*-7\r\n", b"INCR\r\n", b""] {
            assert!(LatencySample::from_input(none, &limits).is_none(), "{}", none.escape_ascii());
        }
    }
}
