//! The shared store on Redis and Redis Cluster.
//!
//! # What is where
//! With the prefix `quipu` (see [`Options`]), times in milliseconds since 1970 by the server's clock:
//!
//! ```text
//! quipu:c:<name>            a hash: one counter, all of it under one key
//!   born    1790000000000   when the row was made
//!   swaps   2               how often it was set, reset, deleted, …
//!   puts    1703936         rises with every put that moved a cell, by a number of its own
//!   epoch   00000001790000000000.00000000000000000007      20 digits of time, 20 of the node that raised it
//!   base    100             what was set, and what was folded into it; absent if neither
//!   expires 1790003600000   absent if never
//!   gone    1790000000000   when it was last deleted or noticed to have expired; absent if never
//!   last    <id> <id> …     names of the last swaps, in hex, newest last
//!   c:<node>.<incarnation>.<shard>    00000000000000000017 open 42 1042
//!                           what one writer says: seq (20 digits), open or closed, running value, total over all epochs
//!   s:<node>.<incarnation>.<shard>    <epoch> <seq> open 1000 1000 - 1790000000000
//!                           what was kept of a cell that no longer counts by itself: epoch, seq, open or closed, value, total,
//!                           the expiry that ended it, when
//!   bodies  1               there are bodies of sketches beside the row; absent if there are none
//!   b:<node>.<incarnation>            3 0123456789abcdef 12304
//!                           what the body beside this writer's cell is: kind, which secret it hashes by, bytes
//!   p:<node>.<incarnation>.<page>     a page of it, 1,024 bytes, without the zeros at its end; absent if it is all zeros
//! quipu:t:<token>           a hash that expires with its window: owner attempt payload forget, and reply once it is applied
//! quipu:writers             a hash: <node>.<incarnation> → version, holder, lease until, stage, since
//! quipu:names               a hash: <node> → what people call it
//! ```
//!
//! A counter's value is `base` plus the third word of every `c:` field, unless `expires` is past; of a sketch the cells
//! say how often the bodies beside them have changed. What belongs to a node, in whatever life it is, has the incarnation 0000000000000000. With nothing but redis-cli (Lua counts in
//! doubles: exact up to 2^53):
//!
//! ```text
//! redis-cli EVAL "local v=tonumber(redis.call('HGET',KEYS[1],'base') or 0)
//!   for _,f in ipairs(redis.call('HKEYS',KEYS[1])) do if f:sub(1,2)=='c:' then
//!   v=v+tonumber(redis.call('HGET',KEYS[1],f):match('^%d+ %a+ (%S+)')) end end
//!   return string.format('%.0f',v)" 1 quipu:c:likes:42
//! ```
//!
//! A hash rather than one encoded string: a put then copies one field, not the cells of all other writers, and people can read it. Rows that were
//! never reset stay in Redis's compact encoding up to 128 fields: 264 bytes for a counter of one writer, 64 more for each other one (Redis 7.0,
//! a name of 18 bytes).
//!
//! # How
//! Each call is one script on one key (`EVALSHA`; the scripts are loaded with every connection, and again if the server forgot them), so nothing needs
//! keys to be in one slot, and counters spread over all slots by their names; a `{tag}` in a counter's name is the hash tag it is anywhere in
//! Redis. Scripts compare, copy and replace text. A put that is plainly the newest is put; of any other the script hands back what the row
//! has of that cell, and the model says what that means. A put of many counters is one pipeline per server.
//!
//! The driver runs on a thread of its own; answers may be waited for on any thread.
//!
//! A user of its own, with no more rights than it needs:
//!
//! ```text
//! ACL SETUSER counter on >password ~quipu* +evalsha +script|load +time +hget +hmget +hgetall +hkeys +hlen
//!   +hset +hsetnx +hincrby +hdel +del +pexpireat +scan +info +asking +cluster|slots
//! ```
//!
//! # What it guarantees
//! What the port asks for, as long as the server keeps what it acknowledged. Redis may forget: after a crash what was not yet in its append-only file, after
//! a failover what had not reached the replica. Writers then put their cells again; a lost *swap* is reported as drift. With `appendfsync always`
//! nothing is lost to a crash; with `everysec`, the default of an append-only file, up to a second is.
//!
//! **The store notices that a server is not the one it was.** Each new connection asks the server for its `run_id`, its `master_replid` and its role
//! before anything else is sent on it. Once a caller has asked for the history, calls that change data are refused while one of these differs.
//!
//! - A restart breaks all connections, so no call reaches a restarted server unasked.
//! - A failover shows in `MOVED`, `READONLY` or `MASTERDOWN`, each of which ends the connection it came on.
//! - What changes a server without either is found when the history is asked for again: a master that was demoted and promoted again while
//!   nothing was sent to it; `DEBUG RELOAD`.
//! - `FLUSHALL` and deleted keys are no change of history.
//! - Redis gives a master a new `master_replid` by itself when its first replica comes, and an hour after its last one went: a change without a loss.
//!
//! The server must not evict (`maxmemory-policy noeviction`, the default): an evicted row is a lost row, and an evicted token may be applied again.
//! [`RedisStore`] names every master that would, as a problem. A policy without a limit (`maxmemory 0`) evicts nothing, and is none.
//!
//! **What one key holds stops no other.** Scripts trust nothing that they find: numbers are looked at before they are compared, loops and replies
//! have bounds that are not stored, and what cannot be used is handed back. It becomes an error of that counter or token alone, which names key
//! and field. A registry that cannot be read stops what needs the registry.
//!
//! In a Cluster every master goes by its own clock: keep them together (NTP). What one is ahead of another by, an expiry, a lease or a grace
//! may be early or late by.
//!
//! Tested on Redis 7.0 and Valkey 9.1, one server and a Cluster of six, plain and behind a network that fails; scripts call TIME before they write, which needs Redis 5 or
//! later. Not here: Sentinel.

mod config;
mod error;
mod info;
mod layout;
mod link;
mod route;
mod runtime;
mod scan;
mod scripts;
mod store;

pub use config::{ConfigError, Options, PREFIX_BYTES_MAX};
pub use store::{RedisStore, check, open};

/// Why a store was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL or an option.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The driver refused it.
    #[error("the driver cannot use the URL of the store")]
    Driver(#[from] redis::RedisError),
    /// No thread for the driver.
    #[error("cannot start the store's thread")]
    Thread(#[from] std::io::Error),
}
