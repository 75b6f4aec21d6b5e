//! Parses a store URL into checked options.
//!
//! ```text
//! postgres://[user[:password]@]host[:port][,host:port…][/database][?prefix=name][&parameter=value…]
//! ```
//!
//! Parameters other than `prefix` go to the driver: `options`, `application_name`,
//! `keepalives_idle` … Of several hosts, the store uses the one that takes writes.
//! `sslmode=require` connects with TLS, if built with the feature `tls`, and only to a server with
//! a trusted certificate. Every other mode connects without TLS.
//!
//! Invariants:
//! - a prefix consists of letters, digits, `_`, `-` and `.`: quoted, it is part of a name in any
//!   statement;
//! - no `Debug` output and no error contains the password;
//! - a connection takes writes: a standby would show old rows.

use std::fmt;
use std::time::Duration;

use quipu_store_kit::{ConfigError, Options, StoreUrl};
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

/// Longest prefix: the server's names have at most 63 bytes; this crate appends up to 17.
pub const PREFIX_BYTES_MAX: usize = 40;

/// Schemes of this crate's URLs.
pub const SCHEMES: &[&str] = &["postgres", "postgresql"];

/// Error of an unknown scheme.
const SCHEME: ConfigError = ConfigError::Scheme("postgres:// or postgresql://");

/// Error of a TLS URL in a build without TLS.
const NO_TLS: ConfigError = ConfigError::NoTls(": build quipu-store-postgres with the feature `tls`");

/// Port of a server without one in the URL.
const PORT_DEFAULT: u16 = 5432;

/// Default application name of our connections.
const APPLICATION: &str = "quipu";

/// Idle time before a keepalive probe. A minute finds a connection that a firewall dropped before a
/// call does.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// Checked connection settings.
pub(crate) struct Config {
    pub(crate) prefix: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) reply_timeout: Duration,
    pub(crate) tls: bool,
    pub(crate) driver: tokio_postgres::Config, // with the password
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config { prefix, connect_timeout, reply_timeout, tls, driver } = self;
        let mut shown = f.debug_struct("Config");
        shown.field("hosts", &driver.get_hosts()).field("ports", &driver.get_ports()).field("prefix", prefix);
        shown.field("tls", tls);
        shown.field("connect_timeout", connect_timeout).field("reply_timeout", reply_timeout).finish_non_exhaustive()
    }
}

impl Config {
    pub(crate) fn new(url: &str, options: Options) -> Result<Config, ConfigError> {
        let url = StoreUrl::split(url).ok_or(SCHEME)?;
        if !SCHEMES.contains(&url.scheme) {
            return Err(SCHEME);
        }
        let Options { prefix, connect_timeout, reply_timeout } = options;
        let prefix = url.checked_prefix(prefix, PREFIX_BYTES_MAX)?;
        // The driver would refuse an `@` in a password as it is.
        let user = url.user.map(|user| format!("{}@", user.replace('@', "%40"))).unwrap_or_default();
        let url = format!("postgres://{user}{}{}?{}", url.hosts, url.path, url.parameters.join("&"));
        let parsed = url.trim_end_matches('?').parse::<tokio_postgres::Config>();
        let shape = "it is not of the form postgres://user:password@host:port/database?parameter=value";
        let mut driver = parsed.map_err(|_| ConfigError::Url(shape))?;
        if driver.get_hosts().is_empty() && driver.get_hostaddrs().is_empty() {
            return Err(ConfigError::Url("it names no host"));
        }
        let tls = !matches!(driver.get_ssl_mode(), SslMode::Disable | SslMode::Prefer);
        if tls && !cfg!(feature = "tls") {
            return Err(NO_TLS);
        }
        // The URL alone decides on encryption, not the offer of a server or of an impostor.
        driver.ssl_mode(if tls { SslMode::Require } else { SslMode::Disable });
        driver.target_session_attrs(TargetSessionAttrs::ReadWrite).connect_timeout(connect_timeout);
        if driver.get_application_name().is_none() {
            driver.application_name(APPLICATION);
        }
        if driver.get_tcp_user_timeout().is_none() {
            driver.tcp_user_timeout(reply_timeout);
        }
        if driver.get_keepalives_idle() == tokio_postgres::Config::new().get_keepalives_idle() {
            driver.keepalives_idle(KEEPALIVE_IDLE);
        }
        Ok(Config { prefix, connect_timeout, reply_timeout, tls, driver })
    }

