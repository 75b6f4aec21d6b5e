//! Encodes rows, claims and registrations as text fields of hashes, and decodes them.
//!
//! In: the model's values. Out: hash fields, as drawn in the crate's documentation; and the
//! reverse.
//!
//! Invariants:
//! - decoding an encoded value returns an equal value; a decoded row has passed
//!   [`Snapshot::checked`];
//! - values that scripts compare have digits of a fixed width ([`encode_epoch`], [`encode_seq`]),
//!   so they compare as text, in any locale of the server;
//! - an unknown field is damage, not a field for the next swap to drop. So is a known field in a
//!   non-canonical form, which the scripts would not find.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::str::FromStr;

use quipu_model::shared::body::{BODY_BYTES_MAX, BodyShape, PAGE_BYTES, StoredBody, trim_zeros};
use quipu_model::shared::claim::CLAIM_REPLY_BYTES_MAX;
use quipu_model::shared::{
    Bodies, CellId, Claim, ClaimToken, Holder, Put, Registration, RowCell, Seq, Shard, Snapshot, SpentCell, SwapId,
    WriterStage,
};
use quipu_model::{Epoch, Incarnation, Millis, Name, NodeId, Writer};
use quipu_store_kit::CallFailure;

use crate::error::DataError;

/// Text of an absent value.
const NONE: &str = "-";

/// Most characters of an unreadable text that an error quotes.
const QUOTED_CHARS_MAX: usize = 80;

/// Most bytes of all bodies of one row: 64 of the largest.
const BODIES_BYTES_MAX: usize = 64 * BODY_BYTES_MAX;

/// Names of keys under one prefix.
#[derive(Debug, Clone)]
pub(crate) struct KeyNames {
    rows: Vec<u8>,
    tokens: Vec<u8>,
    writers: Vec<u8>,
    names: Vec<u8>,
}

impl KeyNames {
    pub(crate) fn new(prefix: &str) -> KeyNames {
        let key = |rest: &str| format!("{prefix}:{rest}").into_bytes();
        KeyNames { rows: key("c:"), tokens: key("t:"), writers: key("writers"), names: key("names") }
    }

    pub(crate) fn row(&self, name: Name<'_>) -> Vec<u8> {
        [&self.rows, name.bytes()].concat()
    }

    pub(crate) fn token(&self, token: &ClaimToken) -> Vec<u8> {
        [&self.tokens, token.bytes()].concat()
    }

    pub(crate) fn writers(&self) -> &[u8] {
        &self.writers
    }

    pub(crate) fn names(&self) -> &[u8] {
        &self.names
    }

    /// The prefix of all row keys, and the pattern that matches them.
    pub(crate) fn rows(&self) -> (&[u8], Vec<u8>) {
        (&self.rows, [&self.rows[..], b"*"].concat())
    }
}

/// An epoch: 20 digits of time, 20 of the node.
pub(crate) fn encode_epoch(epoch: Epoch) -> String {
    format!("{:020}.{:020}", epoch.millis, epoch.node.0)
}

/// A seq: 20 digits.
pub(crate) fn encode_seq(seq: Seq) -> String {
    format!("{:020}", seq.0)
}

/// A cell's id: `<node>.<incarnation>.<shard>`.
pub(crate) fn encode_cell_id(id: CellId) -> String {
    format!("{}.{}", id.writer, id.shard.0)
}

/// Encodes the part of a cell's field after its seq.
pub(crate) fn encode_value(put: &Put) -> String {
    format!("open {} {}", put.value, put.total)
}

