//! Backs up for a client, on a thread of its own: workers wait for no disk.
//!
//! In: a directory. Out: a line for the client, when it is done.
//!
//! One at a time is the engine's rule; a second client is told so. The server's stop closes the engine, which ends a backup under way and waits until it
//! has removed what it wrote.

use std::path::PathBuf;

use quipu_engine::{BackupSummary, Engine};
use tokio::sync::oneshot;

/// What became of a backup, in words for the client.
pub(crate) type BackupReply = Result<String, String>;

/// Makes a backup and waits for it.
pub(crate) async fn back_up(engine: &Engine, dir: PathBuf) -> BackupReply {
    let (sender, receiver) = oneshot::channel();
    let engine = engine.clone();
    let work = move || {
        let outcome = engine.backup(&dir).map(|backed_up| success_line(&backed_up, &dir));
        // Nobody listens if the client's worker has ended meanwhile.
        let _ = sender.send(outcome.map_err(|error| single_line(&error.to_string())));
    };
    let thread = std::thread::Builder::new().name("quipu-backup".to_owned()).spawn(work);
    match thread {
        Ok(_) => receiver.await.unwrap_or_else(|_| Err("the backup ended without a word".to_owned())),
        Err(error) => Err(single_line(&format!("no thread for a backup: {error}"))),
    }
}

fn success_line(backed_up: &BackupSummary, dir: &std::path::Path) -> String {
    let BackupSummary { position, journal_bytes, ledger_bytes } = backed_up;
    let dir = dir.display();
    single_line(&format!(
        "OK {dir} holds the journal up to position {position} ({journal_bytes} bytes) and the ledger ({ledger_bytes} bytes)"
    ))
}

/// A path may have line ends in it; a reply of one line may not.
fn single_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
