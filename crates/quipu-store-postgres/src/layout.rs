//! Encodes rows, claims and registrations as columns, and decodes them.
//!
//! In: the model's values. Out: parameters of statements, as in the tables of the crate's
//! documentation; and the reverse.
//!
//! Invariants:
//! - decoding an encoded value returns an equal value. [`RowVersion::puts`] is stored as its excess
//!   over the weight of the cells ([`cells_weight`]), so that a put changes nothing but its cell;
//! - a decoded row has passed [`Snapshot::checked`].

use std::collections::BTreeMap;

use quipu_model::NODE_NAME_BYTES_MAX;
use quipu_model::shared::body::{BODY_BYTES_MAX, BodyError, BodyShape, PAGE_BYTES, StoredBody, trim_zeros};
use quipu_model::shared::claim::CLAIM_REPLY_BYTES_MAX;
use quipu_model::shared::{
    Bodies, CellId, Claim, ClaimToken, FetchedRow, Holder, Put, Registration, RowCell, RowVersion, Seq, Shard,
    Snapshot, SpentCell, SwapId, WriterStage,
};
use quipu_model::{Epoch, Incarnation, Millis, NodeId, Writer};
use quipu_store_kit::CallFailure;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, FromSqlOwned};

use crate::error::DataError;
use crate::number::{Bits, Number};
use crate::statements::PARTS_MAX;

/// Most bytes of all bodies of one row: 64 of the largest.
const BODIES_BYTES_MAX: usize = 64 * BODY_BYTES_MAX;

/// Refuses more parts than the bound.
fn within<T>(what: &'static str, parts: Vec<T>) -> Result<Vec<T>, CallFailure> {
    if parts.len() <= PARTS_MAX { Ok(parts) } else { Err(DataError::TooMany(what).into()) }
}

/// Encodes an epoch: 64 bits of time, 64 of the node. The bits compare as epochs do.
pub(crate) fn encode_epoch(epoch: Epoch) -> Bits {
    Bits::from_halves(epoch.millis, epoch.node.0)
}

fn decode_epoch(bits: Bits) -> Epoch {
    let (millis, node) = bits.halves();
    Epoch { millis, node: NodeId(node) }
}

/// Encodes a writer: 64 bits of the node, 64 of the incarnation.
pub(crate) fn encode_writer(writer: Writer) -> Bits {
    Bits::from_halves(writer.node.0, writer.incarnation.0)
}

fn decode_writer(bits: Bits) -> Writer {
    let (node, incarnation) = bits.halves();
    Writer { node: NodeId(node), incarnation: Incarnation(incarnation) }
}

pub(crate) fn encode_millis(at: Option<Millis>) -> Option<Number> {
    at.map(|Millis(at)| at.into())
}

/// A row's cells, column by column.
#[derive(Default)]
pub(crate) struct CellColumns {
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

impl CellColumns {
    pub(crate) fn from_row(row: &Snapshot) -> CellColumns {
        let mut known: BTreeMap<CellId, (Option<RowCell>, Option<SpentCell>)> = BTreeMap::new();
        for (id, row_cell) in &row.cells {
            known.entry(*id).or_default().0 = Some(*row_cell);
        }
        for (id, spent) in &row.spent {
            known.entry(*id).or_default().1 = Some(*spent);
        }
        let mut columns = CellColumns::default();
        for (id, (row_cell, spent)) in known {
            columns.writers.push(encode_writer(id.writer));
            columns.shards.push(id.shard.0.into());
            columns.seqs.push(row_cell.map(|row_cell| row_cell.seq.0.into()));
            columns.values.push(row_cell.map(|row_cell| Number(row_cell.value)));
            columns.totals.push(row_cell.map(|row_cell| Number(row_cell.total)));
            columns.closed.push(row_cell.is_some_and(|row_cell| row_cell.closed));
            columns.spent_epochs.push(spent.map(|spent| encode_epoch(spent.epoch)));
            columns.spent_seqs.push(spent.map(|spent| spent.seq.0.into()));
            columns.spent_values.push(spent.map(|spent| Number(spent.value)));
            columns.spent_totals.push(spent.map(|spent| Number(spent.total)));
            columns.spent_closed.push(spent.is_some_and(|spent| spent.closed));
            columns.spent_expired.push(spent.and_then(|spent| encode_millis(spent.expired)));
            columns.spent_at.push(spent.map(|spent| spent.at.0.into()));
        }
        columns
    }