/// Encodes a row as alternating field names and values.
pub(crate) fn encode_row(row: &Snapshot) -> Vec<String> {
    let mut fields = Vec::with_capacity(16 + 2 * (row.cells.len() + row.spent.len()));
    let mut field = |name: String, value: String| fields.extend([name, value]);
    field("born".into(), row.version.born_at.to_string());
    field("swaps".into(), row.version.swaps.to_string());
    field("puts".into(), row.version.puts.to_string());
    field("epoch".into(), encode_epoch(row.epoch));
    if let Some(base) = row.base {
        field("base".into(), base.to_string());
    }
    if let Some(expires_at) = row.expires_at {
        field("expires".into(), expires_at.to_string());
    }
    if let Some(gone_at) = row.gone_at {
        field("gone".into(), gone_at.to_string());
    }
    if !row.swaps.is_empty() {
        let mut ids = String::with_capacity(33 * row.swaps.len());
        for SwapId(id) in &row.swaps {
            let space = if ids.is_empty() { "" } else { " " };
            let _ = write!(ids, "{space}{id:032x}"); // writing to a String cannot fail
        }
        field("last".into(), ids);
    }
    for (id, current) in &row.cells {
        let RowCell { seq: at, value, total, closed } = *current;
        field(
            format!("c:{}", encode_cell_id(*id)),
            format!("{} {} {value} {total}", encode_seq(at), encode_closed(closed)),
        );
    }
    for (id, spent) in &row.spent {
        let SpentCell { epoch: of, seq: saved, value, total, closed, expired, at } = *spent;
        let (of, saved, expired) = (encode_epoch(of), encode_seq(saved), text_or_none(expired));
        field(
            format!("s:{}", encode_cell_id(*id)),
            format!("{of} {saved} {} {value} {total} {expired} {at}", encode_closed(closed)),
        );
    }
    fields
}

/// Decodes a row from alternating field names and values; no fields give the default row.
pub(crate) fn decode_row(fields: &[Vec<u8>]) -> Result<Snapshot, CallFailure> {
    let mut row = Snapshot::default();
    if fields.is_empty() {
        return Ok(row);
    }
    let (mut born, mut epoch_known) = (false, false);
    for pair in fields.chunks(2) {
        let [name, value] = pair else { return Err(DataError::Reply.into()) };
        let name = parse_utf8("the name of a field", name)?;
        if is_of_body(name) {
            continue;
        }
        let value = parse_utf8("a field", value)?;
        match name {
            "born" => (row.version.born_at, born) = (Millis(parse_number("born", value)?), true),
            "swaps" => row.version.swaps = parse_number("swaps", value)?,
            "puts" => row.version.puts = parse_number("puts", value)?,
            "epoch" => (row.epoch, epoch_known) = (decode_epoch(value)?, true),
            "base" => row.base = Some(parse_number("base", value)?),
            "expires" => row.expires_at = Some(Millis(parse_number("expires", value)?)),
            "gone" => row.gone_at = Some(Millis(parse_number("gone", value)?)),
            "last" => {
                let ids = value.split(' ').map(|id| u128::from_str_radix(id, 16).map(SwapId));
                row.swaps = ids.collect::<Result<_, _>>().map_err(|_| unreadable("last", value))?;
            }
            _ => match name.split_at_checked(2) {
                Some(("c:", id)) => {
                    row.cells.insert(decode_cell_id(id)?, name_field(name, decode_cell(value))?);
                }
                Some(("s:", id)) => {
                    row.spent.insert(decode_cell_id(id)?, name_field(name, decode_spent_cell(value))?);
                }
                _ => return Err(unreadable("the name of a field", name).into()),
            },
        }
    }
    for (name, there) in [("born", born), ("epoch", epoch_known)] {
        if !there {
            return Err(DataError::MissingField(name).into());
        }
    }
    Ok(row.checked()?)
}

/// Returns true for a field of a sketch body.
fn is_of_body(name: &str) -> bool {
    name == "bodies" || name.starts_with("b:") || name.starts_with("p:")
}

/// Encodes a body's shape, without its length.
pub(crate) fn encode_shape(shape: &BodyShape) -> String {
    format!("{} {:016x}", shape.kind, shape.key)
}

