//! The shared store on PostgreSQL.
//!
//! # What is where
//! With the prefix `quipu` (see [`Options`]), in the first schema of the connection's `search_path`. Times are milliseconds since 1970 by the
//! server's clock, all numbers are `numeric`: exact, however wide.
//!
//! ```text
//! quipu_counters                 a row for each counter
//!   id          1
//!   name        \x6c696b65733a3432        any bytes: 'likes:42'
//!   born_at     1790000000000             when the row was made
//!   swaps       2                         how often it was set, reset, deleted, …
//!   epoch       000001a0-c493-5c00-0000-000000000007   16 digits of time, 16 of the node that raised it, in hex
//!   base        100                       what was set, and what was folded into it; null if neither
//!   expires_at  1790003600000             null if never
//!   gone_at     1790000000000             when it was last deleted or noticed to have expired; null if never
//!   last        {id, id, …}               names of the last swaps, newest last
//!
//! quipu_cells                    a row for each writer and shard of a counter
//!   counter     1                         its id
//!   writer      00000000-0000-0001-0000-00000000002a   16 digits of the node, 16 of its life, in hex
//!   shard       0
//!   seq, value, total, closed             what the writer says: in its own sequence, running value, total over all epochs, and whether
//!                                         its life is over; null if it has said nothing under this epoch
//!   spent_…                               what was kept of it when it last stopped counting by itself: epoch, seq, value, total, closed,
//!                                         the expiry that ended it, when; null if it never did
//!
//! quipu_bodies                   a row for each writer that has a body of a sketch beside its cell: kind, which secret it hashes by, bytes
//! quipu_pages                    its pages of 1,024 bytes, without the zeros at their ends; none for those that are all zeros
//! quipu_claims                   token → owner, attempt, payload, forget_at, and reply once it is applied
//! quipu_writers                  writer → version, holder, lease_until, stage, since
//! quipu_names                    node → what people call it
//! quipu_schema                   the version of all this
//! quipu_totals                   a view for people: what counts now
//! ```
//!
//! A counter's value is `base` plus `value` of all its cells, unless `expires_at` is past; of a sketch it says how often the bodies beside its cells have changed. What belongs to a node,
//! in whatever life it is, has a life of zeros. Without doing that by hand:
//!
//! ```text
//! SELECT total FROM quipu_totals WHERE name = 'likes:42';
//! SELECT shown, total FROM quipu_totals WHERE name >= 'likes:' AND name < 'likes;' ORDER BY total DESC LIMIT 10;
//! ```
//!
//! # How
//! Each call is one statement, and so one transaction that nobody has to end: a node that vanishes holds no lock. What takes several steps is a function of
//! the tables' own. Functions compare, copy and replace. A put that is plainly the newest is put; of any other the function hands back what the
//! row has of that cell, and the model says what that means. A put of 1,024 cells is one statement over arrays.
//!
//! Nobody waits at a hot counter: a put locks the counter's row `FOR KEY SHARE`, which puts share, and changes its own writer's cell; only a swap, `FOR UPDATE`,
//! waits for the puts under way, and they for it. Nothing in the counter's row is changed by a put: the part of a row's version that rises with every
//! put is made of its cells' sequence numbers. Locks are taken in the order of names and then of cells, so that no two batches wait for
//! one another, even one put again beside itself.
//!
//! Transactions are `READ COMMITTED`, whatever the server's default is: each statement of a function then sees all that was committed before that statement
//! began, and what is looked at after a lock was taken is what its last holder left behind. In `REPEATABLE READ` it would be what was there when the call began,
//! and puts would fail where they now wait. A read is one statement without a lock: one snapshot, and so one moment, of the row and all its
//! cells. Only if the row is due to expire, it waits for the puts that were judged before its time was over, and reads again: what expired is then
//! the same for everyone who looks.
//!
//! The driver runs on a thread of its own, with up to 8 connections; answers may be waited for on any thread. Every connection looks at the version of the tables
//! first, makes or brings them up if they are older (one connection at a time, in one transaction), and is refused if they are newer. Connect to the server, or by
//! way of a pooler that gives out sessions: one that gives out transactions loses the settings of a connection.
//!
//! A user that is to make the tables needs a schema that it may make them in: `CREATE SCHEMA AUTHORIZATION counter` gives it one of its own. A user with no more
//! rights than it needs, once the tables were made by another:
//!
//! ```text
//! CREATE ROLE counter LOGIN PASSWORD 'password';
//! GRANT SELECT, UPDATE ON "quipu_schema" TO counter;
//! GRANT SELECT, INSERT, UPDATE, DELETE ON "quipu_counters", "quipu_cells", "quipu_bodies", "quipu_pages", "quipu_claims", "quipu_writers", "quipu_names" TO counter;
//! ```
//!
//! # What it guarantees
//! What the port asks for, as long as the server keeps what it acknowledged: with `synchronous_commit` as it comes, a crash loses nothing. With `off`, for the user or
//! the database, puts cost no wait for the disk, and a crash loses the last fraction of a second: writers put their cells again, a lost *swap*
//! is reported as drift. The same holds for a standby that takes over without having been waited for (`synchronous_standby_names`). Of several
//! hosts in the URL the one that takes writes is used; a standby is never read from, since it shows rows of the past.
//!
//! **The store notices that a server is not the one it was.** Each new connection asks for the system identifier, the timeline and the ids of the database
//! and its tables before anything else is sent on it; where `fsync` or `synchronous_commit` is off, also for the start of the server and of
//! its statistics, which a crash begins anew. Once a caller has asked for the history, calls that change data are refused while one of these
//! differs. A role that was denied `pg_control_system()` notices every restart instead.
//!
//! - A restart, a crash and a promotion break all connections, or gave none: no call reaches a changed server unasked.
//! - Tables that were restored in the place of others are found when the history is asked for again.
//! - A copy of the server's files put back in their place (a snapshot of a volume) is no change of history.
//!
//! **What one row holds stops no other.** A put that fails for the data of a row is divided, in at most 64 statements, until the others have their
//! verdicts; rows that another session keeps locked are left out. What cannot be decoded is an error of that counter or token alone.
//!
//! Tested on PostgreSQL 15 and 18, plain and behind a network that fails.

mod config;
mod error;
mod history;
mod layout;
mod link;
mod number;
mod runtime;
mod schema;
mod statements;
mod store;

pub use config::{ConfigError, Options, PREFIX_BYTES_MAX};
pub use store::{PostgresStore, check, open};

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
    /// No certificate to trust any other by.
    #[error("the operating system has no certificates to know a server by")]
    Roots,
    /// No thread for the driver.
    #[error("cannot start the store's thread")]
    Thread(#[from] std::io::Error),
}
