//! Rows, claims and registrations as columns, and back.
//!
//! In: the model's values. Out: parameters of statements, as the crate's first page draws the tables; and the other way.
//!
//! Invariants:
//! - what was encoded decodes to the same; [`Version::puts`] is kept as what it is more than what the cells come to ([`moved`]), so that a put
//!   changes nothing but its cell;
//! - a row that decodes has passed [`Snapshot::checked`].

use std::collections::BTreeMap;

use quipu_model::NODE_NAME_BYTES_MAX;
use quipu_model::shared::body::{BODY_BYTES_MAX, Body, BodyError, PAGE_BYTES, Shape, without_zeros};
use quipu_model::shared::claim::CLAIM_REPLY_BYTES_MAX;
use quipu_model::shared::{
    Bodies, CellId, Claim, Held, Holder, Put, Registration, Seen, Seq, Shard, Snapshot, Spent, Stage, SwapId, Token,
    Version,
};
use quipu_model::{Epoch, Incarnation, Millis, NodeId, Writer};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, FromSqlOwned};

use crate::error::{Damaged, Failure};
use crate::number::{Bits, Number};
use crate::statements::PARTS_MAX;

/// Most bytes of all bodies beside one row: 64 of the largest.
const BODIES_BYTES_MAX: usize = 64 * BODY_BYTES_MAX;

/// Refuses what was fetched beyond the bound.
fn within<T>(what: &'static str, parts: Vec<T>) -> Result<Vec<T>, Failure> {
    if parts.len() <= PARTS_MAX { Ok(parts) } else { Err(Damaged::TooMany(what).into()) }
}

/// An epoch: 64 bits of time, 64 of the node. They compare as epochs do.
pub(crate) fn epoch(epoch: Epoch) -> Bits {
    Bits::of(epoch.millis, epoch.node.0)
}

fn epoch_of(bits: Bits) -> Epoch {
    let (millis, node) = bits.halves();
    Epoch { millis, node: NodeId(node) }
}

/// A writer: 64 bits of the node, 64 of its life.
pub(crate) fn writer(writer: Writer) -> Bits {
    Bits::of(writer.node.0, writer.incarnation.0)
}

fn writer_of(bits: Bits) -> Writer {
    let (node, incarnation) = bits.halves();
    Writer { node: NodeId(node), incarnation: Incarnation(incarnation) }
}

pub(crate) fn millis(at: Option<Millis>) -> Option<Number> {
    at.map(|Millis(at)| at.into())
}

/// What a row has of its cells, column by column.
#[derive(Default)]
pub(crate) struct Columns {
    pub(crate) writers: Vec<Bits>,
    pub(crate) shards: Vec<i32>,
    pub(crate) seqs: Vec<Option<Number>>,
    pub(crate) values: Vec<Option<Number>>,
    pub(crate) totals: Vec<Option<Number>>,
    pub(crate) closed: Vec<bool>,
    pub(crate) spent_epochs: Vec<Option<Bits>>,
    pub(crate) spent_seqs: Vec<Option<Number>>,
    pub(crate) spent_values: Vec<Option<Number>>,
    pub(crate) spent_totals: Vec<Option<Number>>,
    pub(crate) spent_closed: Vec<bool>,
    pub(crate) spent_expired: Vec<Option<Number>>,
    pub(crate) spent_at: Vec<Option<Number>>,
}

impl Columns {
    pub(crate) fn of(row: &Snapshot) -> Columns {
        let mut known: BTreeMap<CellId, (Option<Held>, Option<Spent>)> = BTreeMap::new();
        for (id, held) in &row.cells {
            known.entry(*id).or_default().0 = Some(*held);
        }
        for (id, spent) in &row.spent {
            known.entry(*id).or_default().1 = Some(*spent);
        }
        let mut columns = Columns::default();
        for (id, (held, spent)) in known {
            columns.writers.push(writer(id.writer));
            columns.shards.push(id.shard.0.into());
            columns.seqs.push(held.map(|held| held.seq.0.into()));
            columns.values.push(held.map(|held| Number(held.value)));
            columns.totals.push(held.map(|held| Number(held.total)));
            columns.closed.push(held.is_some_and(|held| held.closed));
            columns.spent_epochs.push(spent.map(|spent| epoch(spent.epoch)));
            columns.spent_seqs.push(spent.map(|spent| spent.seq.0.into()));
            columns.spent_values.push(spent.map(|spent| Number(spent.value)));
            columns.spent_totals.push(spent.map(|spent| Number(spent.total)));
            columns.spent_closed.push(spent.is_some_and(|spent| spent.closed));
            columns.spent_expired.push(spent.and_then(|spent| millis(spent.expired)));
            columns.spent_at.push(spent.map(|spent| spent.at.0.into()));
        }
        columns
    }

