//! The shared store on PostgreSQL.

mod config;
mod error;
mod layout;
mod link;
mod number;
mod runtime;
mod schema;
mod statements;
mod store;

pub use config::{ConfigError, Options, PREFIX_BYTES_MAX};
pub use store::{PostgresStore, open};

/// Why a store was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL or an option.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The driver refused it.
    #[error("the driver cannot use the URL of the store")]
    Driver(#[from] deadpool_postgres::BuildError),
    /// No thread for the driver.
    #[error("cannot start the store's thread")]
    Thread(#[from] std::io::Error),
}
