//! Parses a store URL into checked options.
//!
//! ```text
//! redis://[user[:password]@]host[:port][/db][?prefix=name]
//! rediss://…                                                   with TLS, if built with the feature `tls`
//! redis-cluster://[user[:password]@]host:port[,host:port…][?prefix=name]
//! rediss-cluster://…
//! ```
//!
//! Invariants:
//! - a prefix consists of letters, digits, `_`, `-` and `.`. So it is no beginning of another
//!   prefix's keys, and no hash tag, which would put all counters of a Cluster into one slot;
//! - no `Debug` output and no error contains the password.

use std::fmt;
use std::time::Duration;

use quipu_store_kit::{ConfigError, Options, StoreUrl};
use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

/// Longest prefix; every key starts with it.
pub const PREFIX_BYTES_MAX: usize = 64;

/// Schemes of this crate's URLs. Those of TLS need the feature `tls`.
pub const SCHEMES: &[&str] = &["redis", "redis-cluster", "rediss", "rediss-cluster"];

/// Error of an unknown scheme.
const SCHEME: ConfigError = ConfigError::Scheme("redis://, rediss://, redis-cluster:// or rediss-cluster://");

/// Error of a TLS URL in a build without TLS.
const NO_TLS: ConfigError =
    ConfigError::NoTls(" for Redis: build with the feature `redis-tls` (of quipu-store-redis: `tls`)");

/// Host and port of a server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Address {
    /// Parses `host:port` of a redirection; an empty host means `origin`, the redirecting server.
    pub(crate) fn parse(text: &str, origin: &str) -> Option<Address> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Some(Address { host: if host.is_empty() { origin } else { host }.to_owned(), port: port.parse().ok()? })
    }
}

/// Checked connection settings.
pub(crate) struct Config {
    pub(crate) seeds: Vec<Address>, // never empty; one, unless it is a Cluster
    pub(crate) cluster: bool,
    pub(crate) prefix: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) reply_timeout: Duration,
    info: ConnectionInfo, // with the password; its address is replaced per server
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config { seeds, cluster, prefix, connect_timeout, reply_timeout, info: _ } = self;
        let mut shown = f.debug_struct("Config");
        shown.field("seeds", seeds).field("cluster", cluster).field("prefix", prefix);
        shown.field("connect_timeout", connect_timeout).field("reply_timeout", reply_timeout).finish_non_exhaustive()
    }
}

impl Config {
    pub(crate) fn new(url: &str, options: Options) -> Result<Config, ConfigError> {
        let url = StoreUrl::split(url).ok_or(SCHEME)?;
        let (cluster, tls) = match url.scheme {
            "redis" => (false, false),
            "rediss" => (false, true),
            "redis-cluster" => (true, false),
            "rediss-cluster" => (true, true),
            _ => return Err(SCHEME),
        };
        if tls && !cfg!(feature = "tls") {
            return Err(NO_TLS);
        }
        let Options { prefix, connect_timeout, reply_timeout } = options;
        if !url.parameters.is_empty() {
            return Err(ConfigError::Url("it has a parameter other than `prefix`"));
        }
        let prefix = url.checked_prefix(prefix, PREFIX_BYTES_MAX)?;
        let user = url.user.unwrap_or_default();
        let path = url.path.strip_prefix('/').unwrap_or_default();
        if cluster && !path.is_empty() {
            return Err(ConfigError::Url("a Cluster has no numbered databases"));
        }
        let hosts: Vec<&str> = if cluster { url.hosts.split(',').collect() } else { vec![url.hosts] };
        let mut infos = Vec::with_capacity(hosts.len());
        for host in hosts {
            let (at, scheme) = (if user.is_empty() { "" } else { "@" }, if tls { "rediss" } else { "redis" });
            let parsed = format!("{scheme}://{user}{at}{host}/{path}").into_connection_info();
            infos.push(parsed.map_err(|_| ConfigError::Url("it is not of the form scheme://user:password@host:port"))?);
        }
        let seeds =
            infos.iter().map(address).collect::<Option<Vec<_>>>().ok_or(ConfigError::Url("it names no host"))?;
        let info = infos.pop().ok_or(ConfigError::Url("it names no host"))?;
        Ok(Config { seeds, cluster, prefix, connect_timeout, reply_timeout, info })
    }

