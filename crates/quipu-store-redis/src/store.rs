//! The port, on Redis.
//!
//! In: calls of the port. Out: what the scripts answer, and where they only hand back what they have, what the model says of it.
//!
//! Invariants:
//! - each call is one script on one key; a put is one per counter, and one pipeline per server;
//! - a verdict is the script's only if it is `Newest`, `Claimed` or `Restored`; every other one is the model's, on what the script saw, at the
//!   time it saw it;
//! - what one key holds stops no call on another.

use std::collections::{BTreeMap, HashMap};
use std::mem::discriminant;
use std::sync::Arc;

use futures_util::future::join_all;
use quipu_model::ports::store::{
    History, NODE_NAME_BYTES_MAX, NodeNames, PUTS_MAX, PutResult, RESTORED_CLAIMS_MAX, SCAN_NAMES_MAX, within,
};
use quipu_model::shared::body::{self, Body};
use quipu_model::shared::claim::{self, CLAIM_REPLY_BYTES_MAX};
use quipu_model::shared::put::judge;
use quipu_model::shared::registry::REGISTRATIONS_MAX;
use quipu_model::shared::{
    BodyPut, BodyVerdict, Claim, ClaimEnd, ClaimVerdict, EndVerdict, Put, RegisterVerdict, Registration,
    RestoreVerdict, Seen, SeenBodies, Snapshot, SwapVerdict, Token, Verdict, Version,
};
use quipu_model::{Answer, Call, Cursor, Epoch, Millis, Name, NodeId, Page, Store, Writer, Writers};
use redis::{Cmd, Value};

use crate::config::{Config, ConfigError, Options};
use crate::error::{Damaged, Failure};
use crate::info::Info;
use crate::layout::{self, Keys};
use crate::route::{Access, Request, Route};
use crate::runtime::Runtime;
use crate::{OpenError, scan, scripts};

/// A store on one Redis server, or on a Redis Cluster.
pub struct RedisStore {
    route: Arc<Route>,
    keys: Arc<Keys>,
    runtime: Runtime,
}

/// Whether a URL is one of ours.
pub fn check(url: &str) -> Result<(), ConfigError> {
    Config::new(url, Options::default()).map(drop)
}

/// Opens a store. Nothing is connected yet: a server that is down is no reason not to start.
pub fn open(url: &str, options: Options) -> Result<RedisStore, OpenError> {
    let config = Config::new(url, options)?;
    let keys = Arc::new(Keys::new(&config.prefix));
    let route = Arc::new(Route::new(config)?);
    Ok(RedisStore { route, keys, runtime: Runtime::start()? })
}

impl RedisStore {
    /// Runs one script that reads, and decodes its answer.
    fn one<'a, T: Send + 'static>(
        &'a self,
        call: Call,
        key: Vec<u8>,
        cmd: Cmd,
        decode: impl FnOnce(Value) -> Result<T, Failure> + Send + 'static,
    ) -> Answer<'a, T> {
        self.one_of(call, Access::Read, key, cmd, decode)
    }

    /// Runs one script that needs what the store has confirmed before, and decodes its answer.
    fn change<'a, T: Send + 'static>(
        &'a self,
        call: Call,
        key: Vec<u8>,
        cmd: Cmd,
        decode: impl FnOnce(Value) -> Result<T, Failure> + Send + 'static,
    ) -> Answer<'a, T> {
        self.one_of(call, Access::Change, key, cmd, decode)
    }

    fn one_of<'a, T: Send + 'static>(
        &'a self,
        call: Call,
        access: Access,
        key: Vec<u8>,
        cmd: Cmd,
        decode: impl FnOnce(Value) -> Result<T, Failure> + Send + 'static,
    ) -> Answer<'a, T> {
        let route = self.route.clone();
        let work = async move {
            let answer = route.send(vec![Request::new(&key, cmd)], access).await.into_iter().next();
            let answer = answer.unwrap_or(Err(Failure::lost(Damaged::Reply)));
            answer.and_then(decode).map_err(|failure| failure.at(&key))
        };
        Box::pin(async move { self.runtime.run(work).await.map_err(|failure| failure.of(call)) })
    }

    /// Swaps a row, together with these of the bodies beside it.
    fn swap_as<'a>(
        &'a self,
        call: Call,
        name: Name<'a>,
        version: Version,
        next: Option<&Snapshot>,
        bodies: &[(Writer, Option<Body>)],
    ) -> Answer<'a, SwapVerdict> {
        let key = self.keys.row(name);
        let mut cmd = scripts::SWAP.on(&key);
        cmd.arg(version.born_at.0).arg(version.swaps).arg(version.puts);
        cmd.arg(next.map(|next| layout::epoch(next.epoch)).unwrap_or_default());
        // Of a writer that is named twice, what is said last is what stays.
        let bodies: BTreeMap<Writer, &Option<Body>> = bodies.iter().map(|(writer, body)| (*writer, body)).collect();
        cmd.arg(bodies.len());
        for writer in bodies.keys() {
            cmd.arg(writer.to_string());
        }
        if let Some(next) = next {
            cmd.arg(layout::row_fields(next));
        }
        let come = bodies.iter().filter_map(|(writer, body)| Some((*writer, body.as_ref()?)));
        for field in layout::body_fields(come) {
            cmd.arg(&*field);
        }
        self.change(call, key, cmd, |reply| match fields_of(&reply) {
            Some(fields) => Err(Damaged::Fields(fields).into()),
            None => Ok(if is_done(&reply)? { SwapVerdict::Swapped } else { SwapVerdict::Moved }),
        })
    }
}

