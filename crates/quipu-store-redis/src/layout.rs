//! Rows, claims and registrations as text in hashes, and back.
//!
//! In: the model's values. Out: fields of a hash, as the crate's first page draws them; and the other way.
//!
//! Invariants:
//! - what was encoded decodes to the same, and a row that decodes has passed [`Snapshot::checked`];
//! - what a script compares has digits of a fixed width ([`epoch`], [`seq`]), so that it compares as text, in whatever locale the server runs;
//! - a field that we do not know is damage, not something to be dropped by the next swap; so is one that says what we know in another form than
//!   ours, which the scripts would not find.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::str::FromStr;

use quipu_model::shared::body::{BODY_BYTES_MAX, Body, PAGE_BYTES, Shape, without_zeros};
use quipu_model::shared::claim::CLAIM_REPLY_BYTES_MAX;
use quipu_model::shared::{
    Bodies, CellId, Claim, Held, Holder, Put, Registration, Seq, Shard, Snapshot, Spent, Stage, SwapId, Token,
};
use quipu_model::{Epoch, Incarnation, Millis, Name, NodeId, Writer};

use crate::error::{Damaged, Failure};

/// Stands for what there is none of.
const NONE: &str = "-";

/// How much of a text that cannot be read is shown.
const SHOWN_CHARS_MAX: usize = 80;

/// Most bytes of all bodies beside one row: 64 of the largest.
const BODIES_BYTES_MAX: usize = 64 * BODY_BYTES_MAX;

/// Names of keys under one prefix.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    rows: Vec<u8>,
    tokens: Vec<u8>,
    writers: Vec<u8>,
    names: Vec<u8>,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Keys {
        let key = |rest: &str| format!("{prefix}:{rest}").into_bytes();
        Keys { rows: key("c:"), tokens: key("t:"), writers: key("writers"), names: key("names") }
    }

    pub(crate) fn row(&self, name: Name<'_>) -> Vec<u8> {
        [&self.rows, name.bytes()].concat()
    }

    pub(crate) fn token(&self, token: &Token) -> Vec<u8> {
        [&self.tokens, token.bytes()].concat()
    }

    pub(crate) fn writers(&self) -> &[u8] {
        &self.writers
    }

    pub(crate) fn names(&self) -> &[u8] {
        &self.names
    }

    /// What every key of a row begins with, and the pattern that finds them.
    pub(crate) fn rows(&self) -> (&[u8], Vec<u8>) {
        (&self.rows, [&self.rows[..], b"*"].concat())
    }
}

/// An epoch: 20 digits of time, 20 of the node.
pub(crate) fn epoch(epoch: Epoch) -> String {
    format!("{:020}.{:020}", epoch.millis, epoch.node.0)
}

/// A seq: 20 digits.
pub(crate) fn seq(seq: Seq) -> String {
    format!("{:020}", seq.0)
}

/// A cell's id: `<node>.<incarnation>.<shard>`.
pub(crate) fn cell(id: CellId) -> String {
    format!("{}.{}", id.writer, id.shard.0)
}

/// What is said of a cell, after its seq.
pub(crate) fn said(put: &Put) -> String {
    format!("open {} {}", put.value, put.total)
}

/// The fields of a row, and their values in turn.
pub(crate) fn row_fields(row: &Snapshot) -> Vec<String> {
    let mut fields = Vec::with_capacity(16 + 2 * (row.cells.len() + row.spent.len()));
    let mut field = |name: String, value: String| fields.extend([name, value]);
    field("born".into(), row.version.born_at.to_string());
    field("swaps".into(), row.version.swaps.to_string());
    field("puts".into(), row.version.puts.to_string());
    field("epoch".into(), epoch(row.epoch));
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
            let _ = write!(ids, "{space}{id:032x}"); // a String takes all that is written
        }
        field("last".into(), ids);
    }
    for (id, held) in &row.cells {
        let Held { seq: at, value, total, closed } = *held;
        field(format!("c:{}", cell(*id)), format!("{} {} {value} {total}", seq(at), state(closed)));
    }
    for (id, spent) in &row.spent {
        let Spent { epoch: of, seq: kept, value, total, closed, expired, at } = *spent;
        let (of, kept, expired) = (epoch(of), seq(kept), or_none(expired));
        field(format!("s:{}", cell(*id)), format!("{of} {kept} {} {value} {total} {expired} {at}", state(closed)));
    }
    fields
}

