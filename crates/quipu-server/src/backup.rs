//! Makes backups for clients, on a separate thread: workers do not wait for the disk.
//!
//! In: a directory. Out: a line for the client, at the end of the backup.
//!
//! The engine allows one backup at a time and refuses a second. The server's stop closes the
//! engine, which aborts a running backup and waits until it has removed its files.

use std::path::PathBuf;

use quipu_engine::{BackupSummary, Engine};
use tokio::sync::oneshot;

/// Outcome of a backup, as text for the client.
pub(crate) type BackupReply = Result<String, String>;

/// Makes a backup and waits for it.
pub(crate) async fn back_up(engine: &Engine, dir: PathBuf) -> BackupReply {
    let (sender, receiver) = oneshot::channel();
    let engine = engine.clone();
    let work = move || {
        let outcome = engine.backup(&dir).map(|backed_up| success_line(&backed_up, &dir));
        // The send fails if the client's worker has ended.
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

/// Replaces control characters: a path may contain line ends, a one-line reply may not.
fn single_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
