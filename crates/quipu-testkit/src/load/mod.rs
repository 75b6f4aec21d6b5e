//! Load on a real server, and the account of what it must still hold.
//!
//! In: the address of a RESP door. Out: violations, once the server has come back from whatever was done to it.
//!
//! Several clients share counters of five classes, each of which can be judged exactly in its own way:
//!
//! | class | who changes it | how it is judged |
//! |---|---|---|
//! | `rise:N` | all add above 0 | sum; no two equal replies; never shown or found below what was shown |
//! | `drift:N` | all add ± | sum |
//! | `crop:N` | all add, one harvests (`GETSET 0`) | sum with what was harvested |
//! | `pair:N:a`, `:b` | all add to both in one EXEC | sum; always equal |
//! | `own:C:N` | client C, by every command, alone or in one EXEC | the state after its acked operations and a prefix of the rest; others look on |
//!
//! Apart from these, a [`UnrepliedAccount`]: adds that nobody wants a reply to; and an [`OnceAccount`]: adds under tokens and sequence numbers.
//!
//! Beside these few, a [`CrowdAccount`]: more counters than fit in memory, so that most of them are at rest, each with its own account.
//!
//! Not here: what is done to the server (the suites).

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
