//! Serves the engine over RESP and HTTP, with passwords and limits.
//!
//! In: an open engine and [`Options`]. Out: a [`Server`] that serves until its shutdown future is
//! ready.
//!
//! ```text
//! accept ─► worker (a thread, a current_thread runtime) ─► connection ─► session ─► Turn ─► Engine
//!                                                             │  read · one turn · commit · one write
//! http (a thread of its own) ─► routes ─► Turn ─► Engine; metrics
//! ```
//!
//! Invariants:
//! - A connection stays with its worker until it closes.
//! - No reply leaves before the engine reports its content as durable as promised.
//! - No client can take more than [`Limits`] allows, by sending or by failing to read; the other
//!   clients are served.
//!
//! Not here: parsing of bytes (`quipu-protocol`), execution of commands (`quipu-engine`), flags and
//! files (`quipu`).

mod backup;
mod cached_clock;
mod clients;
mod connection;
mod errors_page;
mod hosts;
mod hot_keys;
mod http;
mod info;
mod limits;
mod metrics;
mod options;
mod process;
mod server;
mod server_state;
mod settings;
mod worker;

#[doc(hidden)]
pub use connection::SocketlessWorker;
pub use errors_page::errors_page;
pub use hosts::{HttpHosts, HttpHostsError};
pub use http::openapi_page;
pub use limits::Limits;
pub use metrics::markdown as metrics_page;
pub use options::{Options, Origins, Password, PasswordError};
pub use server::{Addresses, BindError, RunError, Server};