/// Encodes bodies as alternating field names and values: the `bodies` marker, then each body's
/// shape and pages.
pub(crate) fn encode_bodies<'a>(bodies: impl Iterator<Item = (Writer, &'a StoredBody)>) -> Vec<Cow<'a, [u8]>> {
    let mut fields = Vec::new();
    let text = |text: String| Cow::Owned(text.into_bytes());
    for (writer, body) in bodies {
        if fields.is_empty() {
            fields.extend([text("bodies".into()), text("1".into())]);
        }
        let shape = format!("{} {}", encode_shape(&body.shape), body.shape.length);
        fields.extend([text(format!("b:{writer}")), text(shape)]);
        for (page, bytes) in body.bytes.chunks(PAGE_BYTES).map(trim_zeros).enumerate() {
            if !bytes.is_empty() {
                fields.extend([text(format!("p:{writer}.{page}")), Cow::Borrowed(bytes)]);
            }
        }
    }
    fields
}

/// Decodes a body's shape from its field.
pub(crate) fn decode_shape(value: &str) -> Result<BodyShape, DataError> {
    let [kind, key, length] = split_parts("a body", value)?;
    Ok(BodyShape {
        kind: parse_number("the kind of a body", kind)?,
        key: parse_hex("the key of a body", key)?,
        length: parse_number("the length of a body", length)?,
    })
}

/// Decodes the bodies of a row from its alternating field names and values.
pub(crate) fn decode_bodies(fields: &[Vec<u8>]) -> Result<Bodies, CallFailure> {
    let mut bodies = Bodies::new();
    let named = |kind: &'static str| {
        fields.chunks(2).filter_map(move |pair| match pair {
            [name, value] => Some((str::from_utf8(name).ok()?.strip_prefix(kind)?, value)),
            _ => None,
        })
    };
    let mut bytes_left = BODIES_BYTES_MAX;
    for (writer, value) in named("b:") {
        let shape = decode_shape(parse_utf8("a body", value)?)?;
        let of = decode_writer(writer)?;
        if of.to_string() != writer {
            return Err(DataError::WrongForm(format!("b:{writer}")).into());
        }
        // Check the bound before allocating.
        let bytes = usize::try_from(shape.length).ok().and_then(|bytes| bytes_left.checked_sub(bytes));
        bytes_left = bytes.ok_or_else(|| DataError::TooLong(format!("b:{writer}")))?;
        bodies.insert(of, StoredBody::new(shape).map_err(DataError::from)?);
    }
    for (page_id, bytes) in named("p:") {
        let (writer, page) = page_id.rsplit_once('.').ok_or_else(|| unreadable("a page", page_id))?;
        let (of, number) = (decode_writer(writer)?, parse_number::<u32>("a page", page)?);
        if format!("{of}.{number}") != page_id {
            return Err(DataError::WrongForm(format!("p:{page_id}")).into());
        }
        let body = bodies.get_mut(&of).ok_or(DataError::MissingField("the body of a page"))?;
        body.write_page(number, bytes).map_err(DataError::from)?;
    }
    Ok(bodies)
}

/// Decodes a cell that counts.
pub(crate) fn decode_cell(value: &str) -> Result<RowCell, DataError> {
    let [seq, closed, value_text, total] = split_parts("a cell", value)?;
    Ok(RowCell {
        seq: decode_seq(seq)?,
        value: parse_number("a value", value_text)?,
        total: parse_number("a total", total)?,
        closed: decode_closed(closed)?,
    })
}

/// Decodes a cell that no longer counts by itself.
pub(crate) fn decode_spent_cell(value: &str) -> Result<SpentCell, DataError> {
    let [epoch, seq, closed, saved, total, expired, at] = split_parts("a spent cell", value)?;
    Ok(SpentCell {
        epoch: decode_epoch(epoch)?,
        seq: decode_seq(seq)?,
        value: parse_number("a value", saved)?,
        total: parse_number("a total", total)?,
        closed: decode_closed(closed)?,
        expired: parse_optional("an expiry", expired)?.map(Millis),
        at: Millis(parse_number("a time", at)?),
    })
}

