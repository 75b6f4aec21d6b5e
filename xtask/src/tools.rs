//! Installs the tools of the tests beside cargo, by name, if they are missing.
//!
//! Invariant: a tool that cannot be installed is an error, never a skipped test.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::paths::own;
use crate::run::run;

/// Python packages: the client, at a version that speaks RESP3 by default; a generator of requests
/// from a description; and Prometheus's own parser of metrics.
const PYTHON: &[&str] = &["redis==8.1.0", "schemathesis==4.32.5", "prometheus-client==0.26.0"];

/// Node packages: the client of most programs, and a driver of a browser.
const NODE: &[&str] = &["ioredis@5.11.1", "playwright-core@1.65.1"];

/// The programs of PostgreSQL that a test or bench runs.
const POSTGRES: [&str; 4] = ["initdb", "postgres", "psql", "pgbench"];

/// Debian's folder of these programs, with a folder for each version. It is not on the PATH.
const POSTGRES_VERSIONS: &str = "/usr/lib/postgresql";

/// Attempts of an installation: registries and mirrors fail for seconds at a time.
const INSTALL_ATTEMPTS: u64 = 3;

/// Paths of the tools.
pub struct Tools {
    /// A Python with redis-py, schemathesis and prometheus_client.
    pub python: PathBuf,
    /// A folder whose `node_modules` has ioredis and playwright-core.
    pub node: PathBuf,
}

impl fmt::Display for Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "python with redis-py  {}\nnode with ioredis     {}", self.python.display(), self.node.display())
    }
}

/// Makes sure that all tools are installed. Checks first, so that nothing is fetched twice.
pub fn install() -> anyhow::Result<Tools> {
    let home = std::env::var_os("QUIPU_TEST_TOOLS").map_or_else(|| own("tools"), PathBuf::from);
    std::fs::create_dir_all(&home).with_context(|| format!("make {}", home.display()))?;
    need_programs(&["redis-cli", "redis-benchmark"], &["redis-tools"])?;
    need_programs(&["redis-server"], &["redis-server"])?;
    postgres_programs()?;
    need_programs(&["openssl"], &["openssl"])?;
    need_programs(&["strace"], &["strace"])?;
    need_programs(&["curl"], &["curl"])?;
    // The tests load its library.
    need_programs(&["faketime"], &["faketime"])?;
    need_programs(&["python3"], &["python3", "python3-venv"])?;
    need_programs(&["node", "npm"], &["nodejs", "npm"])?;
    need_programs(&["chromium"], &["chromium"])?;
    Ok(Tools { python: python(&home)?, node: node(&home)? })
}

/// Python packages go into an environment of their own: the system's is not ours to change.
fn python(home: &Path) -> anyhow::Result<PathBuf> {
    let environment = home.join("python");
    let python = environment.join("bin/python");
    once(&environment.join("installed"), &PYTHON.join(" "), || {
        let mut make = Command::new("python3");
        make.args(["-m", "venv", "--clear"]).arg(&environment);
        if run("python", &make)?.success {
            // Made. On some systems the module is a package of its own, and this fails.
        } else {
            apt_install(&["python3-venv"])?;
            run("python", &make)?.expect_success("python3 -m venv")?;
        }
        let mut fetch = Command::new(&python);
        fetch.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(PYTHON);
        install_by("pip install", &fetch)
    })?;
    Ok(python)
}

fn node(home: &Path) -> anyhow::Result<PathBuf> {
    let folder = home.join("node");
    std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    once(&folder.join("installed"), &NODE.join(" "), || {
        let mut fetch = Command::new("npm");
        fetch.args(["install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix"]).arg(&folder).args(NODE);
        install_by("npm install", &fetch)
    })?;
    Ok(folder)
}

/// Runs `work` unless a file records it as done, for the same version.
fn once(done: &Path, version: &str, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    if std::fs::read_to_string(done).is_ok_and(|text| text == version) {
        return Ok(());
    }
    work()?;
    std::fs::write(done, version).with_context(|| format!("write {}", done.display()))
}

/// The folder of PostgreSQL's programs; installed if they are missing.
pub fn postgres_programs() -> anyhow::Result<PathBuf> {
    if let Some(found) = find_postgres() {
        return Ok(found);
    }
    apt_install(&["postgresql"])?;
    find_postgres()
        .with_context(|| format!("{} cannot be found, not even after installing postgresql", POSTGRES.join(", ")))
}

fn find_postgres() -> Option<PathBuf> {
    // On the PATH a name is enough; joined to nothing it stays one.
    if POSTGRES.iter().all(|program| on_path(program)) {
        return Some(PathBuf::new());
    }
    let versions = std::fs::read_dir(POSTGRES_VERSIONS).ok()?.flatten().map(|version| version.path().join("bin"));
    let whole = versions.filter(|folder| POSTGRES.iter().all(|program| folder.join(program).is_file()));
    whole.max_by_key(|folder| {
        let version = folder.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
        version.parse::<u32>().unwrap_or(0)
    })
}

/// Makes sure that programs are on the PATH, by installing packages if they are not.
pub fn need_programs(programs: &[&str], packages: &[&str]) -> anyhow::Result<()> {
    let missing = || programs.iter().copied().filter(|program| !on_path(program)).collect::<Vec<_>>();
    if missing().is_empty() {
        return Ok(());
    }
    apt_install(packages)?;
    let still = missing();
    if !still.is_empty() {
        bail!("{} cannot be found, not even after installing {}", still.join(", "), packages.join(" "));
    }
    Ok(())
}

/// Installs Debian packages, as root or with sudo.
pub fn apt_install(packages: &[&str]) -> anyhow::Result<()> {
    if !on_path("apt-get") {
        bail!("{} is missing and there is no apt-get: install it by hand", packages.join(" "));
    }
    let root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    for words in [&["update"][..], &[&["install", "-y", "--no-install-recommends"][..], packages].concat()] {
        let mut command = Command::new(if root { "apt-get" } else { "sudo" });
        if !root {
            command.args(["-n", "apt-get"]);
        }
        command.args(words).env("DEBIAN_FRONTEND", "noninteractive");
        install_by("apt-get", &command)?;
    }
    Ok(())
}

/// Runs an installation, again after a pause if it fails.
fn install_by(name: &str, command: &Command) -> anyhow::Result<()> {
    for attempt in 1..INSTALL_ATTEMPTS {
        if run(name, command)?.success {
            return Ok(());
        }
        println!("  {name} failed; attempt {} of {INSTALL_ATTEMPTS} follows", attempt + 1);
        std::thread::sleep(Duration::from_secs(5 * attempt));
    }
    run(name, command)?.expect_success(name)?;
    Ok(())
}

/// Returns true if a program is on the PATH.
pub fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
