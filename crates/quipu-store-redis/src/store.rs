//! Implements the store port with one script per call.
//!
//! In: calls of the port. Out: the scripts' verdicts, or the model's verdict on the row that a
//! script returned.
//!
//! Invariants:
//! - each call is one script on one key; a put is one script per counter, and one pipeline per
//!   server;
//! - a script gives only the verdicts `Newest`, `Claimed` and `Restored`. The model gives every
//!   other one, from the row and the time that the script read;
//! - damaged data under one key stops no call on another.

use std::collections::{BTreeMap, HashMap};
use std::mem::discriminant;
use std::sync::Arc;

use futures_util::future::join_all;
use quipu_model::ports::store::{
    History, NODE_NAME_BYTES_MAX, NodeNames, PUTS_MAX, PutResult, RESTORED_CLAIMS_MAX, SCAN_NAMES_MAX, check_bound,
};
use quipu_model::shared::body::{self, StoredBody};
use quipu_model::shared::claim::{self, CLAIM_REPLY_BYTES_MAX};
use quipu_model::shared::put::judge;
use quipu_model::shared::registry::REGISTRATIONS_MAX;
use quipu_model::shared::{
    BodyPut, BodyVerdict, Claim, ClaimEnd, ClaimEndVerdict, ClaimToken, ClaimVerdict, FetchedRow, Put, RegisterVerdict,
    Registration, RestoreVerdict, RowVersion, RowWithBodies, Snapshot, SwapVerdict, Verdict,
};
use quipu_model::{Cursor, Epoch, Millis, Name, NodeId, ScanPage, Store, StoreCall, StoreFuture, Writer, WriterList};
use quipu_store_kit::{CallFailure, ConfigError, DriverThread, Options};
use redis::{Cmd, Value};

use crate::config::Config;
use crate::error::{DataError, KEY};
use crate::info::Info;
use crate::layout::{self, KeyNames};
use crate::route::{Access, KeyCommand, Route};
use crate::{OpenError, scan, scripts};

/// A store on one Redis server, or on a Redis Cluster.
pub struct RedisStore {
    route: Arc<Route>,
    keys: Arc<KeyNames>,
    thread: DriverThread,
}

/// Checks that a URL is a valid store URL of this crate. Returns the store's location: equal for all
/// URLs of one store, and without their users and secrets.
pub fn location(url: &str) -> Result<String, ConfigError> {
    Config::new(url, Options::default()).map(|config| config.location())
}

/// Opens a store without connecting: a node starts even if the server is down.
pub fn open(url: &str, options: Options) -> Result<RedisStore, OpenError> {
    let config = Config::new(url, options)?;
    let keys = Arc::new(KeyNames::new(&config.prefix));
    let route = Arc::new(Route::new(config)?);
    Ok(RedisStore { route, keys, thread: DriverThread::start("quipu-redis")? })
}

