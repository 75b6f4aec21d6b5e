//! Errors of a connection over RESP: password, transactions, limits. The text is the whole reply.

use quipu_model::RespCode::Own;

/// Reason why a connection refuses a valid command. The text is Redis's where Redis has the error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("NOAUTH Authentication required.")]
    NoAuth,
    #[error(
        "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> \
         <pass> option can be used to authenticate the client and select the RESP protocol version at the same time"
    )]
    NoAuthHello,
    #[error("WRONGPASS invalid username-password pair or user is disabled.")]
    WrongPassword,
    #[error(
        "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
         configuration is correct?"
    )]
    NoPassword,
    #[error("ERR max number of clients reached")]
    TooManyClients,
    #[error("ERR DB index is out of range")]
    Database,
    #[error("ERR MULTI calls can not be nested")]
    NestedMulti,
    #[error("ERR DISCARD without MULTI")]
    DiscardWithoutMulti,
    #[error("ERR EXEC without MULTI")]
    ExecWithoutMulti,
    #[error("EXECABORT Transaction discarded because of previous errors.")]
    ExecAbort,
    #[error("ERR WATCH inside MULTI is not allowed")]
    WatchInMulti,
    #[error("ERR too many watched names: at most {watches_max}")]
    TooManyWatches { watches_max: usize },
    #[error("ERR {name} is not offered inside a transaction: it would hold every counter")]
    WalkInMulti { name: String },
    #[error("ERR IDMP and SEQ are not offered inside a transaction")]
    TokenInMulti,
    #[error("ERR Command not allowed inside a transaction")]
    NotInMulti,
    #[error(
        "ERR the transaction is too long: at most {commands_max} commands and {bytes_max} bytes, and replies within the output bound"
    )]
    QueueFull { commands_max: usize, bytes_max: usize },
    #[error("ERR the reply would exceed {bytes_max} bytes; use CLIENT LIST ID")]
    ClientListTooLarge { bytes_max: usize },
    #[error(
        "ERR a backup is made only for clients on the server's own machine: run it there, through a loopback address"
    )]
    BackupFromElsewhere,
    #[error("ERR a backup needs an absolute path, since the server is not where its client is")]
    BackupRelative,
}

quipu_model::reasons! { ConnectionError:
    NoAuth, Some(Own), None,
        "The server has a password, and the connection has not given it. The connection is closed.",
        "Send AUTH or HELLO … AUTH first; `quipu` and redis-cli take `--password` and `-a`.";
    NoAuthHello, Some(Own), None,
        "HELLO came before the password.",
        "Send `HELLO 3 AUTH default PASSWORD`.";
    WrongPassword, Some(Own), None,
        "The password is wrong, or the user is not `default`.",
        "Use the password of the setting `password`; the only user is `default`.";
    NoPassword, Some(Own), None,
        "The client gave a password, and the server has none.",
        "Leave the password out, or start the server with one.";
    TooManyClients, Some(Own), None,
        "As many clients are connected as `limits.connections` or the open-files limit allows.",
        "Close connections, use a pool, or raise `limits.connections`. CONFIG SET maxclients changes it at run time.";
    Database, Some(Own), None,
        "SELECT names another database than 0.",
        "Use database 0, and a namespace in the name (`likes:42`) to separate counters.";
    NestedMulti, Some(Own), None,
        "MULTI came inside a transaction.",
        "Send EXEC or DISCARD first.";
    DiscardWithoutMulti, Some(Own), None,
        "DISCARD came without a transaction.",
        "Send MULTI first.";
    ExecWithoutMulti, Some(Own), None,
        "EXEC came without a transaction.",
        "Send MULTI first.";
    ExecAbort, Some(Own), None,
        "A command of the transaction was refused when it was queued, so none was run.",
        "Mend that command and send the transaction again.";
    WatchInMulti, Some(Own), None,
        "WATCH came inside a transaction.",
        "Send WATCH before MULTI.";
    TooManyWatches { watches_max: 4_096 }, Some(Own), None,
        "The connection watches 4,096 names, the most it may.",
        "Send UNWATCH or EXEC, or watch fewer names.";
    WalkInMulti { name: "KEYS".into() }, Some(Own), None,
        "SCAN or KEYS came inside a transaction; it would hold every counter meanwhile.",
        "Run it outside MULTI.";
    TokenInMulti, Some(Own), None,
        "A command of a transaction has IDMP or SEQ.",
        "Send the command with its token alone, outside MULTI.";
    NotInMulti, Some(Own), None,
        "The command is about the connection or the server, and cannot be part of a transaction.",
        "Send it before MULTI or after EXEC.";
    QueueFull { commands_max: 16_384, bytes_max: 1_048_576 }, Some(Own), None,
        "The transaction has more than 16,384 commands or 1 MiB, or its replies may exceed 1 MiB.",
        "Split the transaction.";
    ClientListTooLarge { bytes_max: 1_048_576 }, Some(Own), None,
        "The list of clients is longer than 1 MiB.",
        "Ask for some: `CLIENT LIST ID 1 2 3`.";
    BackupFromElsewhere, Some(Own), None,
        "QUIPU.BACKUP writes files on the server's machine, and the client is on another one.",
        "Run `quipu backup` on the server's machine, through 127.0.0.1.";
    BackupRelative, Some(Own), None,
        "QUIPU.BACKUP has a relative path.",
        "Give the path from the root: `/var/backups/quipu`.";
}
