//! What can go wrong, by what the caller would do about it.

use std::io;
use std::sync::Arc;

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server will not do this. Nothing was applied, and asking again gets the same answer.
    #[error("the server refused: {text}")]
    Refused {
        /// What it said; the first word is its kind.
        text: String,
    },
    /// It was not done in time. Nothing was applied, and nothing will be: ask again.
    #[error("not applied within the timeout, in {attempts} attempts")]
    NotApplied {
        /// How often it was sent.
        attempts: u32,
        /// The last thing that went wrong.
        source: Trouble,
    },
    /// It was sent and not answered in time: applied once or not at all. Read before asking again, or let an [`Adder`](crate::Adder) do it, which keeps its tokens.
    #[error("it may have been applied: not answered within the timeout, in {attempts} attempts")]
    Unknown {
        /// How often it was sent.
        attempts: u32,
        /// The last thing that went wrong.
        source: Trouble,
    },
    /// A name that no counter can have. Nothing was sent.
    #[error(transparent)]
    Name(#[from] quipu_model::NameTooLong),
    /// Sums that would leave 64 bits before they are sent. Nothing was added.
    #[error("the sum of what waits to be sent would overflow")]
    Overflow,
    /// A negative add to what is sampled. Nothing was added.
    #[error("what is sampled cannot be taken away from")]
    Sampled,
    /// As many counters wait to be sent as may. Nothing was added: wait ([`Adder::add`](crate::Adder::add) does), or leave it out.
    #[error("{counters_max} counters wait to be sent, which is the limit")]
    Full {
        /// The limit.
        counters_max: usize,
    },
    /// What was not acknowledged when a flush ran out of time is kept, and sent again under its tokens.
    #[error("{adds} adds were not acknowledged within the timeout; they are kept and sent again")]
    Unflushed {
        /// How many.
        adds: u64,
        /// The last thing that went wrong, if anything did.
        source: Option<Trouble>,
    },
    /// An address that makes no sense.
    #[error("bad address {address:?}: {why}")]
    Address {
        /// What was given, without a password.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// The first connection could not be made.
    #[error("cannot connect to {address}")]
    Connect {
        /// Where to.
        address: String,
        /// Why.
        source: Trouble,
    },
    /// The runtime that the client was made in is gone. Applied once or not at all.
    #[error("the client's runtime has ended")]
    Closed,
}

impl From<quipu_protocol::BadAddress> for Error {
    fn from(error: quipu_protocol::BadAddress) -> Error {
        Error::Address { address: error.address, why: error.why }
    }
}

impl Error {
    /// Whether it is certain that nothing was applied and nothing will be.
    pub fn is_known_not_applied(&self) -> bool {
        !matches!(self, Error::Unknown { .. } | Error::Unflushed { .. } | Error::Closed)
    }
}

/// One attempt's end.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// There was no place among those in flight, or no connection, or no reply, for as long as it was waited for.
    #[error("no answer in time")]
    Late,
    /// The connection could not be made, or was lost.
    #[error("the connection failed")]
    Connection(#[source] Arc<io::Error>),
    /// The server refused.
    #[error("the server refused: {0}")]
    Refused(String),
    /// The server sent something that is no answer to this.
    #[error("the server sent {0}")]
    Nonsense(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Connection(Arc::new(error))
    }
}
