//! The port, on PostgreSQL.
//!
//! In: calls of the port. Out: what the statements answer, and where they only hand back what they have, what the model says of it.
//!
//! Invariants:
//! - each call is one statement, and so one transaction; only a row that is due is read twice;
//! - a verdict is the statement's only if it is `Newest` or `Claimed`; every other one is the model's, on what the statement saw, at the time it saw it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use quipu_model::ports::store::{NODE_NAME_BYTES_MAX, NodeNames, PUTS_MAX, SCAN_NAMES_MAX, within};
use quipu_model::shared::body::{self, Body, BodyError};
use quipu_model::shared::claim::{self, CLAIM_REPLY_BYTES_MAX};
use quipu_model::shared::put::judge;
use quipu_model::shared::registry::REGISTRATIONS_MAX;
use quipu_model::shared::{
    BodyPut, BodyVerdict, CellId, Claim, ClaimEnd, ClaimVerdict, EndVerdict, Put, RegisterVerdict, Registration, Seen,
    SeenBodies, Snapshot, SwapVerdict, Token, Verdict, Version,
};
use quipu_model::{Answer, Call, Cursor, Epoch, Millis, Name, NodeId, Page, Store, Writer, Writers};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::OpenError;
use crate::config::{Config, ConfigError, Options};
use crate::error::{Damaged, Failure};
use crate::layout::{self, BodyColumns, Columns};
use crate::link::Link;
use crate::number::{Bits, Number};
use crate::runtime::Runtime;
use crate::statements::Statements;

/// How many claims whose windows are over a new one removes: more than one, so that they become fewer.
const CLAIMS_REMOVED_MAX: i32 = 4;

/// A store on PostgreSQL.
pub struct PostgresStore {
    link: Arc<Link>,
    statements: Arc<Statements>,
    runtime: Runtime,
}

/// Whether a URL is one of ours.
pub fn check(url: &str) -> Result<(), ConfigError> {
    Config::new(url, Options::default()).map(drop)
}

/// Opens a store. Nothing is connected yet: a server that is down is no reason not to start. The first connection makes the tables, or brings
/// them up.
pub fn open(url: &str, options: Options) -> Result<PostgresStore, OpenError> {
    let config = Config::new(url, options)?;
    let statements = Arc::new(Statements::new(&config.prefix));
    let link = Arc::new(Link::new(config)?);
    Ok(PostgresStore { link, statements, runtime: Runtime::start()? })
}

impl PostgresStore {
    /// Runs a call on the store's thread.
    fn call<'a, T: Send + 'static, F: Future<Output = Result<T, Failure>> + Send + 'static>(
        &'a self,
        call: Call,
        work: impl FnOnce(Arc<Link>, Arc<Statements>) -> F,
    ) -> Answer<'a, T> {
        let work = work(self.link.clone(), self.statements.clone());
        Box::pin(async move { self.runtime.run(work).await.map_err(|failure| failure.of(call)) })
    }

    /// Swaps a row, perhaps together with bodies beside it.
    fn swap_as<'a>(
        &'a self,
        call: Call,
        name: Name<'a>,
        version: Version,
        next: Option<&'a Snapshot>,
        bodies: Option<BodyColumns>,
    ) -> Answer<'a, SwapVerdict> {
        let (name, stays) = (name.bytes().to_vec(), next.is_some());
        let next = next.cloned().unwrap_or_default();
        self.call(call, move |link, statements| async move {
            let seen = [version.born_at.0, version.swaps, version.puts].map(Number::from);
            let (born_at, swaps) = (Number::from(next.version.born_at.0), Number::from(next.version.swaps));
            let puts = Number::from(next.version.puts.wrapping_sub(layout::moved(&next)));
            let (epoch, base) = (layout::epoch(next.epoch), next.base.map(Number));
            let (expires_at, gone_at) = (layout::millis(next.expires_at), layout::millis(next.gone_at));
            let last: Vec<Bits> = next.swaps.iter().map(|id| Bits(id.0)).collect();
            let cells = Columns::of(&next);
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
                None => link.send(&statements.swap, &parameters).await?,
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
                    link.send(&statements.swap_bodies, &parameters).await?
                }
            };
            Ok(if layout::only(&rows)? { SwapVerdict::Swapped } else { SwapVerdict::Moved })
        })
    }
}

