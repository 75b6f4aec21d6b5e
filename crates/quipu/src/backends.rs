//! Which shared stores this build can talk to.
//!
//! In: a URL. Out: the store that its scheme names, or what is wrong with it.
//!
//! Invariants:
//! - only this module says `cfg(feature)` of a store;
//! - what stands before the `@` of a URL is shown nowhere.

use std::fmt;
use std::sync::Arc;

use anyhow::{Context, bail};
use quipu_model::Store;

/// Stores that this build has, by the schemes of their URLs.
const BUILT_WITH: &[&str] = &[
    #[cfg(feature = "redis")]
    "redis",
    #[cfg(feature = "redis")]
    "redis-cluster",
    #[cfg(feature = "redis-tls")]
    "rediss",
    #[cfg(feature = "redis-tls")]
    "rediss-cluster",
    #[cfg(feature = "postgres")]
    "postgres",
];

/// Where a shared store is, and how to be let in.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(String);

impl StoreUrl {
    /// Of a store that this build can talk to; nothing is connected.
    pub fn new(text: &str) -> anyhow::Result<StoreUrl> {
        match scheme(text)? {
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "redis-cluster" | "rediss-cluster" => quipu_store_redis::check(text)?,
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => quipu_store_postgres::check(text)?,
            other => bail!("this build has no store for {other}:// (built with: {})", built_with()),
        }
        Ok(StoreUrl(text.to_owned()))
    }

    /// The store. It connects by itself, when it is asked something: one that is down is no reason not to start.
    pub fn open(&self) -> anyhow::Result<Arc<dyn Store>> {
        let opened: Arc<dyn Store> = match scheme(&self.0)? {
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "redis-cluster" | "rediss-cluster" => {
                Arc::new(quipu_store_redis::open(&self.0, quipu_store_redis::Options::default())?)
            }
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                Arc::new(quipu_store_postgres::open(&self.0, quipu_store_postgres::Options::default())?)
            }
            other => bail!("this build has no store for {other}:// (built with: {})", built_with()),
        };
        Ok(opened)
    }
}

fn scheme(url: &str) -> anyhow::Result<&str> {
    let (scheme, _) = url.split_once("://").context("not a URL of a store: write scheme://host:port")?;
    Ok(scheme)
}

fn built_with() -> String {
    if BUILT_WITH.is_empty() { "none".to_owned() } else { BUILT_WITH.join(", ") }
}

/// Without the secrets.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("", &self.0));
        match rest.rsplit_once('@') {
            Some((_, place)) => write!(f, "{scheme}://***@{place}"),
            None => write!(f, "{scheme}://{rest}"),
        }
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
        let told = StoreUrl::new("mysql://me:s3cret@db/x").unwrap_err().to_string();
        assert!(told.contains("mysql://") && told.contains("built with: "), "{told}");
        assert!(!told.contains("s3cret"), "{told}");
        assert!(StoreUrl::new("nonsense").unwrap_err().to_string().contains("scheme://"));
    }

    #[test]
    #[cfg(feature = "redis")]
    fn what_stands_before_the_at_is_not_shown() {
        let url = StoreUrl::new("redis://me:s3cr@t@host:1/2?prefix=shop").unwrap();
        assert_eq!(url.to_string(), "redis://***@host:1/2?prefix=shop");
        assert!(!format!("{url:?}").contains("s3cr"));
        assert_eq!(StoreUrl::new("redis-cluster://a:1,b:2").unwrap().to_string(), "redis-cluster://a:1,b:2");
    }

    #[test]
    #[cfg(feature = "postgres")]
    fn neither_is_the_password_of_a_database() {
        let url = StoreUrl::new("postgres://me:s3cret@db:5432/shop?prefix=x").unwrap();
        assert_eq!(url.to_string(), "postgres://***@db:5432/shop?prefix=x");
    }
}
