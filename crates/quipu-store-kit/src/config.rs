//! Splits a store URL into its parts, and checks the prefix.
//!
//! ```text
//! scheme://[user[:password]@]hosts[/path][?prefix=name][&parameter…]
//! ```
//!
//! Invariants:
//! - a prefix consists of letters, digits, `_`, `-` and `.`;
//! - no error contains the password, and a split URL, which does, has no `Debug`.

use std::time::Duration;

/// Default prefix.
const PREFIX: &str = "quipu";

/// Options that a store's URL does not carry.
#[derive(Debug, Clone)]
pub struct Options {
    /// Prefix of every key or table name; lets several deployments share a server. `?prefix=` in
    /// the URL overrides it.
    pub prefix: String,
    /// Connect timeout.
    pub connect_timeout: Duration,
    /// Reply timeout; after it the call's outcome is unknown.
    pub reply_timeout: Duration,
}

impl Default for Options {
    fn default() -> Options {
        // A server slower than this hangs; the engine retries anyway.
        Options {
            prefix: PREFIX.to_owned(),
            connect_timeout: Duration::from_secs(2),
            reply_timeout: Duration::from_secs(5),
        }
    }
}

/// Error of parsing a store URL. Never contains the part before the `@`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Unknown scheme; the text names the store's schemes.
    #[error("not a {0} URL")]
    Scheme(&'static str),
    /// TLS URL in a build without TLS; the text names the feature.
    #[error("this build has no TLS{0}")]
    NoTls(&'static str),
    /// Another invalid part.
    #[error("the URL of the store cannot be used: {0}")]
    Url(&'static str),
    /// Invalid prefix.
    #[error("a prefix has 1 to {bytes_max} letters, digits, `_`, `-` or `.`")]
    Prefix {
        /// Longest prefix of this store.
        bytes_max: usize,
    },
}

/// The parts of a store URL, as written.
pub struct StoreUrl<'u> {
    /// The part before `://`.
    pub scheme: &'u str,
    /// User and password. `/` and `?` in a password are percent-encoded, as in any URL; an `@` may
    /// stand for itself.
    pub user: Option<&'u str>,
    /// One or several hosts, with their ports.
    pub hosts: &'u str,
    /// The rest of the address, with its first `/`; empty if there is none.
    pub path: &'u str,
    /// Parameters other than `prefix`.
    pub parameters: Vec<&'u str>,
    prefix: Option<&'u str>,
}

impl<'u> StoreUrl<'u> {
    /// Splits a URL; none if it has no scheme.
    pub fn split(url: &'u str) -> Option<StoreUrl<'u>> {
        let (scheme, rest) = url.split_once("://")?;
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut prefix = None;
        let mut parameters = Vec::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("prefix", value)) => prefix = Some(value),
                _ => parameters.push(part),
            }
        }
        let (authority, path) = address.split_at(address.find('/').unwrap_or(address.len()));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        Some(StoreUrl { scheme, user, hosts, path, parameters, prefix })
    }

    /// Returns the URL's prefix, or else the default, if it is valid.
    pub fn checked_prefix(&self, default: String, bytes_max: usize) -> Result<String, ConfigError> {
        let prefix = self.prefix.map_or(default, str::to_owned);
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if (1..=bytes_max).contains(&prefix.len()) && prefix.bytes().all(allowed) {
            Ok(prefix)
        } else {
            Err(ConfigError::Prefix { bytes_max })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts<'u>(url: &StoreUrl<'u>) -> [&'u str; 4] {
        [url.scheme, url.user.unwrap_or("-"), url.hosts, url.path]
    }

    #[test]
    fn a_url_is_split_into_its_parts() {
        let url = StoreUrl::split("x://me:s3:cr@t@a:1,b:2/path?one=1&prefix=shop&&two").unwrap();
        assert_eq!(parts(&url), ["x", "me:s3:cr@t", "a:1,b:2", "/path"]);
        assert_eq!(url.parameters, ["one=1", "two"]);
        assert_eq!(url.checked_prefix("quipu".into(), 4).unwrap(), "shop");
        let url = StoreUrl::split("x://h").unwrap();
        assert_eq!(parts(&url), ["x", "-", "h", ""]);
        assert_eq!(url.checked_prefix("quipu".into(), 5).unwrap(), "quipu");
        assert!(StoreUrl::split("x:/h").is_none());
    }

    #[test]
    fn a_prefix_is_short_and_has_no_other_bytes() {
        for (prefix, is_valid) in
            [("", false), ("a-b_c.9", true), ("12345678", true), ("123456789", false), ("a:b", false), ("{a}", false)]
        {
            let text = format!("x://h?prefix={prefix}");
            let checked = StoreUrl::split(&text).unwrap().checked_prefix("quipu".into(), 8);
            assert_eq!(checked.is_ok(), is_valid, "{prefix}");
        }
    }
}
