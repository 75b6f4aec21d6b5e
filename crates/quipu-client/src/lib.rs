//! Counts on a Quipu server, from async Rust.
//!
//! In: names and numbers. Out: RESP over one connection, shared by all callers. It returns values,
//! readings, and errors that say whether anything was applied.
//!
//! ```no_run
//! use quipu_client::{AdderOptions, Client, Options};
//!
//! # async fn run() -> Result<(), quipu_client::Error> {
//! let client = Client::connect("quipu://localhost:7379", Options::default()).await?;
//! let likes = client.add("likes:42", 1).await?; // the value after this add; sent again until it is answered
//! let reading = client.read("likes:42").await?;
//! println!("{} ({}), exact: {}, of {likes}", reading.value, reading.display, reading.exact);
//!
//! // Many small adds: summed here, sent together.
//! let adder = client.adder(AdderOptions::default());
//! let views = adder.counter("views:42");
//! for _ in 0..1_000 {
//!     views.add(1).await?;
//! }
//! adder.flush().await?; // everything above is acknowledged
//! # Ok(())
//! # }
//! ```
//!
//! **Sent again, applied once.** Every mutation carries a token (`IDMP producer time-number`). So
//! the client sends it again under that token, when its connection is lost or the server refuses
//! for the time being. It does so until the deadline ([`Options::timeout`]).
//!
//! The server applies a mutation once and gives every retry the same reply. A token carries its
//! time of creation: a retry later than the server's `token_window` is refused, never applied
//! twice.
//!
//! **The variant of an error gives its meaning.** [`Error::Refused`] and [`Error::NotApplied`]:
//! nothing was applied and nothing will be. [`Error::Unknown`]: applied once or not at all. A call
//! with a dropped future has an unknown outcome.
//!
//! **The cost of tokens.** A server remembers each for `token_window` (24 h), in about 100 bytes,
//! and at most `tokens_max` (about a million) of them. For more than ten mutations a second all
//! day, use an [`Adder`], or give the server a shorter window. Ten minutes are far more than any
//! deadline here.
//!
//! **Clocks.** A server refuses a token from more than a minute ahead of its clock, so the two
//! clocks have to agree that well.
//!
//! Invariants:
//! - every queue is bounded ([`Options::in_flight_max`], [`AdderOptions::counters_max`]); when it
//!   is full, a caller waits, within its deadline;
//! - a mutation is never sent under two tokens unless the first is known not to have been applied.
//!
//! Not here: transactions, expiry and the rest of Redis's commands, which any Redis client has;
//! TLS.

mod client;
mod options;

mod adder;

mod error;
mod reading;

mod backoff;
mod dial;
mod driver;
mod job;
mod token;

pub use adder::{Adder, AdderOptions, AdderStats, Counter, SampleMode};
pub use client::Client;
pub use error::{Error, Trouble};
pub use options::{Options, Secret};
pub use quipu_model::Freshness;
pub use quipu_model::{Coverage, SamplingInfo};
pub use reading::Reading;
