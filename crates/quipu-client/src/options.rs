//! Where a server is, and how patient a client is with it.

use std::fmt;
use std::time::Duration;

use quipu_protocol::json::percent_decode;

use crate::Error;

/// The port if an address names none.
const PORT_DEFAULT: u16 = 7379;

/// Words that an address may begin with: ours, and those that Redis clients know.
const SCHEMES: [&str; 3] = ["quipu://", "resp://", "redis://"];

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

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub host: String,
    pub port: u16,
    pub password: Option<Secret>,
}

impl Address {
    /// `host`, `host:port`, or `quipu://[user][:password@]host[:port][/0]`, as Redis clients write it.
    pub fn parse(text: &str) -> Result<Address, Error> {
        let bad = |why: &str| Error::Address { address: hidden(text), why: why.to_owned() };
        let rest = match SCHEMES.iter().find_map(|scheme| text.strip_prefix(scheme)) {
            Some(rest) => rest.strip_suffix("/0").or(rest.strip_suffix('/')).unwrap_or(rest),
            None if text.contains("://") => return Err(bad("only quipu://, resp:// and redis:// are known")),
            None => text,
        };
        let (user, place) = rest.rsplit_once('@').map_or((None, rest), |(user, place)| (Some(user), place));
        let password = match user.and_then(|user| user.split_once(':')) {
            Some((_, "")) | None => None,
            Some((_, password)) => {
                Some(Secret(percent_decode(password).map_err(|_| bad("the password is not percent-encoded"))?))
            }
        };
        let (host, port) = match place.rsplit_once(':') {
            // The colons of an address of IPv6 are its own.
            Some((host, _)) if host.contains(':') && !host.ends_with(']') => (place, None),
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        };
        let port = match port {
            Some(port) => port.parse().map_err(|_| bad("the port is not a number from 0 to 65535"))?,
            None => PORT_DEFAULT,
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() || host.contains(['/', '@', '[', ']']) {
            return Err(bad("it names no host"));
        }
        Ok(Address { host: host.to_owned(), port, password })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// An address without its password, to be shown.
fn hidden(text: &str) -> String {
    match text.rsplit_once('@') {
        Some((_, place)) => format!("…@{place}"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_may_have_the_rest() {
        for (text, shown, password) in [
            ("localhost", "localhost:7379", None),
            ("127.0.0.1:80", "127.0.0.1:80", None),
            ("::1", "[::1]:7379", None),
            ("[::1]:80", "[::1]:80", None),
            ("quipu://count.example", "count.example:7379", None),
            ("redis://:p%40ss@h:1/0", "h:1", Some("p@ss")),
            ("resp://user:a:b@h/", "h:7379", Some("a:b")),
            ("quipu://user:@h", "h:7379", None),
        ] {
            let address = Address::parse(text).unwrap();
            assert_eq!((address.to_string().as_str(), address.password), (shown, password.map(Secret::from)), "{text}");
        }
    }

    #[test]
    fn a_bad_address_is_told_without_its_password() {
        for text in
            ["", "http://h", "quipu://", ":80", "h:x", "h:70000", "quipu://:a%zz@h", "redis://:secret@h/3", "a/b"]
        {
            let error = Address::parse(text).unwrap_err();
            assert!(matches!(error, Error::Address { .. }), "{text}");
            assert!(!error.to_string().contains("secret") && !error.to_string().contains("zz"), "{error}");
        }
        let options = Options { password: Some("secret".into()), ..Options::default() };
        assert!(!format!("{options:?}").contains("secret"));
    }
}