/// The row of these fields, each followed by its value; the default row if there are none.
pub(crate) fn row(fields: &[Vec<u8>]) -> Result<Snapshot, Failure> {
    let mut row = Snapshot::default();
    if fields.is_empty() {
        return Ok(row);
    }
    let (mut born, mut epoch_known) = (false, false);
    for pair in fields.chunks(2) {
        let [name, value] = pair else { return Err(Damaged::Reply.into()) };
        let name = text("the name of a field", name)?;
        if is_of_body(name) {
            continue;
        }
        let value = text("a field", value)?;
        match name {
            "born" => (row.version.born_at, born) = (Millis(number("born", value)?), true),
            "swaps" => row.version.swaps = number("swaps", value)?,
            "puts" => row.version.puts = number("puts", value)?,
            "epoch" => (row.epoch, epoch_known) = (epoch_of(value)?, true),
            "base" => row.base = Some(number("base", value)?),
            "expires" => row.expires_at = Some(Millis(number("expires", value)?)),
            "gone" => row.gone_at = Some(Millis(number("gone", value)?)),
            "last" => {
                let ids = value.split(' ').map(|id| u128::from_str_radix(id, 16).map(SwapId));
                row.swaps = ids.collect::<Result<_, _>>().map_err(|_| unreadable("last", value))?;
            }
            _ => match name.split_at_checked(2) {
                Some(("c:", id)) => drop(row.cells.insert(cell_of(id)?, field(name, held(value))?)),
                Some(("s:", id)) => drop(row.spent.insert(cell_of(id)?, field(name, spent(value))?)),
                _ => return Err(unreadable("the name of a field", name).into()),
            },
        }
    }
    for (name, there) in [("born", born), ("epoch", epoch_known)] {
        if !there {
            return Err(Damaged::Lacks(name).into());
        }
    }
    Ok(row.checked()?)
}

/// Whether a field is of a body beside the row.
fn is_of_body(name: &str) -> bool {
    name == "bodies" || name.starts_with("b:") || name.starts_with("p:")
}

/// What a body is, without its length.
pub(crate) fn shape(shape: &Shape) -> String {
    format!("{} {:016x}", shape.kind, shape.key)
}

/// The fields of bodies that come beside a row, and their values in turn: what says that there are any, and of each what it is and its pages.
pub(crate) fn body_fields<'a>(bodies: impl Iterator<Item = (Writer, &'a Body)>) -> Vec<Cow<'a, [u8]>> {
    let mut fields = Vec::new();
    let text = |text: String| Cow::Owned(text.into_bytes());
    for (writer, body) in bodies {
        if fields.is_empty() {
            fields.extend([text("bodies".into()), text("1".into())]);
        }
        let shape = format!("{} {}", shape(&body.shape), body.shape.length);
        fields.extend([text(format!("b:{writer}")), text(shape)]);
        for (page, bytes) in body.bytes.chunks(PAGE_BYTES).map(without_zeros).enumerate() {
            if !bytes.is_empty() {
                fields.extend([text(format!("p:{writer}.{page}")), Cow::Borrowed(bytes)]);
            }
        }
    }
    fields
}

/// What a body is, from its field.
pub(crate) fn shape_of(value: &str) -> Result<Shape, Damaged> {
    let [kind, key, length] = parts("a body", value)?;
    Ok(Shape {
        kind: number("the kind of a body", kind)?,
        key: hex("the key of a body", key)?,
        length: number("the length of a body", length)?,
    })
}

