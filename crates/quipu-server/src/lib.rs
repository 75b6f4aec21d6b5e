//! The doors: RESP workers, HTTP, passwords and limits.
//!
//! In: an open engine and [`Options`]. Out: a [`Server`] that answers until it is told to stop.
//!
//! ```text
//! accept ─► worker (a thread, a current_thread runtime) ─► connection ─► session ─► Turn ─► Engine
//!                                                             │  read · one turn · commit · one write
//! http (a thread of its own) ─► routes ─► Turn ─► Engine; metrics
//! ```
//!
//! Invariants:
//! - a connection stays with its worker for life;
//! - no reply leaves before the engine says that what it includes is as durable as promised;
//! - whatever a client sends or fails to read, it can take no more than [`Limits`] says, and the others go on.
//!
//! Not here: what bytes mean (`quipu-protocol`), what commands do (`quipu-engine`), flags and files (`quipu`).

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
