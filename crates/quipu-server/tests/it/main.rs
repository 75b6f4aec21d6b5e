//! Tests RESP and HTTP through real sockets, on a real engine.

// A test that cannot be set up fails; there is nothing to handle.
#![allow(clippy::unwrap_used)]

mod auth;
mod backup;
mod cold;
mod commands;
mod commit;
mod files;
mod hostile;
mod http;
mod http_client;
mod http_fuzz;
mod http_hostile;
mod http_origins;
mod http_tokens;
mod http_watch;
mod test_server;

mod namespaces;
mod stop;
mod tokens;
mod transactions;
