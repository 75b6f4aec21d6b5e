//! Implements the store port with one statement per call.
//!
//! In: calls of the port. Out: the statements' verdicts, or the model's verdict on the row that a
//! statement returned.
//!
//! Invariants:
//! - each call is one statement, and so one transaction, with three exceptions. A row that is due
//!   to expire is read twice; a put that fails for one row is split; restored claims are read in a
//!   second statement;
//! - a statement gives only the verdicts `Newest`, `Claimed` and `Restored`. The model gives every
//!   other one, from the row and the time that the statement read;
//! - damaged data in one row, or a lock on it, stops no call on another.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use quipu_model::ports::store::{
    History, NODE_NAME_BYTES_MAX, NodeNames, PUTS_MAX, PutResult, RESTORED_CLAIMS_MAX, SCAN_NAMES_MAX, check_bound,
};
use quipu_model::shared::body::{self, BodyError, StoredBody};
use quipu_model::shared::claim::{self, CLAIM_REPLY_BYTES_MAX};
use quipu_model::shared::put::judge;
use quipu_model::shared::registry::REGISTRATIONS_MAX;
use quipu_model::shared::{
    BodyPut, BodyVerdict, CellId, Claim, ClaimEnd, ClaimEndVerdict, ClaimToken, ClaimVerdict, FetchedRow, Put,
    RegisterVerdict, Registration, RestoreVerdict, RowVersion, RowWithBodies, Snapshot, SwapVerdict, Verdict,
};
use quipu_model::{Cursor, Epoch, Millis, Name, NodeId, ScanPage, Store, StoreCall, StoreFuture, Writer, WriterList};
use quipu_store_kit::{CallFailure, ConfigError, DriverThread, Options};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::OpenError;
use crate::config::Config;
use crate::error::{DataError, ROW, RowLocked};
use crate::layout::{self, BodyColumns, CellColumns};
use crate::link::Link;
use crate::number::{Bits, Number};
use crate::statements::Statements;

/// Claims with an ended window that a new claim removes: more than one, so that their number falls.
const CLAIMS_REMOVED_MAX: i32 = 4;

/// Most statements of one put: they find three failing rows among the most puts of a call.
const PUT_STATEMENTS_MAX: usize = 64;

/// Rounds of restoring claims that vanish between the statement and the read.
const RESTORE_ROUNDS_MAX: usize = 4;

/// A store on PostgreSQL.
pub struct PostgresStore {
    link: Arc<Link>,
    statements: Arc<Statements>,
    thread: DriverThread,
}

/// Checks that a URL is a valid store URL of this crate. Returns the store's location: equal for all
/// URLs of one store, and without their users and secrets.
pub fn location(url: &str) -> Result<String, ConfigError> {
    Config::new(url, Options::default()).map(|config| config.location())
}

/// Opens a store without connecting: a node starts even if the server is down. The first connection
/// creates or upgrades the tables.
pub fn open(url: &str, options: Options) -> Result<PostgresStore, OpenError> {
    let config = Config::new(url, options)?;
    let statements = Arc::new(Statements::new(&config.prefix));
    let link = Arc::new(Link::new(config)?);
    Ok(PostgresStore { link, statements, thread: DriverThread::start("quipu-postgres")? })
}

