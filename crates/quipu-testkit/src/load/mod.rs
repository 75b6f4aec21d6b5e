//! Puts load on a real server, and keeps the account of the values that it must hold.
//!
//! In: the address of a RESP listener. Out: violations, once the server has come back after a
//! fault.
//!
//! Several clients share counters of five classes, each with an exact check:
//!
//! | class | changed by | check |
//! |---|---|---|
//! | `rise:N` | all add above 0 | sum; no two equal replies; never shown or found below a shown value |
//! | `drift:N` | all add ± | sum |
//! | `crop:N` | all add, one harvests (`GETSET 0`) | sum, including harvested values |
//! | `pair:N:a`, `:b` | all add to both in one EXEC | sum; always equal |
//! | `own:C:N` | client C, any command, alone or in one EXEC | state after acked operations and a prefix of the rest |
//!
//! Other clients read the `own` counters too.
//!
//! Separate accounts: an [`UnrepliedAccount`] for adds without replies; an [`OnceAccount`] for adds
//! with tokens and sequence numbers; a [`CrowdAccount`] for more counters than fit in memory, so
//! that most of them are at rest.
//!
//! Not here: the faults of the server (the suites).

mod account;
mod background_stats;
mod crowd;
mod drive;
mod once;
mod request;
mod unreplied;

pub use self::account::{LoadAccount, LoadTally, Loss};
pub use self::background_stats::{BackgroundStats, read_info};
pub use self::crowd::{CrowdAccount, CrowdLog, CrowdNames, PIPELINE_MAX, scan_names};
pub use self::drive::{ClientLog, LoadDriver, LoggedRequest};
pub use self::once::OnceAccount;
pub use self::request::{CLIENTS, LoadClass, LoadRequest};
pub use self::unreplied::{UnrepliedAccount, count_split_counters};

#[cfg(test)]
mod tests;