impl RedisStore {
    /// Runs one reading script and decodes its answer.
    fn read_one<'a, T: Send + 'static>(
        &'a self,
        call: StoreCall,
        key: Vec<u8>,
        cmd: Cmd,
        decode: impl FnOnce(Value) -> Result<T, CallFailure> + Send + 'static,
    ) -> StoreFuture<'a, T> {
        self.call_one(call, Access::Read, key, cmd, decode)
    }

    /// Runs one script that relies on earlier confirmed data, and decodes its answer.
    fn change<'a, T: Send + 'static>(
        &'a self,
        call: StoreCall,
        key: Vec<u8>,
        cmd: Cmd,
        decode: impl FnOnce(Value) -> Result<T, CallFailure> + Send + 'static,
    ) -> StoreFuture<'a, T> {
        self.call_one(call, Access::Change, key, cmd, decode)
    }

    fn call_one<'a, T: Send + 'static>(
        &'a self,
        call: StoreCall,
        access: Access,
        key: Vec<u8>,
        cmd: Cmd,
        decode: impl FnOnce(Value) -> Result<T, CallFailure> + Send + 'static,
    ) -> StoreFuture<'a, T> {
        let route = self.route.clone();
        let work = async move {
            let answer = route.send(vec![KeyCommand::new(&key, cmd)], access).await.into_iter().next();
            let answer = answer.unwrap_or(Err(CallFailure::lost(DataError::Reply)));
            answer.and_then(decode).map_err(|failure| failure.with_name(KEY, &key))
        };
        Box::pin(self.thread.run_call(call, work))
    }

    /// Swaps a row together with the given bodies beside it.
    fn swap_as<'a>(
        &'a self,
        call: StoreCall,
        name: Name<'a>,
        version: RowVersion,
        next: Option<&Snapshot>,
        bodies: &[(Writer, Option<StoredBody>)],
    ) -> StoreFuture<'a, SwapVerdict> {
        let key = self.keys.row(name);
        let mut cmd = scripts::SWAP.on(&key);
        cmd.arg(version.born_at.0).arg(version.swaps).arg(version.puts);
        cmd.arg(next.map(|next| layout::encode_epoch(next.epoch)).unwrap_or_default());
        // For a writer that is named twice, the last entry counts.
        let bodies: BTreeMap<Writer, &Option<StoredBody>> =
            bodies.iter().map(|(writer, body)| (*writer, body)).collect();
        cmd.arg(bodies.len());
        for writer in bodies.keys() {
            cmd.arg(writer.to_string());
        }
        if let Some(next) = next {
            cmd.arg(layout::encode_row(next));
        }
        let come = bodies.iter().filter_map(|(writer, body)| Some((*writer, body.as_ref()?)));
        for field in layout::encode_bodies(come) {
            cmd.arg(&*field);
        }
        self.change(call, key, cmd, |reply| match excess_fields(&reply) {
            Some(fields) => Err(DataError::TooManyFields(fields).into()),
            None => Ok(if parse_flag(&reply)? { SwapVerdict::Swapped } else { SwapVerdict::Moved }),
        })
    }
}

