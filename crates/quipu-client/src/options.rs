//! The options of a client: password, timeouts, pauses and bounds.

use std::fmt;
use std::time::Duration;

/// Options of a client.
#[derive(Debug, Clone)]
pub struct Options {
    /// The server's password; a password in the address has precedence. Default none.
    pub password: Option<Secret>,
    /// Longest time of a call, retries included; default 30 s.
    pub timeout: Duration,
    /// Longest time to make and authenticate a connection; default 5 s.
    pub connect_timeout: Duration,
    /// Longest silence of a server that owes replies; default 10 s. The client then drops the
    /// connection and sends the unanswered requests again on the next one.
    pub reply_timeout: Duration,
    /// Pause before the first retry; default 10 ms. It doubles before each further one, with random
    /// jitter.
    pub pause_min: Duration,
    /// Longest pause; default 1 s.
    pub pause_max: Duration,
    /// Most calls in flight at once; default 1,024, not 0. Further calls wait for a permit, within
    /// their timeout.
    pub in_flight_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            password: None,
            // A restart of a server with a large journal takes seconds. A caller that can wait
            // longer sets a longer timeout.
            timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            // An fsync on a bad day takes seconds; a second attempt is harmless.
            reply_timeout: Duration::from_secs(10),
            pause_min: Duration::from_millis(10),
            pause_max: Duration::from_secs(1),
            // With names of the greatest length, their requests take less than the megabyte that a
            // server holds for a connection.
            in_flight_max: 1_024,
        }
    }
}

/// A password, which `Debug` does not show.
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
