//! Implements the store port on Redis and Redis Cluster.
//!
//! # Data layout
//! With the prefix `quipu` (see [`Options`]). Times are milliseconds since 1970 by the server's
//! clock.
//!
//! ```text
//! quipu:c:<name>            a hash: one counter, its whole row under one key
//!   born    1790000000000   when the row was created
//!   swaps   2               number of swaps (set, reset, delete, …)
//!   puts    1703936         rises with every put that moved a cell, by the put's stride
//!   epoch   00000001790000000000.00000000000000000007
//!                           20 digits of time, 20 digits of the node that raised it
//!   base    100             the set value plus all folded cells; absent if neither exists
//!   expires 1790003600000   absent if never
//!   gone    1790000000000   last deletion or noticed expiry; absent if never
//!   last    <id> <id> …     names of the last swaps, in hex, newest last
//!   c:<node>.<incarnation>.<shard>    00000000000000000017 open 42 1042
//!                           one writer's cell: seq (20 digits), open or closed, running value,
//!                           total over all epochs
//!   s:<node>.<incarnation>.<shard>    <epoch> <seq> open 1000 1000 - 1790000000000
//!                           a spent cell, which no longer counts by itself: epoch, seq, open or
//!                           closed, value, total, the expiry that ended it, time
//!   bodies  1               the row has sketch bodies; absent if it has none
//!   b:<node>.<incarnation>            3 0123456789abcdef 12304
//!                           shape of the body beside this writer's cell: kind, fingerprint of its
//!                           hash secret, bytes
//!   p:<node>.<incarnation>.<page>     a page of the body, 1,024 bytes, trailing zeros trimmed;
//!                           absent if all zeros
//! quipu:t:<token>           a hash that expires with its window: owner attempt payload forget,
//!                           and reply once it is applied
//! quipu:writers             a hash: <node>.<incarnation> → version, holder, lease until, stage, since
//! quipu:names               a hash: <node> → its display name
//! ```
//!
//! A counter's value is `base` plus the third word of every `c:` field, unless `expires` is past.
//! In a sketch's row, the cells count the changes of the bodies beside them. Cells and bodies that
//! belong to a node rather than to one incarnation have the incarnation 0000000000000000.
//!
//! To compute a value with redis-cli alone (Lua counts in doubles: exact up to 2^53):
//!
//! ```text
//! redis-cli EVAL "local v=tonumber(redis.call('HGET',KEYS[1],'base') or 0)
//!   for _,f in ipairs(redis.call('HKEYS',KEYS[1])) do if f:sub(1,2)=='c:' then
//!   v=v+tonumber(redis.call('HGET',KEYS[1],f):match('^%d+ %a+ (%S+)')) end end
//!   return string.format('%.0f',v)" 1 quipu:c:likes:42
//! ```
//!
//! A row is a hash rather than one encoded string. A put then copies one field, not the cells of
//! all other writers, and people can read the row. Rows that were never reset stay in Redis's
//! compact encoding up to 128 fields. A counter of one writer takes 264 bytes, and each further
//! writer 64 more (Redis 7.0, a name of 18 bytes).
//!
//! # Calls
//! Each call is one script on one key, run by `EVALSHA`. Every new connection loads the scripts,
//! and loads them again if the server forgot them. No call needs two keys in one slot, so counters
//! spread over all slots by their names. A `{tag}` in a counter's name is a hash tag, as anywhere
//! in Redis.
//!
//! Scripts compare, copy and replace text. A script carries out a put that is plainly the newest.
//! For any other put it returns the row's state of that cell, and the model decides the verdict. A
//! put of many counters is one pipeline per server.
//!
//! The driver runs on its own thread; any thread may await the replies.
//!
//! An ACL user with the fewest rights that suffice:
//!
//! ```text
//! ACL SETUSER counter on >password ~quipu* +evalsha +script|load +time +hget +hmget +hgetall +hkeys +hlen
//!   +hset +hsetnx +hincrby +hdel +del +pexpireat +scan +info +asking +cluster|slots
//! ```
//!
//! # Guarantees
//! The store keeps the port's contract as long as the server keeps the writes that it acknowledged.
//! Redis may lose some:
//!
//! - a crash loses the writes that had not reached the append-only file. `appendfsync always` loses
//!   none; `everysec`, the default of an append-only file, loses up to one second;
//! - a failover loses the writes that had not reached the replica.
//!
//! Writers then put their cells again; a lost *swap* is reported as drift.
//!
//! **The store detects a server that has changed identity.** Each new connection first asks the
//! server for its `run_id`, its `master_replid` and its role. After the first history call, calls
//! that change data are refused while one of these differs.
//!
//! - A restart breaks all connections, so no call reaches a restarted server before the identity
//!   check.
//! - A failover shows in `MOVED`, `READONLY` or `MASTERDOWN`; each ends the connection that it came
//!   on.
//! - Other changes appear at the next history call. Examples are `DEBUG RELOAD`, and a master that
//!   was demoted and promoted again between two commands.
//! - `FLUSHALL` and deleted keys do not change the history.
//! - Redis gives a master a new `master_replid` when its first replica joins, and an hour after its
//!   last one left. This is a change without a loss.
//!
//! The server must not evict (`maxmemory-policy noeviction`, the default). An evicted row is lost,
//! and an evicted token may be applied again. [`RedisStore`] reports every master that would evict
//! as a problem. A policy without a limit (`maxmemory 0`) evicts nothing, and is not a problem.
//!
//! **Damaged data under one key does not stop calls on other keys.** Scripts trust no stored data.
//! They check numbers before they compare them. No stored value bounds a loop or a reply. They
//! return unusable data to the caller. The result is an error of that counter or token alone, and
//! it names key and field. An unreadable registry stops only the calls that need the registry.
//!
//! Each master of a Cluster uses its own clock: keep the clocks synchronised (NTP). The skew
//! between two masters is the error of an expiry, a lease or a grace period.
//!
//! Tested on Redis 7.0 and Valkey 9.1: one server and a Cluster of six, plain and over a failing
//! network. Scripts call TIME before they write, which needs Redis 5 or later. Not here: Sentinel.

mod config;
mod error;
mod info;
mod layout;
mod link;
mod route;
mod scan;
mod scripts;
mod store;

pub use config::{PREFIX_BYTES_MAX, SCHEMES};
pub use quipu_store_kit::{ConfigError, Options};
pub use store::{RedisStore, location, open};

/// Error of opening a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Invalid URL or option.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The driver refused the URL.
    #[error("the driver cannot use the URL of the store")]
    Driver(#[from] redis::RedisError),
    /// The driver's thread did not start.
    #[error("cannot start the store's thread")]
    Thread(#[from] std::io::Error),
}