/// The bodies among these fields of a row, each followed by its value.
pub(crate) fn bodies(fields: &[Vec<u8>]) -> Result<Bodies, Failure> {
    let mut bodies = Bodies::new();
    let named = |kind: &'static str| {
        fields.chunks(2).filter_map(move |pair| match pair {
            [name, value] => Some((str::from_utf8(name).ok()?.strip_prefix(kind)?, value)),
            _ => None,
        })
    };
    let mut bytes_left = BODIES_BYTES_MAX;
    for (writer, value) in named("b:") {
        let shape = shape_of(text("a body", value)?)?;
        let of = writer_of(writer)?;
        if of.to_string() != writer {
            return Err(Damaged::Form(format!("b:{writer}")).into());
        }
        // Before there is room made for it.
        let bytes = usize::try_from(shape.length).ok().and_then(|bytes| bytes_left.checked_sub(bytes));
        bytes_left = bytes.ok_or_else(|| Damaged::Long(format!("b:{writer}")))?;
        bodies.insert(of, Body::new(shape).map_err(Damaged::from)?);
    }
    for (place, bytes) in named("p:") {
        let (writer, page) = place.rsplit_once('.').ok_or_else(|| unreadable("a page", place))?;
        let (of, number) = (writer_of(writer)?, number::<u32>("a page", page)?);
        if format!("{of}.{number}") != place {
            return Err(Damaged::Form(format!("p:{place}")).into());
        }
        let body = bodies.get_mut(&of).ok_or(Damaged::Lacks("the body of a page"))?;
        body.lay_page(number, bytes).map_err(Damaged::from)?;
    }
    Ok(bodies)
}

/// A cell that counts.
pub(crate) fn held(value: &str) -> Result<Held, Damaged> {
    let [seq, closed, said, total] = parts("a cell", value)?;
    Ok(Held {
        seq: seq_of(seq)?,
        value: number("a value", said)?,
        total: number("a total", total)?,
        closed: closed_of(closed)?,
    })
}

/// A cell that no longer counts by itself.
pub(crate) fn spent(value: &str) -> Result<Spent, Damaged> {
    let [epoch, seq, closed, kept, total, expired, at] = parts("a spent cell", value)?;
    Ok(Spent {
        epoch: epoch_of(epoch)?,
        seq: seq_of(seq)?,
        value: number("a value", kept)?,
        total: number("a total", total)?,
        closed: closed_of(closed)?,
        expired: some("an expiry", expired)?.map(Millis),
        at: Millis(number("a time", at)?),
    })
}

/// A registration: `<version> <holder> <lease until> <stage> <since>`.
pub(crate) fn registration(of: &Registration) -> String {
    let (stage, since) = match of.stage {
        Stage::Live => ("live", None),
        Stage::Retiring { since } => ("retiring", Some(since)),
        Stage::Closed { since } => ("closed", Some(since)),
        Stage::Folded { since } => ("folded", Some(since)),
    };
    let holder = of.holder.map_or_else(|| NONE.to_owned(), |Holder(holder)| format!("{holder:016x}"));
    format!("{} {holder} {} {stage} {}", of.version, of.lease_until, or_none(since))
}

pub(crate) fn registration_of(writer: &[u8], value: &[u8]) -> Result<Registration, Damaged> {
    let (writer, value) = (text("a writer", writer)?, text("a registration", value)?);
    let [version, holder, lease_until, stage, since] = parts("a registration", value)?;
    let since = some("a time", since)?.map(Millis);
    let stage = match (stage, since) {
        ("live", None) => Stage::Live,
        ("retiring", Some(since)) => Stage::Retiring { since },
        ("closed", Some(since)) => Stage::Closed { since },
        ("folded", Some(since)) => Stage::Folded { since },
        _ => return Err(unreadable("a registration", value)),
    };
    let holder = match holder {
        NONE => None,
        holder => Some(Holder(hex("a holder", holder)?)),
    };
    let lease_until = Millis(number("a lease", lease_until)?);
    Ok(Registration { writer: writer_of(writer)?, holder, lease_until, stage, version: number("a version", version)? })
}

/// A node, as a field of the hash of names.
pub(crate) fn node_of(node: &[u8]) -> Result<NodeId, Damaged> {
    hex("a node", text("a node", node)?).map(NodeId)
}

/// A claim, from its owner, attempt, payload, end of its window, and reply.
pub(crate) fn claim_of(token: &Token, fields: [Option<&[u8]>; 5]) -> Result<Option<Claim>, Damaged> {
    if fields.iter().all(Option::is_none) {
        return Ok(None);
    }
    let [owner, attempt, payload, forget_at, reply] = fields;
    let word = |name: &'static str, value: Option<&[u8]>| -> Result<String, Damaged> {
        text(name, value.ok_or(Damaged::Lacks(name))?).map(str::to_owned)
    };
    if reply.is_some_and(|reply| reply.len() > CLAIM_REPLY_BYTES_MAX) {
        return Err(Damaged::Long("reply".to_owned()));
    }
    Ok(Some(Claim {
        token: token.clone(),
        owner: writer_of(&word("owner", owner)?)?,
        attempt: number("attempt", &word("attempt", attempt)?)?,
        payload: number("payload", &word("payload", payload)?)?,
        forget_at: Millis(number("forget", &word("forget", forget_at)?)?),
        reply: reply.map(Into::into),
    }))
}

