//! Counts on a Quipu server, from async Rust.
//!
//! In: names and numbers. Out: RESP over one connection, shared by everyone who asks; values, readings, and errors that say whether anything was applied.
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
//! **Sent again, applied once.** Every mutation carries a token (`IDMP producer time-number`), so it is sent again, with the same token, whenever its connection is lost or the server is short of
//! something, until its deadline ([`Options::timeout`]). The server applies it once and answers every retry alike. A token carries the time at which it was made: a retry that comes later than the
//! server's `token_window` is refused, never applied twice.
//!
//! **What an error means** is in its variant: [`Error::Refused`] and [`Error::NotApplied`] say that nothing was applied and nothing will be; [`Error::Unknown`] says once or not at all. A call whose future is
//! dropped is as one of unknown outcome.
//!
//! **What tokens cost.** A server remembers each for `token_window` (24 h), in about 100 bytes, and at most `tokens_max` (about a million) of them. Whoever makes more than ten mutations a second all day sums
//! them with an [`Adder`], or gives the server a shorter window: ten minutes are far more than any deadline here.
//!
//! **Clocks.** A token from more than a minute ahead of the server's clock is refused, so the two have to agree that well.
//!
//! Invariants:
//! - every queue is bounded ([`Options::in_flight_max`], [`AdderOptions::counters_max`]); who comes when it is full waits, within its deadline;
//! - a mutation is never sent under two tokens unless the first is known not to have been applied.
//!
//! Not here: transactions, expiry and the rest of Redis's commands, which any Redis client has; TLS.

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
pub use reading::{Coverage, Reading, SamplingInfo};
