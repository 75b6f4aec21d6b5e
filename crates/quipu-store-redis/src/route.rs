//! Routes commands to servers: always the same one, or, in a Cluster, the master of the key's slot.
//!
//! In: commands, each on one key. Out: a reply each, or the failure.
//!
//! Invariants:
//! - a command is resent only to the server that a redirection (`MOVED`, `ASK`) names, at most
//!   `REDIRECTIONS_MAX` times. The driver's own Cluster client also resends after a broken
//!   connection; a swap that was carried out would then be answered `Moved`;
//! - commands for one server go in one pipeline;
//! - after any sign that the slot map is stale, the next call fetches it again;
//! - after the first history call, a command that changes data is sent only to a server with the
//!   identity in that history.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use quipu_model::History;
use quipu_store_kit::CallFailure;
use redis::{Cmd, Pipeline, RedisError, ServerErrorKind, Value};

use crate::config::{Address, Config};
use crate::error::{DataError, classify_server_error};
use crate::link::Link;

/// Number of slots of a Cluster.
const SLOTS: u16 = 16_384;

/// Most redirections of one command. One is usual; a slot under migration takes two.
const REDIRECTIONS_MAX: usize = 4;

/// Servers asked for the slot map at once, so that a hanging one does not delay the others'
/// answers.
const QUERIES_AT_ONCE: usize = 3;

/// A command on one key.
pub(crate) struct KeyCommand {
    slot: u16,
    cmd: Cmd,
}

impl KeyCommand {
    pub(crate) fn new(key: &[u8], cmd: Cmd) -> KeyCommand {
        KeyCommand { slot: slot(key), cmd }
    }
}

/// Effect of a command at the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// It reads, or stays true regardless of data that the server lost.
    Read,
    /// It changes data and relies on data that the server confirmed before.
    Change,
}

/// The slot map: ranges of slots and their masters.
#[derive(Debug, PartialEq, Eq, Hash, Default)]
struct Slots(Vec<(u16, u16, Address)>); // first slot, last slot, its master; in order

/// Every server that has rows, and a digest of the slot map.
pub(crate) struct Masters {
    pub(crate) links: Vec<Arc<Link>>,
    pub(crate) digest: u64,
}

/// Sends commands to the right servers.
pub(crate) struct Route {
    config: Config,
    state: Mutex<RouteState>,
}

#[derive(Default)]
struct RouteState {
    links: BTreeMap<Address, Arc<Link>>,
    slots: Arc<Slots>,
    fresh: bool,
    turn: usize, // index of the server to ask first next time
    history: Option<Arc<History>>,
    /// Servers without slots that import one: their identity is part of the next history.
    importing: BTreeSet<Address>,
}

/// A command without a reply so far.
struct PendingCommand {
    at: usize,                   // index of the request
    to: Option<(Address, bool)>, // target of a redirection, and if ASKING must precede it
}

impl Route {
    /// Creates a route; it connects at the first send.
    pub(crate) fn new(config: Config) -> Result<Route, RedisError> {
        // Report a URL that the driver refuses now, not at the first call.
        let mut state = RouteState::default();
        for seed in &config.seeds {
            state.links.insert(seed.clone(), Arc::new(Link::new(&config, seed)?));
        }
        Ok(Route { config, state: Mutex::new(state) })
    }

    /// Sends commands; returns a reply each, in order.
    pub(crate) async fn send(&self, requests: Vec<KeyCommand>, access: Access) -> Vec<Result<Value, CallFailure>> {
        let expected = match access {
            Access::Read => None,
            Access::Change => self.state().history.clone(),
        };
        let expected = expected.as_deref();
        if self.config.cluster {
            self.send_to_many(requests, expected).await
        } else {
            self.send_to_one(requests, expected).await
        }
    }

    /// Asks every server that has rows for its data's identity.
    pub(crate) async fn fetch_history(&self) -> Result<History, CallFailure> {
        let mut history = History::default();
        let links = self.masters(true).await?.links;
        for (link, identity) in links.iter().zip(join_all(links.iter().map(|link| link.fetch_identity())).await) {
            history.0.insert(link.address().to_owned(), identity.inspect_err(|_| self.invalidate_slots())?);
        }
        let importing: Vec<Address> = self.state().importing.iter().cloned().collect();
        for address in importing {
            let link = self.link(&address)?;
            if history.0.contains_key(link.address()) {
                self.state().importing.remove(&address);
            } else if let Ok(identity) = link.fetch_identity().await {
                history.0.insert(link.address().to_owned(), identity);
            } else {
                self.state().importing.remove(&address);
            }
        }
        Ok(history)
    }

