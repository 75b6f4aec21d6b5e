//! Implements the store port on PostgreSQL.
//!
//! # Data layout
//! With the prefix `quipu` (see [`Options`]), in the first schema of the connection's
//! `search_path`. Times are milliseconds since 1970 by the server's clock. All numbers are
//! `numeric`: exact at any width.
//!
//! ```text
//! quipu_counters                 a row for each counter
//!   id          1
//!   name        \x6c696b65733a3432        any bytes: 'likes:42'
//!   born_at     1790000000000             when the row was created
//!   swaps       2                         number of swaps (set, reset, delete, …)
//!   epoch       000001a0-c493-5c00-0000-000000000007
//!                                         16 digits of time, 16 of the node that raised it, in hex
//!   base        100                       the set value plus all folded cells; null if neither exists
//!   expires_at  1790003600000             null if never
//!   gone_at     1790000000000             last deletion or noticed expiry; null if never
//!   last        {id, id, …}               names of the last swaps, newest last
//!
//! quipu_cells                    a row for each writer and shard of a counter
//!   counter     1                         the counter's id
//!   writer      00000000-0000-0001-0000-00000000002a
//!                                         16 digits of the node, 16 of the incarnation, in hex
//!   shard       0
//!   seq, value, total, closed             the writer's cell: sequence number, running value, total over
//!                                         all epochs, incarnation ended; null if not put in this epoch
//!   spent_…                               the cell when it last stopped counting by itself: epoch, seq,
//!                                         value, total, closed, the expiry that ended it, time; null if
//!                                         it never did
//!
//! quipu_bodies                   a row for each writer with a sketch body beside its cell: kind,
//!                                fingerprint of its hash secret, bytes
//! quipu_pages                    the body's pages of 1,024 bytes, trailing zeros trimmed; all-zero
//!                                pages have no row
//! quipu_claims                   token → owner, attempt, payload, forget_at, and reply once applied
//! quipu_writers                  writer → version, holder, lease_until, stage, since
//! quipu_names                    node → its display name
//! quipu_schema                   version of these tables
//! quipu_totals                   a view for people: the current values
//! ```
//!
//! A counter's value is `base` plus the `value` of all its cells, unless `expires_at` is past. In a
//! sketch's row, `value` counts the changes of the bodies beside the cells. Cells and bodies that
//! belong to a node rather than to one incarnation have an incarnation of zeros.
//!
//! The view does this sum:
//!
//! ```text
//! SELECT total FROM quipu_totals WHERE name = 'likes:42';
//! SELECT shown, total FROM quipu_totals WHERE name >= 'likes:' AND name < 'likes;' ORDER BY total DESC LIMIT 10;
//! ```
//!
//! # Calls
//! Each call is one statement, and so one transaction without a separate commit: a vanished node
//! holds no lock. A call of several steps is a function in the schema. Functions compare, copy and
//! replace. A function carries out a put that is plainly the newest. For any other put it returns
//! the row's state of that cell, and the model decides the verdict. A put of 1,024 cells is one
//! statement over arrays.
//!
//! **Puts do not wait for each other at a hot counter.** A put locks the counter's row `FOR KEY
//! SHARE`, which other puts share, and changes its own writer's cell. Only a swap locks `FOR
//! UPDATE`: it waits for the puts under way, and later puts wait for it. A put changes nothing in
//! the counter's row. The part of a row's version that rises with every put is computed from the
//! cells' sequence numbers. Locks are taken in the order of names and then of cells, so no two
//! batches deadlock. This holds even for a batch that is put again beside itself.
//!
//! Transactions are `READ COMMITTED`, regardless of the server's default. Each statement of a
//! function then sees all data committed before that statement began. After it takes a lock, it
//! reads the data that the last holder left. In `REPEATABLE READ` it would read the data from the
//! start of the call, and puts would fail where they now wait.
//!
//! A read is one statement without a lock: one snapshot of the row and all its cells. Only a row
//! that is due to expire needs more. The read waits for the puts that were judged before the
//! expiry, and reads again. All readers then see the same expired value.
//!
//! The driver runs on its own thread, with up to 8 connections; any thread may await the replies.
//! Every connection first checks the version of the tables. It creates or upgrades older ones (one
//! connection at a time, in one transaction), and refuses newer ones. Connect to the server itself,
//! or to a pooler in session mode: in transaction mode a pooler loses the settings of a connection.
//!
//! To create the tables, a user needs a schema with that right:
//! `CREATE SCHEMA AUTHORIZATION counter` gives it one of its own. If another user created the
//! tables, these rights suffice:
//!
//! ```text
//! CREATE ROLE counter LOGIN PASSWORD 'password';
//! GRANT SELECT, UPDATE ON "quipu_schema" TO counter;
//! GRANT SELECT, INSERT, UPDATE, DELETE ON "quipu_counters", "quipu_cells", "quipu_bodies", "quipu_pages",
//!   "quipu_claims", "quipu_writers", "quipu_names" TO counter;
//! ```
//!
//! # Guarantees
//! The store keeps the port's contract as long as the server keeps the commits that it
//! acknowledged.
//!
//! - With the default `synchronous_commit`, a crash loses nothing.
//! - With `off`, for the user or the database, puts do not wait for the disk, and a crash loses the
//!   last fraction of a second. Writers put their cells again; a lost *swap* is reported as drift.
//! - The same holds for a failover to a standby for which the server did not wait
//!   (`synchronous_standby_names`).
//!
//! Of several hosts in the URL, the store uses the one that takes writes. It never reads from a
//! standby, which shows old rows.
//!
//! **The store detects a server that has changed identity.** Each new connection first asks for the
//! system identifier, the timeline, and the ids of the database and its tables. Where `fsync` or
//! `synchronous_commit` is off, it also asks for the start times of the server and of its
//! statistics: a crash restarts the statistics. After the first history call, calls that change
//! data are refused while one of these differs. A role without access to `pg_control_system()`
//! notices every restart instead.
//!
//! - A restart, a crash and a promotion break all connections, or the server had none before. So no
//!   call reaches a changed server before the identity check.
//! - The next history call detects tables that a restore put in place of others.
//! - A copy of the server's files put back in their place (a snapshot of a volume) does not change
//!   the history.
//!
//! **Damaged or locked rows do not stop calls on other rows.** A put that fails because of a row's
//! data is split, in at most 64 statements, until the other puts have their verdicts. It skips rows
//! that another session keeps locked. Undecodable data is an error of that counter or token alone.
//!
//! Tested on PostgreSQL 15 and 18, plain and over a failing network.

mod config;
mod error;
mod history;
mod layout;
mod link;
mod number;
mod schema;
mod statements;
mod store;

pub use config::{PREFIX_BYTES_MAX, SCHEMES};
pub use quipu_store_kit::{ConfigError, Options};
pub use store::{PostgresStore, location, open};

/// Error of opening a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Invalid URL or option.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The driver refused the URL.
    #[error("the driver cannot use the URL of the store")]
    Driver(#[from] deadpool_postgres::BuildError),
    /// No root certificates.
    #[error("the operating system has no certificates to know a server by")]
    Roots,
    /// The driver's thread did not start.
    #[error("cannot start the store's thread")]
    Thread(#[from] std::io::Error),
}
