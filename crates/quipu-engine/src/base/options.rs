//! Defines the options and the environment with which an engine is opened.

use std::path::PathBuf;
use std::time::Duration;

use quipu_model::{Clock, Durability, Ledger, LedgerError, Namespace, Rng, Store, Vfs};

use crate::base::logging;
use crate::base::sharing_options::SharingOptions;
use crate::base::sync::Arc;
use crate::base::system::{SystemClock, SystemDisk, SystemLedger, SystemRng};

/// Default length of a segment: long enough that a rotation is rare, short enough to be prepared
/// quickly.
pub const SEGMENT_BYTES_DEFAULT: u64 = 16 << 20;

/// Shortest segment: its header and at least a few records of the longest name.
pub const SEGMENT_BYTES_MIN: u64 = 4 << 10;

/// Longest segment. It is written with zeros before its first record, by a worker if need be; more
/// would only take longer.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// Adds within a relaxed window, of 50 ms, that justify lanes. Each costs some 200 ns on the
/// general path, so fewer adds leave nothing to save.
const SPLIT_AFTER: u32 = 64;

/// Time for which a token is remembered: a client that retries longer than a day does so by hand.
const TOKEN_WINDOW: Duration = Duration::from_secs(24 * 60 * 60);

/// Most remembered tokens: twelve a second for a day. About 100 MB when all are present.
const TOKENS_MAX: u64 = 1 << 20;

/// Most remembered producers of sequences. They are never forgotten, so all producers ever named
/// count. A producer is a process or a partition; thousands are many.
const PRODUCERS_MAX: u64 = 1 << 16;

/// Most bytes of a token in memory: an entry of a map that has just grown.
const TOKEN_BYTES: u64 = 100;

/// Options of an engine; [`Options::new`] fills in the defaults.
#[derive(Debug, Clone)]
pub struct Options {
    /// The data directory.
    pub data: PathBuf,
    /// Default durability of an acknowledgement, for namespaces without their own.
    pub durability: Durability,
    /// Settings of namespaces; run-time settings take precedence.
    pub namespaces: Vec<(Box<[u8]>, Namespace)>,
    /// Longest time between two syncs of relaxed namespaces.
    pub relaxed_window: Duration,
    /// Length of a journal segment.
    pub segment_bytes: u64,
    /// Room kept prepared ahead of the writes; `None`: one segment, or several small ones.
    pub ahead_bytes: Option<u64>,
    /// Most bytes applied but not yet written to the file; beyond it, writes are refused.
    pub pending_bytes_max: u64,
    /// Growth of the journal after which cells are sealed and the journal is cut.
    pub journal_bytes_max: u64,
    /// Longest time until changed cells are sealed.
    pub seal_every: Duration,
    /// Approximate memory limit of the engine: counters not used recently stay in the ledger alone.
    /// `None`: no limit.
    pub memory_bytes_max: Option<u64>,
    /// Most bytes of disk for journal and ledger; `None`: no limit.
    pub disk_bytes_max: Option<u64>,
    /// Disk space reserved for a seal on a full disk: without it, a journal that has filled the
    /// disk could never be cut.
    pub reserve_bytes: u64,
    /// Shards of the resident table, rounded up to a power of two.
    pub table_shards: usize,
    /// Lanes of a counter with concurrent adds, rounded up to a power of two.
    pub lanes: usize,
    /// Number of adds without a reply value, within a relaxed window, that splits a counter into
    /// lanes.
    pub split_after: u32,
    /// Time for which a token is remembered.
    pub token_window: Duration,
    /// Most remembered tokens, bounded by an eighth of `memory_bytes_max`; beyond it, new ones are
    /// refused.
    pub tokens_max: u64,
    /// Most remembered producers of sequences; beyond it, new ones are refused.
    pub producers_max: u64,
    /// Threads that restore counters at a start while the journal is read; `None`: a sensible
    /// number for this machine.
    pub restore_threads: Option<usize>,
    /// Sharing of counters, if the environment has a store.
    pub sharing: SharingOptions,
}

impl Options {
    /// The defaults for this directory.
    pub fn new(data: impl Into<PathBuf>) -> Options {
        Options {
            data: data.into(),
            durability: Durability::Durable,
            namespaces: Vec::new(),
            relaxed_window: Duration::from_millis(50),
            segment_bytes: SEGMENT_BYTES_DEFAULT,
            ahead_bytes: None,
            pending_bytes_max: 64 << 20,
            journal_bytes_max: 512 << 20,
            seal_every: Duration::from_secs(60),
            memory_bytes_max: None,
            disk_bytes_max: None,
            reserve_bytes: 8 << 20,
            table_shards: 1024,
            lanes: std::thread::available_parallelism().map_or(1, usize::from),
            split_after: SPLIT_AFTER,
            token_window: TOKEN_WINDOW,
            tokens_max: TOKENS_MAX,
            producers_max: PRODUCERS_MAX,
            restore_threads: None,
            sharing: SharingOptions::default(),
        }
    }

