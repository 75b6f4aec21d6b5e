//! Decides under which host names HTTP is served without a password.
//!
//! In: the setting `http_hosts`, and the host of a request. Out: true if that host is served.
//!
//! Invariant: beside the names of the setting only `localhost` and IP addresses are served. No
//! foreign page can have those as its origin in a browser, while any other name may point here.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Longest DNS name.
const NAME_BYTES_MAX: usize = 253;

/// Most names. Each request may be compared with all of them.
const NAMES_MAX: usize = 64;

/// Names under which HTTP is served, beside `localhost` and IP addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HttpHosts {
    /// In lower case, each a DNS name.
    names: Vec<Box<str>>,
}

/// Reason why a text is not a list of names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpHostsError {
    /// An empty entry, a port, a URL, or a pattern.
    #[error("'{0}' is not the name of a host: write names as in DNS, without port or scheme, with commas between them")]
    Name(String),
    /// Over the bound.
    #[error("{0} names are too many: at most {NAMES_MAX}")]
    Many(usize),
}

impl HttpHosts {
    /// Parses a comma-separated list of names; an empty text gives none.
    pub fn parse(text: &str) -> Result<HttpHosts, HttpHostsError> {
        let mut names = Vec::new();
        if !text.trim().is_empty() {
            for name in text.split(',').map(str::trim) {
                if !is_name(name) {
                    return Err(HttpHostsError::Name(name.to_owned()));
                }
                names.push(name.to_ascii_lowercase().into());
            }
        }
        match names.len() > NAMES_MAX {
            true => Err(HttpHostsError::Many(names.len())),
            false => Ok(HttpHosts { names }),
        }
    }

    /// Returns true if requests for this `host[:port]` are served.
    pub fn serves(&self, authority: &[u8]) -> bool {
        let Some(host) = std::str::from_utf8(authority).ok().and_then(without_port) else { return false };
        let is_address = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(host) => host.parse::<Ipv6Addr>().is_ok(),
            None => host.parse::<Ipv4Addr>().is_ok(),
        };
        is_address
            || host.eq_ignore_ascii_case("localhost")
            || self.names.iter().any(|name| name.eq_ignore_ascii_case(host))
    }
}

impl fmt::Display for HttpHosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names.join(","))
    }
}

fn is_name(name: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    name.len() <= NAME_BYTES_MAX && name.split('.').all(is_label)
}

/// The host of `host[:port]`; `None` if other characters follow it.
fn without_port(authority: &str) -> Option<&str> {
    let end = match authority.starts_with('[') {
        true => authority.find(']')? + 1,
        false => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, rest) = authority.split_at(end);
    let port = rest.strip_prefix(':').or(rest.is_empty().then_some(""))?;
    port.bytes().all(|byte| byte.is_ascii_digit()).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_localhost_addresses_and_the_names_given_are_served() {
        let hosts = HttpHosts::parse("quipu, Counters.internal").unwrap();
        for host in [
            "localhost",
            "LOCALHOST:7380",
            "127.0.0.1",
            "127.0.0.1:7380",
            "10.1.2.3:80",
            "[::1]",
            "[::1]:7380",
            "[2001:db8::7]:80",
            "quipu",
            "Quipu:7380",
            "counters.INTERNAL:7380",
        ] {
            assert!(hosts.serves(host.as_bytes()), "{host}");
        }
        for host in [
            "",
            ":7380",
            "evil.example",
            "evil.example:7380",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "quipu.evil.example",
            "xquipu",
            "internal",
            "localhost.",
            "127.1",
            "0x7f000001",
            "2130706433",
            "::1",
            "[::1",
            "[::1]evil.example",
            "[evil.example]",
            "[127.0.0.1]",
            "localhost:evil",
            "localhost:80:80",
            "evil@localhost",
            "localhost@evil.example",
            "localhost/",
            " localhost",
            "localhost,evil.example",
            "localhost evil.example",
        ] {
            assert!(!hosts.serves(host.as_bytes()), "{host}");
        }
        assert!(!hosts.serves(b"local\xffhost"));
        assert!(!HttpHosts::default().serves(b"quipu"));
    }

    #[test]
    fn the_setting_takes_names_and_nothing_else() {
        for (text, shown) in [("", ""), ("  ", ""), ("quipu", "quipu"), ("A.b , c_d-1", "a.b,c_d-1")] {
            assert_eq!(HttpHosts::parse(text).unwrap().to_string(), shown);
        }
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for text in
            [",", "a,", "a,,b", "*", "*.example", "http://a", "a:80", "a/", "a b", ".a", "a.", "[::1]", "ä", &long]
        {
            assert!(matches!(HttpHosts::parse(text), Err(HttpHostsError::Name(_))), "{text}");
        }
        let many = |names: usize| vec!["a"; names].join(",");
        assert!(HttpHosts::parse(&many(NAMES_MAX)).is_ok());
        assert_eq!(HttpHosts::parse(&many(NAMES_MAX + 1)), Err(HttpHostsError::Many(NAMES_MAX + 1)));
    }
}
