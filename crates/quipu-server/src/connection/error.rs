//! Errors of a connection over RESP: password, transactions, limits. The text is the whole reply.

/// Why a connection refuses a command that is understood. The words are Redis's where Redis has the error.
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
