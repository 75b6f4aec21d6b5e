//! Looks up the display names of a store's writers.

use quipu_model::{NodeNames, Store, Writer};

use crate::json::Json;
use crate::stores::retry::block_on;

/// The names of nodes; empty if the store does not provide them.
#[derive(Default)]
pub struct WriterNames(NodeNames);

impl WriterNames {
    pub fn read(store: &dyn Store) -> WriterNames {
        WriterNames(block_on(store.node_names()).unwrap_or_default())
    }

    /// The name for a table.
    pub fn text(&self, writer: Writer) -> String {
        self.0.get(&writer.node).map_or_else(|| "-".to_owned(), |name| printable(name))
    }

    pub fn json(&self, writer: Writer) -> Json {
        self.0.get(&writer.node).map_or(Json::Null, Json::text)
    }

    /// A writer in a sentence.
    pub fn describe(&self, writer: Writer) -> String {
        self.0.get(&writer.node).map_or_else(|| writer.to_string(), |name| format!("{writer} ({})", printable(name)))
    }
}

/// A name without control characters, which could move a terminal's cursor.
fn printable(name: &str) -> String {
    name.replace(|letter: char| letter.is_control(), " ")
}