/// A registration: `<version> <holder> <lease until> <stage> <since>`.
pub(crate) fn encode_registration(of: &Registration) -> String {
    let (stage, since) = match of.stage {
        WriterStage::Live => ("live", None),
        WriterStage::Retiring { since } => ("retiring", Some(since)),
        WriterStage::Closed { since } => ("closed", Some(since)),
        WriterStage::Folded { since } => ("folded", Some(since)),
    };
    let holder = of.holder.map_or_else(|| NONE.to_owned(), |Holder(holder)| format!("{holder:016x}"));
    format!("{} {holder} {} {stage} {}", of.version, of.lease_until, text_or_none(since))
}

pub(crate) fn decode_registration(writer: &[u8], value: &[u8]) -> Result<Registration, DataError> {
    let (writer, value) = (parse_utf8("a writer", writer)?, parse_utf8("a registration", value)?);
    let [version, holder, lease_until, stage, since] = split_parts("a registration", value)?;
    let since = parse_optional("a time", since)?.map(Millis);
    let stage = match (stage, since) {
        ("live", None) => WriterStage::Live,
        ("retiring", Some(since)) => WriterStage::Retiring { since },
        ("closed", Some(since)) => WriterStage::Closed { since },
        ("folded", Some(since)) => WriterStage::Folded { since },
        _ => return Err(unreadable("a registration", value)),
    };
    let holder = match holder {
        NONE => None,
        holder => Some(Holder(parse_hex("a holder", holder)?)),
    };
    let lease_until = Millis(parse_number("a lease", lease_until)?);
    Ok(Registration {
        writer: decode_writer(writer)?,
        holder,
        lease_until,
        stage,
        version: parse_number("a version", version)?,
    })
}

/// Decodes a node from a field of the hash of names.
pub(crate) fn decode_node(node: &[u8]) -> Result<NodeId, DataError> {
    parse_hex("a node", parse_utf8("a node", node)?).map(NodeId)
}

/// Decodes a claim from its owner, attempt, payload, end of its window, and reply.
pub(crate) fn decode_claim(token: &ClaimToken, fields: [Option<&[u8]>; 5]) -> Result<Option<Claim>, DataError> {
    if fields.iter().all(Option::is_none) {
        return Ok(None);
    }
    let [owner, attempt, payload, forget_at, reply] = fields;
    let required_text = |name: &'static str, value: Option<&[u8]>| -> Result<String, DataError> {
        parse_utf8(name, value.ok_or(DataError::MissingField(name))?).map(str::to_owned)
    };
    if reply.is_some_and(|reply| reply.len() > CLAIM_REPLY_BYTES_MAX) {
        return Err(DataError::TooLong("reply".to_owned()));
    }
    Ok(Some(Claim {
        token: token.clone(),
        owner: decode_writer(&required_text("owner", owner)?)?,
        attempt: parse_number("attempt", &required_text("attempt", attempt)?)?,
        payload: parse_number("payload", &required_text("payload", payload)?)?,
        forget_at: Millis(parse_number("forget", &required_text("forget", forget_at)?)?),
        reply: reply.map(Into::into),
    }))
}

pub(crate) fn decode_epoch(value: &str) -> Result<Epoch, DataError> {
    let (millis, node) = value.split_once('.').ok_or_else(|| unreadable("an epoch", value))?;
    let of = Epoch { millis: parse_number("an epoch", millis)?, node: NodeId(parse_number("an epoch", node)?) };
    if encode_epoch(of) == value { Ok(of) } else { Err(unreadable("an epoch", value)) }
}

fn decode_seq(value: &str) -> Result<Seq, DataError> {
    let of = Seq(parse_number("a seq", value)?);
    if encode_seq(of) == value { Ok(of) } else { Err(unreadable("a seq", value)) }
}