impl Store for RedisStore {
    fn put<'a>(&'a self, puts: &'a [(Name<'a>, Put)]) -> StoreFuture<'a, Vec<PutResult>> {
        Box::pin(async move {
            check_bound(StoreCall::Put, puts.len(), PUTS_MAX)?;
            let (requests, groups) = group_by_key(&self.keys, puts);
            let (route, count) = (self.route.clone(), puts.len());
            let work = async move { collect_results(route.send(requests, Access::Change).await, &groups, count) };
            self.thread.run_call(StoreCall::Put, work).await
        })
    }

    fn read<'a>(&'a self, name: Name<'a>) -> StoreFuture<'a, FetchedRow> {
        let key = self.keys.row(name);
        let cmd = scripts::read_hash(&key);
        self.read_one(StoreCall::Read, key, cmd, |reply| {
            let (at, fields) = decode_hash(reply)?;
            Ok(FetchedRow { snapshot: layout::decode_row(&fields)?, at })
        })
    }

    fn put_body<'a>(&'a self, name: Name<'a>, wanted: &'a BodyPut) -> StoreFuture<'a, BodyVerdict> {
        let key = self.keys.row(name);
        let mut cmd = scripts::PUT_BODY.on(&key);
        let put = &wanted.put;
        cmd.arg(layout::encode_cell_id(put.cell))
            .arg(layout::encode_epoch(put.epoch))
            .arg(layout::encode_seq(put.seq))
            .arg(layout::encode_value(put));
        cmd.arg(put.stride()).arg(wanted.from.map(layout::encode_seq).unwrap_or_default()).arg(u8::from(wanted.whole));
        cmd.arg(put.cell.writer.to_string()).arg(layout::encode_shape(&wanted.shape)).arg(wanted.shape.length);
        for (page, bytes) in &wanted.pages {
            cmd.arg(*page).arg(body::trim_zeros(bytes));
        }
        // The verdict does not need the pages.
        let wanted = BodyPut { pages: Vec::new(), ..*wanted };
        self.change(StoreCall::PutBody, key, cmd, move |reply| decode_body_verdict(reply, &wanted))
    }

    fn read_bodies<'a>(&'a self, name: Name<'a>) -> StoreFuture<'a, RowWithBodies> {
        let key = self.keys.row(name);
        let cmd = scripts::read_hash(&key);
        self.read_one(StoreCall::ReadBodies, key, cmd, |reply| {
            let (at, fields) = decode_hash(reply)?;
            Ok(RowWithBodies {
                row: FetchedRow { snapshot: layout::decode_row(&fields)?, at },
                bodies: layout::decode_bodies(&fields)?,
            })
        })
    }

    fn swap<'a>(
        &'a self,
        name: Name<'a>,
        version: RowVersion,
        next: Option<&'a Snapshot>,
    ) -> StoreFuture<'a, SwapVerdict> {
        self.swap_as(StoreCall::Swap, name, version, next, &[])
    }

    fn swap_bodies<'a>(
        &'a self,
        name: Name<'a>,
        version: RowVersion,
        next: &'a Snapshot,
        bodies: &'a [(Writer, Option<StoredBody>)],
    ) -> StoreFuture<'a, SwapVerdict> {
        self.swap_as(StoreCall::SwapBodies, name, version, Some(next), bodies)
    }

    fn scan<'a>(&'a self, from: Option<&'a Cursor>, names_max: usize) -> StoreFuture<'a, ScanPage> {
        Box::pin(async move {
            check_bound(StoreCall::Scan, names_max, SCAN_NAMES_MAX)?;
            let (route, keys, from) = (self.route.clone(), self.keys.clone(), from.cloned());
            let work = async move { scan::scan_page(&route, &keys, from, names_max).await };
            self.thread.run_call(StoreCall::Scan, work).await
        })
    }

    fn claim<'a>(&'a self, wanted: &'a Claim) -> StoreFuture<'a, ClaimVerdict> {
        let key = self.keys.token(&wanted.token);
        let cmd = claim_command(&scripts::CLAIM, &key, wanted);
        let wanted = wanted.clone();
        self.change(StoreCall::Claim, key, cmd, move |reply| decode_claim_verdict(reply, &wanted))
    }

    fn end_claim<'a>(
        &'a self,
        token: &'a ClaimToken,
        owner: Writer,
        attempt: u64,
        end: &'a ClaimEnd,
    ) -> StoreFuture<'a, ClaimEndVerdict> {
        let key = self.keys.token(token);
        let mut cmd = scripts::END_CLAIM.on(&key);
        cmd.arg(owner.to_string()).arg(attempt);
        if let ClaimEnd::Done(reply) = end {
            if let Err(error) = check_bound(StoreCall::EndClaim, reply.len(), CLAIM_REPLY_BYTES_MAX) {
                return Box::pin(async { Err(error) });
            }
            cmd.arg(&**reply);
        }
        self.change(StoreCall::EndClaim, key, cmd, |reply| {
            Ok(if parse_flag(&reply)? { ClaimEndVerdict::Ended } else { ClaimEndVerdict::NotHeld })
        })
    }

    fn restore_claims<'a>(&'a self, claims: &'a [Claim]) -> StoreFuture<'a, Vec<RestoreVerdict>> {
        Box::pin(async move {
            check_bound(StoreCall::RestoreClaims, claims.len(), RESTORED_CLAIMS_MAX)?;
            let mut requests = Vec::with_capacity(claims.len());
            for wanted in claims {
                let reply = wanted.reply.as_deref();
                check_bound(StoreCall::RestoreClaims, reply.map_or(0, <[u8]>::len), CLAIM_REPLY_BYTES_MAX)?;
                let key = self.keys.token(&wanted.token);
                let mut cmd = claim_command(&scripts::RESTORE_CLAIM, &key, wanted);
                if let Some(reply) = reply {
                    cmd.arg(reply);
                }
                requests.push(KeyCommand::new(&key, cmd));
            }
            let (route, claims) = (self.route.clone(), claims.to_vec());
            let work = async move {
                let answers = route.send(requests, Access::Change).await;
                let verdicts =
                    claims.iter().zip(answers).map(|(wanted, answer)| decode_restore_verdict(answer, wanted));
                verdicts.collect::<Result<Vec<_>, CallFailure>>()
            };
            self.thread.run_call(StoreCall::RestoreClaims, work).await
        })
    }

    fn history(&self) -> StoreFuture<'_, History> {
        let route = self.route.clone();
        Box::pin(async move {
            let work = async move { route.fetch_history().await };
            let history = self.thread.run_call(StoreCall::History, work).await?;
            // Set only here: a caller that cancelled the call does not know this history.
            self.route.set_history(&history);
            Ok(history)
        })
    }

    fn problems(&self) -> StoreFuture<'_, Vec<String>> {
        let route = self.route.clone();
        let work = async move {
            let links = route.masters(true).await?.links;
            let infos = join_all(links.iter().map(|link| link.send_info(Info::memory_query()))).await;
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
        Box::pin(self.thread.run_call(StoreCall::Problems, work))
    }

    fn writers(&self) -> StoreFuture<'_, WriterList> {
        let key = self.keys.writers().to_vec();
        let cmd = scripts::read_hash(&key);
        self.read_one(StoreCall::Writers, key, cmd, |reply| {
            let (at, fields) = decode_hash(reply)?;
            let mut registrations = Vec::with_capacity(fields.len() / 2);
            for pair in fields.chunks(2) {
                let [writer, value] = pair else { return Err(DataError::Reply.into()) };
                registrations.push(layout::decode_registration(writer, value)?);
            }
            Ok(WriterList { registrations, at })
        })
    }

    fn register<'a>(&'a self, version: u64, next: &'a Registration) -> StoreFuture<'a, RegisterVerdict> {
        let key = self.keys.writers().to_vec();
        let mut cmd = scripts::REGISTER.on(&key);
        cmd.arg(next.writer.to_string()).arg(version).arg(REGISTRATIONS_MAX).arg(layout::encode_registration(next));
        self.read_one(StoreCall::Register, key, cmd, decode_register_verdict)
    }

    fn unregister(&self, writer: Writer, version: u64) -> StoreFuture<'_, RegisterVerdict> {
        let key = self.keys.writers().to_vec();
        let mut cmd = scripts::REGISTER.on(&key);
        cmd.arg(writer.to_string()).arg(version).arg(REGISTRATIONS_MAX);
        self.read_one(StoreCall::Unregister, key, cmd, decode_register_verdict)
    }

    fn name_node<'a>(&'a self, node: NodeId, name: Option<&'a str>) -> StoreFuture<'a, ()> {
        if let Err(error) = check_bound(StoreCall::NameNode, name.map_or(0, str::len), NODE_NAME_BYTES_MAX) {
            return Box::pin(async { Err(error) });
        }
        let key = self.keys.names().to_vec();
        let mut cmd = redis::cmd(if name.is_some() { "HSET" } else { "HDEL" });
        cmd.arg(&key).arg(node.to_string());
        if let Some(name) = name {
            cmd.arg(name);
        }
        self.read_one(StoreCall::NameNode, key, cmd, |_| Ok(()))
    }

    fn node_names(&self) -> StoreFuture<'_, NodeNames> {
        let key = self.keys.names().to_vec();
        let cmd = scripts::read_hash(&key);
        self.read_one(StoreCall::NodeNames, key, cmd, |reply| {
            let (_, fields) = decode_hash(reply)?;
            let mut names = NodeNames::new();
            for pair in fields.chunks(2) {
                let [node, name] = pair else { return Err(DataError::Reply.into()) };
                if name.len() > NODE_NAME_BYTES_MAX {
                    return Err(DataError::TooLong(String::from_utf8_lossy(node).into_owned()).into());
                }
                names.insert(layout::decode_node(node)?, String::from_utf8_lossy(name).into_owned());
            }
            Ok(names)
        })
    }

    fn clock(&self) -> StoreFuture<'_, Millis> {
        let key = self.keys.writers().to_vec();
        let cmd = scripts::CLOCK.on(&key);
        self.read_one(StoreCall::Clock, key, cmd, |reply| parse_time(&reply).map_err(CallFailure::from))
    }
}