impl PostgresStore {
    /// Runs a call on the store's thread.
    fn call<'a, T: Send + 'static, F: Future<Output = Result<T, CallFailure>> + Send + 'static>(
        &'a self,
        call: StoreCall,
        work: impl FnOnce(Arc<Link>, Arc<Statements>) -> F,
    ) -> StoreFuture<'a, T> {
        let work = work(self.link.clone(), self.statements.clone());
        Box::pin(self.thread.run_call(call, work))
    }

    /// As `call`, for one counter: an error of its data names it.
    fn call_on<'a, T: Send + 'static, F: Future<Output = Result<T, CallFailure>> + Send + 'static>(
        &'a self,
        call: StoreCall,
        name: Vec<u8>,
        work: impl FnOnce(Vec<u8>, Arc<Link>, Arc<Statements>) -> F,
    ) -> StoreFuture<'a, T> {
        let work = work(name.clone(), self.link.clone(), self.statements.clone());
        let work = async move { work.await.map_err(|failure| failure.with_name(ROW, &name)) };
        Box::pin(self.thread.run_call(call, work))
    }

    /// Swaps a row, optionally together with bodies beside it.
    fn swap_as<'a>(
        &'a self,
        call: StoreCall,
        name: Name<'a>,
        version: RowVersion,
        next: Option<&'a Snapshot>,
        bodies: Option<BodyColumns>,
    ) -> StoreFuture<'a, SwapVerdict> {
        let (name, stays) = (name.bytes().to_vec(), next.is_some());
        let next = next.cloned().unwrap_or_default();
        self.call_on(call, name, move |name, link, statements| async move {
            let seen = [version.born_at.0, version.swaps, version.puts].map(Number::from);
            let (born_at, swaps) = (Number::from(next.version.born_at.0), Number::from(next.version.swaps));
            let puts = Number::from(next.version.puts.wrapping_sub(layout::cells_weight(&next)));
            let (epoch, base) = (layout::encode_epoch(next.epoch), next.base.map(Number));
            let (expires_at, gone_at) = (layout::encode_millis(next.expires_at), layout::encode_millis(next.gone_at));
            let last: Vec<Bits> = next.swaps.iter().map(|id| Bits(id.0)).collect();
            let cells = CellColumns::from_row(&next);
            let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![
                &name,
                &seen[0],
                &seen[1],
                &seen[2],
                &stays,
                &born_at,
                &swaps,
                &puts,
                &epoch,
                &base,
                &expires_at,
                &gone_at,
                &last,
                &cells.writers,
                &cells.shards,
                &cells.seqs,
                &cells.values,
                &cells.totals,
                &cells.closed,
                &cells.spent_epochs,
                &cells.spent_seqs,
                &cells.spent_values,
                &cells.spent_totals,
                &cells.spent_closed,
                &cells.spent_expired,
                &cells.spent_at,
            ];
            let rows = match &bodies {
                None => link.change(&statements.swap, &parameters).await?,
                Some(bodies) => {
                    let beside: [&(dyn ToSql + Sync); 8] = [
                        &bodies.named,
                        &bodies.writers,
                        &bodies.kinds,
                        &bodies.keys,
                        &bodies.lengths,
                        &bodies.page_writers,
                        &bodies.page_numbers,
                        &bodies.page_bytes,
                    ];
                    parameters.extend(beside);
                    link.change(&statements.swap_bodies, &parameters).await?
                }
            };
            Ok(if layout::only(&rows)? { SwapVerdict::Swapped } else { SwapVerdict::Moved })
        })
    }
}

