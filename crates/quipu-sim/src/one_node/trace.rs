//! Records an incarnation: the states that existed and the replies that left.

use std::collections::BTreeMap;
use std::path::PathBuf;

use quipu_engine::Position;
use quipu_model::Durability;

use super::model::ModelState;
use super::tokens::TokenModel;

/// The record of an incarnation.
#[derive(Default)]
pub struct Trace {
    /// State at the end of each record, without the names in memory.
    pub states: BTreeMap<Position, ModelState>,
    /// The same of tokens.
    pub token_models: BTreeMap<Position, TokenModel>,
    /// Replies that left.
    pub sent: Vec<SentReply>,
    /// Every value that a name in memory ever had.
    pub memory: BTreeMap<Vec<u8>, Vec<i64>>,
    /// Backups that were begun.
    pub backups: Vec<BackupTrace>,
    /// Amount of work.
    pub tally: TraceTally,
}

/// The record of a backup.
pub struct BackupTrace {
    /// Its directory.
    pub dir: PathBuf,
    /// Number of operations of the disk that had returned at its beginning.
    pub begun: usize,
    /// End of the journal at its beginning.
    pub least: Position,
    /// The same number at its end, and the end of its journal.
    pub done: Option<(usize, Position)>,
}

/// A reply that left.
pub struct SentReply {
    /// Number of operations of the disk that had returned when it left.
    pub operations: usize,
    /// End of the records that it has shown.
    pub position: Position,
    /// Durability that it promises.
    pub durability: Durability,
    /// Its command and content, for a report.
    pub what: String,
}

/// Amount of work of an incarnation.
#[derive(Default, Debug, Clone, Copy)]
pub struct TraceTally {
    /// Steps of workers.
    pub steps: usize,
    /// Replies that left.
    pub replies: usize,
    /// Steps of another worker than the step before.
    pub switches: usize,
    /// Seals that were finished.
    pub seals: usize,
    /// Counters that left memory.
    pub evicted: usize,
    /// Counters that were loaded.
    pub loads: usize,
    /// Sweeps that did work.
    pub swept: usize,
    /// Refusals.
    pub refused: usize,
    /// Adds and reads on the fast path.
    pub simple: usize,
    /// Applied mutations under a token or a sequence number.
    pub once: usize,
    /// Repeated ones, which were answered or refused.
    pub again: usize,
    /// Adds without a reply that went to a lane.
    pub in_lanes: usize,
    /// Adds without a reply that did not.
    pub counted: usize,
}

impl TraceTally {
    /// Adds another incarnation's tally.
    pub fn add(&mut self, other: &TraceTally) {
        self.steps += other.steps;
        self.replies += other.replies;
        self.switches += other.switches;
        self.seals += other.seals;
        self.evicted += other.evicted;
        self.loads += other.loads;
        self.swept += other.swept;
        self.refused += other.refused;
        self.simple += other.simple;
        self.once += other.once;
        self.again += other.again;
        self.in_lanes += other.in_lanes;
        self.counted += other.counted;
    }
}

impl Trace {
    /// Tokens that were remembered at the end.
    pub fn tokens(&self) -> &TokenModel {
        self.token_models.last_key_value().expect("an incarnation notes its end").1
    }

    /// The furthest reply of at least this durability that had left at this number of operations.
    /// Any recovery from a crash at that moment must reach its position.
    pub fn furthest_reply(&self, operations: usize, least: Durability) -> Option<&SentReply> {
        let left = self.sent.iter().filter(|reply| reply.operations <= operations);
        left.filter(|reply| reply.durability >= least).max_by_key(|reply| reply.position)
    }
}