/// The puts of one script.
struct PutGroup {
    key: Vec<u8>,
    puts: Vec<(usize, Put)>, // with each put's index in the call
}

/// Groups puts by counter: one script each, its puts in order.
fn group_by_key(keys: &KeyNames, puts: &[(Name<'_>, Put)]) -> (Vec<KeyCommand>, Vec<PutGroup>) {
    let mut known: HashMap<Name<'_>, usize> = HashMap::with_capacity(puts.len());
    let mut cmds: Vec<Cmd> = Vec::with_capacity(puts.len());
    let mut groups: Vec<PutGroup> = Vec::with_capacity(puts.len());
    for (at, (name, put)) in puts.iter().enumerate() {
        let group_index = *known.entry(*name).or_insert_with(|| {
            let key = keys.row(*name);
            cmds.push(scripts::PUT.on(&key));
            groups.push(PutGroup { key, puts: Vec::new() });
            groups.len() - 1
        });
        let cmd = &mut cmds[group_index];
        cmd.arg(layout::encode_cell_id(put.cell))
            .arg(layout::encode_epoch(put.epoch))
            .arg(layout::encode_seq(put.seq))
            .arg(layout::encode_value(put));
        cmd.arg(put.stride());
        groups[group_index].puts.push((at, *put));
    }
    (cmds.into_iter().zip(&groups).map(|(cmd, group)| KeyCommand::new(&group.key, cmd)).collect(), groups)
}

/// Returns a result per put, in the order of the call. The whole call fails if every script failed
/// for the same reason, and not because of its key's data. Then nothing was put, or every outcome
/// is unknown.
fn collect_results(
    answers: Vec<Result<Value, CallFailure>>,
    groups: &[PutGroup],
    count: usize,
) -> Result<Vec<PutResult>, CallFailure> {
    let mut results: Vec<PutResult> = Vec::with_capacity(count);
    results.resize_with(count, || Err(CallFailure::lost(DataError::Reply).into_store_error(StoreCall::Put)));
    let mut failures = Vec::new();
    for (answer, PutGroup { key, puts }) in answers.into_iter().zip(groups) {
        let answers = answer.and_then(|answer| match answer {
            Value::Array(answers) if answers.len() == puts.len() => Ok(answers),
            _ => Err(DataError::Reply.into()),
        });
        match answers {
            Ok(answers) => {
                for (answer, (at, put)) in answers.into_iter().zip(puts) {
                    results[*at] = decode_verdict(answer, put)
                        .map_err(|failure| failure.with_name(KEY, key).into_store_error(StoreCall::Put));
                }
            }
            Err(failure) => {
                let failure = failure.with_name(KEY, key);
                for (at, _) in puts {
                    results[*at] = Err(failure.clone().into_store_error(StoreCall::Put));
                }
                failures.push(failure);
            }
        }
    }
    if failures.len() == groups.len()
        && let Some(failure) = failures.pop()
        && !failure.is_of_data()
        && failures.iter().all(|other| discriminant(other) == discriminant(&failure))
    {
        return Err(failure);
    }
    Ok(results)
}

/// Decodes the verdict on one put: the script's, or the model's on the returned cell.
fn decode_verdict(answer: Value, put: &Put) -> Result<Verdict, CallFailure> {
    let parts = match answer {
        Value::Int(1) => return Ok(Verdict::Newest),
        Value::Array(parts) => parts,
        _ => return Err(DataError::Reply.into()),
    };
    let (row, at) = decode_known_row(&parts, put, None)?;
    match judge(&row, put, at) {
        // The script did not put it, so `Newest` would be false.
        Verdict::Newest => Err(DataError::VerdictMismatch.into()),
        verdict => Ok(verdict),
    }
}

/// Decodes the verdict on a body put: the script's, or the model's on the returned cell.
fn decode_body_verdict(answer: Value, wanted: &BodyPut) -> Result<BodyVerdict, CallFailure> {
    let parts = match answer {
        Value::Int(1) => return Ok(BodyVerdict::Cell(Verdict::Newest)),
        Value::Array(parts) => parts,
        _ => return Err(DataError::Reply.into()),
    };
    let (row, at) = decode_known_row(&parts, &wanted.put, Some(wanted.put.epoch))?;
    let is_in = row.cells.get(&wanted.put.cell).is_some_and(|row_cell| row_cell.seq == wanted.put.seq);
    match body::judge(&row, wanted, at) {
        // The script did not put it now. `Newest` is true only if an earlier call did.
        BodyVerdict::Cell(Verdict::Newest) if !is_in => Err(DataError::VerdictMismatch.into()),
        verdict => Ok(verdict),
    }
}

/// Decodes a row that a script returned: this cell alone, and the time. For an absent row it
/// returns one of the epoch `absent`, if given.
fn decode_known_row(parts: &[Value], put: &Put, absent: Option<Epoch>) -> Result<(Snapshot, Millis), CallFailure> {
    let [at, epoch, expires, row_cell, spent, rest @ ..] = parts else { return Err(DataError::Reply.into()) };
    let epoch = match (parse_text(epoch)?, absent) {
        (Some(epoch), _) => layout::decode_epoch(epoch)?,
        (None, Some(epoch)) if rest.is_empty() => epoch,
        (None, _) => return Err(DataError::MissingField("epoch").into()),
    };
    let mut row = Snapshot { epoch, ..Snapshot::default() };
    row.expires_at = match parse_text(expires)? {
        Some(expires) => Some(Millis(layout::parse_number("expires", expires)?)),
        None => None,
    };
    // The model cannot use a value that the script could not use.
    if let [puts, body @ ..] = rest {
        layout::parse_number::<u64>("puts", parse_text(puts)?.ok_or(DataError::MissingField("puts"))?)?;
        if let Some(body) = body.first().map(parse_text).transpose()?.flatten() {
            StoredBody::new(layout::decode_shape(body)?).map_err(DataError::from)?;
        }
        return Err(DataError::VerdictMismatch.into());
    }
    if let Some(row_cell) = parse_text(row_cell)? {
        row.cells.insert(put.cell, layout::decode_cell(row_cell)?);
    }
    if let Some(spent) = parse_text(spent)? {
        row.spent.insert(put.cell, layout::decode_spent_cell(spent)?);
    }
    Ok((row.checked()?, parse_time(at)?))
}

/// Builds the call of a claim script.
fn claim_command(script: &scripts::RedisScript, key: &[u8], wanted: &Claim) -> Cmd {
    let mut cmd = script.on(key);
    cmd.arg(wanted.owner.to_string()).arg(wanted.attempt).arg(wanted.payload).arg(wanted.forget_at.0);
    // The server's own expiry is signed and only frees memory; the window is compared exactly.
    cmd.arg(wanted.forget_at.0.min(i64::MAX as u64));
    cmd
}

fn decode_claim_verdict(reply: Value, wanted: &Claim) -> Result<ClaimVerdict, CallFailure> {
    let Some((mut known, at)) = decode_known_claim(reply, wanted)? else { return Ok(ClaimVerdict::Claimed) };
    let is_own = known.as_ref().is_some_and(|known| (known.owner, known.attempt) == (wanted.owner, wanted.attempt));
    match claim::claim(&mut known, wanted, at) {
        // The script did not record the claim.
        ClaimVerdict::Claimed if !is_own => Err(DataError::VerdictMismatch.into()),
        verdict => Ok(verdict),
    }
}

/// Decodes the verdict on a restored claim. An unreadable claim is a conflict: that token cannot be
/// claimed, and it must not stop the other claims from being restored.
fn decode_restore_verdict(answer: Result<Value, CallFailure>, wanted: &Claim) -> Result<RestoreVerdict, CallFailure> {
    let known = match answer.and_then(|reply| decode_known_claim(reply, wanted)) {
        Err(CallFailure::DataDamaged(_) | CallFailure::DataRefused(_)) => return Ok(RestoreVerdict::Conflict),
        known => known?,
    };
    let Some((mut known, at)) = known else { return Ok(RestoreVerdict::Restored) };
    match claim::restore(&mut known, wanted, at) {
        // A hash with unknown fields: the script did not touch it.
        RestoreVerdict::Restored => Ok(RestoreVerdict::Conflict),
        verdict => Ok(verdict),
    }
}

/// Decodes the claim that a script returned, and the time; none if the script carried out the call.
fn decode_known_claim(reply: Value, wanted: &Claim) -> Result<Option<(Option<Claim>, Millis)>, CallFailure> {
    let shapeless = || CallFailure::lost(DataError::Reply);
    let parts = match reply {
        Value::Int(1) => return Ok(None),
        Value::Array(parts) => parts,
        _ => return Err(shapeless()),
    };
    let [at, fields @ ..] = &parts[..] else { return Err(shapeless()) };
    let fields: Vec<Option<&[u8]>> =
        fields.iter().map(parse_bytes).collect::<Result<_, _>>().map_err(CallFailure::lost)?;
    let fields = <[_; 5]>::try_from(fields).map_err(|_| shapeless())?;
    Ok(Some((layout::decode_claim(&wanted.token, fields)?, parse_time(at).map_err(CallFailure::lost)?)))
}

fn decode_register_verdict(reply: Value) -> Result<RegisterVerdict, CallFailure> {
    if let Value::Array(parts) = &reply {
        let known = parts.first().map(parse_text).transpose()?.flatten().unwrap_or_default();
        return Err(layout::unreadable("a registration", known).into());
    }
    match parse_text(&reply)? {
        Some("registered") => Ok(RegisterVerdict::Registered),
        Some("moved") => Ok(RegisterVerdict::Moved),
        Some("full") => Ok(RegisterVerdict::Full),
        _ => Err(DataError::Reply.into()),
    }
}

/// Decodes the time, and a hash as alternating field names and values.
fn decode_hash(reply: Value) -> Result<(Millis, Vec<Vec<u8>>), CallFailure> {
    let Value::Array(parts) = reply else { return Err(DataError::Reply.into()) };
    let (at, fields) = match &parts[..] {
        [at, Value::Array(fields)] => (at, fields),
        [_, Value::Int(fields)] => return Err(DataError::TooManyFields(*fields).into()),
        [_, Value::BulkString(field)] => return Err(DataError::TooLong(field.escape_ascii().to_string()).into()),
        _ => return Err(DataError::Reply.into()),
    };
    let fields = fields.iter().map(|field| Ok(parse_bytes(field)?.ok_or(DataError::Reply)?.to_vec()));
    Ok((parse_time(at)?, fields.collect::<Result<_, DataError>>()?))
}

/// Number of a row's fields, if too many for a script.
fn excess_fields(reply: &Value) -> Option<i64> {
    match reply {
        Value::Array(parts) => match parts[..] {
            [Value::Int(fields)] => Some(fields),
            _ => None,
        },
        _ => None,
    }
}

fn parse_flag(reply: &Value) -> Result<bool, DataError> {
    match reply {
        Value::Int(1) => Ok(true),
        Value::Int(0) => Ok(false),
        _ => Err(DataError::Reply),
    }
}

fn parse_time(value: &Value) -> Result<Millis, DataError> {
    layout::parse_number("the time", parse_text(value)?.ok_or(DataError::Reply)?).map(Millis)
}

fn parse_text(value: &Value) -> Result<Option<&str>, DataError> {
    parse_bytes(value)?.map(|bytes| layout::parse_utf8("a reply", bytes)).transpose()
}

fn parse_bytes(value: &Value) -> Result<Option<&[u8]>, DataError> {
    match value {
        Value::BulkString(bytes) => Ok(Some(bytes)),
        Value::Nil => Ok(None),
        _ => Err(DataError::Reply),
    }
}