    /// Memory for resident counters: the limit without the ledger's blocks and all other users; a
    /// part of these grows with the load. Never less than an eighth: a limit that small is
    /// exceeded.
    pub(crate) fn table_bytes_max(&self) -> Option<u64> {
        self.memory_bytes_max.map(|bytes_max| {
            let others = self.cache_bytes() + bytes_max / 8 + OTHERS_BYTES;
            bytes_max.saturating_sub(others).max(bytes_max / 8)
        })
    }

    /// Most remembered tokens: under a memory limit, most memory is for counters.
    pub(crate) fn tokens_max(&self) -> u64 {
        let fit = self.memory_bytes_max.map_or(u64::MAX, |bytes_max| bytes_max / 8 / TOKEN_BYTES);
        self.tokens_max.min(fit)
    }

    /// Number of collected cells that triggers an ingestion: a thirty-second of the memory limit,
    /// if there is one. So a seal takes little memory regardless of the number of changes.
    pub(crate) fn ingest_cells(&self) -> usize {
        let fit = self.memory_bytes_max.map_or(u64::MAX, |bytes_max| bytes_max / 32 / COLLECTED_BYTES);
        fit.clamp(INGEST_CELLS_MIN, INGEST_CELLS_MAX) as usize
    }

    /// Bytes of the ledger's blocks kept in memory: a sixteenth of the limit, which leaves the rest
    /// to the counters. The system caches files, too.
    fn cache_bytes(&self) -> u64 {
        self.memory_bytes_max.map_or(CACHE_BYTES_DEFAULT, |bytes_max| bytes_max / 16).min(CACHE_BYTES_DEFAULT)
    }

    pub(crate) fn ahead_bytes(&self) -> u64 {
        self.ahead_bytes.unwrap_or(self.segment_bytes.max(AHEAD_BYTES_MIN))
    }
}

/// Memory of all other users: the program itself, a seal and a compaction in progress, and the
/// allocator's arenas of these threads. Measured at 30 to 38 MB besides counters and blocks with a
/// limit of 64 MB; an eighth of the limit covers 8 of these.
const OTHERS_BYTES: u64 = 28 << 20;

/// Most cells of one ingestion: more would take memory, fewer would make more tables to merge.
const INGEST_CELLS_MAX: u64 = 64 << 10;
const INGEST_CELLS_MIN: u64 = 4 << 10;

/// Approximate bytes of a collected cell, its name included.
const COLLECTED_BYTES: u64 = 128;

/// Bytes of the ledger's blocks kept in memory without a limit.
const CACHE_BYTES_DEFAULT: u64 = 64 << 20;

/// Most bytes of small segments prepared at once.
const AHEAD_BYTES_MIN: u64 = 1 << 20;

/// Opens the ledger of a data directory, creating it if there is none.
pub type OpenLedger = Arc<dyn Fn(&Options) -> Result<Arc<dyn Ledger>, LedgerError> + Send + Sync>;

/// The engine's ports to its environment.
#[derive(Clone)]
pub struct Environment {
    /// Clocks.
    pub clock: Arc<dyn Clock>,
    /// Random numbers.
    pub rng: Arc<dyn Rng>,
    /// File system.
    pub vfs: Arc<dyn Vfs>,
    /// Opens the ledger in a data directory.
    pub open_ledger: OpenLedger,
    /// The shared store of several nodes; `None`: this node is alone.
    pub store: Option<Arc<dyn Store>>,
    /// Called once, when the journal cannot be written or synced. Nothing is acknowledged after
    /// that.
    pub on_failure: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Environment {
    /// The real machine. A failed journal ends the process.
    pub fn system() -> Environment {
        Environment {
            clock: Arc::new(SystemClock::default()),
            rng: Arc::new(SystemRng),
            vfs: Arc::new(SystemDisk),
            open_ledger: Arc::new(|options| {
                let dir = options.data.join(LEDGER_DIR);
                Ok(Arc::new(SystemLedger::open(&dir, options.cache_bytes())?))
            }),
            store: None,
            on_failure: Arc::new(|reason| {
                logging::error(
                    reason,
                    "the journal failed, so the process ends; nothing was acknowledged that is not durable, and the next start verifies the journal",
                );
                std::process::exit(EXIT_JOURNAL_FAILED);
            }),
        }
    }
}

/// Name of the ledger's directory in a data directory.
pub const LEDGER_DIR: &str = "ledger";

/// Exit status after a failed write or sync (EX_IOERR of sysexits).
pub const EXIT_JOURNAL_FAILED: i32 = 74;