pub(crate) fn epoch_of(value: &str) -> Result<Epoch, Damaged> {
    let (millis, node) = value.split_once('.').ok_or_else(|| unreadable("an epoch", value))?;
    let of = Epoch { millis: number("an epoch", millis)?, node: NodeId(number("an epoch", node)?) };
    if epoch(of) == value { Ok(of) } else { Err(unreadable("an epoch", value)) }
}

fn seq_of(value: &str) -> Result<Seq, Damaged> {
    let of = Seq(number("a seq", value)?);
    if seq(of) == value { Ok(of) } else { Err(unreadable("a seq", value)) }
}

/// Names the field that cannot be read.
fn field<T>(name: &str, decoded: Result<T, Damaged>) -> Result<T, Damaged> {
    decoded
        .map_err(|source| Damaged::Field { field: name.chars().take(SHOWN_CHARS_MAX).collect(), source: source.into() })
}

pub(crate) fn text<'a>(what: &'static str, bytes: &'a [u8]) -> Result<&'a str, Damaged> {
    str::from_utf8(bytes).map_err(|_| unreadable(what, &bytes.escape_ascii().to_string()))
}

pub(crate) fn number<T: FromStr>(what: &'static str, text: &str) -> Result<T, Damaged> {
    text.parse().map_err(|_| unreadable(what, text))
}

fn cell_of(id: &str) -> Result<CellId, Damaged> {
    let (writer, shard) = id.rsplit_once('.').ok_or_else(|| unreadable("a cell", id))?;
    let of = CellId { writer: writer_of(writer)?, shard: Shard(number("a shard", shard)?) };
    // Two fields must not be one cell.
    if cell(of) == id { Ok(of) } else { Err(Damaged::Form(id.to_owned())) }
}

fn writer_of(text: &str) -> Result<Writer, Damaged> {
    let (node, incarnation) = text.split_once('.').ok_or_else(|| unreadable("a writer", text))?;
    Ok(Writer { node: NodeId(hex("a node", node)?), incarnation: Incarnation(hex("an incarnation", incarnation)?) })
}

fn state(closed: bool) -> &'static str {
    if closed { "closed" } else { "open" }
}

fn closed_of(text: &str) -> Result<bool, Damaged> {
    match text {
        "open" => Ok(false),
        "closed" => Ok(true),
        _ => Err(unreadable("open or closed", text)),
    }
}

fn or_none(value: Option<impl Display>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}

fn some<T: FromStr>(what: &'static str, text: &str) -> Result<Option<T>, Damaged> {
    if text == NONE { Ok(None) } else { number(what, text).map(Some) }
}

fn hex(what: &'static str, text: &str) -> Result<u64, Damaged> {
    u64::from_str_radix(text, 16).map_err(|_| unreadable(what, text))
}

fn parts<'a, const N: usize>(what: &'static str, value: &'a str) -> Result<[&'a str; N], Damaged> {
    let parts: Vec<&str> = value.split(' ').collect();
    parts.try_into().map_err(|_| unreadable(what, value))
}