impl Store for PostgresStore {
    fn put<'a>(&'a self, puts: &'a [(Name<'a>, Put)]) -> StoreFuture<'a, Vec<PutResult>> {
        Box::pin(async move {
            check_bound(StoreCall::Put, puts.len(), PUTS_MAX)?;
            let puts: Vec<_> = puts.iter().map(|(name, put)| (name.bytes().into(), *put)).collect();
            self.call(StoreCall::Put, |link, statements| PutProgress::new(puts).put(link, statements)).await
        })
    }

    fn read<'a>(&'a self, name: Name<'a>) -> StoreFuture<'a, FetchedRow> {
        self.call_on(StoreCall::Read, name.bytes().to_vec(), |name, link, statements| async move {
            let read = async || -> Result<FetchedRow, CallFailure> {
                let rows = link.send(&statements.read, &[&name]).await?;
                layout::decode_row(rows.first().ok_or(DataError::Incomplete("an answer"))?)
            };
            let seen = read().await?;
            if !seen.snapshot.is_due(seen.at) {
                return Ok(seen);
            }
            // A put judged before the expiry may not be committed yet. After this wait, every such
            // put is.
            link.send(&statements.wait, &[&name]).await?;
            read().await
        })
    }

    fn put_body<'a>(&'a self, name: Name<'a>, wanted: &'a BodyPut) -> StoreFuture<'a, BodyVerdict> {
        let (name, numbers): (Vec<u8>, Vec<i32>) =
            (name.bytes().to_vec(), wanted.pages.iter().map(|(page, _)| *page as i32).collect());
        let contents: Vec<Vec<u8>> = wanted.pages.iter().map(|(_, bytes)| body::trim_zeros(bytes).to_vec()).collect();
        // The verdict does not need the pages.
        let wanted = BodyPut { pages: Vec::new(), ..*wanted };
        self.call_on(StoreCall::PutBody, name, move |name, link, statements| async move {
            let Put { cell, epoch, seq, value, total } = wanted.put;
            let (writer, epoch, seq) =
                (layout::encode_writer(cell.writer), layout::encode_epoch(epoch), Number::from(seq.0));
            let (shard, from) = (i32::from(cell.shard.0), wanted.from.map(|seq| Number::from(seq.0)));
            let (kind, key) = (i32::from(wanted.shape.kind), Number::from(wanted.shape.key));
            let length = i32::try_from(wanted.shape.length).map_err(|_| CallFailure::unsent(BodyError))?;
            let (value, total) = (Number(value), Number(total));
            let rows = link
                .change(
                    &statements.put_body,
                    &[
                        &name,
                        &writer,
                        &shard,
                        &epoch,
                        &seq,
                        &value,
                        &total,
                        &from,
                        &wanted.whole,
                        &kind,
                        &key,
                        &length,
                        &numbers,
                        &contents,
                    ],
                )
                .await?;
            let Some(row) = rows.first() else { return Ok(BodyVerdict::Cell(Verdict::Newest)) };
            let (known, at) = layout::decode_put_row(row, &wanted.put)?;
            let is_in = known.cells.get(&cell).is_some_and(|row_cell| row_cell.seq == wanted.put.seq);
            match body::judge(&known, &wanted, at) {
                // The statement did not put it now. `Newest` is true only if an earlier call did.
                BodyVerdict::Cell(Verdict::Newest) if !is_in => Err(DataError::VerdictMismatch.into()),
                verdict => Ok(verdict),
            }
        })
    }

    fn read_bodies<'a>(&'a self, name: Name<'a>) -> StoreFuture<'a, RowWithBodies> {
        self.call_on(StoreCall::ReadBodies, name.bytes().to_vec(), |name, link, statements| async move {
            let read = async || -> Result<RowWithBodies, CallFailure> {
                let rows = link.send(&statements.read_bodies, &[&name]).await?;
                let row = rows.first().ok_or(DataError::Incomplete("an answer"))?;
                Ok(RowWithBodies { row: layout::decode_row(row)?, bodies: layout::decode_bodies(row)? })
            };
            let seen = read().await?;
            if !seen.row.snapshot.is_due(seen.row.at) {
                return Ok(seen);
            }
            // As in `read`.
            link.send(&statements.wait, &[&name]).await?;
            read().await
        })
    }

    fn swap<'a>(
        &'a self,
        name: Name<'a>,
        version: RowVersion,
        next: Option<&'a Snapshot>,
    ) -> StoreFuture<'a, SwapVerdict> {
        self.swap_as(StoreCall::Swap, name, version, next, None)
    }

    fn swap_bodies<'a>(
        &'a self,
        name: Name<'a>,
        version: RowVersion,
        next: &'a Snapshot,
        bodies: &'a [(Writer, Option<StoredBody>)],
    ) -> StoreFuture<'a, SwapVerdict> {
        match BodyColumns::from_bodies(bodies) {
            Ok(bodies) => self.swap_as(StoreCall::SwapBodies, name, version, Some(next), Some(bodies)),
            Err(error) => {
                Box::pin(async move { Err(CallFailure::unsent(error).into_store_error(StoreCall::SwapBodies)) })
            }
        }
    }

    fn scan<'a>(&'a self, from: Option<&'a Cursor>, names_max: usize) -> StoreFuture<'a, ScanPage> {
        Box::pin(async move {
            check_bound(StoreCall::Scan, names_max, SCAN_NAMES_MAX)?;
            let (names_max, from) = (names_max.max(1), from.map(|Cursor(last)| last.to_vec()));
            self.call(StoreCall::Scan, |link, statements| async move {
                // One name more than requested shows if there is a next page.
                let most = i64::try_from(names_max + 1).unwrap_or(i64::MAX);
                let rows = match &from {
                    Some(from) => link.send(&statements.scan_on, &[&most, from]).await?,
                    None => link.send(&statements.scan, &[&most]).await?,
                };
                let names = rows.iter().map(|row| Ok(layout::column::<&[u8]>(row, "name")?.into()));
                let mut names = names.collect::<Result<Vec<Box<[u8]>>, CallFailure>>()?;
                let more = names.len() > names_max;
                names.truncate(names_max);
                let next = names.last().filter(|_| more).map(|last| Cursor(last.clone()));
                // A name that is no valid counter name belongs to another program.
                names.retain(|name| Name::new(name).is_ok());
                Ok(ScanPage { names, next })
            })
            .await
        })
    }

    fn claim<'a>(&'a self, wanted: &'a Claim) -> StoreFuture<'a, ClaimVerdict> {
        let wanted = wanted.clone();
        self.call(StoreCall::Claim, |link, statements| async move {
            let owner = layout::encode_writer(wanted.owner);
            let [attempt, payload, forget_at] = [wanted.attempt, wanted.payload, wanted.forget_at.0].map(Number::from);
            let token = wanted.token.bytes();
            let rows = link
                .change(&statements.claim, &[&token, &owner, &attempt, &payload, &forget_at, &CLAIMS_REMOVED_MAX])
                .await?;
            let row = rows.first().ok_or(DataError::Incomplete("an answer"))?;
            if layout::column(row, "claimed")? {
                return Ok(ClaimVerdict::Claimed);
            }
            let mut known = layout::decode_claim(row, &wanted.token)?;
            let is_own =
                known.as_ref().is_some_and(|known| (known.owner, known.attempt) == (wanted.owner, wanted.attempt));
            match claim::claim(&mut known, &wanted, layout::decode_time(row)?) {
                // The statement did not record the claim.
                ClaimVerdict::Claimed if !is_own => Err(DataError::VerdictMismatch.into()),
                verdict => Ok(verdict),
            }
        })
    }

    fn end_claim<'a>(
        &'a self,
        token: &'a ClaimToken,
        owner: Writer,
        attempt: u64,
        end: &'a ClaimEnd,
    ) -> StoreFuture<'a, ClaimEndVerdict> {
        let reply = match end {
            ClaimEnd::Done(reply) => Some(reply.to_vec()),
            ClaimEnd::Released => None,
        };
        if let Err(error) = check_bound(StoreCall::EndClaim, reply.as_ref().map_or(0, Vec::len), CLAIM_REPLY_BYTES_MAX)
        {
            return Box::pin(async { Err(error) });
        }
        let (token, owner, attempt) = (token.bytes().to_vec(), layout::encode_writer(owner), Number::from(attempt));
        self.call(StoreCall::EndClaim, move |link, statements| async move {
            let rows = link.change(&statements.end_claim, &[&token, &owner, &attempt, &reply]).await?;
            Ok(if layout::only(&rows)? { ClaimEndVerdict::Ended } else { ClaimEndVerdict::NotHeld })
        })
    }

    fn restore_claims<'a>(&'a self, claims: &'a [Claim]) -> StoreFuture<'a, Vec<RestoreVerdict>> {
        Box::pin(async move {
            check_bound(StoreCall::RestoreClaims, claims.len(), RESTORED_CLAIMS_MAX)?;
            for wanted in claims {
                let bytes = wanted.reply.as_ref().map_or(0, |reply| reply.len());
                check_bound(StoreCall::RestoreClaims, bytes, CLAIM_REPLY_BYTES_MAX)?;
            }
            let claims = claims.to_vec();
            self.call(StoreCall::RestoreClaims, |link, statements| restore_claims(claims, link, statements)).await
        })
    }

    fn history(&self) -> StoreFuture<'_, History> {
        Box::pin(async move {
            let history = self.call(StoreCall::History, |link, _| async move { link.fetch_history().await }).await?;
            // Set only here: a caller that cancelled the call does not know this history.
            self.link.set_history(&history);
            Ok(history)
        })
    }

    fn writers(&self) -> StoreFuture<'_, WriterList> {
        self.call(StoreCall::Writers, |link, statements| async move {
            let rows = link.send(&statements.writers, &[]).await?;
            let at = layout::decode_time(rows.first().ok_or(DataError::Incomplete("an answer"))?)?;
            if rows.len() > REGISTRATIONS_MAX {
                return Err(DataError::TooMany("the registrations").into());
            }
            let registrations = rows.iter().filter_map(|row| layout::decode_registration(row).transpose());
            Ok(WriterList { registrations: registrations.collect::<Result<_, _>>()?, at })
        })
    }

    fn register<'a>(&'a self, version: u64, next: &'a Registration) -> StoreFuture<'a, RegisterVerdict> {
        let next = *next;
        self.call(StoreCall::Register, move |link, statements| async move {
            let (writer, seen, most) =
                (layout::encode_writer(next.writer), Number::from(version), REGISTRATIONS_MAX as i32);
            let holder = next.holder.map(|holder| Number::from(holder.0));
            let (version, lease_until) = (Number::from(next.version), Number::from(next.lease_until.0));
            let (stage, since) = layout::encode_stage(next.stage);
            let rows = link
                .send(&statements.register, &[&writer, &seen, &most, &version, &holder, &lease_until, &stage, &since])
                .await?;
            match layout::only::<String>(&rows)?.as_str() {
                "registered" => Ok(RegisterVerdict::Registered),
                "moved" => Ok(RegisterVerdict::Moved),
                "full" => Ok(RegisterVerdict::Full),
                word => Err(DataError::UnknownWord { what: "an answer", word: word.to_owned() }.into()),
            }
        })
    }

    fn unregister(&self, writer: Writer, version: u64) -> StoreFuture<'_, RegisterVerdict> {
        let (writer, version) = (layout::encode_writer(writer), Number::from(version));
        self.call(StoreCall::Unregister, move |link, statements| async move {
            let rows = link.send(&statements.unregister, &[&writer, &version]).await?;
            Ok(if rows.is_empty() { RegisterVerdict::Moved } else { RegisterVerdict::Registered })
        })
    }

    fn name_node<'a>(&'a self, node: NodeId, name: Option<&'a str>) -> StoreFuture<'a, ()> {
        if let Err(error) = check_bound(StoreCall::NameNode, name.map_or(0, str::len), NODE_NAME_BYTES_MAX) {
            return Box::pin(async { Err(error) });
        }
        let (node, name) = (layout::encode_node(node), name.map(str::to_owned));
        self.call(StoreCall::NameNode, move |link, statements| async move {
            let has_names = has_names(&link, &statements).await?;
            match name {
                Some(name) => {
                    if !has_names {
                        link.send(&statements.make_names, &[]).await?;
                    }
                    link.send(&statements.name_node, &[&node, &name]).await?;
                }
                None if has_names => {
                    link.send(&statements.unname_node, &[&node]).await?;
                }
                None => {}
            }
            Ok(())
        })
    }

    fn node_names(&self) -> StoreFuture<'_, NodeNames> {
        self.call(StoreCall::NodeNames, |link, statements| async move {
            if !has_names(&link, &statements).await? {
                return Ok(NodeNames::new());
            }
            link.send(&statements.node_names, &[]).await?.iter().map(layout::node_name).collect()
        })
    }

    fn clock(&self) -> StoreFuture<'_, Millis> {
        self.call(StoreCall::Clock, |link, statements| async move {
            let rows = link.send(&statements.clock, &[]).await?;
            layout::decode_time(rows.first().ok_or(DataError::Incomplete("an answer"))?)
        })
    }
}