    /// From now on, only servers of this history receive commands that change data.
    pub(crate) fn set_history(&self, history: &History) {
        self.state().history = Some(Arc::new(history.clone()));
    }

    /// Returns all servers with rows, from the known slot map or, with `refresh`, from a newly
    /// fetched one.
    pub(crate) async fn masters(&self, refresh: bool) -> Result<Masters, CallFailure> {
        if !self.config.cluster {
            return Ok(Masters { links: vec![self.link(&self.config.seeds[0])?], digest: 0 });
        }
        let slots = self.slots(refresh).await?;
        let mut masters: Vec<&Address> = slots.0.iter().map(|(_, _, address)| address).collect();
        masters.sort_unstable();
        masters.dedup();
        let links = masters.into_iter().map(|address| self.link(address)).collect::<Result<_, _>>()?;
        let mut digest = DefaultHasher::new();
        slots.hash(&mut digest);
        Ok(Masters { links, digest: digest.finish() })
    }

    /// Marks the slot map as stale.
    pub(crate) fn invalidate_slots(&self) {
        self.state().fresh = false;
    }

    async fn send_to_one(
        &self,
        requests: Vec<KeyCommand>,
        expected: Option<&History>,
    ) -> Vec<Result<Value, CallFailure>> {
        let count = requests.len();
        let mut pipeline = Pipeline::with_capacity(count);
        for request in requests {
            pipeline.add_command(request.cmd);
        }
        let sent = match self.link(&self.config.seeds[0]) {
            Ok(link) => link.send(&pipeline, expected).await,
            Err(failure) => Err(failure),
        };
        split_outcome(sent, count)
    }

    async fn send_to_many(
        &self,
        requests: Vec<KeyCommand>,
        expected: Option<&History>,
    ) -> Vec<Result<Value, CallFailure>> {
        let mut results: Vec<Option<Result<Value, CallFailure>>> = requests.iter().map(|_| None).collect();
        let mut under: Vec<PendingCommand> = (0..requests.len()).map(|at| PendingCommand { at, to: None }).collect();
        for round in 0..=REDIRECTIONS_MAX {
            let slots = match self.slots(false).await {
                Ok(slots) => slots,
                Err(failure) => {
                    // No slot map: the remaining commands were refused, or never sent.
                    let refused = failure.into_unsent();
                    under.iter().for_each(|command| results[command.at] = Some(Err(refused.clone())));
                    break;
                }
            };
            let mut parts: BTreeMap<(Address, bool), Vec<usize>> = BTreeMap::new();
            for PendingCommand { at, to } in std::mem::take(&mut under) {
                match to.or_else(|| slots.owner(requests[at].slot).map(|address| (address.clone(), false))) {
                    Some(to) => parts.entry(to).or_default().push(at),
                    None => {
                        self.invalidate_slots();
                        results[at] =
                            Some(Err(CallFailure::unsent("no server of the Cluster has the slot of this key")));
                    }
                }
            }
            let sends = parts.into_iter().map(async |((address, asking), members)| {
                let cmds = members.iter().map(|&at| &requests[at].cmd);
                let replies = self.send_part(&address, asking, expected, cmds).await;
                (address, members, replies)
            });
            for (address, members, replies) in join_all(sends).await {
                for (at, reply) in members.into_iter().zip(replies) {
                    match reply {
                        Ok(reply) => match redirection(&reply, &address.host) {
                            Some(to) if round < REDIRECTIONS_MAX => under.push(PendingCommand { at, to: Some(to) }),
                            _ => results[at] = Some(Ok(reply)),
                        },
                        Err(failure) => results[at] = Some(Err(failure)),
                    }
                }
            }
            if under.is_empty() {
                break;
            }
        }
        let answers = results.into_iter().map(|result| result.unwrap_or(Err(CallFailure::lost(DataError::Reply))));
        answers.map(|answer| answer.and_then(check_reply)).collect()
    }