impl Store for RedisStore {
    fn put<'a>(&'a self, puts: &'a [(Name<'a>, Put)]) -> Answer<'a, Vec<PutResult>> {
        Box::pin(async move {
            within(Call::Put, puts.len(), PUTS_MAX)?;
            let (requests, groups) = group(&self.keys, puts);
            let (route, count) = (self.route.clone(), puts.len());
            let work = async move { results(route.send(requests, Access::Change).await, &groups, count) };
            self.runtime.run(work).await.map_err(|failure| failure.of(Call::Put))
        })
    }

    fn read<'a>(&'a self, name: Name<'a>) -> Answer<'a, Seen> {
        let key = self.keys.row(name);
        let cmd = scripts::look(&key);
        self.one(Call::Read, key, cmd, |reply| {
            let (at, fields) = looked(reply)?;
            Ok(Seen { snapshot: layout::row(&fields)?, at })
        })
    }

    fn put_body<'a>(&'a self, name: Name<'a>, asked: &'a BodyPut) -> Answer<'a, BodyVerdict> {
        let key = self.keys.row(name);
        let mut cmd = scripts::PUT_BODY.on(&key);
        let put = &asked.put;
        cmd.arg(layout::cell(put.cell)).arg(layout::epoch(put.epoch)).arg(layout::seq(put.seq)).arg(layout::said(put));
        cmd.arg(put.stride()).arg(asked.from.map(layout::seq).unwrap_or_default()).arg(u8::from(asked.whole));
        cmd.arg(put.cell.writer.to_string()).arg(layout::shape(&asked.shape)).arg(asked.shape.length);
        for (page, bytes) in &asked.pages {
            cmd.arg(*page).arg(body::without_zeros(bytes));
        }
        // The judge has no use for the pages.
        let asked = BodyPut { pages: Vec::new(), ..*asked };
        self.change(Call::PutBody, key, cmd, move |reply| body_verdict(reply, &asked))
    }

    fn read_bodies<'a>(&'a self, name: Name<'a>) -> Answer<'a, SeenBodies> {
        let key = self.keys.row(name);
        let cmd = scripts::look(&key);
        self.one(Call::ReadBodies, key, cmd, |reply| {
            let (at, fields) = looked(reply)?;
            Ok(SeenBodies { seen: Seen { snapshot: layout::row(&fields)?, at }, bodies: layout::bodies(&fields)? })
        })
    }

    fn swap<'a>(&'a self, name: Name<'a>, version: Version, next: Option<&'a Snapshot>) -> Answer<'a, SwapVerdict> {
        self.swap_as(Call::Swap, name, version, next, &[])
    }

    fn swap_bodies<'a>(
        &'a self,
        name: Name<'a>,
        version: Version,
        next: &'a Snapshot,
        bodies: &'a [(Writer, Option<Body>)],
    ) -> Answer<'a, SwapVerdict> {
        self.swap_as(Call::SwapBodies, name, version, Some(next), bodies)
    }

    fn scan<'a>(&'a self, from: Option<&'a Cursor>, names_max: usize) -> Answer<'a, Page> {
        Box::pin(async move {
            within(Call::Scan, names_max, SCAN_NAMES_MAX)?;
            let (route, keys, from) = (self.route.clone(), self.keys.clone(), from.cloned());
            let work = async move { scan::page(&route, &keys, from, names_max).await };
            self.runtime.run(work).await.map_err(|failure| failure.of(Call::Scan))
        })
    }

    fn claim<'a>(&'a self, asked: &'a Claim) -> Answer<'a, ClaimVerdict> {
        let key = self.keys.token(&asked.token);
        let cmd = claim_cmd(&scripts::CLAIM, &key, asked);
        let asked = asked.clone();
        self.change(Call::Claim, key, cmd, move |reply| claim_verdict(reply, &asked))
    }

    fn end_claim<'a>(
        &'a self,
        token: &'a Token,
        owner: Writer,
        attempt: u64,
        end: &'a ClaimEnd,
    ) -> Answer<'a, EndVerdict> {
        let key = self.keys.token(token);
        let mut cmd = scripts::END_CLAIM.on(&key);
        cmd.arg(owner.to_string()).arg(attempt);
        if let ClaimEnd::Done(reply) = end {
            if let Err(error) = within(Call::EndClaim, reply.len(), CLAIM_REPLY_BYTES_MAX) {
                return Box::pin(async { Err(error) });
            }
            cmd.arg(&**reply);
        }
        self.change(Call::EndClaim, key, cmd, |reply| {
            Ok(if is_done(&reply)? { EndVerdict::Ended } else { EndVerdict::NotHeld })
        })
    }

    fn restore_claims<'a>(&'a self, claims: &'a [Claim]) -> Answer<'a, Vec<RestoreVerdict>> {
        Box::pin(async move {
            within(Call::RestoreClaims, claims.len(), RESTORED_CLAIMS_MAX)?;
            let mut requests = Vec::with_capacity(claims.len());
            for asked in claims {
                let reply = asked.reply.as_deref();
                within(Call::RestoreClaims, reply.map_or(0, <[u8]>::len), CLAIM_REPLY_BYTES_MAX)?;
                let key = self.keys.token(&asked.token);
                let mut cmd = claim_cmd(&scripts::RESTORE_CLAIM, &key, asked);
                if let Some(reply) = reply {
                    cmd.arg(reply);
                }
                requests.push(Request::new(&key, cmd));
            }
            let (route, claims) = (self.route.clone(), claims.to_vec());
            let work = async move {
                let answers = route.send(requests, Access::Change).await;
                let verdicts = claims.iter().zip(answers).map(|(asked, answer)| restore_verdict(answer, asked));
                verdicts.collect::<Result<Vec<_>, Failure>>()
            };
            self.runtime.run(work).await.map_err(|failure| failure.of(Call::RestoreClaims))
        })
    }

    fn history(&self) -> Answer<'_, History> {
        let route = self.route.clone();
        Box::pin(async move {
            let history = self.runtime.run(async move { route.ask_history().await }).await;
            let history = history.map_err(|failure| failure.of(Call::History))?;
            // Not before: a caller that no longer waits does not know it.
            self.route.know_history(&history);
            Ok(history)
        })
    }

    fn problems(&self) -> Answer<'_, Vec<String>> {
        let route = self.route.clone();
        let work = async move {
            let links = route.masters(true).await?.links;
            let infos = join_all(links.iter().map(|link| link.send_info(Info::of_memory()))).await;
            let mut problems = Vec::new();
            for (link, info) in links.iter().zip(infos) {
                if let Some(policy) = info?.evicts_by() {
                    problems.push(format!(
                        "Redis at {} evicts keys when its memory is full (maxmemory-policy {policy}): it would forget counts \
                         and tokens; set maxmemory-policy noeviction",
                        link.address()
                    ));
                }
            }
            Ok(problems)
        };
        Box::pin(async move { self.runtime.run(work).await.map_err(|failure| failure.of(Call::Problems)) })
    }

    fn writers(&self) -> Answer<'_, Writers> {
        let key = self.keys.writers().to_vec();
        let cmd = scripts::look(&key);
        self.one(Call::Writers, key, cmd, |reply| {
            let (at, fields) = looked(reply)?;
            let mut registrations = Vec::with_capacity(fields.len() / 2);
            for pair in fields.chunks(2) {
                let [writer, value] = pair else { return Err(Damaged::Reply.into()) };
                registrations.push(layout::registration_of(writer, value)?);
            }
            Ok(Writers { registrations, at })
        })
    }

    fn register<'a>(&'a self, version: u64, next: &'a Registration) -> Answer<'a, RegisterVerdict> {
        let key = self.keys.writers().to_vec();
        let mut cmd = scripts::REGISTER.on(&key);
        cmd.arg(next.writer.to_string()).arg(version).arg(REGISTRATIONS_MAX).arg(layout::registration(next));
        self.one(Call::Register, key, cmd, register_verdict)
    }

    fn unregister(&self, writer: Writer, version: u64) -> Answer<'_, RegisterVerdict> {
        let key = self.keys.writers().to_vec();
        let mut cmd = scripts::REGISTER.on(&key);
        cmd.arg(writer.to_string()).arg(version).arg(REGISTRATIONS_MAX);
        self.one(Call::Unregister, key, cmd, register_verdict)
    }

    fn name_node<'a>(&'a self, node: NodeId, name: Option<&'a str>) -> Answer<'a, ()> {
        if let Err(error) = within(Call::NameNode, name.map_or(0, str::len), NODE_NAME_BYTES_MAX) {
            return Box::pin(async { Err(error) });
        }
        let key = self.keys.names().to_vec();
        let mut cmd = redis::cmd(if name.is_some() { "HSET" } else { "HDEL" });
        cmd.arg(&key).arg(node.to_string());
        if let Some(name) = name {
            cmd.arg(name);
        }
        self.one(Call::NameNode, key, cmd, |_| Ok(()))
    }

    fn node_names(&self) -> Answer<'_, NodeNames> {
        let key = self.keys.names().to_vec();
        let cmd = scripts::look(&key);
        self.one(Call::NodeNames, key, cmd, |reply| {
            let (_, fields) = looked(reply)?;
            let mut names = NodeNames::new();
            for pair in fields.chunks(2) {
                let [node, name] = pair else { return Err(Damaged::Reply.into()) };
                if name.len() > NODE_NAME_BYTES_MAX {
                    return Err(Damaged::Long(String::from_utf8_lossy(node).into_owned()).into());
                }
                names.insert(layout::node_of(node)?, String::from_utf8_lossy(name).into_owned());
            }
            Ok(names)
        })
    }

    fn clock(&self) -> Answer<'_, Millis> {
        let key = self.keys.writers().to_vec();
        let cmd = scripts::CLOCK.on(&key);
        self.one(Call::Clock, key, cmd, |reply| time(&reply).map_err(Failure::from))
    }
}

