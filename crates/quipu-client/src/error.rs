//! The errors of the client, one variant per reaction of the caller.

use std::io;
use std::sync::Arc;

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server will not do this. Nothing was applied, and another attempt gets the same answer.
    #[error("the server refused: {text}")]
    Refused {
        /// The server's message; its first word is its kind.
        text: String,
    },
    /// Not done in time. Nothing was applied, and nothing will be: call again.
    #[error("not applied within the timeout, in {attempts} attempts")]
    NotApplied {
        /// Number of times it was sent.
        attempts: u32,
        /// The last failure.
        source: Trouble,
    },
    /// Sent and not answered in time: applied once or not at all. Read before calling again, or use
    /// an [`Adder`](crate::Adder), which keeps its tokens.
    #[error("it may have been applied: not answered within the timeout, in {attempts} attempts")]
    Unknown {
        /// Number of times it was sent.
        attempts: u32,
        /// The last failure.
        source: Trouble,
    },
    /// An invalid counter name. Nothing was sent.
    #[error(transparent)]
    Name(#[from] quipu_model::NameTooLong),
    /// The sum would exceed 64 bits before it is sent. Nothing was added.
    #[error("the sum of what waits to be sent would overflow")]
    Overflow,
    /// A negative add to a sampled sum. Nothing was added.
    #[error("what is sampled cannot be taken away from")]
    Sampled,
    /// The bound of counters with unsent sums is reached. Nothing was added: wait
    /// ([`Adder::add`](crate::Adder::add) does), or drop the add.
    #[error("{counters_max} counters wait to be sent, which is the limit")]
    Full {
        /// The bound.
        counters_max: usize,
    },
    /// A flush ran out of time. The adder keeps the unacknowledged adds and sends them again under
    /// their tokens.
    #[error("{adds} adds were not acknowledged within the timeout; they are kept and sent again")]
    Unflushed {
        /// Number of these adds.
        adds: u64,
        /// The last failure, if any.
        source: Option<Trouble>,
    },
    /// An invalid address.
    #[error("bad address {address:?}: {why}")]
    Address {
        /// The given address, without a password.
        address: String,
        /// The mistake in it.
        why: String,
    },
    /// The first connection could not be made.
    #[error("cannot connect to {address}")]
    Connect {
        /// The address.
        address: String,
        /// The reason.
        source: Trouble,
    },
    /// The runtime of the client is gone. Applied once or not at all.
    #[error("the client's runtime has ended")]
    Closed,
}

impl From<quipu_protocol::BadAddress> for Error {
    fn from(error: quipu_protocol::BadAddress) -> Error {
        Error::Address { address: error.address, why: error.why }
    }
}

impl Error {
    /// Returns true if it is certain that nothing was applied and nothing will be.
    pub fn is_known_not_applied(&self) -> bool {
        !matches!(self, Error::Unknown { .. } | Error::Unflushed { .. } | Error::Closed)
    }
}

/// The failure of one attempt.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// No permit, no connection or no reply in time.
    #[error("no answer in time")]
    Late,
    /// The connection could not be made, or was lost.
    #[error("the connection failed")]
    Connection(#[source] Arc<io::Error>),
    /// The server refused.
    #[error("the server refused: {0}")]
    Refused(String),
    /// The server sent an unintelligible reply.
    #[error("the server sent {0}")]
    Nonsense(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Connection(Arc::new(error))
    }
}
