//! Parses the address of a RESP server: `host`, `host:port` or a URL.

use std::fmt;

use crate::json::percent_decode;

/// Default port.
const PORT_DEFAULT: u16 = 7379;

/// URL schemes: ours, and those of Redis clients.
const SCHEMES: [&str; 3] = ["quipu://", "resp://", "redis://"];

/// Address of a server.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// A name or an IP address, without brackets.
    pub host: String,
    /// RESP port.
    pub port: u16,
    /// Password, if the address has one. Never shown.
    pub password: Option<Vec<u8>>,
}

/// Malformed address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("bad address {address:?}: {why}")]
pub struct BadAddress {
    /// The given address without its password.
    pub address: String,
    /// The mistake, and the correct form.
    pub why: String,
}

impl Address {
    /// Parses `host`, `host:port`, or `quipu://[user][:password@]host[:port][/0]`, the form of
    /// Redis clients.
    pub fn parse(text: &str) -> Result<Address, BadAddress> {
        let bad = |why: &str| BadAddress { address: without_password(text), why: why.to_owned() };
        let rest = match SCHEMES.iter().find_map(|scheme| text.strip_prefix(scheme)) {
            Some(rest) => rest.strip_suffix("/0").or(rest.strip_suffix('/')).unwrap_or(rest),
            None if text.starts_with("http://") || text.starts_with("https://") => {
                return Err(bad("this is for the RESP port, not for HTTP: write host:port, by default port 7379"));
            }
            None if text.starts_with("rediss://") => {
                return Err(bad("TLS is not offered here: write redis://, or connect through a TLS proxy"));
            }
            None if text.contains("://") => return Err(bad("only quipu://, resp:// and redis:// are known")),
            None => text,
        };
        let (user, location) = rest.rsplit_once('@').map_or((None, rest), |(user, location)| (Some(user), location));
        let password = match user.and_then(|user| user.split_once(':')) {
            Some((_, "")) | None => None,
            Some((_, password)) => {
                Some(percent_decode(password).map_err(|_| bad("the password is not percent-encoded"))?)
            }
        };
        let (host, port) = match location.rsplit_once(':') {
            // An IPv6 address has colons of its own.
            Some((host, _)) if host.contains(':') && !host.ends_with(']') => (location, None),
            Some((host, port)) => (host, Some(port)),
            None => (location, None),
        };
        let port = match port {
            Some(port) => port.parse().map_err(|_| bad("the port is not a number from 0 to 65535"))?,
            None => PORT_DEFAULT,
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.contains('/') {
            return Err(bad("the only database is 0, so nothing but /0 may follow the port"));
        }
        if host.is_empty() || host.contains(['@', '[', ']']) {
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

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

/// The address without its password, for error texts.
fn without_password(text: &str) -> String {
    match text.rsplit_once('@') {
        Some((_, location)) => format!("…@{location}"),
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
            let password = password.map(|password: &str| password.as_bytes().to_vec());
            assert_eq!((address.to_string().as_str(), &address.password), (shown, &password), "{text}");
            assert!(!format!("{address:?}").contains("p@ss"));
        }
    }

    #[test]
    fn a_bad_address_is_reported_without_its_password() {
        for (text, why) in [
            ("", "no host"),
            ("http://h", "RESP port"),
            ("https://:secret@h", "RESP port"),
            ("rediss://h", "TLS"),
            ("unix://h", "only quipu://"),
            ("quipu://", "no host"),
            (":80", "no host"),
            ("h:x", "port"),
            ("h:70000", "port"),
            ("quipu://:a%zz@h", "percent-encoded"),
            ("redis://:secret@h/3", "database"),
            ("a/b", "database"),
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
            assert!(!error.contains("secret") && !error.contains("zz"), "{error}");
        }
    }
}