    /// The arrays of a row that was read; none of a counter without cells.
    fn read(row: &Row) -> Result<Columns, Failure> {
        if column::<Option<Vec<Bits>>>(row, "writers")?.is_none() {
            return Ok(Columns::default());
        }
        Ok(Columns {
            writers: within("the cells of a row", column(row, "writers")?)?,
            shards: column(row, "shards")?,
            seqs: column(row, "seqs")?,
            values: column(row, "values")?,
            totals: column(row, "totals")?,
            closed: column(row, "closed")?,
            spent_epochs: column(row, "spent_epochs")?,
            spent_seqs: column(row, "spent_seqs")?,
            spent_values: column(row, "spent_values")?,
            spent_totals: column(row, "spent_totals")?,
            spent_closed: column(row, "spent_closed")?,
            spent_expired: column(row, "spent_expired")?,
            spent_at: column(row, "spent_at")?,
        })
    }

    fn put_into(&self, row: &mut Snapshot) -> Result<(), Failure> {
        for at in 0..self.writers.len() {
            let shard = u16::try_from(self.shards[at]).map_err(|_| Damaged::Torn("a shard"))?;
            let id = CellId { writer: writer_of(self.writers[at]), shard: Shard(shard) };
            if let Some(held) = held((self.seqs[at], self.values[at], self.totals[at], self.closed[at]))? {
                row.cells.insert(id, held);
            }
            let (closed, expired, when) = (self.spent_closed[at], self.spent_expired[at], self.spent_at[at]);
            let kept = (self.spent_seqs[at], self.spent_values[at], self.spent_totals[at], closed);
            if let Some(spent) = spent(self.spent_epochs[at], kept, expired, when)? {
                row.spent.insert(id, spent);
            }
        }
        Ok(())
    }
}

/// The row and the time that a read has answered; the default row if there is none.
pub(crate) fn seen(row: &Row) -> Result<Seen, Failure> {
    let at = Millis(unsigned("the time", column(row, "at")?)?);
    let Some(born_at) = column::<Option<Number>>(row, "born_at")? else {
        return Ok(Seen { snapshot: Snapshot::default(), at });
    };
    let last: Vec<Bits> = column(row, "last")?;
    let mut snapshot = Snapshot {
        epoch: epoch_of(column(row, "epoch")?),
        base: column::<Option<Number>>(row, "base")?.map(|base| base.0),
        expires_at: some("an expiry", column(row, "expires_at")?)?,
        gone_at: some("a time", column(row, "gone_at")?)?,
        swaps: last.into_iter().map(|Bits(id)| SwapId(id)).collect(),
        ..Snapshot::default()
    };
    Columns::read(row)?.put_into(&mut snapshot)?;
    snapshot.version = Version {
        born_at: Millis(unsigned("a birth", born_at)?),
        swaps: unsigned("the number of swaps", column(row, "swaps")?)?,
        puts: unsigned("a version", column(row, "puts")?)?.wrapping_add(moved(&snapshot)),
    };
    Ok(Seen { snapshot: snapshot.checked()?, at })
}