/// A put call under way, with its results so far.
struct PutProgress {
    puts: Vec<(Box<[u8]>, Put)>,
    results: Vec<Option<PutResult>>,
    statements_left: usize,
    has_checked_locks: bool,
}

impl PutProgress {
    fn new(puts: Vec<(Box<[u8]>, Put)>) -> PutProgress {
        let results = puts.iter().map(|_| None).collect();
        PutProgress { puts, results, statements_left: PUT_STATEMENTS_MAX, has_checked_locks: false }
    }

    /// Returns a result per put, in the order of the call; an error if no put has a verdict and no
    /// row's data is the cause.
    async fn put(mut self, link: Arc<Link>, statements: Arc<Statements>) -> Result<Vec<PutResult>, CallFailure> {
        let mut parts: Vec<Vec<usize>> = vec![(0..self.puts.len()).collect()];
        let mut is_answered = false;
        while let Some(part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            let batch = PutBatch::from_puts(&self.puts, &part);
            self.statements_left = self.statements_left.saturating_sub(1);
            let failure = match batch.send(&link, &statements).await {
                Ok(rows) => {
                    is_answered = true;
                    let puts = batch.puts;
                    self.record_verdicts(&rows, &puts)?;
                    continue;
                }
                Err(failure) => failure,
            };
            // Each remaining part needs a statement too.
            let may_go_on = self.statements_left > parts.len() + 2;
            match failure {
                failure if failure.is_of_data() => {
                    is_answered = true;
                    match self.halves(&part).filter(|_| may_go_on) {
                        Some(halves) => parts.extend(halves),
                        None => self.fail(&part, &failure),
                    }
                }
                CallFailure::Locked(_) if may_go_on && !self.has_checked_locks => {
                    self.has_checked_locks = true;
                    let (locked, free) = self.partition_locked(&part, &link, &statements).await?;
                    if locked.is_empty() {
                        return Err(failure);
                    }
                    is_answered |= !free.is_empty();
                    self.fail(&locked, &CallFailure::Locked(Arc::new(RowLocked)));
                    parts.push(free);
                }
                failure if !is_answered => return Err(failure),
                failure => {
                    self.fail(&part, &failure);
                    let refused = failure.into_unsent();
                    for rest in parts.drain(..) {
                        self.fail(&rest, &refused);
                    }
                }
            }
        }
        let unsent = || Err(CallFailure::unsent(DataError::VerdictMismatch).into_store_error(StoreCall::Put));
        Ok(self.results.into_iter().map(|result| result.unwrap_or_else(unsent)).collect())
    }