pub(crate) fn unreadable(what: &'static str, text: &str) -> Damaged {
    Damaged::Text { what, text: text.chars().take(SHOWN_CHARS_MAX).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quipu_model::shared::Version;

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
        Snapshot {
            version: Version { born_at: Millis(1), swaps: 2, puts: 3 },
            epoch: Epoch { millis: 8, node: NodeId(0) },
            base: Some(-1),
            expires_at: Some(Millis(u64::MAX)),
            gone_at: Some(Millis(0)),
            cells: [(id(0), Held { seq: Seq(1), value: i128::MIN, total: 0, closed: false })].into(),
            spent: [(id(u64::MAX), spent), (id(1), Spent { closed: false, expired: None, ..spent })].into(),
            swaps: vec![SwapId(0), SwapId(u128::MAX)],
        }
    }

    fn stored(row: &Snapshot) -> Vec<Vec<u8>> {
        row_fields(row).into_iter().map(String::into_bytes).collect()
    }

    #[test]
    fn a_row_decodes_to_what_was_encoded() {
        let bare = Snapshot { version: Version { born_at: Millis(5), ..Version::ABSENT }, ..Snapshot::default() };
        for of in [full(), bare] {
            assert_eq!(row(&stored(&of)).unwrap(), of);
        }
        assert_eq!(row(&[]).unwrap(), Snapshot::default());
    }

    #[test]
    fn a_cell_in_another_form_than_the_scripts_look_for_is_refused() {
        let fields = stored(&full());
        let at = fields.iter().position(|field| field.starts_with(b"c:")).unwrap();
        let mut other = fields.clone();
        // The same cell for a reader, another field for a script: it would count twice.
        other.extend([b"c:0.ffffffffffffffff.65535".to_vec(), fields[at + 1].clone()]);
        assert!(row(&other).is_err());
        let mut short = fields.clone();
        short[at + 1] = b"1 open 5 5".to_vec();
        let error = row(&short).unwrap_err().of(quipu_model::Call::Read);
        let source = std::error::Error::source(&error).expect("it has a cause").to_string();
        assert!(source.contains("c:0000000000000000.ffffffffffffffff.65535"), "{source}");
    }

    #[test]
    fn a_claim_that_lost_a_field_is_refused() {
        let token = Token::new(b"t").unwrap();
        let whole: [&[u8]; 5] = [b"0000000000000001.0000000000000001", b"1", b"2", b"3", b"reply"];
        assert!(claim_of(&token, whole.map(Some)).unwrap().is_some());
        assert!(claim_of(&token, [None; 5]).unwrap().is_none());
        for at in 0..4 {
            let mut less = whole.map(Some);
            less[at] = None;
            assert!(claim_of(&token, less).is_err(), "field {at}");
        }
        let long = [b'x'; CLAIM_REPLY_BYTES_MAX + 1];
        assert!(claim_of(&token, [whole[0], whole[1], whole[2], whole[3], &long].map(Some)).is_err());
    }

    #[test]
    fn a_row_with_a_field_cut_changed_or_unknown_is_refused() {
        let fields = stored(&full());
        for at in 0..fields.len() {
            let mut bent = fields.clone();
            bent[at] = b"what".to_vec();
            assert!(row(&bent).is_err(), "field {at}");
        }
        assert!(row(&fields[2..]).is_err(), "without its birth");
        assert!(row(&fields[1..]).is_err(), "shifted");
    }

    #[test]
    fn what_the_scripts_cut_out_stands_where_they_look() {
        let fields = row_fields(&full());
        let value =
            |prefix: &str| fields[fields.iter().position(|field| field.starts_with(prefix)).unwrap() + 1].clone();
        let (held, spent) = (value("c:"), value("s:"));
        assert_eq!((&held[..20], &held[21..22]), ("00000000000000000001", "o"));
        assert_eq!((&spent[..41], &spent[63..64]), ("00000000000000000007.18446744073709551615", "o"));
        let (writer, body) = (id(1).writer, Body { bytes: vec![1], ..Body::default() });
        for field in body_fields([(writer, &body)].into_iter()).chunks(2).skip(1) {
            assert_eq!(&field[0][2..35], writer.to_string().as_bytes());
        }
    }

    #[test]
    fn bodies_decode_to_what_was_encoded() {
        let body = |length: u32, byte| {
            let shape = Shape { kind: u8::MAX, key: 1, length };
            let mut body = Body::new(shape).unwrap();
            body.bytes.iter_mut().skip(PAGE_BYTES).for_each(|at| *at = byte);
            body
        };
        let life = |incarnation| Writer { node: NodeId(7), incarnation: Incarnation(incarnation) };
        let of = Bodies::from([(life(0), body(0, 0)), (life(1), body(3_000, 9)), (life(u64::MAX), body(2_048, 0))]);
        let fields = body_fields(of.iter().map(|(writer, body)| (*writer, body)));
        let stored: Vec<Vec<u8>> = fields.into_iter().map(Cow::into_owned).collect();
        assert_eq!(bodies(&stored).unwrap(), of);
        for at in (2..stored.len()).step_by(2) {
            let mut bent = stored.clone();
            bent[at] = stored[at][..19].to_vec();
            assert!(bodies(&bent).is_err(), "field {at} names no life");
        }
    }
}