impl Store for PostgresStore {
    fn put<'a>(&'a self, puts: &'a [(Name<'a>, Put)]) -> Answer<'a, Vec<Verdict>> {
        Box::pin(async move {
            within(Call::Put, puts.len(), PUTS_MAX)?;
            if puts.is_empty() {
                return Ok(Vec::new());
            }
            let batch = Batch::of(puts);
            self.call(Call::Put, |link, statements| async move {
                let rows = batch.send(&link, &statements).await?;
                verdicts(&rows, &batch.puts)
            })
            .await
        })
    }

    fn read<'a>(&'a self, name: Name<'a>) -> Answer<'a, Seen> {
        let name = name.bytes().to_vec();
        self.call(Call::Read, |link, statements| async move {
            let read = async || -> Result<Seen, Failure> {
                let rows = link.send(&statements.read, &[&name]).await?;
                layout::seen(rows.first().ok_or(Damaged::Torn("an answer"))?)
            };
            let seen = read().await?;
            if !seen.snapshot.due(seen.at) {
                return Ok(seen);
            }
            // A put may have been judged before the row's time was over, and not be in yet. After this, none is.
            link.send(&statements.wait, &[&name]).await?;
            read().await
        })
    }

    fn put_body<'a>(&'a self, name: Name<'a>, asked: &'a BodyPut) -> Answer<'a, BodyVerdict> {
        let (name, numbers): (Vec<u8>, Vec<i32>) =
            (name.bytes().to_vec(), asked.pages.iter().map(|(page, _)| *page as i32).collect());
        let contents: Vec<Vec<u8>> = asked.pages.iter().map(|(_, bytes)| body::without_zeros(bytes).to_vec()).collect();
        // The judge has no use for the pages.
        let asked = BodyPut { pages: Vec::new(), ..*asked };
        self.call(Call::PutBody, move |link, statements| async move {
            let Put { cell, epoch, seq, value, total } = asked.put;
            let (writer, epoch, seq) = (layout::writer(cell.writer), layout::epoch(epoch), Number::from(seq.0));
            let (shard, from) = (i32::from(cell.shard.0), asked.from.map(|seq| Number::from(seq.0)));
            let (kind, key) = (i32::from(asked.shape.kind), Number::from(asked.shape.key));
            let length = i32::try_from(asked.shape.length).map_err(|_| Failure::unsent(BodyError))?;
            let (value, total) = (Number(value), Number(total));
            let rows = link
                .send(
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
                        &asked.whole,
                        &kind,
                        &key,
                        &length,
                        &numbers,
                        &contents,
                    ],
                )
                .await?;
            let Some(row) = rows.first() else { return Ok(BodyVerdict::Told(Verdict::Newest)) };
            let (_, _, known, at) = layout::known_of(row, &[(0, asked.put)])?;
            let is_in = known.cells.get(&cell).is_some_and(|held| held.seq == asked.put.seq);
            match body::judge(&known, &asked, at) {
                // It was not put now, so it was before, or nothing may say so.
                BodyVerdict::Told(Verdict::Newest) if !is_in => Err(Damaged::Verdict.into()),
                verdict => Ok(verdict),
            }
        })
    }

    fn read_bodies<'a>(&'a self, name: Name<'a>) -> Answer<'a, SeenBodies> {
        let name = name.bytes().to_vec();
        self.call(Call::ReadBodies, |link, statements| async move {
            let read = async || -> Result<SeenBodies, Failure> {
                let rows = link.send(&statements.read_bodies, &[&name]).await?;
                let row = rows.first().ok_or(Damaged::Torn("an answer"))?;
                Ok(SeenBodies { seen: layout::seen(row)?, bodies: layout::bodies(row)? })
            };
            let seen = read().await?;
            if !seen.seen.snapshot.due(seen.seen.at) {
                return Ok(seen);
            }
            // As in `read`.
            link.send(&statements.wait, &[&name]).await?;
            read().await
        })
    }

    fn swap<'a>(&'a self, name: Name<'a>, version: Version, next: Option<&'a Snapshot>) -> Answer<'a, SwapVerdict> {
        self.swap_as(Call::Swap, name, version, next, None)
    }

    fn swap_bodies<'a>(
        &'a self,
        name: Name<'a>,
        version: Version,
        next: &'a Snapshot,
        bodies: &'a [(Writer, Option<Body>)],
    ) -> Answer<'a, SwapVerdict> {
        match BodyColumns::of(bodies) {
            Ok(bodies) => self.swap_as(Call::SwapBodies, name, version, Some(next), Some(bodies)),
            Err(error) => Box::pin(async move { Err(Failure::unsent(error).of(Call::SwapBodies)) }),
        }
    }

    fn scan<'a>(&'a self, from: Option<&'a Cursor>, names_max: usize) -> Answer<'a, Page> {
        Box::pin(async move {
            within(Call::Scan, names_max, SCAN_NAMES_MAX)?;
            let (names_max, from) = (names_max.max(1), from.map(|Cursor(last)| last.to_vec()));
            self.call(Call::Scan, |link, statements| async move {
                // One more than is asked for tells whether there is more.
                let most = i64::try_from(names_max + 1).unwrap_or(i64::MAX);
                let rows = match &from {
                    Some(from) => link.send(&statements.scan_on, &[&most, from]).await?,
                    None => link.send(&statements.scan, &[&most]).await?,
                };
                let names = rows.iter().map(|row| Ok(layout::column::<&[u8]>(row, "name")?.into()));
                let mut names = names.collect::<Result<Vec<Box<[u8]>>, Failure>>()?;
                let more = names.len() > names_max;
                names.truncate(names_max);
                let next = names.last().filter(|_| more).map(|last| Cursor(last.clone()));
                Ok(Page { names, next })
            })
            .await
        })
    }

    fn claim<'a>(&'a self, asked: &'a Claim) -> Answer<'a, ClaimVerdict> {
        let asked = asked.clone();
        self.call(Call::Claim, |link, statements| async move {
            let owner = layout::writer(asked.owner);
            let [attempt, payload, forget_at] = [asked.attempt, asked.payload, asked.forget_at.0].map(Number::from);
            let token = asked.token.bytes();
            let rows = link
                .send(&statements.claim, &[&token, &owner, &attempt, &payload, &forget_at, &CLAIMS_REMOVED_MAX])
                .await?;
            let row = rows.first().ok_or(Damaged::Torn("an answer"))?;
            if layout::column(row, "claimed")? {
                return Ok(ClaimVerdict::Claimed);
            }
            let mut known = layout::claim(row, &asked.token)?;
            Ok(claim::claim(&mut known, &asked, layout::time(row)?))
        })
    }

    fn end_claim<'a>(
        &'a self,
        token: &'a Token,
        owner: Writer,
        attempt: u64,
        end: &'a ClaimEnd,
    ) -> Answer<'a, EndVerdict> {
        let reply = match end {
            ClaimEnd::Done(reply) => Some(reply.to_vec()),
            ClaimEnd::GivenBack => None,
        };
        if let Err(error) = within(Call::EndClaim, reply.as_ref().map_or(0, Vec::len), CLAIM_REPLY_BYTES_MAX) {
            return Box::pin(async { Err(error) });
        }
        let (token, owner, attempt) = (token.bytes().to_vec(), layout::writer(owner), Number::from(attempt));
        self.call(Call::EndClaim, move |link, statements| async move {
            let rows = link.send(&statements.end_claim, &[&token, &owner, &attempt, &reply]).await?;
            Ok(if layout::only(&rows)? { EndVerdict::Ended } else { EndVerdict::NotHeld })
        })
    }

    fn writers(&self) -> Answer<'_, Writers> {
        self.call(Call::Writers, |link, statements| async move {
            let rows = link.send(&statements.writers, &[]).await?;
            let at = layout::time(rows.first().ok_or(Damaged::Torn("an answer"))?)?;
            let registrations = rows.iter().filter_map(|row| layout::registration(row).transpose());
            Ok(Writers { registrations: registrations.collect::<Result<_, _>>()?, at })
        })
    }

    fn register<'a>(&'a self, version: u64, next: &'a Registration) -> Answer<'a, RegisterVerdict> {
        let next = *next;
        self.call(Call::Register, move |link, statements| async move {
            let (writer, seen, most) = (layout::writer(next.writer), Number::from(version), REGISTRATIONS_MAX as i32);
            let holder = next.holder.map(|holder| Number::from(holder.0));
            let (version, lease_until) = (Number::from(next.version), Number::from(next.lease_until.0));
            let (stage, since) = layout::stage(next.stage);
            let rows = link
                .send(&statements.register, &[&writer, &seen, &most, &version, &holder, &lease_until, &stage, &since])
                .await?;
            match layout::only::<String>(&rows)?.as_str() {
                "registered" => Ok(RegisterVerdict::Registered),
                "moved" => Ok(RegisterVerdict::Moved),
                "full" => Ok(RegisterVerdict::Full),
                word => Err(Damaged::Word { what: "an answer", word: word.to_owned() }.into()),
            }
        })
    }

    fn unregister(&self, writer: Writer, version: u64) -> Answer<'_, RegisterVerdict> {
        let (writer, version) = (layout::writer(writer), Number::from(version));
        self.call(Call::Unregister, move |link, statements| async move {
            let rows = link.send(&statements.unregister, &[&writer, &version]).await?;
            Ok(if rows.is_empty() { RegisterVerdict::Moved } else { RegisterVerdict::Registered })
        })
    }

    fn name_node<'a>(&'a self, node: NodeId, name: Option<&'a str>) -> Answer<'a, ()> {
        if let Err(error) = within(Call::NameNode, name.map_or(0, str::len), NODE_NAME_BYTES_MAX) {
            return Box::pin(async { Err(error) });
        }
        let (node, name) = (layout::node(node), name.map(str::to_owned));
        self.call(Call::NameNode, move |link, statements| async move {
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

    fn node_names(&self) -> Answer<'_, NodeNames> {
        self.call(Call::NodeNames, |link, statements| async move {
            if !has_names(&link, &statements).await? {
                return Ok(NodeNames::new());
            }
            link.send(&statements.node_names, &[]).await?.iter().map(layout::node_name).collect()
        })
    }

    fn clock(&self) -> Answer<'_, Millis> {
        self.call(Call::Clock, |link, statements| async move {
            let rows = link.send(&statements.clock, &[]).await?;
            layout::time(rows.first().ok_or(Damaged::Torn("an answer"))?)
        })
    }
}