    /// Splits the puts into two halves by counter; none if there is only one counter.
    fn halves(&self, part: &[usize]) -> Option<[Vec<usize>; 2]> {
        let names: BTreeSet<&[u8]> = part.iter().map(|&at| &*self.puts[at].0).collect();
        let middle = *names.iter().nth(names.len() / 2).filter(|_| names.len() > 1)?;
        let (first, second): (Vec<usize>, Vec<usize>) =
            part.iter().copied().partition(|&at| &*self.puts[at].0 < middle);
        Some([first, second])
    }

    /// Partitions the puts into those on rows that another session has locked, and the others.
    async fn partition_locked(
        &self,
        part: &[usize],
        link: &Link,
        statements: &Statements,
    ) -> Result<(Vec<usize>, Vec<usize>), CallFailure> {
        let names: Vec<&[u8]> = part.iter().map(|&at| &*self.puts[at].0).collect();
        let rows = link.send(&statements.locked, &[&names]).await?;
        let locked = rows.iter().map(|row| layout::column::<&[u8]>(row, "name"));
        let locked = locked.collect::<Result<BTreeSet<_>, _>>()?;
        Ok(part.iter().copied().partition(|&at| locked.contains(&*self.puts[at].0)))
    }

    fn fail(&mut self, part: &[usize], failure: &CallFailure) {
        for &at in part {
            let failure = failure.clone().with_name(ROW, &self.puts[at].0);
            self.results[at] = Some(Err(failure.into_store_error(StoreCall::Put)));
        }
    }

