//! Resolves the configuration: a file, variables and flags become the effective settings, or a list
//! of all mistakes.
//!
//! In: settings as text. Out: [`EffectiveConfig`]. `serve` uses it only without mistakes;
//! `config check` prints it.
//!
//! Invariants:
//! - a flag overrides a variable, a variable the file, the file the default;
//! - every mistake is found and reported with its line, also in a value that another source
//!   overrides;
//! - nothing starts with a mistake.

pub mod check;
mod file;
pub mod page;
pub mod settings;
pub mod variables;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use quipu_engine::{RuntimeSettingsMap, SharingOptions};
use quipu_model::{Millis, NAMESPACE_KEYS, NAMESPACES_MAX, Namespace, NamespaceKey, ShardCount, quantity};

use quipu_protocol::json::rfc3339;

use self::settings::{SETTINGS, Setting};
use crate::args::ServeArgs;
use crate::backends::StoreUrl;
use crate::log::LogFormat;

/// Default data directory.
pub const DATA_DEFAULT: &str = "./quipu-data";

/// Longest configuration file that is read: room for ten thousand namespaces, not for a disk image
/// named by mistake.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The options of engine and server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    pub engine: quipu_engine::Options,
    pub server: quipu_server::Options,
    pub log: LogFormat,
    /// The shared store of this node.
    pub store: Option<StoreUrl>,
    /// The display name of this node; none: its host and port.
    pub node_name: Option<String>,
    /// Default number of shards of a namespace. The engine's options get it once all sources are
    /// read.
    shards: ShardCount,
    /// By name; likewise.
    namespaces: BTreeMap<String, Namespace>,
}

/// Default memory limit: some twenty million counters, and room for other programs on a small
/// machine.
const MEMORY_DEFAULT: u64 = 2 << 30;

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        let memory_bytes_max = Some(MEMORY_DEFAULT);
        let engine = quipu_engine::Options { memory_bytes_max, ..quipu_engine::Options::new(DATA_DEFAULT) };
        let (server, log, store, node_name, shards, namespaces) = Default::default();
        ServerConfig { engine, server, log, store, node_name, shards, namespaces }
    }
}

impl ServerConfig {
    /// Passes namespaces and shards to the engine's options, once all sources are read.
    fn fill_in_namespaces(&mut self) {
        let each = self.namespaces.iter().map(|(name, namespace)| (name.as_bytes().into(), namespace.clone()));
        self.engine.namespaces = each.collect();
        self.engine.sharing.shards = self.shards.get();
    }
}

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    Default,
    File { path: PathBuf, line: usize },
    Variable(String),
    Flag(String),
    RunTime(Millis),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Variable(name) => f.write_str(name),
            Origin::Flag(name) => write!(f, "--{name}"),
            Origin::RunTime(at) => write!(f, "run time at {}", rfc3339(*at)),
        }
    }
}

/// A mistake that keeps the server from starting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mistake {
    pub origin: Origin,
    pub text: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.text)
    }
}

/// A setting from a flag or variable, not yet checked.
#[derive(Debug, Clone)]
pub struct RawSetting {
    pub setting: &'static Setting,
    pub text: String,
    pub origin: Origin,
}

/// The effective settings, their sources, and all mistakes.
#[derive(Debug, Default)]
pub struct EffectiveConfig {
    pub configuration: ServerConfig,
    /// In the order of their places, the file's first.
    pub mistakes: Vec<Mistake>,
    /// By key; a setting without an entry has its default.
    origins: BTreeMap<String, Origin>,
}

impl EffectiveConfig {
    /// Applies all sources, in order of precedence.
    pub fn resolve(flags: &ServeArgs) -> EffectiveConfig {
        let mut effective = EffectiveConfig::default();
        if let Some(path) = &flags.config {
            match read_file(path) {
                Ok(text) => file::read(path, &text, &mut effective),
                Err(text) => effective.mistakes.push(Mistake { origin: Origin::Flag("config".to_owned()), text }),
            }
        }
        for name in &flags.unknown_variables {
            effective.report_unknown_variable(name);
        }
        for raw in &flags.raw_settings {
            effective.apply(raw.setting, &raw.text, raw.origin.clone());
        }
        effective.configuration.fill_in_namespaces();
        effective.check_whole();
        effective.mistakes.sort();
        effective.configuration.server.origins = effective.origins();
        effective
    }

    /// Applies run-time settings, which override all other sources. For display only: an engine
    /// reads them by itself.
    pub fn apply_runtime_settings(&mut self, puts: &RuntimeSettingsMap) {
        let shared = self.configuration.store.is_some();
        for (name, put) in puts {
            let name = name.escape_ascii().to_string();
            // An engine refuses the same conflicts.
            for conflict in put.settings.conflicts(shared) {
                let text = format!("in [namespace.{name}]: {conflict}");
                self.mistakes.push(Mistake { origin: Origin::RunTime(put.changed_at), text });
            }
            let namespace = self.configuration.namespaces.entry(name.clone()).or_default();
            *namespace = put.settings.with_defaults(namespace);
            for key in NAMESPACE_KEYS.iter().filter(|key| (key.show)(&put.settings).is_some()) {
                self.origins.insert(namespace_key(&name, key), Origin::RunTime(put.changed_at));
            }
        }
    }

    /// Every setting and namespace with its value and origin.
    pub fn lines(&self) -> Vec<(String, String, Origin)> {
        let settings = SETTINGS.iter().map(|setting| {
            let origin = self.origin(setting.key);
            (format!("server.{}", setting.key), (setting.show)(&self.configuration), origin)
        });
        let namespaces = self.configuration.namespaces.iter().flat_map(|(name, namespace)| {
            NAMESPACE_KEYS.iter().filter_map(move |key| self.namespace_line(name, namespace, key))
        });
        settings.chain(namespaces).collect()
    }

