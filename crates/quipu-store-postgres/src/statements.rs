//! Builds the SQL statements: every atomic step at the server, each one transaction.
//!
//! A step of more than one lookup is a function in the schema (`sql/code.sql`).

use std::ops::RangeInclusive;

use quipu_model::NODE_NAME_BYTES_MAX;
use quipu_model::shared::body::PAGE_BYTES;
use quipu_model::shared::claim::CLAIM_REPLY_BYTES_MAX;
use quipu_model::shared::registry::REGISTRATIONS_MAX;
use quipu_model::shared::snapshot::SWAP_IDS_MAX;

use crate::schema::{self, with_prefix};

/// The statements, with one prefix filled in.
pub(crate) struct Statements {
    pub(crate) put: String,
    pub(crate) put_body: String,
    pub(crate) read: String,
    pub(crate) read_bodies: String,
    pub(crate) wait: String,
    pub(crate) swap: String,
    pub(crate) swap_bodies: String,
    pub(crate) scan: String,
    pub(crate) scan_on: String,
    pub(crate) claim: String,
    pub(crate) end_claim: String,
    pub(crate) restore_claims: String,
    pub(crate) read_claims: String,
    pub(crate) locked: String,
    pub(crate) writers: String,
    pub(crate) register: String,
    pub(crate) unregister: String,
    pub(crate) has_names: String,
    pub(crate) make_names: String,
    pub(crate) name_node: String,
    pub(crate) unname_node: String,
    pub(crate) node_names: String,
    pub(crate) clock: String,
}

/// Most cells, bodies or pages of one counter: 64 of the largest bodies. More rows are not fetched.
pub(crate) const PARTS_MAX: usize = 1 << 20;

/// Fills in the fetch limits: one more than the bound shows an excess.
fn bounded(text: &str) -> String {
    text.replace("{parts}", &(PARTS_MAX + 1).to_string())
        .replace("{swaps}", &(SWAP_IDS_MAX + 1).to_string())
        .replace("{page}", &(PAGE_BYTES + 1).to_string())
        .replace("{reply}", &(CLAIM_REPLY_BYTES_MAX + 1).to_string())
        .replace("{writers}", &(REGISTRATIONS_MAX + 1).to_string())
        .replace("{name}", &(NODE_NAME_BYTES_MAX + 1).to_string())
}

/// One statement, so one snapshot of the row and its cells; the time is taken after it.
const READ: &str = r#"
SELECT c.born_at, c.swaps, c.puts, c.epoch, c.base, c.expires_at, c.gone_at, c.last[1:{swaps}] AS last, x.*, "{p}_now"() AS at
  FROM (SELECT) AS one
  LEFT JOIN "{p}_counters" c ON c.name = $1
  LEFT JOIN LATERAL (
    SELECT array_agg(writer) AS writers, array_agg(shard) AS shards, array_agg(seq) AS seqs, array_agg(value) AS values,
           array_agg(total) AS totals, array_agg(closed) AS closed, array_agg(spent_epoch) AS spent_epochs,
           array_agg(spent_seq) AS spent_seqs, array_agg(spent_value) AS spent_values, array_agg(spent_total) AS spent_totals,
           array_agg(spent_closed) AS spent_closed, array_agg(spent_expired) AS spent_expired, array_agg(spent_at) AS spent_at
      FROM (SELECT * FROM "{p}_cells" WHERE counter = c.id LIMIT {parts}) AS bounded) x ON true"#;

/// Appended to [`READ`]: the bodies beside the row, in the same snapshot.
const BODIES: &str = r#"
  LEFT JOIN LATERAL (
    SELECT array_agg(writer) AS body_writers, array_agg(kind) AS body_kinds, array_agg(key) AS body_keys, array_agg(length) AS body_lengths
      FROM (SELECT * FROM "{p}_bodies" WHERE counter = c.id LIMIT {parts}) AS bounded) y ON true
  LEFT JOIN LATERAL (
    SELECT array_agg(writer) AS page_writers, array_agg(page) AS page_numbers,
           array_agg(substr(bytes, 1, {page})) AS page_bytes
      FROM (SELECT * FROM "{p}_pages" WHERE counter = c.id LIMIT {parts}) AS bounded) z ON true"#;

/// Rows that another session's transaction has locked against puts.
const LOCKED: &str = r#"
WITH free AS MATERIALIZED (SELECT name FROM "{p}_counters" WHERE name = ANY ($1) FOR KEY SHARE SKIP LOCKED)
SELECT c.name FROM "{p}_counters" c WHERE c.name = ANY ($1) AND NOT EXISTS (SELECT FROM free WHERE free.name = c.name)"#;

