//! Reads counters of a server by `QUIPU.READ`: value, kind, bounds.
//!
//! In: names. Out: a reading of each, as a row of a table or as JSON.

use anyhow::Context;

use crate::json::Json;
use crate::resp_client::{RespClient, Value, expect_success};
use crate::terminal;

/// Names read in one pipeline. Their replies fit the buffers of any socket, so neither side waits
/// for the other.
pub const NAMES_PER_PIPELINE: usize = 100;

/// Value and kind of a missing counter.
const ABSENT: &str = "-";

/// A server's reading of a counter.
pub struct CounterReading<'n> {
    name: &'n [u8],
    /// None if the counter does not exist.
    state: Option<CounterState>,
    exact: bool,
}

struct CounterState {
    value: i64,
    kind: String,
    /// If known.
    bound: Option<(i64, i64)>,
}

/// Reads counters, in the order of their names.
pub fn read_counters<'n>(client: &mut RespClient, names: &[&'n [u8]]) -> anyhow::Result<Vec<CounterReading<'n>>> {
    let mut readings = Vec::with_capacity(names.len());
    for names in names.chunks(NAMES_PER_PIPELINE) {
        let commands: Vec<Vec<&[u8]>> = names.iter().map(|name| vec![&b"QUIPU.READ"[..], name]).collect();
        client.pipeline(&commands, |at, reply| {
            let reply = expect_success(reply)?;
            let reading = CounterReading::parse(names[at], &reply);
            readings.push(reading.with_context(|| format!("the server sent {reply:?} for a reading"))?);
            Ok(())
        })?;
    }
    Ok(readings)
}

impl<'n> CounterReading<'n> {
    fn parse(name: &'n [u8], reply: &Value) -> Option<CounterReading<'n>> {
        let exact = reply.field("exact")?.number()? != 0;
        let state = match reply.field("exists")?.number()? {
            0 => None,
            _ => {
                let kind = String::from_utf8(reply.field("kind")?.bytes()?.to_vec()).ok()?;
                let bound = reply.field("bound_low")?.number().zip(reply.field("bound_high")?.number());
                Some(CounterState { value: reply.field("value")?.number()?, kind, bound })
            }
        };
        Some(CounterReading { name, state, exact })
    }

    /// Returns true if the counter exists.
    pub fn exists(&self) -> bool {
        self.state.is_some()
    }

    /// The name for display.
    pub fn name(&self) -> String {
        terminal::format_name(self.name)
    }

    /// The value in digits.
    pub fn value(&self) -> String {
        self.state.as_ref().map_or_else(|| ABSENT.to_owned(), |state| state.value.to_string())
    }

    /// The name of its kind.
    pub fn kind(&self) -> &str {
        self.state.as_ref().map_or(ABSENT, |state| &state.kind)
    }

    fn bounds(&self) -> String {
        match &self.state {
            Some(_) if self.exact => "exact".to_owned(),
            Some(CounterState { bound: Some((low, high)), .. }) => format!("{low} to {high}"),
            _ => ABSENT.to_owned(),
        }
    }

    /// The whole reading for `--json`.
    pub fn json(&self) -> Json {
        let number = |number: Option<i64>| number.map_or(Json::Null, |number| Json::Number(number.into()));
        let (state, bound) = (self.state.as_ref(), self.state.as_ref().and_then(|state| state.bound));
        Json::Object(vec![
            Json::name_field(self.name),
            ("kind", state.map_or(Json::Null, |state| Json::text(&state.kind))),
            ("value", number(state.map(|state| state.value))),
            ("bound_low", number(bound.map(|(low, _)| low))),
            ("bound_high", number(bound.map(|(_, high)| high))),
            ("exact", Json::Bool(self.exact)),
        ])
    }
}

/// A table for people.
pub fn table(readings: &[CounterReading<'_>]) -> String {
    let mut table = terminal::table(["name", "value", "kind", "bounds"]);
    for reading in readings {
        table.add_row([reading.name(), reading.value(), reading.kind().to_owned(), reading.bounds()]);
    }
    terminal::render_figures(table, 1..2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading<'n>(name: &'n [u8], fields: &str) -> CounterReading<'n> {
        let words = fields.split(' ').map(|word| Value::Bulk(word.into())).collect();
        CounterReading::parse(name, &Value::Array(words)).expect("it is a reading")
    }

    #[test]
    fn a_table_has_values_kinds_and_bounds_and_a_dash_for_what_is_not_there() {
        let rows = [
            reading(b"likes:42", "kind count value 42 exists 1 exact 1 bound_low 42 bound_high 42"),
            reading(b"visitors", "kind unique value 1000 exists 1 exact 0 bound_low 999 bound_high 1001"),
            reading(b"shared", "kind count value 7 exists 1 exact 0 bound_low - bound_high -"),
            reading(b"nobody", "kind count value 0 exists 0 exact 1 bound_low 0 bound_high 0"),
        ];
        assert_eq!(
            table(&rows),
            "name      value  kind    bounds\n\
             likes:42     42  count   exact\n\
             visitors   1000  unique  999 to 1001\n\
             shared        7  count   -\n\
             nobody        -  -       -"
        );
    }
}