    /// Decodes the arrays of a row; empty for a counter without cells.
    fn decode(row: &Row) -> Result<CellColumns, CallFailure> {
        if column::<Option<Vec<Bits>>>(row, "writers")?.is_none() {
            return Ok(CellColumns::default());
        }
        Ok(CellColumns {
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

    fn put_into(&self, row: &mut Snapshot) -> Result<(), CallFailure> {
        for at in 0..self.writers.len() {
            let shard = u16::try_from(self.shards[at]).map_err(|_| DataError::Incomplete("a shard"))?;
            let id = CellId { writer: decode_writer(self.writers[at]), shard: Shard(shard) };
            if let Some(row_cell) = decode_cell((self.seqs[at], self.values[at], self.totals[at], self.closed[at]))? {
                row.cells.insert(id, row_cell);
            }
            let (closed, expired, when) = (self.spent_closed[at], self.spent_expired[at], self.spent_at[at]);
            let spent_parts = (self.spent_seqs[at], self.spent_values[at], self.spent_totals[at], closed);
            if let Some(spent) = decode_spent_cell(self.spent_epochs[at], spent_parts, expired, when)? {
                row.spent.insert(id, spent);
            }
        }
        Ok(())
    }
}

/// Decodes a row and the time from a read's answer; the default row if there is none.
pub(crate) fn decode_row(row: &Row) -> Result<FetchedRow, CallFailure> {
    let at = Millis(unsigned("the time", column(row, "at")?)?);
    let Some(born_at) = column::<Option<Number>>(row, "born_at")? else {
        return Ok(FetchedRow { snapshot: Snapshot::default(), at });
    };
    let last: Vec<Bits> = column(row, "last")?;
    let mut snapshot = Snapshot {
        epoch: decode_epoch(column(row, "epoch")?),
        base: column::<Option<Number>>(row, "base")?.map(|base| base.0),
        expires_at: optional_millis("an expiry", column(row, "expires_at")?)?,
        gone_at: optional_millis("a time", column(row, "gone_at")?)?,
        swaps: last.into_iter().map(|Bits(id)| SwapId(id)).collect(),
        ..Snapshot::default()
    };
    CellColumns::decode(row)?.put_into(&mut snapshot)?;
    snapshot.version = RowVersion {
        born_at: Millis(unsigned("a birth", born_at)?),
        swaps: unsigned("the number of swaps", column(row, "swaps")?)?,
        puts: unsigned("a version", column(row, "puts")?)?.wrapping_add(cells_weight(&snapshot)),
    };
    Ok(FetchedRow { snapshot: snapshot.checked()?, at })
}

/// Decodes the bodies from a read's answer.
pub(crate) fn decode_bodies(row: &Row) -> Result<Bodies, CallFailure> {
    let mut bodies = Bodies::new();
    let Some(writers) = column::<Option<Vec<Bits>>>(row, "body_writers")? else { return Ok(bodies) };
    let writers = within("the bodies of a row", writers)?;
    let mut bytes_left = BODIES_BYTES_MAX;
    let (kinds, keys) = (column::<Vec<i32>>(row, "body_kinds")?, column::<Vec<Number>>(row, "body_keys")?);
    let lengths = column::<Vec<i32>>(row, "body_lengths")?;
    for (((writer, kind), key), length) in writers.into_iter().zip(kinds).zip(keys).zip(lengths) {
        let shape = BodyShape {
            kind: u8::try_from(kind).map_err(|_| DataError::Incomplete("the kind of a body"))?,
            key: unsigned("the key of a body", key)?,
            length: u32::try_from(length).map_err(|_| DataError::Incomplete("the length of a body"))?,
        };
        // Check the bound before allocating.
        let bytes = usize::try_from(shape.length).ok().and_then(|bytes| bytes_left.checked_sub(bytes));
        bytes_left = bytes.ok_or(DataError::TooMany("the bytes of bodies"))?;
        bodies.insert(decode_writer(writer), StoredBody::new(shape).map_err(DataError::from)?);
    }
    let Some(writers) = column::<Option<Vec<Bits>>>(row, "page_writers")? else { return Ok(bodies) };
    let writers = within("the pages of a row", writers)?;
    let (numbers, pages) = (column::<Vec<i32>>(row, "page_numbers")?, column::<Vec<&[u8]>>(row, "page_bytes")?);
    for ((writer, number), bytes) in writers.into_iter().zip(numbers).zip(pages) {
        let body = bodies.get_mut(&decode_writer(writer)).ok_or(DataError::Incomplete("a page without its body"))?;
        let number = u32::try_from(number).map_err(|_| DataError::Incomplete("the number of a page"))?;
        body.write_page(number, bytes).map_err(DataError::from)?;
    }
    Ok(bodies)
}

/// Replaced or dropped bodies, column by column.
#[derive(Default)]
pub(crate) struct BodyColumns {
    pub(crate) named: Vec<Bits>, // includes the dropped ones
    pub(crate) writers: Vec<Bits>,
    pub(crate) kinds: Vec<i32>,
    pub(crate) keys: Vec<Number>,
    pub(crate) lengths: Vec<i32>,
    pub(crate) page_writers: Vec<Bits>,
    pub(crate) page_numbers: Vec<i32>,
    pub(crate) page_bytes: Vec<Vec<u8>>,
}

impl BodyColumns {
    pub(crate) fn from_bodies(bodies: &[(Writer, Option<StoredBody>)]) -> Result<BodyColumns, BodyError> {
        // For a writer that is named twice, the last entry counts.
        let bodies: BTreeMap<Writer, &Option<StoredBody>> =
            bodies.iter().map(|(writer, body)| (*writer, body)).collect();
        let mut columns = BodyColumns::default();
        for (id, body) in bodies {
            columns.named.push(encode_writer(id));
            let Some(StoredBody { shape, bytes }) = body else { continue };
            columns.writers.push(encode_writer(id));
            columns.kinds.push(shape.kind.into());
            columns.keys.push(shape.key.into());
            columns.lengths.push(i32::try_from(shape.length).map_err(|_| BodyError)?);
            for (number, page) in (0..).zip(bytes.chunks(PAGE_BYTES).map(trim_zeros)) {
                if !page.is_empty() {
                    columns.page_writers.push(encode_writer(id));
                    columns.page_numbers.push(number);
                    columns.page_bytes.push(page.to_vec());
                }
            }
        }
        Ok(columns)
    }
}

/// Bits of a writer's weight in a version.
const WEIGHT_MASK: u64 = (1 << 20) - 1;

/// Weight of a row's cells in its version, equal to the schema's function `puts`. It rises with
/// every put that moved a cell, even a cell at seq 0, and differs for other cells.
pub(crate) fn cells_weight(row: &Snapshot) -> u64 {
    row.cells.iter().fold(0, |sum, (CellId { writer, shard }, row_cell)| {
        let weight = 1 + u64::from(shard.0) + ((writer.node.0 ^ writer.incarnation.0) & WEIGHT_MASK);
        sum.wrapping_add(row_cell.seq.0.wrapping_add(1).wrapping_mul(weight))
    })
}

/// Decodes the row's state of one put's cell alone, and the time.
pub(crate) fn decode_put_row(row: &Row, put: &Put) -> Result<(Snapshot, Millis), CallFailure> {
    let mut known = Snapshot {
        epoch: decode_epoch(column(row, "epoch")?),
        expires_at: optional_millis("an expiry", column(row, "expires_at")?)?,
        ..Snapshot::default()
    };
    let closed = |name| Ok::<_, CallFailure>(column::<Option<bool>>(row, name)?.unwrap_or(false));
    if let Some(row_cell) =
        decode_cell((column(row, "seq")?, column(row, "value")?, column(row, "total")?, closed("closed")?))?
    {
        known.cells.insert(put.cell, row_cell);
    }
    let spent_parts = (column(row, "spent_seq")?, column(row, "spent_value")?, column(row, "spent_total")?);
    let spent_parts = (spent_parts.0, spent_parts.1, spent_parts.2, closed("spent_closed")?);
    if let Some(spent) = decode_spent_cell(
        column(row, "spent_epoch")?,
        spent_parts,
        column(row, "spent_expired")?,
        column(row, "spent_at")?,
    )? {
        known.spent.insert(put.cell, spent);
    }
    Ok((known.checked()?, Millis(unsigned("the time", column(row, "at")?)?)))
}

/// Seq, value, total, and the closed flag.
type CellParts = (Option<Number>, Option<Number>, Option<Number>, bool);

fn decode_cell(parts: CellParts) -> Result<Option<RowCell>, CallFailure> {
    match parts {
        (Some(seq), Some(Number(value)), Some(Number(total)), closed) => {
            Ok(Some(RowCell { seq: Seq(unsigned("a seq", seq)?), value, total, closed }))
        }
        (None, None, None, false) => Ok(None),
        _ => Err(DataError::Incomplete("a cell").into()),
    }
}

fn decode_spent_cell(
    epoch: Option<Bits>,
    spent_parts: CellParts,
    expired: Option<Number>,
    at: Option<Number>,
) -> Result<Option<SpentCell>, CallFailure> {
    match (epoch, decode_cell(spent_parts)?, at) {
        (Some(epoch), Some(RowCell { seq, value, total, closed }), Some(at)) => Ok(Some(SpentCell {
            epoch: decode_epoch(epoch),
            seq,
            value,
            total,
            closed,
            expired: optional_millis("an expiry", expired)?,
            at: Millis(unsigned("a time", at)?),
        })),
        (None, None, None) if expired.is_none() => Ok(None),
        _ => Err(DataError::Incomplete("a spent cell").into()),
    }
}

/// Encodes a stage, and its start.
pub(crate) fn encode_stage(stage: WriterStage) -> (&'static str, Option<Number>) {
    match stage {
        WriterStage::Live => ("live", None),
        WriterStage::Retiring { since } => ("retiring", encode_millis(Some(since))),
        WriterStage::Closed { since } => ("closed", encode_millis(Some(since))),
        WriterStage::Folded { since } => ("folded", encode_millis(Some(since))),
    }
}

/// Encodes a node without an incarnation, for the table of names.
pub(crate) fn encode_node(node: NodeId) -> Bits {
    Bits::from_halves(node.0, 0)
}

/// Decodes a row of the table of names.
pub(crate) fn node_name(row: &Row) -> Result<(NodeId, String), CallFailure> {
    let name: String = column(row, "name")?;
    if name.len() > NODE_NAME_BYTES_MAX {
        return Err(DataError::TooMany("the bytes of a node's name").into());
    }
    Ok((decode_writer(column(row, "node")?).node, name))
}

pub(crate) fn decode_registration(row: &Row) -> Result<Option<Registration>, CallFailure> {
    let Some(writer) = column::<Option<Bits>>(row, "writer")? else { return Ok(None) };
    let (stage, since): (String, _) = (column(row, "stage")?, optional_millis("a time", column(row, "since")?)?);
    let stage = match (stage.as_str(), since) {
        ("live", None) => WriterStage::Live,
        ("retiring", Some(since)) => WriterStage::Retiring { since },
        ("closed", Some(since)) => WriterStage::Closed { since },
        ("folded", Some(since)) => WriterStage::Folded { since },
        _ => return Err(DataError::UnknownWord { what: "a stage", word: stage }.into()),
    };
    let holder = column::<Option<Number>>(row, "holder")?.map(|holder| unsigned("a holder", holder)).transpose()?;
    Ok(Some(Registration {
        writer: decode_writer(writer),
        holder: holder.map(Holder),
        lease_until: Millis(unsigned("a lease", column(row, "lease_until")?)?),
        stage,
        version: unsigned("a version", column(row, "version")?)?,
    }))
}

/// Decodes a claim, if there is one.
pub(crate) fn decode_claim(row: &Row, token: &ClaimToken) -> Result<Option<Claim>, CallFailure> {
    let Some(owner) = column::<Option<Bits>>(row, "owner")? else { return Ok(None) };
    let reply = column::<Option<&[u8]>>(row, "reply")?;
    if reply.is_some_and(|reply| reply.len() > CLAIM_REPLY_BYTES_MAX) {
        return Err(DataError::TooMany("the bytes of a reply").into());
    }
    Ok(Some(Claim {
        token: token.clone(),
        owner: decode_writer(owner),
        attempt: unsigned("an attempt", column(row, "attempt")?)?,
        payload: unsigned("a payload", column(row, "payload")?)?,
        forget_at: Millis(unsigned("a window", column(row, "forget_at")?)?),
        reply: reply.map(Into::into),
    }))
}

/// Decodes the time from the column `at`.
pub(crate) fn decode_time(row: &Row) -> Result<Millis, CallFailure> {
    unsigned("the time", column(row, "at")?).map(Millis)
}

pub(crate) fn column<'a, T: FromSql<'a>>(row: &'a Row, name: &'static str) -> Result<T, CallFailure> {
    row.try_get(name).map_err(|error| DataError::Column { what: name, source: error.into() }.into())
}

/// Decodes the only column of the only row.
pub(crate) fn only<T: FromSqlOwned>(rows: &[Row]) -> Result<T, CallFailure> {
    let [row] = rows else { return Err(DataError::Incomplete("an answer").into()) };
    row.try_get(0).map_err(|error| DataError::Column { what: "an answer", source: error.into() }.into())
}

fn unsigned(what: &'static str, number: Number) -> Result<u64, CallFailure> {
    number.unsigned().map_err(|error| DataError::Column { what, source: error.into() }.into())
}

fn optional_millis(what: &'static str, number: Option<Number>) -> Result<Option<Millis>, CallFailure> {
    number.map(|number| unsigned(what, number).map(Millis)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(node: u64) -> CellId {
        CellId { writer: Writer { node: NodeId(node), incarnation: Incarnation(u64::MAX) }, shard: Shard(u16::MAX) }
    }

    fn full() -> Snapshot {
        let spent = SpentCell {
            epoch: Epoch { millis: 7, node: NodeId(u64::MAX) },
            seq: Seq(u64::MAX),
            value: i128::MIN,
            total: i128::MAX,
            closed: true,
            expired: Some(Millis(9)),
            at: Millis(u64::MAX),
        };
        let row_cell = RowCell { seq: Seq(u64::MAX), value: i128::MIN, total: 0, closed: false };
        Snapshot {
            epoch: Epoch { millis: 8, node: NodeId(0) },
            cells: [(id(0), row_cell), (id(1), RowCell { closed: true, ..row_cell })].into(),
            spent: [(id(u64::MAX), spent), (id(1), SpentCell { closed: false, expired: None, ..spent })].into(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn cells_decode_to_what_was_encoded() {
        let mut back = Snapshot { epoch: full().epoch, ..Snapshot::default() };
        CellColumns::from_row(&full()).put_into(&mut back).unwrap();
        assert_eq!(back, full());
    }

    #[test]
    fn cells_that_lack_a_part_are_refused() {
        let bend: [fn(&mut CellColumns); 8] = [
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
            let mut columns = CellColumns::from_row(&full());
            bend(&mut columns);
            assert!(columns.put_into(&mut Snapshot::default()).is_err());
        }
    }

    #[test]
    fn a_version_rises_with_a_cell_of_seq_0() {
        let row_cell = RowCell { seq: Seq(0), value: 0, total: 0, closed: false };
        let one = Snapshot { cells: [(id(0), row_cell)].into(), ..Snapshot::default() };
        let two = Snapshot { cells: [(id(0), row_cell), (id(1), row_cell)].into(), ..Snapshot::default() };
        assert!(
            cells_weight(&Snapshot::default()) == 0
                && 0 < cells_weight(&one)
                && cells_weight(&one) < cells_weight(&two)
        );
    }
}
