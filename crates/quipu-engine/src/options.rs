//! What an engine is opened with.

use std::path::PathBuf;
use std::time::Duration;

use quipu_model::{Clock, Durability, Ledger, LedgerError, Namespace, Rng, Store, Vfs};

use crate::logging;
use crate::sharing::SharingOptions;
use crate::sync::Arc;
use crate::system::{SystemClock, SystemDisk, SystemLedger, SystemRng};

/// Segments are this long unless configured: long enough that a rotation is rare, short enough to be prepared in a moment.
pub const SEGMENT_BYTES_DEFAULT: u64 = 16 << 20;

/// A segment holds its header and at least a few records of the longest name.
pub const SEGMENT_BYTES_MIN: u64 = 4 << 10;

/// A segment is written with zeros before its first record, by a worker if need be; more would only take longer.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// Adds within a relaxed window, of 50 ms, that make lanes worth it: each costs the ordinary way some 200 ns, so below this many there is nothing to save.
const SPLIT_AFTER: u32 = 64;

/// How long a token is remembered: a client that retries longer than a day does so by hand.
const TOKEN_WINDOW: Duration = Duration::from_secs(24 * 60 * 60);

/// Tokens that are remembered: twelve a second for a day. About 100 MB when all are there.
const TOKENS_MAX: u64 = 1 << 20;

/// Producers of sequences that are remembered. They are never forgotten, so there are as many as were ever named; a producer is a process or a partition,
/// of which thousands are many.
const PRODUCERS_MAX: u64 = 1 << 16;

/// Most that a token takes in memory: an entry of a map that has just grown.
const TOKEN_BYTES: u64 = 100;

/// Options of an engine; [`Options::new`] fills in the defaults.
#[derive(Debug, Clone)]
pub struct Options {
    /// The data directory.
    pub data: PathBuf,
    /// What an ack means in namespaces that do not say otherwise.
    pub durability: Durability,
    /// What is said of namespaces; what was said at run time goes before it.
    pub namespaces: Vec<(Box<[u8]>, Namespace)>,
    /// Relaxed namespaces are synced at least this often.
    pub relaxed_window: Duration,
    /// Length of a journal segment.
    pub segment_bytes: u64,
    /// Room kept prepared ahead of the writing; `None`: a segment, and with small ones several.
    pub ahead_bytes: Option<u64>,
    /// Most bytes applied but not yet handed to the operating system; beyond it, writes are refused.
    pub pending_bytes_max: u64,
    /// Cells are sealed and the journal is cut when it has grown by this much.
    pub journal_bytes_max: u64,
    /// What has changed is sealed at least this often.
    pub seal_every: Duration,
    /// The engine takes about this much memory at most: counters that were not used lately rest in the ledger alone. `None`: no limit.
    pub memory_bytes_max: Option<u64>,
    /// Journal and ledger take this much of the disk at most; `None`: all of it.
    pub disk_bytes_max: Option<u64>,
    /// Disk space kept for a seal when there is none left: without it, a journal that has filled the disk could never be cut.
    pub reserve_bytes: u64,
    /// Shards of the resident table, rounded up to a power of two.
    pub table_shards: usize,
    /// Lanes of a counter that is added to in several places at once; rounded up to a power of two.
    pub lanes: usize,
    /// A counter is split into lanes when so many adds came within a relaxed window that want no value back.
    pub split_after: u32,
    /// A token is remembered for so long.
    pub token_window: Duration,
    /// So many tokens are remembered at most, and no more than an eighth of `memory_bytes_max` holds; beyond it, new ones are refused.
    pub tokens_max: u64,
    /// So many producers of sequences are remembered at most; beyond it, new ones are refused.
    pub producers_max: u64,
    /// Threads that restore counters at a start while the journal is read; `None`: as many as are worth it.
    pub restore_threads: Option<usize>,
    /// How counters are shared, if the environment has a store.
    pub sharing: SharingOptions,
}

impl Options {
    /// The defaults, on this directory.
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

    /// What resident counters may take: the limit without the blocks of the ledger and without what everything else takes, of which a part
    /// grows with the load. Never less than an eighth: a limit that small is passed.
    pub(crate) fn table_bytes_max(&self) -> Option<u64> {
        self.memory_bytes_max.map(|bytes_max| {
            let others = self.cache_bytes() + bytes_max / 8 + OTHERS_BYTES;
            bytes_max.saturating_sub(others).max(bytes_max / 8)
        })
    }

    /// How many tokens are remembered at most: where memory is limited, counters have most of it.
    pub(crate) fn tokens_max(&self) -> u64 {
        let fit = self.memory_bytes_max.map_or(u64::MAX, |bytes_max| bytes_max / 8 / TOKEN_BYTES);
        self.tokens_max.min(fit)
    }

    /// Cells are ingested when so many have been collected, so that a seal takes little memory however much has changed: a thirty-second of the limit, if there is one.
    pub(crate) fn ingest_cells(&self) -> usize {
        let fit = self.memory_bytes_max.map_or(u64::MAX, |bytes_max| bytes_max / 32 / COLLECTED_BYTES);
        fit.clamp(INGEST_CELLS_MIN, INGEST_CELLS_MAX) as usize
    }

    /// Blocks of the ledger kept in memory: a sixteenth of the limit, which leaves the rest to the counters; the system caches files, too.
    fn cache_bytes(&self) -> u64 {
        self.memory_bytes_max.map_or(CACHE_BYTES_DEFAULT, |bytes_max| bytes_max / 16).min(CACHE_BYTES_DEFAULT)
    }

    pub(crate) fn ahead_bytes(&self) -> u64 {
        self.ahead_bytes.unwrap_or(self.segment_bytes.max(AHEAD_BYTES_MIN))
    }
}

/// The program itself, a seal and a compaction under way, and what the allocator keeps of them in each thread's arena: measured at 30 to 38 MB
/// beside counters and blocks with a limit of 64 MB, 8 of which an eighth of the limit covers.
const OTHERS_BYTES: u64 = 28 << 20;

/// Cells of one ingestion: more would take memory, fewer would make tables that are merged more often.
const INGEST_CELLS_MAX: u64 = 64 << 10;
const INGEST_CELLS_MIN: u64 = 4 << 10;

/// About what a collected cell takes, its name included.
const COLLECTED_BYTES: u64 = 128;

/// Blocks of the ledger kept in memory when there is no limit.
const CACHE_BYTES_DEFAULT: u64 = 64 << 20;

/// Small segments are prepared several at a time, up to this many bytes.
const AHEAD_BYTES_MIN: u64 = 1 << 20;

/// Opens the ledger of a data directory, making it if there is none.
pub type OpenLedger = Arc<dyn Fn(&Options) -> Result<Arc<dyn Ledger>, LedgerError> + Send + Sync>;

/// What stands between the engine and the world.
#[derive(Clone)]
pub struct Environment {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Chance.
    pub rng: Arc<dyn Rng>,
    /// Disk.
    pub vfs: Arc<dyn Vfs>,
    /// Opens the ledger in a data directory.
    pub open_ledger: OpenLedger,
    /// Where nodes meet; `None`: this one is alone.
    pub store: Option<Arc<dyn Store>>,
    /// Called once, when the journal can no longer be written or synced. Nothing is acknowledged after that.
    pub on_failure: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Environment {
    /// The machine. A journal that fails ends the process: it does not pretend.
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

/// Where the ledger is in a data directory.
pub const LEDGER_DIR: &str = "ledger";

/// Exit status after a failed write or sync (EX_IOERR of sysexits).
pub const EXIT_JOURNAL_FAILED: i32 = 74;
