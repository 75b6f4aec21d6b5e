//! Opens the shared stores and the import sources that this build supports.
//!
//! In: a URL. Out: the store or source of its scheme, or the reason why the URL is refused.
//!
//! Invariants:
//! - only this module says `cfg(feature)` of a store;
//! - no output shows the part of a URL before its `@`.

#[cfg_attr(
    not(all(feature = "redis", feature = "postgres")),
    allow(dead_code, reason = "only Redis has sketches, only PostgreSQL bare values")
)]
pub mod source;

#[cfg(feature = "postgres")]
mod postgres_source;
#[cfg(feature = "redis")]
mod redis_source;

use std::fmt;
use std::sync::Arc;

use anyhow::Context;
use quipu_model::Store;

use crate::backends::source::{Source, SourceFilter};

/// A store that this build has.
struct Backend {
    /// Schemes of its URLs.
    schemes: &'static [&'static str],
    /// Checks a URL and returns the store's location; does not connect.
    location: fn(&str) -> anyhow::Result<String>,
    /// Opens the store of a URL; connects on the first call.
    open: fn(&str) -> anyhow::Result<Arc<dyn Store>>,
    /// Opens the store as an import source.
    open_source: fn(&str, &SourceFilter) -> anyhow::Result<Box<dyn Source>>,
}

/// The stores, one row each.
static BACKENDS: &[Backend] = &[
    #[cfg(feature = "redis")]
    Backend {
        schemes: quipu_store_redis::SCHEMES,
        location: |url| Ok(quipu_store_redis::location(url)?),
        open: |url| Ok(Arc::new(quipu_store_redis::open(url, quipu_store_redis::Options::default())?)),
        open_source: redis_source::open,
    },
    #[cfg(feature = "postgres")]
    Backend {
        schemes: quipu_store_postgres::SCHEMES,
        location: |url| Ok(quipu_store_postgres::location(url)?),
        open: |url| Ok(Arc::new(quipu_store_postgres::open(url, quipu_store_postgres::Options::default())?)),
        open_source: postgres_source::open,
    },
];

/// The backend of a URL's scheme, or the reason why there is none.
fn find_backend(url: &str) -> anyhow::Result<&'static Backend> {
    let (scheme, _) = url.split_once("://").context("not a URL of a store: write scheme://host:port")?;
    let backend = BACKENDS.iter().find(|backend| backend.schemes.contains(&scheme));
    backend.with_context(|| format!("this build has no store for {scheme}:// (built with: {})", built_schemes()))
}

fn built_schemes() -> String {
    let schemes: Vec<&str> = BACKENDS.iter().flat_map(|backend| backend.schemes).copied().collect();
    if schemes.is_empty() { "none".to_owned() } else { schemes.join(", ") }
}

/// Opens an import source.
pub fn open_source(url: &str, filter: &SourceFilter) -> anyhow::Result<Box<dyn Source>> {
    (find_backend(url)?.open_source)(url, filter)
}

/// The address of a shared store, with its credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    url: String,
    location: String,
}

impl StoreUrl {
    /// Checks the URL of a store that this build supports; does not connect.
    pub fn new(text: &str) -> anyhow::Result<StoreUrl> {
        let location = (find_backend(text)?.location)(text)?;
        Ok(StoreUrl { url: text.to_owned(), location })
    }

    /// Opens the store. It connects on its first call: a store that is down is no reason not to
    /// start.
    pub fn open(&self) -> anyhow::Result<Arc<dyn Store>> {
        (find_backend(&self.url)?.open)(&self.url)
    }

    /// The store's identity: equal for all URLs of one store, and without users and secrets.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Scheme, presence of a user, location, and the parameters of the location. Any other
    /// parameter may be a secret.
    fn parts(&self) -> (&str, bool, &str, String) {
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("", &self.url));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (has_user, location) = rest.rsplit_once('@').map_or((false, rest), |(_, location)| (true, location));
        let is_location = |part: &&str| part.starts_with("prefix=") || part.starts_with("host=");
        let shown = query.split('&').filter(is_location).collect::<Vec<_>>().join("&");
        (scheme, has_user, location, if shown.is_empty() { shown } else { format!("?{shown}") })
    }
}

/// Without the secrets.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, has_user, location, query) = self.parts();
        write!(f, "{scheme}://{}{location}{query}", if has_user { "***@" } else { "" })
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_this_build_does_not_have_is_refused_with_those_that_it_has() {
        let error = StoreUrl::new("mysql://me:s3cret@db/x").unwrap_err().to_string();
        assert!(error.contains("mysql://") && error.contains("built with: "), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
        assert!(StoreUrl::new("nonsense").unwrap_err().to_string().contains("scheme://"));
    }

    #[test]
    #[cfg(feature = "redis")]
    fn what_stands_before_the_at_is_not_shown() {
        let url = StoreUrl::new("redis://me:s3cr@t@host:1/2?prefix=shop").unwrap();
        assert_eq!(url.to_string(), "redis://***@host:1/2?prefix=shop");
        assert!(!format!("{url:?}").contains("s3cr"));
        assert_eq!(StoreUrl::new("redis-cluster://a:1,b:2").unwrap().to_string(), "redis-cluster://a:1,b:2");
        assert_eq!(url.location(), "redis://host:1/2?prefix=shop");
    }

    #[test]
    #[cfg(feature = "postgres")]
    fn a_password_among_the_parameters_is_not_shown() {
        let url = StoreUrl::new("postgres://h/counts?password=s3cret&prefix=shop&user=me").unwrap();
        assert_eq!(
            (url.to_string(), url.location()),
            ("postgres://h/counts?prefix=shop".to_owned(), "postgres://h:5432/counts?prefix=shop")
        );
    }

    #[test]
    #[cfg(feature = "postgres")]
    fn neither_is_the_password_of_a_database() {
        let url = StoreUrl::new("postgres://me:s3cret@db:5432/shop?prefix=x").unwrap();
        assert_eq!(url.to_string(), "postgres://***@db:5432/shop?prefix=x");
    }
}