/// Adds the name of the unreadable field to the error.
fn name_field<T>(name: &str, decoded: Result<T, DataError>) -> Result<T, DataError> {
    decoded.map_err(|source| DataError::Field {
        field: name.chars().take(QUOTED_CHARS_MAX).collect(),
        source: source.into(),
    })
}

pub(crate) fn parse_utf8<'a>(what: &'static str, bytes: &'a [u8]) -> Result<&'a str, DataError> {
    str::from_utf8(bytes).map_err(|_| unreadable(what, &bytes.escape_ascii().to_string()))
}

pub(crate) fn parse_number<T: FromStr>(what: &'static str, text: &str) -> Result<T, DataError> {
    text.parse().map_err(|_| unreadable(what, text))
}

fn decode_cell_id(id: &str) -> Result<CellId, DataError> {
    let (writer, shard) = id.rsplit_once('.').ok_or_else(|| unreadable("a cell", id))?;
    let of = CellId { writer: decode_writer(writer)?, shard: Shard(parse_number("a shard", shard)?) };
    // Two different fields must not decode to the same cell.
    if encode_cell_id(of) == id { Ok(of) } else { Err(DataError::WrongForm(id.to_owned())) }
}

fn decode_writer(text: &str) -> Result<Writer, DataError> {
    let (node, incarnation) = text.split_once('.').ok_or_else(|| unreadable("a writer", text))?;
    Ok(Writer {
        node: NodeId(parse_hex("a node", node)?),
        incarnation: Incarnation(parse_hex("an incarnation", incarnation)?),
    })
}

fn encode_closed(closed: bool) -> &'static str {
    if closed { "closed" } else { "open" }
}

fn decode_closed(text: &str) -> Result<bool, DataError> {
    match text {
        "open" => Ok(false),
        "closed" => Ok(true),
        _ => Err(unreadable("open or closed", text)),
    }
}

fn text_or_none(value: Option<impl Display>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}

fn parse_optional<T: FromStr>(what: &'static str, text: &str) -> Result<Option<T>, DataError> {
    if text == NONE { Ok(None) } else { parse_number(what, text).map(Some) }
}

fn parse_hex(what: &'static str, text: &str) -> Result<u64, DataError> {
    u64::from_str_radix(text, 16).map_err(|_| unreadable(what, text))
}

fn split_parts<'a, const N: usize>(what: &'static str, value: &'a str) -> Result<[&'a str; N], DataError> {
    let parts: Vec<&str> = value.split(' ').collect();
    parts.try_into().map_err(|_| unreadable(what, value))
}