    /// The setting of a namespace, or the server's where the namespace has none.
    fn namespace_line(
        &self,
        name: &str,
        namespace: &Namespace,
        key: &NamespaceKey,
    ) -> Option<(String, String, Origin)> {
        let full = namespace_key(name, key);
        match (key.show)(namespace) {
            Some(value) => Some((full.clone(), value, self.origin(&full))),
            None => match SETTINGS.iter().find(|setting| setting.key == key.key) {
                Some(setting) => Some((full, (setting.show)(&self.configuration), self.origin(setting.key))),
                None => Some((full, key.default.to_owned(), Origin::Default)).filter(|line| !line.1.is_empty()),
            },
        }
    }

    /// The origin of every namespace setting, for requests to a running server.
    fn origins(&self) -> quipu_server::Origins {
        let mut origins = quipu_server::Origins::default();
        for key in NAMESPACE_KEYS {
            if let Some(setting) = SETTINGS.iter().find(|setting| setting.key == key.key) {
                let shown = (setting.show)(&self.configuration);
                origins.server.insert(key.key, (shown, self.origin(setting.key).to_string()));
            }
            for name in self.configuration.namespaces.keys() {
                if let Some(origin) = self.origins.get(&namespace_key(name, key)) {
                    origins.namespaces.insert((name.as_bytes().into(), key.key), origin.to_string());
                }
            }
        }
        origins
    }

    fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or(Origin::Default)
    }

    fn apply(&mut self, setting: &Setting, text: &str, origin: Origin) {
        match (setting.take)(&mut self.configuration, text) {
            Ok(()) => {
                self.origins.insert(setting.key.to_owned(), origin);
            }
            Err(text) => self.mistakes.push(Mistake { origin, text: format!("{}: {text}", setting.key) }),
        }
    }

    fn apply_to_namespace(&mut self, name: &str, key: &NamespaceKey, text: &str, origin: Origin) {
        let namespace = self.configuration.namespaces.entry(name.to_owned()).or_default();
        match (key.take)(namespace, text) {
            Ok(()) => {
                self.origins.insert(namespace_key(name, key), origin);
            }
            Err(text) => {
                let text = format!("in [namespace.{name}]: {}: {text}", key.key);
                self.mistakes.push(Mistake { origin, text });
            }
        }
    }

    fn report_unknown_variable(&mut self, name: &str) {
        let known: Vec<String> = variables::known().collect();
        let mut hint = file::nearest(name, known.iter().map(String::as_str));
        if hint.is_empty() {
            hint = ": remove it, or see `quipu serve --help` for the names of all settings".to_owned();
        }
        let origin = Origin::Variable(name.to_owned());
        self.mistakes.push(Mistake { origin, text: format!("unknown variable{hint}") });
    }

    /// Checks the rules about several settings together.
    fn check_whole(&mut self) {
        self.check_times();
        self.check_namespaces();
        self.check_addresses();
    }

    fn check_times(&mut self) {
        let SharingOptions { lease, retire_after, grace, audit_every, .. } = self.configuration.engine.sharing;
        if lease + retire_after + audit_every <= grace / 2 {
            return;
        }
        // The line of the first of these settings with an origin.
        let keys = ["grace", "lease", "retire_after", "audit_every"];
        let origin = keys.iter().find_map(|key| self.origins.get(*key).cloned()).unwrap_or(Origin::Default);
        let text = "grace: lease, retire_after and audit_every together must not be more than half of it".to_owned();
        self.mistakes.push(Mistake { origin, text });
    }

    fn check_namespaces(&mut self) {
        for (name, namespace) in &self.configuration.namespaces {
            for conflict in namespace.conflicts(self.configuration.store.is_some()) {
                // The text begins with the key that is not allowed.
                let key = conflict.split(':').next().unwrap_or_default();
                let origin = self.origin(&format!("namespace.{name}.{key}"));
                self.mistakes.push(Mistake { origin, text: format!("in [namespace.{name}]: {conflict}") });
            }
        }
    }

    fn check_addresses(&mut self) {
        let server = &self.configuration.server;
        let (resp, http) = (server.resp, server.http);
        let closed = server.password.is_some() || server.insecure;
        for (key, address) in [("resp", Some(resp)), ("http", http)] {
            let Some(address) = address.filter(|address| !closed && !address.ip().is_loopback()) else { continue };
            let text = quipu_server::BindError::Open { addr: address }.to_string();
            self.mistakes.push(Mistake { origin: self.origin(key), text: format!("{key}: {text}") });
        }
        let overlap = |http: &SocketAddr| {
            let same_ip = http.ip() == resp.ip() || http.ip().is_unspecified() || resp.ip().is_unspecified();
            http.port() == resp.port() && http.port() != 0 && same_ip
        };
        if let Some(http) = http.filter(overlap) {
            let origin = self.origins.get("http").or(self.origins.get("resp")).cloned().unwrap_or(Origin::Default);
            let text = format!("http: {http} is taken by resp, {resp}: give them different ports");
            self.mistakes.push(Mistake { origin, text });
        }
    }
}

fn namespace_key(name: &str, key: &NamespaceKey) -> String {
    format!("namespace.{name}.{}", key.key)
}

fn read_file(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let mut text = String::new();
    // One byte more than allowed: a pipe or a device has no length.
    let read = std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    let bytes = read.map_err(|e| format!("cannot read {shown}: {e}"))? as u64;
    if bytes > FILE_BYTES_MAX {
        return Err(format!("{shown} is too long: a configuration file has at most {FILE_BYTES_MAX} bytes"));
    }
    Ok(text)
}