    /// The store's servers, database and prefix.
    pub(crate) fn location(&self) -> String {
        let mut hosts: Vec<String> = self.driver.get_hosts().iter().map(host_name).collect();
        if hosts.is_empty() {
            hosts = self.driver.get_hostaddrs().iter().map(ToString::to_string).collect();
        }
        // One port for all hosts, or one each.
        let ports = self.driver.get_ports();
        let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(PORT_DEFAULT);
        let servers: Vec<String> = hosts.iter().enumerate().map(|(at, host)| format!("{host}:{}", port(at))).collect();
        // Without a name, the database has that of the user.
        let database = self.driver.get_dbname().or(self.driver.get_user()).unwrap_or_default();
        format!("postgres://{}/{database}?prefix={}", servers.join(","), self.prefix)
    }
}

fn host_name(host: &Host) -> String {
    match host {
        Host::Tcp(name) if name == "localhost" => "127.0.0.1".to_owned(),
        Host::Tcp(name) => name.clone(),
        #[cfg(unix)]
        Host::Unix(path) => path.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Result<Config, ConfigError> {
        Config::new(url, Options::default())
    }

    #[test]
    fn all_urls_of_a_store_have_one_location() {
        let location = |url| config(url).unwrap().location();
        assert_eq!(location("postgres://me:s3cret@localhost/shop"), "postgres://127.0.0.1:5432/shop?prefix=quipu");
        let same = ["postgresql://localhost:5432/shop?prefix=quipu", "postgres://you@127.0.0.1?dbname=shop"];
        assert!(same.iter().all(|url| location(url) == location("postgres://localhost/shop")));
        assert_eq!(location("postgres://me@h"), "postgres://h:5432/me?prefix=quipu", "the user's database");
        for other in ["postgres://me@h?dbname=x", "postgres://me@h:1", "postgres://you@h", "postgres://me@h?prefix=p"] {
            assert_ne!(location(other), location("postgres://me@h"));
        }
    }

    #[test]
    fn urls_are_understood() {
        let one = config("postgres://me:s3:cr@t@h:7000/counts?prefix=shop.2&application_name=shop").unwrap();
        assert_eq!(one.driver.get_hosts(), [Host::Tcp("h".into())]);
        assert_eq!((one.driver.get_ports(), one.driver.get_dbname()), (&[7000][..], Some("counts")));
        assert_eq!((one.driver.get_user(), one.driver.get_password()), (Some("me"), Some(&b"s3:cr@t"[..])));
        assert_eq!((one.prefix.as_str(), one.driver.get_application_name()), ("shop.2", Some("shop")));
        let plain = config("postgresql://h").unwrap();
        assert_eq!((plain.driver.get_ports(), plain.prefix.as_str()), (&[5432][..], "quipu"));
        let many = config("postgres://me@a:1,b:2/x?target_session_attrs=any").unwrap();
        assert_eq!(many.driver.get_hosts().len(), 2);
        assert_eq!(many.driver.get_target_session_attrs(), TargetSessionAttrs::ReadWrite, "whatever is asked for");
        let socket = config("postgres:///counts?host=/run/postgresql").unwrap();
        assert_eq!(socket.driver.get_hosts(), [Host::Unix("/run/postgresql".into())]);
    }

    #[test]
    fn urls_that_are_none_of_ours_are_refused_without_their_password() {
        for url in [
            "redis://s3cret@x",
            "postgres:/s3cret",
            "postgres://:s3cret@h:99999",
            "postgres://:s3cret@h?what=s3cret",
            "postgres://:s3cret@h?s3cret",
            "postgres://me:s3cret@/x",
            "postgres://me:s3cret@h?sslmode=s3cret",
            "postgres://h?prefix=\"s3cret\"",
            "postgres://h?prefix=",
        ] {
            let error = config(url).expect_err(url);
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
        }
        assert_eq!(
            config(&format!("postgres://h?prefix={}", "p".repeat(41))).err(),
            Some(ConfigError::Prefix { bytes_max: 40 })
        );
        assert!(config(&format!("postgres://h?prefix={}", "p".repeat(40))).is_ok());
    }

    #[test]
    fn tls_is_as_it_is_asked_for() {
        for (mode, tls) in
            [("", false), ("?sslmode=disable", false), ("?sslmode=prefer", false), ("?sslmode=require", true)]
        {
            match config(&format!("postgres://h{mode}")) {
                Ok(config) => assert_eq!(config.tls, tls, "{mode}"),
                Err(error) => {
                    assert_eq!((error, tls, cfg!(feature = "tls")), (NO_TLS, true, false), "{mode}")
                }
            }
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let config = config("postgres://me:s3cret@h:1?options=-cx=s3cret").unwrap();
        assert_eq!(config.driver.get_password(), Some(&b"s3cret"[..]));
        assert!(!format!("{config:?}").contains("s3cret"));
    }
}
