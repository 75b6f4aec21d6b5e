//! How patient a client is with its server.

use std::fmt;
use std::time::Duration;

/// How a client behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// The server's password. One in the address goes before it.
    pub password: Option<Secret>,
    /// How long a call may take in all, retries included, before it is an error.
    pub timeout: Duration,
    /// How long a connection may take to be made and let in.
    pub connect_timeout: Duration,
    /// How long a server that owes replies may send none before its connection is given up, and what it owes is asked again on the next one.
    pub reply_timeout: Duration,
    /// How long to wait before the first retry; twice as long before each further one, with chance in it.
    pub pause_min: Duration,
    /// How long to wait at most.
    pub pause_max: Duration,
    /// Most calls that are under way at once. Further ones wait for a place, within their timeout. Not 0.
    pub in_flight_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            password: None,
            // A restart of a server with a large journal takes seconds; whoever waits longer says so.
            timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            // An fsync on a bad day takes seconds; asking again does no harm.
            reply_timeout: Duration::from_secs(10),
            pause_min: Duration::from_millis(10),
            pause_max: Duration::from_secs(1),
            // With names as long as they may be, their requests take less than the megabyte that a server holds for a connection.
            in_flight_max: 1_024,
        }
    }
}

/// A password, which is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl<T: Into<Vec<u8>>> From<T> for Secret {
    fn from(bytes: T) -> Secret {
        Secret(bytes.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        let options = Options { password: Some("secret".into()), ..Options::default() };
        assert!(!format!("{options:?}").contains("secret"));
    }
}