/// The bodies that a read has answered beside the row.
pub(crate) fn bodies(row: &Row) -> Result<Bodies, Failure> {
    let mut bodies = Bodies::new();
    let Some(writers) = column::<Option<Vec<Bits>>>(row, "body_writers")? else { return Ok(bodies) };
    let writers = within("the bodies of a row", writers)?;
    let mut bytes_left = BODIES_BYTES_MAX;
    let (kinds, keys) = (column::<Vec<i32>>(row, "body_kinds")?, column::<Vec<Number>>(row, "body_keys")?);
    let lengths = column::<Vec<i32>>(row, "body_lengths")?;
    for (((writer, kind), key), length) in writers.into_iter().zip(kinds).zip(keys).zip(lengths) {
        let shape = Shape {
            kind: u8::try_from(kind).map_err(|_| Damaged::Torn("the kind of a body"))?,
            key: unsigned("the key of a body", key)?,
            length: u32::try_from(length).map_err(|_| Damaged::Torn("the length of a body"))?,
        };
        // Before there is room made for it.
        let bytes = usize::try_from(shape.length).ok().and_then(|bytes| bytes_left.checked_sub(bytes));
        bytes_left = bytes.ok_or(Damaged::TooMany("the bytes of bodies"))?;
        bodies.insert(writer_of(writer), Body::new(shape).map_err(Damaged::from)?);
    }
    let Some(writers) = column::<Option<Vec<Bits>>>(row, "page_writers")? else { return Ok(bodies) };
    let writers = within("the pages of a row", writers)?;
    let (numbers, pages) = (column::<Vec<i32>>(row, "page_numbers")?, column::<Vec<&[u8]>>(row, "page_bytes")?);
    for ((writer, number), bytes) in writers.into_iter().zip(numbers).zip(pages) {
        let body = bodies.get_mut(&writer_of(writer)).ok_or(Damaged::Torn("a page without its body"))?;
        let number = u32::try_from(number).map_err(|_| Damaged::Torn("the number of a page"))?;
        body.lay_page(number, bytes).map_err(Damaged::from)?;
    }
    Ok(bodies)
}

/// Bodies that are replaced or dropped, column by column.
#[derive(Default)]
pub(crate) struct BodyColumns {
    pub(crate) named: Vec<Bits>, // also those that are dropped
    pub(crate) writers: Vec<Bits>,
    pub(crate) kinds: Vec<i32>,
    pub(crate) keys: Vec<Number>,
    pub(crate) lengths: Vec<i32>,
    pub(crate) page_writers: Vec<Bits>,
    pub(crate) page_numbers: Vec<i32>,
    pub(crate) page_bytes: Vec<Vec<u8>>,
}

impl BodyColumns {
    pub(crate) fn of(bodies: &[(Writer, Option<Body>)]) -> Result<BodyColumns, BodyError> {
        // Of a writer that is named twice, what is said last is what stays.
        let bodies: BTreeMap<Writer, &Option<Body>> = bodies.iter().map(|(writer, body)| (*writer, body)).collect();
        let mut columns = BodyColumns::default();
        for (id, body) in bodies {
            columns.named.push(writer(id));
            let Some(Body { shape, bytes }) = body else { continue };
            columns.writers.push(writer(id));
            columns.kinds.push(shape.kind.into());
            columns.keys.push(shape.key.into());
            columns.lengths.push(i32::try_from(shape.length).map_err(|_| BodyError)?);
            for (number, page) in (0..).zip(bytes.chunks(PAGE_BYTES).map(without_zeros)) {
                if !page.is_empty() {
                    columns.page_writers.push(writer(id));
                    columns.page_numbers.push(number);
                    columns.page_bytes.push(page.to_vec());
                }
            }
        }
        Ok(columns)
    }
}

/// Bits of the number that a writer's cells weigh in a version.
const WEIGHT_MASK: u64 = (1 << 20) - 1;

/// What cells add to the version of their row, as the function `puts` of the tables has it: it rises with every put that moved one, also of a
/// cell whose seq is 0, and comes to something else for other cells.
pub(crate) fn moved(row: &Snapshot) -> u64 {
    row.cells.iter().fold(0, |sum, (CellId { writer, shard }, held)| {
        let weight = 1 + u64::from(shard.0) + ((writer.node.0 ^ writer.incarnation.0) & WEIGHT_MASK);
        sum.wrapping_add(held.seq.0.wrapping_add(1).wrapping_mul(weight))
    })
}