    /// Records `Newest` for every put that the statement did not return, and the model's verdict on
    /// the rest.
    fn record_verdicts(&mut self, rows: &[Row], puts: &[(usize, Put)]) -> Result<(), CallFailure> {
        for (at, _) in puts {
            self.results[*at] = Some(Ok(Verdict::Newest));
        }
        for row in rows {
            let number = usize::try_from(layout::column::<i32>(row, "put")?).ok();
            let number = number.and_then(|number| number.checked_sub(1));
            let (at, put) =
                number.and_then(|number| puts.get(number)).ok_or(DataError::Incomplete("the number of a put"))?;
            let verdict = layout::decode_put_row(row, put).and_then(|(known, time)| match judge(&known, put, time) {
                // The statement did not put it, so `Newest` would be false.
                Verdict::Newest => Err(DataError::VerdictMismatch.into()),
                verdict => Ok(verdict),
            });
            self.results[*at] = Some(
                verdict.map_err(|failure| failure.with_name(ROW, &self.puts[*at].0).into_store_error(StoreCall::Put)),
            );
        }
        Ok(())
    }
}

/// One put of many cells, as arrays: each name once, and cells in the lock order of all batches.
struct PutBatch<'p> {
    names: Vec<&'p [u8]>,
    first_epochs: Vec<Bits>, // the epoch of the first put of each name
    counts: Vec<i32>,        // puts of each round
    name_numbers: Vec<i32>,  // the number of each put's name
    puts: Vec<(usize, Put)>, // with each put's index in the call
}