/// What one script puts.
struct Group {
    key: Vec<u8>,
    puts: Vec<(usize, Put)>, // where in the call each stands
}

/// One script per counter, its puts in order.
fn group(keys: &Keys, puts: &[(Name<'_>, Put)]) -> (Vec<Request>, Vec<Group>) {
    let mut known: HashMap<Name<'_>, usize> = HashMap::with_capacity(puts.len());
    let mut cmds: Vec<Cmd> = Vec::with_capacity(puts.len());
    let mut groups: Vec<Group> = Vec::with_capacity(puts.len());
    for (at, (name, put)) in puts.iter().enumerate() {
        let which = *known.entry(*name).or_insert_with(|| {
            let key = keys.row(*name);
            cmds.push(scripts::PUT.on(&key));
            groups.push(Group { key, puts: Vec::new() });
            groups.len() - 1
        });
        let cmd = &mut cmds[which];
        cmd.arg(layout::cell(put.cell)).arg(layout::epoch(put.epoch)).arg(layout::seq(put.seq)).arg(layout::said(put));
        cmd.arg(put.stride());
        groups[which].puts.push((at, *put));
    }
    (cmds.into_iter().zip(&groups).map(|(cmd, group)| Request::new(&group.key, cmd)).collect(), groups)
}

/// A result per put, in the order of the call. The call fails as a whole if every script failed for the same reason, and not for what its key
/// holds: then nothing was put, or nothing is known.
fn results(answers: Vec<Result<Value, Failure>>, groups: &[Group], count: usize) -> Result<Vec<PutResult>, Failure> {
    let mut results: Vec<PutResult> = Vec::with_capacity(count);
    results.resize_with(count, || Err(Failure::lost(Damaged::Reply).of(Call::Put)));
    let mut failures = Vec::new();
    for (answer, Group { key, puts }) in answers.into_iter().zip(groups) {
        let answers = answer.and_then(|answer| match answer {
            Value::Array(answers) if answers.len() == puts.len() => Ok(answers),
            _ => Err(Damaged::Reply.into()),
        });
        match answers {
            Ok(answers) => {
                for (answer, (at, put)) in answers.into_iter().zip(puts) {
                    results[*at] = verdict(answer, put).map_err(|failure| failure.at(key).of(Call::Put));
                }
            }
            Err(failure) => {
                let failure = failure.at(key);
                for (at, _) in puts {
                    results[*at] = Err(failure.clone().of(Call::Put));
                }
                failures.push(failure);
            }
        }
    }
    if failures.len() == groups.len()
        && let Some(failure) = failures.pop()
        && !failure.is_of_key()
        && failures.iter().all(|other| discriminant(other) == discriminant(&failure))
    {
        return Err(failure);
    }
    Ok(results)
}

/// The verdict on one put: the script's, or the model's on what the row has of the cell.
fn verdict(answer: Value, put: &Put) -> Result<Verdict, Failure> {
    let parts = match answer {
        Value::Int(1) => return Ok(Verdict::Newest),
        Value::Array(parts) => parts,
        _ => return Err(Damaged::Reply.into()),
    };
    let (row, at) = known(&parts, put, None)?;
    match judge(&row, put, at) {
        // It was not put, so nothing may say so.
        Verdict::Newest => Err(Damaged::Verdict.into()),
        verdict => Ok(verdict),
    }
}

/// The verdict on a body: the script's, or the model's on what the row has of its cell.
fn body_verdict(answer: Value, asked: &BodyPut) -> Result<BodyVerdict, Failure> {
    let parts = match answer {
        Value::Int(1) => return Ok(BodyVerdict::Told(Verdict::Newest)),
        Value::Array(parts) => parts,
        _ => return Err(Damaged::Reply.into()),
    };
    let (row, at) = known(&parts, &asked.put, Some(asked.put.epoch))?;
    let is_in = row.cells.get(&asked.put.cell).is_some_and(|held| held.seq == asked.put.seq);
    match body::judge(&row, asked, at) {
        // It was not put now, so it was before, or nothing may say so.
        BodyVerdict::Told(Verdict::Newest) if !is_in => Err(Damaged::Verdict.into()),
        verdict => Ok(verdict),
    }
}

/// What a script has handed back: a row with nothing but this cell, and the time. Without a row, one of the epoch that is asked for, if any is.
fn known(parts: &[Value], put: &Put, absent: Option<Epoch>) -> Result<(Snapshot, Millis), Failure> {
    let [at, epoch, expires, held, spent, rest @ ..] = parts else { return Err(Damaged::Reply.into()) };
    let epoch = match (text(epoch)?, absent) {
        (Some(epoch), _) => layout::epoch_of(epoch)?,
        (None, Some(epoch)) if rest.is_empty() => epoch,
        (None, _) => return Err(Damaged::Lacks("epoch").into()),
    };
    let mut row = Snapshot { epoch, ..Snapshot::default() };
    row.expires_at = match text(expires)? {
        Some(expires) => Some(Millis(layout::number("expires", expires)?)),
        None => None,
    };
    // What the script could not use, the model cannot use either.
    if let [puts, body @ ..] = rest {
        layout::number::<u64>("puts", text(puts)?.ok_or(Damaged::Lacks("puts"))?)?;
        if let Some(body) = body.first().map(text).transpose()?.flatten() {
            Body::new(layout::shape_of(body)?).map_err(Damaged::from)?;
        }
        return Err(Damaged::Verdict.into());
    }
    if let Some(held) = text(held)? {
        row.cells.insert(put.cell, layout::held(held)?);
    }
    if let Some(spent) = text(spent)? {
        row.spent.insert(put.cell, layout::spent(spent)?);
    }
    Ok((row.checked()?, time(at)?))
}

/// A call of a script on a claim.
fn claim_cmd(script: &scripts::Known, key: &[u8], asked: &Claim) -> Cmd {
    let mut cmd = script.on(key);
    cmd.arg(asked.owner.to_string()).arg(asked.attempt).arg(asked.payload).arg(asked.forget_at.0);
    // The server's own expiry is signed; it only frees memory, the window is compared with what was asked.
    cmd.arg(asked.forget_at.0.min(i64::MAX as u64));
    cmd
}

fn claim_verdict(reply: Value, asked: &Claim) -> Result<ClaimVerdict, Failure> {
    let Some((mut known, at)) = known_claim(reply, asked)? else { return Ok(ClaimVerdict::Claimed) };
    let is_own = known.as_ref().is_some_and(|known| (known.owner, known.attempt) == (asked.owner, asked.attempt));
    match claim::claim(&mut known, asked, at) {
        // The script has not recorded it.
        ClaimVerdict::Claimed if !is_own => Err(Damaged::Verdict.into()),
        verdict => Ok(verdict),
    }
}

/// A claim that cannot be read is a conflict: nobody can claim that token, and it must not keep the others from being put back.
fn restore_verdict(answer: Result<Value, Failure>, asked: &Claim) -> Result<RestoreVerdict, Failure> {
    let known = match answer.and_then(|reply| known_claim(reply, asked)) {
        Err(Failure::Damaged(_) | Failure::WrongType(_)) => return Ok(RestoreVerdict::Conflict),
        known => known?,
    };
    let Some((mut known, at)) = known else { return Ok(RestoreVerdict::Restored) };
    match claim::restore(&mut known, asked, at) {
        // A hash of other fields than ours: the script has left it alone.
        RestoreVerdict::Restored => Ok(RestoreVerdict::Conflict),
        verdict => Ok(verdict),
    }
}

/// What a script has handed back of a token, and the time; none if it has carried out what was asked.
fn known_claim(reply: Value, asked: &Claim) -> Result<Option<(Option<Claim>, Millis)>, Failure> {
    let shapeless = || Failure::lost(Damaged::Reply);
    let parts = match reply {
        Value::Int(1) => return Ok(None),
        Value::Array(parts) => parts,
        _ => return Err(shapeless()),
    };
    let [at, fields @ ..] = &parts[..] else { return Err(shapeless()) };
    let fields: Vec<Option<&[u8]>> = fields.iter().map(bytes).collect::<Result<_, _>>().map_err(Failure::lost)?;
    let fields = <[_; 5]>::try_from(fields).map_err(|_| shapeless())?;
    Ok(Some((layout::claim_of(&asked.token, fields)?, time(at).map_err(Failure::lost)?)))
}

fn register_verdict(reply: Value) -> Result<RegisterVerdict, Failure> {
    if let Value::Array(parts) = &reply {
        let known = parts.first().map(text).transpose()?.flatten().unwrap_or_default();
        return Err(layout::unreadable("a registration", known).into());
    }
    match text(&reply)? {
        Some("registered") => Ok(RegisterVerdict::Registered),
        Some("moved") => Ok(RegisterVerdict::Moved),
        Some("full") => Ok(RegisterVerdict::Full),
        _ => Err(Damaged::Reply.into()),
    }
}

/// The time, and the fields of a hash with their values.
fn looked(reply: Value) -> Result<(Millis, Vec<Vec<u8>>), Failure> {
    let Value::Array(parts) = reply else { return Err(Damaged::Reply.into()) };
    let (at, fields) = match &parts[..] {
        [at, Value::Array(fields)] => (at, fields),
        [_, Value::Int(fields)] => return Err(Damaged::Fields(*fields).into()),
        [_, Value::BulkString(field)] => return Err(Damaged::Long(field.escape_ascii().to_string()).into()),
        _ => return Err(Damaged::Reply.into()),
    };
    let fields = fields.iter().map(|field| Ok(bytes(field)?.ok_or(Damaged::Reply)?.to_vec()));
    Ok((time(at)?, fields.collect::<Result<_, Damaged>>()?))
}

/// How many fields a row has, if they are too many for a script.
fn fields_of(reply: &Value) -> Option<i64> {
    match reply {
        Value::Array(parts) => match parts[..] {
            [Value::Int(fields)] => Some(fields),
            _ => None,
        },
        _ => None,
    }
}

fn is_done(reply: &Value) -> Result<bool, Damaged> {
    match reply {
        Value::Int(1) => Ok(true),
        Value::Int(0) => Ok(false),
        _ => Err(Damaged::Reply),
    }
}

fn time(value: &Value) -> Result<Millis, Damaged> {
    layout::number("the time", text(value)?.ok_or(Damaged::Reply)?).map(Millis)
}

fn text(value: &Value) -> Result<Option<&str>, Damaged> {
    bytes(value)?.map(|bytes| layout::text("a reply", bytes)).transpose()
}

fn bytes(value: &Value) -> Result<Option<&[u8]>, Damaged> {
    match value {
        Value::BulkString(bytes) => Ok(Some(bytes)),
        Value::Nil => Ok(None),
        _ => Err(Damaged::Reply),
    }
}