/// What a row has of one put's cell, and nothing else; and when.
pub(crate) fn known_of(row: &Row, put: &Put) -> Result<(Snapshot, Millis), Failure> {
    let mut known = Snapshot {
        epoch: epoch_of(column(row, "epoch")?),
        expires_at: some("an expiry", column(row, "expires_at")?)?,
        ..Snapshot::default()
    };
    let closed = |name| Ok::<_, Failure>(column::<Option<bool>>(row, name)?.unwrap_or(false));
    if let Some(held) = held((column(row, "seq")?, column(row, "value")?, column(row, "total")?, closed("closed")?))? {
        known.cells.insert(put.cell, held);
    }
    let kept = (column(row, "spent_seq")?, column(row, "spent_value")?, column(row, "spent_total")?);
    let kept = (kept.0, kept.1, kept.2, closed("spent_closed")?);
    if let Some(spent) =
        spent(column(row, "spent_epoch")?, kept, column(row, "spent_expired")?, column(row, "spent_at")?)?
    {
        known.spent.insert(put.cell, spent);
    }
    Ok((known.checked()?, Millis(unsigned("the time", column(row, "at")?)?)))
}

/// Seq, value, total, and whether it is closed.
type Said = (Option<Number>, Option<Number>, Option<Number>, bool);

fn held(said: Said) -> Result<Option<Held>, Failure> {
    match said {
        (Some(seq), Some(Number(value)), Some(Number(total)), closed) => {
            Ok(Some(Held { seq: Seq(unsigned("a seq", seq)?), value, total, closed }))
        }
        (None, None, None, false) => Ok(None),
        _ => Err(Damaged::Torn("a cell").into()),
    }
}

fn spent(
    epoch: Option<Bits>,
    kept: Said,
    expired: Option<Number>,
    at: Option<Number>,
) -> Result<Option<Spent>, Failure> {
    match (epoch, held(kept)?, at) {
        (Some(epoch), Some(Held { seq, value, total, closed }), Some(at)) => Ok(Some(Spent {
            epoch: epoch_of(epoch),
            seq,
            value,
            total,
            closed,
            expired: some("an expiry", expired)?,
            at: Millis(unsigned("a time", at)?),
        })),
        (None, None, None) if expired.is_none() => Ok(None),
        _ => Err(Damaged::Torn("a spent cell").into()),
    }
}

/// A stage, and since when.
pub(crate) fn stage(stage: Stage) -> (&'static str, Option<Number>) {
    match stage {
        Stage::Live => ("live", None),
        Stage::Retiring { since } => ("retiring", millis(Some(since))),
        Stage::Closed { since } => ("closed", millis(Some(since))),
        Stage::Folded { since } => ("folded", millis(Some(since))),
    }
}

/// A registration, or none: the registry is empty.
/// A node without a life, as it is in the table of names.
pub(crate) fn node(node: NodeId) -> Bits {
    Bits::of(node.0, 0)
}

/// A row of the table of names.
pub(crate) fn node_name(row: &Row) -> Result<(NodeId, String), Failure> {
    let name: String = column(row, "name")?;
    if name.len() > NODE_NAME_BYTES_MAX {
        return Err(Damaged::TooMany("the bytes of a node's name").into());
    }
    Ok((writer_of(column(row, "node")?).node, name))
}

pub(crate) fn registration(row: &Row) -> Result<Option<Registration>, Failure> {
    let Some(writer) = column::<Option<Bits>>(row, "writer")? else { return Ok(None) };
    let (stage, since): (String, _) = (column(row, "stage")?, some("a time", column(row, "since")?)?);
    let stage = match (stage.as_str(), since) {
        ("live", None) => Stage::Live,
        ("retiring", Some(since)) => Stage::Retiring { since },
        ("closed", Some(since)) => Stage::Closed { since },
        ("folded", Some(since)) => Stage::Folded { since },
        _ => return Err(Damaged::Word { what: "a stage", word: stage }.into()),
    };
    let holder = column::<Option<Number>>(row, "holder")?.map(|holder| unsigned("a holder", holder)).transpose()?;
    Ok(Some(Registration {
        writer: writer_of(writer),
        holder: holder.map(Holder),
        lease_until: Millis(unsigned("a lease", column(row, "lease_until")?)?),
        stage,
        version: unsigned("a version", column(row, "version")?)?,
    }))
}