    /// Sends commands to one server of a Cluster.
    async fn send_part<'c>(
        &self,
        address: &Address,
        asking: bool,
        expected: Option<&History>,
        cmds: impl Iterator<Item = &'c Cmd>,
    ) -> Vec<Result<Value, CallFailure>> {
        let mut pipeline = Pipeline::new();
        let mut count = 0;
        for cmd in cmds {
            if asking {
                pipeline.cmd("ASKING");
            }
            pipeline.add_command(cmd.clone());
            count += 1;
        }
        let sent = match self.link(address) {
            Ok(link) => link.send(&pipeline, expected).await,
            Err(failure) => Err(failure),
        };
        if asking && matches!(sent, Err(CallFailure::HistoryChanged)) {
            self.state().importing.insert(address.clone());
        }
        let step = if asking { 2 } else { 1 };
        let sent = sent.map(|replies| replies.into_iter().skip(step - 1).step_by(step).collect::<Vec<_>>());
        if sent.as_ref().map_or(true, |replies| replies.iter().any(shows_change)) {
            self.invalidate_slots();
        }
        match sent {
            Ok(replies) => replies.into_iter().map(Ok).collect(),
            failed => split_outcome(failed, count),
        }
    }

    /// Returns the slot map.
    async fn slots(&self, refresh: bool) -> Result<Arc<Slots>, CallFailure> {
        let candidates = {
            let mut state = self.state();
            if state.fresh && !refresh {
                return Ok(state.slots.clone());
            }
            let mut candidates: Vec<Address> = state.links.keys().cloned().collect();
            candidates.extend(self.config.seeds.iter().filter(|seed| !state.links.contains_key(seed)).cloned());
            let first = state.turn % candidates.len().max(1);
            candidates.rotate_left(first);
            state.turn = state.turn.wrapping_add(1);
            candidates
        };
        let mut why = None;
        for chunk in candidates.chunks(QUERIES_AT_ONCE) {
            // The first answer is used; redirections and the next fetch correct it if it is stale.
            let mut queries: Vec<_> = chunk.iter().map(|address| Box::pin(self.fetch_slots(address))).collect();
            while !queries.is_empty() {
                let (answer, _, rest) = futures_util::future::select_all(queries).await;
                queries = rest;
                match answer {
                    Ok(slots) => return Ok(self.set_slots(slots)),
                    Err(failure) => why = Some(failure),
                }
            }
        }
        Err(why.unwrap_or_else(|| CallFailure::unsent("the Cluster has no servers")))
    }

    async fn fetch_slots(&self, address: &Address) -> Result<Slots, CallFailure> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("CLUSTER").arg("SLOTS");
        let replies = self.link(address)?.send(&pipeline, None).await?;
        let reply = replies.into_iter().next().ok_or_else(|| CallFailure::lost(DataError::Reply))?;
        let slots = Slots::decode(check_reply(reply)?, address).ok_or_else(|| CallFailure::lost(DataError::Reply))?;
        // A server outside a Cluster knows no slots.
        if slots.0.is_empty() { Err(CallFailure::unsent("the server knows no slots")) } else { Ok(slots) }
    }

    fn set_slots(&self, slots: Slots) -> Arc<Slots> {
        let slots = Arc::new(slots);
        let mut state = self.state();
        state.links.retain(|address, _| {
            slots.0.iter().any(|(_, _, owner)| owner == address) || self.config.seeds.contains(address)
        });
        (state.slots, state.fresh) = (slots.clone(), true);
        slots
    }

    fn link(&self, address: &Address) -> Result<Arc<Link>, CallFailure> {
        let mut state = self.state();
        if let Some(link) = state.links.get(address) {
            return Ok(link.clone());
        }
        let link = Arc::new(Link::new(&self.config, address).map_err(CallFailure::unsent)?);
        state.links.insert(address.clone(), link.clone());
        Ok(link)
    }

    fn state(&self) -> MutexGuard<'_, RouteState> {
        // Each change is one assignment or one insertion.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    fn owner(&self, slot: u16) -> Option<&Address> {
        let after = self.0.partition_point(|(from, _, _)| *from <= slot);
        let (_, to, address) = self.0.get(after.checked_sub(1)?)?;
        (slot <= *to).then_some(address)
    }

    /// Decodes the reply of CLUSTER SLOTS: per range its ends and its servers, the master first.
    fn decode(reply: Value, origin: &Address) -> Option<Slots> {
        let Value::Array(ranges) = reply else { return None };
        let mut slots = Vec::with_capacity(ranges.len());
        for range in ranges {
            let Value::Array(range) = range else { return None };
            let [Value::Int(from), Value::Int(to), Value::Array(master), ..] = &range[..] else { return None };
            let [host, Value::Int(port), ..] = &master[..] else { return None };
            let host = match host {
                Value::BulkString(host) if !host.is_empty() => str::from_utf8(host).ok()?,
                // The server does not know its own name.
                _ => &origin.host,
            };
            let address = Address { host: host.to_owned(), port: u16::try_from(*port).ok()? };
            slots.push((u16::try_from(*from).ok()?, u16::try_from(*to).ok()?, address));
        }
        slots.sort_unstable();
        Some(Slots(slots))
    }
}