impl<'p> PutBatch<'p> {
    /// Builds a batch from the puts of a call at these indices.
    fn from_puts(wanted: &'p [(Box<[u8]>, Put)], part: &[usize]) -> PutBatch<'p> {
        let mut first_epochs: BTreeMap<&[u8], Epoch> = BTreeMap::new();
        for &index in part {
            let (name, put) = &wanted[index];
            first_epochs.entry(name).or_insert(put.epoch);
        }
        let numbers: HashMap<&[u8], i32> = first_epochs.keys().copied().zip(1..).collect();
        // A statement changes a row once, so the second put of a cell waits for a second round.
        let mut cell_rounds: HashMap<(i32, CellId), usize> = HashMap::with_capacity(part.len());
        let mut puts: Vec<(usize, i32, usize, Put)> = Vec::with_capacity(part.len());
        let mut counts = Vec::new();
        for &index in part {
            let (name, put) = &wanted[index];
            let number = numbers[&**name];
            let rounds = cell_rounds.entry((number, put.cell)).or_default();
            puts.push((*rounds, number, index, *put));
            if counts.len() == *rounds {
                counts.push(0);
            }
            counts[*rounds] += 1;
            *rounds += 1;
        }
        puts.sort_unstable_by_key(|(round, number, _, put)| (*round, *number, put.cell));
        PutBatch {
            names: first_epochs.keys().copied().collect(),
            first_epochs: first_epochs.values().map(|first| layout::encode_epoch(*first)).collect(),
            counts,
            name_numbers: puts.iter().map(|(_, number, ..)| *number).collect(),
            puts: puts.into_iter().map(|(_, _, index, put)| (index, put)).collect(),
        }
    }

    async fn send(&self, link: &Link, statements: &Statements) -> Result<Vec<Row>, CallFailure> {
        let PutBatch { names, first_epochs, counts, name_numbers, puts } = self;
        let puts = puts.iter().map(|(_, put)| put);
        let writers: Vec<Bits> = puts.clone().map(|put| layout::encode_writer(put.cell.writer)).collect();
        let shards: Vec<i32> = puts.clone().map(|put| put.cell.shard.0.into()).collect();
        let epochs: Vec<Bits> = puts.clone().map(|put| layout::encode_epoch(put.epoch)).collect();
        let seqs: Vec<Number> = puts.clone().map(|put| put.seq.0.into()).collect();
        let values: Vec<Number> = puts.clone().map(|put| Number(put.value)).collect();
        let totals: Vec<Number> = puts.map(|put| Number(put.total)).collect();
        let parameters: [&(dyn ToSql + Sync); 10] =
            [names, first_epochs, counts, name_numbers, &writers, &shards, &epochs, &seqs, &values, &totals];
        link.change(&statements.put, &parameters).await
    }
}

/// Restores claims: one statement inserts the absent ones; the model judges the others from a read.
async fn restore_claims(
    claims: Vec<Claim>,
    link: Arc<Link>,
    statements: Arc<Statements>,
) -> Result<Vec<RestoreVerdict>, CallFailure> {
    let mut verdicts: Vec<Option<RestoreVerdict>> = vec![None; claims.len()];
    for _ in 0..RESTORE_ROUNDS_MAX {
        // One statement inserts each token at most once.
        let mut wanted: BTreeMap<&[u8], usize> = BTreeMap::new();
        for (at, claim) in claims.iter().enumerate().filter(|(at, _)| verdicts[*at].is_none()) {
            wanted.entry(claim.token.bytes()).or_insert(at);
        }
        if wanted.is_empty() {
            break;
        }
        let tokens: Vec<&[u8]> = wanted.keys().copied().collect();
        let these = wanted.values().map(|&at| &claims[at]);
        let owners: Vec<Bits> = these.clone().map(|claim| layout::encode_writer(claim.owner)).collect();
        let attempts: Vec<Number> = these.clone().map(|claim| claim.attempt.into()).collect();
        let payloads: Vec<Number> = these.clone().map(|claim| claim.payload.into()).collect();
        let ends: Vec<Number> = these.clone().map(|claim| claim.forget_at.0.into()).collect();
        let replies: Vec<Option<&[u8]>> = these.map(|claim| claim.reply.as_deref()).collect();
        let parameters: [&(dyn ToSql + Sync); 6] = [&tokens, &owners, &attempts, &payloads, &ends, &replies];
        for row in link.change(&statements.restore_claims, &parameters).await? {
            let at = wanted.get(layout::column::<&[u8]>(&row, "token")?).ok_or(DataError::Incomplete("an answer"))?;
            verdicts[*at] = Some(RestoreVerdict::Restored);
        }
        let mut there: HashMap<Vec<u8>, Row> = HashMap::with_capacity(tokens.len());
        for row in link.send(&statements.read_claims, &[&tokens]).await? {
            there.insert(layout::column::<&[u8]>(&row, "token")?.to_vec(), row);
        }
        for (at, claim) in claims.iter().enumerate().filter(|(at, _)| verdicts[*at].is_none()).collect::<Vec<_>>() {
            let row = there.get(claim.token.bytes()).ok_or(DataError::Incomplete("an answer"))?;
            verdicts[at] = match layout::decode_claim(row, &claim.token) {
                Ok(mut known) => match claim::restore(&mut known, claim, layout::decode_time(row)?) {
                    // Only the statement restores: retry in the next round.
                    RestoreVerdict::Restored => None,
                    verdict => Some(verdict),
                },
                // That token cannot be claimed, and must not stop the other claims from being
                // restored.
                Err(CallFailure::DataDamaged(_)) => Some(RestoreVerdict::Conflict),
                Err(failure) => return Err(failure),
            };
        }
    }
    verdicts.into_iter().map(|verdict| verdict.ok_or(DataError::VerdictMismatch.into())).collect()
}

/// Returns true if the table of names exists: a store of older programs has none.
async fn has_names(link: &Link, statements: &Statements) -> Result<bool, CallFailure> {
    let rows = link.send(&statements.has_names, &[]).await?;
    Ok(rows.first().is_some_and(|row| row.try_get("there").unwrap_or(false)))
}