/// A claim, if there is one.
pub(crate) fn claim(row: &Row, token: &Token) -> Result<Option<Claim>, Failure> {
    let Some(owner) = column::<Option<Bits>>(row, "owner")? else { return Ok(None) };
    let reply = column::<Option<&[u8]>>(row, "reply")?;
    if reply.is_some_and(|reply| reply.len() > CLAIM_REPLY_BYTES_MAX) {
        return Err(Damaged::TooMany("the bytes of a reply").into());
    }
    Ok(Some(Claim {
        token: token.clone(),
        owner: writer_of(owner),
        attempt: unsigned("an attempt", column(row, "attempt")?)?,
        payload: unsigned("a payload", column(row, "payload")?)?,
        forget_at: Millis(unsigned("a window", column(row, "forget_at")?)?),
        reply: reply.map(Into::into),
    }))
}

/// The time, in a column of this name.
pub(crate) fn time(row: &Row) -> Result<Millis, Failure> {
    unsigned("the time", column(row, "at")?).map(Millis)
}

pub(crate) fn column<'a, T: FromSql<'a>>(row: &'a Row, name: &'static str) -> Result<T, Failure> {
    row.try_get(name).map_err(|error| Damaged::Column { what: name, source: error.into() }.into())
}

/// The one column of the one row.
pub(crate) fn only<T: FromSqlOwned>(rows: &[Row]) -> Result<T, Failure> {
    let [row] = rows else { return Err(Damaged::Torn("an answer").into()) };
    row.try_get(0).map_err(|error| Damaged::Column { what: "an answer", source: error.into() }.into())
}

fn unsigned(what: &'static str, number: Number) -> Result<u64, Failure> {
    number.unsigned().map_err(|error| Damaged::Column { what, source: error.into() }.into())
}

fn some(what: &'static str, number: Option<Number>) -> Result<Option<Millis>, Failure> {
    number.map(|number| unsigned(what, number).map(Millis)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(node: u64) -> CellId {
        CellId { writer: Writer { node: NodeId(node), incarnation: Incarnation(u64::MAX) }, shard: Shard(u16::MAX) }
    }

    fn full() -> Snapshot {
        let spent = Spent {
            epoch: Epoch { millis: 7, node: NodeId(u64::MAX) },
            seq: Seq(u64::MAX),
            value: i128::MIN,
            total: i128::MAX,
            closed: true,
            expired: Some(Millis(9)),
            at: Millis(u64::MAX),
        };
        let held = Held { seq: Seq(u64::MAX), value: i128::MIN, total: 0, closed: false };
        Snapshot {
            epoch: Epoch { millis: 8, node: NodeId(0) },
            cells: [(id(0), held), (id(1), Held { closed: true, ..held })].into(),
            spent: [(id(u64::MAX), spent), (id(1), Spent { closed: false, expired: None, ..spent })].into(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn cells_decode_to_what_was_encoded() {
        let mut back = Snapshot { epoch: full().epoch, ..Snapshot::default() };
        Columns::of(&full()).put_into(&mut back).unwrap();
        assert_eq!(back, full());
    }

    #[test]
    fn cells_that_lack_a_part_are_refused() {
        let bend: [fn(&mut Columns); 8] = [
            |columns| columns.seqs[0] = None,
            |columns| columns.values[0] = None,
            |columns| columns.totals[0] = None,
            |columns| columns.spent_epochs[2] = None,
            |columns| columns.spent_seqs[2] = None,
            |columns| columns.spent_at[2] = None,
            |columns| columns.shards[1] = 1 << 16,
            |columns| columns.seqs[1] = Some(Number(-1)),
        ];
        for bend in bend {
            let mut columns = Columns::of(&full());
            bend(&mut columns);
            assert!(columns.put_into(&mut Snapshot::default()).is_err());
        }
    }

    #[test]
    fn a_version_rises_with_a_cell_whose_seq_is_0() {
        let held = Held { seq: Seq(0), value: 0, total: 0, closed: false };
        let one = Snapshot { cells: [(id(0), held)].into(), ..Snapshot::default() };
        let two = Snapshot { cells: [(id(0), held), (id(1), held)].into(), ..Snapshot::default() };
        assert!(moved(&Snapshot::default()) == 0 && 0 < moved(&one) && moved(&one) < moved(&two));
    }
}