/// One put of many cells, as arrays: names once each, and cells in the order in which every batch takes its locks.
struct Batch {
    names: Vec<Vec<u8>>,
    firsts: Vec<Bits>,       // the epoch of the first put of each name
    counts: Vec<i32>,        // puts of each round
    which: Vec<i32>,         // the number of each put's name
    puts: Vec<(usize, Put)>, // where in the call each stands
}

impl Batch {
    fn of(asked: &[(Name<'_>, Put)]) -> Batch {
        let mut firsts: BTreeMap<&[u8], Epoch> = BTreeMap::new();
        for (name, put) in asked {
            firsts.entry(name.bytes()).or_insert(put.epoch);
        }
        let numbers: HashMap<&[u8], i32> = firsts.keys().copied().zip(1..).collect();
        // A statement changes a row once, so the second put of a cell waits for a second round.
        let mut said: HashMap<(i32, CellId), usize> = HashMap::with_capacity(asked.len());
        let mut puts: Vec<(usize, i32, usize, Put)> = Vec::with_capacity(asked.len());
        let mut counts = Vec::new();
        for (place, (name, put)) in asked.iter().enumerate() {
            let number = numbers[name.bytes()];
            let rounds = said.entry((number, put.cell)).or_default();
            puts.push((*rounds, number, place, *put));
            if counts.len() == *rounds {
                counts.push(0);
            }
            counts[*rounds] += 1;
            *rounds += 1;
        }
        puts.sort_unstable_by_key(|(round, number, _, put)| (*round, *number, put.cell));
        Batch {
            names: firsts.keys().map(|name| name.to_vec()).collect(),
            firsts: firsts.values().map(|first| layout::epoch(*first)).collect(),
            counts,
            which: puts.iter().map(|(_, number, ..)| *number).collect(),
            puts: puts.into_iter().map(|(_, _, place, put)| (place, put)).collect(),
        }
    }

    async fn send(&self, link: &Link, statements: &Statements) -> Result<Vec<Row>, Failure> {
        let Batch { names, firsts, counts, which, puts } = self;
        let puts = puts.iter().map(|(_, put)| put);
        let writers: Vec<Bits> = puts.clone().map(|put| layout::writer(put.cell.writer)).collect();
        let shards: Vec<i32> = puts.clone().map(|put| put.cell.shard.0.into()).collect();
        let epochs: Vec<Bits> = puts.clone().map(|put| layout::epoch(put.epoch)).collect();
        let seqs: Vec<Number> = puts.clone().map(|put| put.seq.0.into()).collect();
        let values: Vec<Number> = puts.clone().map(|put| Number(put.value)).collect();
        let totals: Vec<Number> = puts.map(|put| Number(put.total)).collect();
        link.send(&statements.put, &[names, firsts, counts, which, &writers, &shards, &epochs, &seqs, &values, &totals])
            .await
    }
}

/// A verdict per put, in the order of the call: `Newest` of all that the statement said nothing of.
fn verdicts(rows: &[Row], puts: &[(usize, Put)]) -> Result<Vec<Verdict>, Failure> {
    let mut verdicts = vec![Verdict::Newest; puts.len()];
    for row in rows {
        let (place, put, known, at) = layout::known_of(row, puts)?;
        verdicts[place] = match judge(&known, &put, at) {
            // It was not put, so nothing may say so.
            Verdict::Newest => return Err(Damaged::Verdict.into()),
            verdict => verdict,
        };
    }
    Ok(verdicts)
}

/// Whether the table of names is there: a store of older programs has none.
async fn has_names(link: &Link, statements: &Statements) -> Result<bool, Failure> {
    let rows = link.send(&statements.has_names, &[]).await?;
    Ok(rows.first().is_some_and(|row| row.try_get("there").unwrap_or(false)))
}