pub(crate) fn unreadable(what: &'static str, text: &str) -> DataError {
    DataError::Text { what, text: text.chars().take(QUOTED_CHARS_MAX).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quipu_model::shared::RowVersion;

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
        Snapshot {
            version: RowVersion { born_at: Millis(1), swaps: 2, puts: 3 },
            epoch: Epoch { millis: 8, node: NodeId(0) },
            base: Some(-1),
            expires_at: Some(Millis(u64::MAX)),
            gone_at: Some(Millis(0)),
            cells: [(id(0), RowCell { seq: Seq(1), value: i128::MIN, total: 0, closed: false })].into(),
            spent: [(id(u64::MAX), spent), (id(1), SpentCell { closed: false, expired: None, ..spent })].into(),
            swaps: vec![SwapId(0), SwapId(u128::MAX)],
        }
    }

    fn stored(row: &Snapshot) -> Vec<Vec<u8>> {
        encode_row(row).into_iter().map(String::into_bytes).collect()
    }

    #[test]
    fn a_row_decodes_to_what_was_encoded() {
        let bare = Snapshot { version: RowVersion { born_at: Millis(5), ..RowVersion::ABSENT }, ..Snapshot::default() };
        for of in [full(), bare] {
            assert_eq!(decode_row(&stored(&of)).unwrap(), of);
        }
        assert_eq!(decode_row(&[]).unwrap(), Snapshot::default());
    }

    #[test]
    fn a_cell_in_another_form_than_the_scripts_look_for_is_refused() {
        let fields = stored(&full());
        let at = fields.iter().position(|field| field.starts_with(b"c:")).unwrap();
        let mut other = fields.clone();
        // The same cell for a decoder, another field for a script: it would count twice.
        other.extend([b"c:0.ffffffffffffffff.65535".to_vec(), fields[at + 1].clone()]);
        assert!(decode_row(&other).is_err());
        let mut short = fields.clone();
        short[at + 1] = b"1 open 5 5".to_vec();
        let error = decode_row(&short).unwrap_err().into_store_error(quipu_model::StoreCall::Read);
        let source = std::error::Error::source(&error).expect("it has a cause").to_string();
        assert!(source.contains("c:0000000000000000.ffffffffffffffff.65535"), "{source}");
    }

    #[test]
    fn a_claim_that_lost_a_field_is_refused() {
        let token = ClaimToken::new(b"t").unwrap();
        let whole: [&[u8]; 5] = [b"0000000000000001.0000000000000001", b"1", b"2", b"3", b"reply"];
        assert!(decode_claim(&token, whole.map(Some)).unwrap().is_some());
        assert!(decode_claim(&token, [None; 5]).unwrap().is_none());
        for at in 0..4 {
            let mut less = whole.map(Some);
            less[at] = None;
            assert!(decode_claim(&token, less).is_err(), "field {at}");
        }
        let long = [b'x'; CLAIM_REPLY_BYTES_MAX + 1];
        assert!(decode_claim(&token, [whole[0], whole[1], whole[2], whole[3], &long].map(Some)).is_err());
    }

    #[test]
    fn a_row_with_a_field_cut_changed_or_unknown_is_refused() {
        let fields = stored(&full());
        for at in 0..fields.len() {
            let mut bent = fields.clone();
            bent[at] = b"what".to_vec();
            assert!(decode_row(&bent).is_err(), "field {at}");
        }
        assert!(decode_row(&fields[2..]).is_err(), "without its birth");
        assert!(decode_row(&fields[1..]).is_err(), "shifted");
    }

    #[test]
    fn what_the_scripts_cut_out_stands_where_they_look() {
        let fields = encode_row(&full());
        let value =
            |prefix: &str| fields[fields.iter().position(|field| field.starts_with(prefix)).unwrap() + 1].clone();
        let (current, spent) = (value("c:"), value("s:"));
        assert_eq!((&current[..20], &current[21..22]), ("00000000000000000001", "o"));
        assert_eq!((&spent[..41], &spent[63..64]), ("00000000000000000007.18446744073709551615", "o"));
        let (writer, body) = (id(1).writer, StoredBody { bytes: vec![1], ..StoredBody::default() });
        for field in encode_bodies([(writer, &body)].into_iter()).chunks(2).skip(1) {
            assert_eq!(&field[0][2..35], writer.to_string().as_bytes());
        }
    }

    #[test]
    fn bodies_decode_to_what_was_encoded() {
        let body = |length: u32, byte| {
            let shape = BodyShape { kind: u8::MAX, key: 1, length };
            let mut body = StoredBody::new(shape).unwrap();
            body.bytes.iter_mut().skip(PAGE_BYTES).for_each(|at| *at = byte);
            body
        };
        let life = |incarnation| Writer { node: NodeId(7), incarnation: Incarnation(incarnation) };
        let of = Bodies::from([(life(0), body(0, 0)), (life(1), body(3_000, 9)), (life(u64::MAX), body(2_048, 0))]);
        let fields = encode_bodies(of.iter().map(|(writer, body)| (*writer, body)));
        let stored: Vec<Vec<u8>> = fields.into_iter().map(Cow::into_owned).collect();
        assert_eq!(decode_bodies(&stored).unwrap(), of);
        for at in (2..stored.len()).step_by(2) {
            let mut bent = stored.clone();
            bent[at] = stored[at][..19].to_vec();
            assert!(decode_bodies(&bent).is_err(), "field {at} names no life");
        }
    }
}