    /// The store's servers, database and prefix.
    pub(crate) fn location(&self) -> String {
        let mut servers: Vec<String> = self
            .seeds
            .iter()
            .map(|Address { host, port }| format!("{}:{port}", if host == "localhost" { "127.0.0.1" } else { host }))
            .collect();
        servers.sort_unstable();
        let scheme = if self.cluster { "redis-cluster" } else { "redis" };
        format!("{scheme}://{}/{}?prefix={}", servers.join(","), self.info.redis_settings().db(), self.prefix)
    }

    /// Connection settings for one server.
    pub(crate) fn connection(&self, address: &Address) -> ConnectionInfo {
        let Address { host, port } = address.clone();
        let endpoint = match self.info.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        // Calls share a connection: without `TCP_NODELAY` a small one waits for the previous
        // acknowledgement.
        self.info.clone().set_addr(endpoint).set_tcp_settings(TcpSettings::default().set_nodelay(true))
    }
}

fn address(info: &ConnectionInfo) -> Option<Address> {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some(Address { host: host.clone(), port: *port })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Result<Config, ConfigError> {
        Config::new(url, Options::default())
    }

    fn addresses(config: &Config) -> Vec<String> {
        config.seeds.iter().map(Address::to_string).collect()
    }

    #[test]
    fn all_urls_of_a_store_have_one_location() {
        let location = |url| config(url).unwrap().location();
        assert_eq!(location("redis://me:s3cret@localhost"), "redis://127.0.0.1:6379/0?prefix=quipu");
        assert_eq!(location("redis://127.0.0.1:6379/0?prefix=quipu"), location("redis://localhost:6379"));
        assert_ne!(location("redis://mylocalhost/1"), location("redis://localhost/1"));
        assert_ne!(location("redis://a/1"), location("redis://a/2"));
        assert_eq!(location("redis-cluster://b:2,a:1"), "redis-cluster://a:1,b:2/0?prefix=quipu");
    }

    #[test]
    fn urls_of_a_server_and_of_a_cluster_are_understood() {
        let one = config("redis://127.0.0.1:7000/3?prefix=shop.2").unwrap();
        assert_eq!(
            (addresses(&one), one.cluster, one.prefix.as_str()),
            (vec!["127.0.0.1:7000".into()], false, "shop.2")
        );
        assert_eq!(one.connection(&one.seeds[0]).redis_settings().db(), 3);
        assert_eq!(addresses(&config("redis://host").unwrap()), ["host:6379"]);
        let many = config("redis-cluster://me:s3:cr@t@a:1,b:2,[::1]:3").unwrap();
        assert_eq!((addresses(&many), many.cluster), (vec!["a:1".into(), "b:2".into(), "::1:3".into()], true));
        for seed in &many.seeds {
            let info = many.connection(seed);
            assert_eq!(info.redis_settings().username(), Some("me"));
        }
    }

    #[test]
    fn urls_that_are_none_of_ours_are_refused_without_their_password() {
        for url in [
            "memory://s3cret@x",
            "redis:/s3cret",
            "redis://:s3cret@h:1/x",
            "redis://:s3cret@h:99999",
            "redis-cluster://:s3cret@h:1/2",
            "redis://:s3cret@h:1?user=s3cret",
            "redis://h:1?prefix={s3cret}",
            "redis://h:1?prefix=",
        ] {
            let error = config(url).expect_err(url);
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let config = config("redis://me:s3cret@h:1").unwrap();
        assert_eq!(config.connection(&config.seeds[0]).redis_settings().password(), Some("s3cret"));
        assert!(!format!("{config:?}").contains("s3cret"));
    }

    #[test]
    fn a_redirection_without_a_host_means_the_host_that_said_so() {
        assert_eq!(Address::parse(":7001", "h").unwrap().to_string(), "h:7001");
        assert_eq!(Address::parse("10.0.0.2:7001", "h").unwrap().to_string(), "10.0.0.2:7001");
        assert_eq!(Address::parse("fe80::1:7001", "h").unwrap().host, "fe80::1");
        assert_eq!(Address::parse("nowhere", "h"), None);
    }
}