/// Inserts absent claims, and the reply into open ones of the same node (the first half of an
/// owner). Returns the tokens of these; the model judges the others.
const RESTORE_CLAIMS: &str = r#"
WITH clock AS MATERIALIZED (SELECT "{p}_now"() AS at)
INSERT INTO "{p}_claims" AS c (token, owner, attempt, payload, forget_at, reply)
SELECT a.token, a.owner, a.attempt, a.payload, a.forget_at, a.reply
  FROM unnest($1::bytea[], $2::uuid[], $3::numeric[], $4::numeric[], $5::numeric[], $6::bytea[])
       AS a (token, owner, attempt, payload, forget_at, reply), clock
 WHERE a.forget_at > clock.at
 ORDER BY a.token
    ON CONFLICT (token) DO UPDATE SET reply = excluded.reply,
       owner = CASE WHEN c.forget_at <= (SELECT at FROM clock) THEN excluded.owner ELSE c.owner END,
       attempt = CASE WHEN c.forget_at <= (SELECT at FROM clock) THEN excluded.attempt ELSE c.attempt END,
       payload = CASE WHEN c.forget_at <= (SELECT at FROM clock) THEN excluded.payload ELSE c.payload END,
       forget_at = CASE WHEN c.forget_at <= (SELECT at FROM clock) THEN excluded.forget_at ELSE c.forget_at END
 WHERE c.forget_at <= (SELECT at FROM clock)
    OR (c.reply IS NULL AND c.payload = excluded.payload AND left(c.owner::text, 18) = left(excluded.owner::text, 18))
RETURNING c.token"#;

/// Claims as stored, and the time.
const READ_CLAIMS: &str = r#"
SELECT a.token, c.owner, c.attempt, c.payload, c.forget_at, substr(c.reply, 1, {reply}) AS reply, "{p}_now"() AS at
  FROM unnest($1::bytea[]) AS a (token) LEFT JOIN "{p}_claims" c ON c.token = a.token"#;

/// Number of parameters of a swap.
const SWAP_PARAMETERS: usize = 26;

/// Swaps the row and, if that succeeded, the bodies. Each function sees the changes of the one
/// before it and holds the row's lock.
const SWAP_BODIES: &str =
    r#"SELECT CASE WHEN "{p}_swap"({row}) THEN "{p}_replace_bodies"($1, {bodies}) ELSE false END"#;

/// Lists parameter marks: `$1, $2, …`.
fn marks(numbers: RangeInclusive<usize>) -> String {
    numbers.map(|number| format!("${number}")).collect::<Vec<_>>().join(", ")
}

impl Statements {
    pub(crate) fn new(prefix: &str) -> Statements {
        let with = |text: &str| with_prefix(&bounded(text), prefix);
        let call = |function: &str, parameters: usize| {
            with(&format!("SELECT * FROM \"{{p}}_{function}\"({})", marks(1..=parameters)))
        };
        Statements {
            put: call("put", 10),
            put_body: call("put_body", 14),
            read: with(READ),
            read_bodies: with(&READ.replace(" AS at\n", " AS at, y.*, z.*\n")) + &with(BODIES),
            wait: with(r#"SELECT FROM "{p}_wait"($1)"#),
            swap: call("swap", SWAP_PARAMETERS),
            swap_bodies: with(SWAP_BODIES)
                .replace("{row}", &marks(1..=SWAP_PARAMETERS))
                .replace("{bodies}", &marks(SWAP_PARAMETERS + 1..=SWAP_PARAMETERS + 8)),
            scan: with(r#"SELECT name FROM "{p}_counters" ORDER BY name LIMIT $1"#),
            scan_on: with(r#"SELECT name FROM "{p}_counters" WHERE name > $2 ORDER BY name LIMIT $1"#),
            claim: with(
                r#"SELECT claimed, at, owner, attempt, payload, forget_at, substr(reply, 1, {reply}) AS reply
                     FROM "{p}_claim"($1, $2, $3, $4, $5, $6)"#,
            ),
            restore_claims: with(RESTORE_CLAIMS),
            read_claims: with(READ_CLAIMS),
            locked: with(LOCKED),
            end_claim: call("end_claim", 4),
            writers: with(
                r#"SELECT "{p}_now"() AS at, w.writer, w.version, w.holder, w.lease_until, left(w.stage, 16) AS stage, w.since
                     FROM (SELECT) AS one LEFT JOIN "{p}_writers" w ON true LIMIT {writers}"#,
            ),
            register: call("register", 8),
            unregister: with(r#"DELETE FROM "{p}_writers" WHERE writer = $1 AND version = $2 RETURNING 1"#),
            has_names: with(r#"SELECT to_regclass('"{p}_names"') IS NOT NULL AS there"#),
            make_names: with(schema::NAMES),
            name_node: with(
                r#"INSERT INTO "{p}_names" (node, name) VALUES ($1, $2) ON CONFLICT (node) DO UPDATE SET name = EXCLUDED.name"#,
            ),
            unname_node: with(r#"DELETE FROM "{p}_names" WHERE node = $1"#),
            node_names: with(r#"SELECT node, left(name, {name}) AS name FROM "{p}_names" LIMIT {writers}"#),
            clock: with(r#"SELECT "{p}_now"() AS at"#),
        }
    }
}
