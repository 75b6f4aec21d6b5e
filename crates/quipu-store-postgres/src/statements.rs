//! The statements: everything that must be one step at the server, each one transaction.
//!
//! What is more than one look-up is a function of the tables' own (`sql/code.sql`).

use std::ops::RangeInclusive;

use crate::schema::{self, named};

/// The statements, with the names of one prefix in them.
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

/// One statement, so one snapshot: the row and its cells as of one moment, and the time after that.
const READ: &str = r#"
SELECT c.born_at, c.swaps, c.puts, c.epoch, c.base, c.expires_at, c.gone_at, c.last, x.*, "{p}_now"() AS at
  FROM (SELECT) AS one
  LEFT JOIN "{p}_counters" c ON c.name = $1
  LEFT JOIN LATERAL (
    SELECT array_agg(writer) AS writers, array_agg(shard) AS shards, array_agg(seq) AS seqs, array_agg(value) AS values,
           array_agg(total) AS totals, array_agg(closed) AS closed, array_agg(spent_epoch) AS spent_epochs,
           array_agg(spent_seq) AS spent_seqs, array_agg(spent_value) AS spent_values, array_agg(spent_total) AS spent_totals,
           array_agg(spent_closed) AS spent_closed, array_agg(spent_expired) AS spent_expired, array_agg(spent_at) AS spent_at
      FROM "{p}_cells" WHERE counter = c.id) x ON true"#;

/// Behind [`READ`]: the bodies beside the row, of the same snapshot.
const BODIES: &str = r#"
  LEFT JOIN LATERAL (
    SELECT array_agg(writer) AS body_writers, array_agg(kind) AS body_kinds, array_agg(key) AS body_keys, array_agg(length) AS body_lengths
      FROM "{p}_bodies" WHERE counter = c.id) y ON true
  LEFT JOIN LATERAL (
    SELECT array_agg(writer) AS page_writers, array_agg(page) AS page_numbers, array_agg(bytes) AS page_bytes
      FROM "{p}_pages" WHERE counter = c.id) z ON true"#;

/// What a row is swapped by.
const SWAP_PARAMETERS: usize = 26;

/// The row, and if that was swapped, the bodies: each function sees what the one before it has done, and holds the row's lock.
const SWAP_BODIES: &str =
    r#"SELECT CASE WHEN "{p}_swap"({row}) THEN "{p}_replace_bodies"($1, {bodies}) ELSE false END"#;

/// Places of parameters, in a list.
fn marks(numbers: RangeInclusive<usize>) -> String {
    numbers.map(|number| format!("${number}")).collect::<Vec<_>>().join(", ")
}

impl Statements {
    pub(crate) fn new(prefix: &str) -> Statements {
        let with = |text: &str| named(text, prefix);
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
            claim: call("claim", 6),
            end_claim: call("end_claim", 4),
            writers: with(r#"SELECT "{p}_now"() AS at, w.* FROM (SELECT) AS one LEFT JOIN "{p}_writers" w ON true"#),
            register: call("register", 8),
            unregister: with(r#"DELETE FROM "{p}_writers" WHERE writer = $1 AND version = $2 RETURNING 1"#),
            has_names: with(r#"SELECT to_regclass('"{p}_names"') IS NOT NULL AS there"#),
            make_names: with(schema::NAMES),
            name_node: with(
                r#"INSERT INTO "{p}_names" (node, name) VALUES ($1, $2) ON CONFLICT (node) DO UPDATE SET name = EXCLUDED.name"#,
            ),
            unname_node: with(r#"DELETE FROM "{p}_names" WHERE node = $1"#),
            node_names: with(r#"SELECT node, name FROM "{p}_names""#),
            clock: with(r#"SELECT "{p}_now"() AS at"#),
        }
    }
}