/// Returns a reply each, or the failure for all.
fn split_outcome(sent: Result<Vec<Value>, CallFailure>, count: usize) -> Vec<Result<Value, CallFailure>> {
    match sent {
        Ok(replies) => replies.into_iter().map(check_reply).collect(),
        Err(failure) => vec![Err(failure); count],
    }
}

fn check_reply(reply: Value) -> Result<Value, CallFailure> {
    match reply {
        Value::ServerError(error) => Err(classify_server_error(error)),
        reply => Ok(reply),
    }
}

/// Target of a redirection reply, and if ASKING must precede the command there.
fn redirection(reply: &Value, origin: &str) -> Option<(Address, bool)> {
    let Value::ServerError(error) = reply else { return None };
    let asking = match error.kind() {
        Some(ServerErrorKind::Ask) => true,
        Some(ServerErrorKind::Moved) => false,
        _ => return None,
    };
    let error = RedisError::from(error.clone());
    let (address, _) = error.redirect_node()?;
    Some((Address::parse(address, origin)?, asking))
}

/// Returns true if a reply shows that the slot map is stale, or soon will be.
fn shows_change(reply: &Value) -> bool {
    use ServerErrorKind::{ClusterDown, MasterDown, Moved, ReadOnly};
    let Value::ServerError(error) = reply else { return false };
    matches!(error.kind(), Some(ClusterDown | MasterDown | Moved | ReadOnly))
}

/// Slot of a key, from its hash tag (between the first `{` and the next `}`) or else from all of
/// it.
fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|&byte| byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM, as in the Cluster specification.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)])
}

const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let (mut crc, mut bit) = ((at as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"{user1000}.following"), slot(b"{user1000}.followers"));
        assert_eq!(slot(b"foo{bar}{zap}"), slot(b"bar"));
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_eq!(slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS, "nothing between the first braces");
        assert_eq!(slot(b"foo{bar"), crc16(b"foo{bar") % SLOTS);
    }

    #[test]
    fn the_owner_of_a_slot_is_found_and_a_gap_has_none() {
        let at = |port| Address { host: "h".into(), port };
        let slots = Slots(vec![(0, 99, at(1)), (100, 199, at(2)), (300, 300, at(3))]);
        for (slot, port) in [(0, Some(1)), (99, Some(1)), (100, Some(2)), (200, None), (300, Some(3)), (301, None)] {
            assert_eq!(slots.owner(slot).map(|address| address.port), port, "slot {slot}");
        }
        assert_eq!(Slots::default().owner(0), None);
    }

    #[test]
    fn a_redirection_is_read_from_what_the_server_says() {
        let reply = |line: &str| redis::parse_redis_value(line.as_bytes()).unwrap();
        let to = |line: &str| redirection(&reply(line), "me").map(|(address, asking)| (address.to_string(), asking));
        assert_eq!(to("-MOVED 3999 127.0.0.1:6381\r\n"), Some(("127.0.0.1:6381".into(), false)));
        assert_eq!(to("-ASK 3999 :6381\r\n"), Some(("me:6381".into(), true)));
        assert_eq!(to("-CLUSTERDOWN Hash slot not served\r\n"), None);
        assert!(shows_change(&reply("-CLUSTERDOWN x\r\n")) && !shows_change(&reply("-ASK 3999 :6381\r\n")));
    }
}
