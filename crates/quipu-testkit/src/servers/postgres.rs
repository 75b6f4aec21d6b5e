//! Runs PostgreSQL servers as child processes.
//!
//! A server is a process and its forks, one for every connection, each in its own session. So
//! signals go to all of them, by their ids. It refuses to run as root. If the test is root, it runs
//! as the user `postgres`, who then owns its directory.
//!
//! Invariants:
//! - a dropped server is killed, and its directory removed: no test leaves one behind;
//! - a restarted server keeps its port;
//! - every wait has a bound.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use quipu_model::BoxError;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::server_suite::TestServer;

/// Package to install if there is no server.
const PACKAGE: &str = "postgresql";

/// Directory of Debian's programs: a subdirectory for every version.
const VERSIONS: &str = "/usr/lib/postgresql";

/// Variable with another folder of the programs.
const PROGRAMS_VARIABLE: &str = "QUIPU_TEST_POSTGRES_BIN";

/// Required programs.
const PROGRAMS: [&str; 3] = ["initdb", "postgres", "psql"];

/// The user of the database, and the server's process owner if the test is root.
const USER: &str = "postgres";

/// Number and interval of the polls for a slow event: half a minute in all.
const POLLS_MAX: u32 = 1_500;
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Most ports tried, if another process takes a free one first.
const PORTS_TRIED: u32 = 5;

/// Error of starting or using a server.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    /// The programs cannot be found.
    #[error("cannot find {}: install the Debian package {PACKAGE}", PROGRAMS.join(", "))]
    Missing,
    /// PostgreSQL refuses to run as root.
    #[error("PostgreSQL refuses to run as root, and there is no user {USER}: install the Debian package {PACKAGE}")]
    NoUser,
    /// It runs and does not answer.
    #[error("{what} took too long; the server's log:\n{log}")]
    TimedOut {
        /// The awaited event.
        what: &'static str,
        /// Its log.
        log: String,
    },
    /// One of its programs failed.
    #[error("{program} failed:\n{said}")]
    Failed {
        /// Name of the program.
        program: &'static str,
        /// Its error output.
        said: String,
    },
    /// Failure of a file, port or signal call.
    #[error("cannot prepare a server")]
    Io(#[from] io::Error),
}

/// A PostgreSQL server.
#[derive(Debug)]
pub struct PostgresServer {
    programs: PathBuf,
    owner: Option<(u32, u32)>,
    directory: TempDir,
    port: u16,
    settings: Vec<String>,
    child: Option<Child>,
}

impl PostgresServer {
    /// Starts a server with default durability: commits are synced.
    pub fn start() -> Result<PostgresServer, PostgresError> {
        PostgresServer::start_with(&[])
    }

    /// Starts a server with these settings (`name=value`) beside the common ones.
    pub fn start_with(settings: &[&str]) -> Result<PostgresServer, PostgresError> {
        let programs = find_programs().ok_or(PostgresError::Missing)?;
        let owner = owner()?;
        let directory = directory(owner)?;
        let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
        let mut server = PostgresServer { programs, owner, directory, port: free_port()?, settings, child: None };
        server.init_database()?;
        let mut tries = 1;
        loop {
            match server.run() {
                Err(PostgresError::TimedOut { .. }) if tries < PORTS_TRIED && server.has_ended() => {
                    (server.port, tries) = (free_port()?, tries + 1);
                }
                started => return started.map(|()| server),
            }
        }
    }

    /// Address of its listener.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// URL of the server.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// URL of the server by way of this address.
    pub fn url_at(&self, address: SocketAddr) -> String {
        format!("postgres://{USER}@{address}/{USER}")
    }

    /// Runs statements; returns a line per row, with columns separated by `|`, or the server's
    /// error.
    pub fn query(&self, statements: &str) -> Result<String, PostgresError> {
        let mut command = self.client("psql");
        command.args(["-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", "-c", statements, USER]);
        let answer = check_output("psql", command.output()?)?;
        Ok(answer.trim_end().to_owned())
    }

    /// Requires this password of the user `postgres` for all later connections to its address.
    pub fn require_password(&self, password: &str) -> Result<(), PostgresError> {
        self.query(&format!("ALTER USER {USER} PASSWORD '{password}'"))?;
        self.admit("host all all 127.0.0.1/32 scram-sha-256")
    }

    /// Requires TLS with this certificate for all later connections to its address.
    pub fn require_tls(&self, certificate: &[u8], key: &[u8]) -> Result<(), PostgresError> {
        for (file, bytes) in [("server.crt", certificate), ("server.key", key)] {
            let path = self.data().join(file);
            std::fs::write(&path, bytes)?;
            // The server refuses a key that others may read, and must be able to read it itself.
            std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
            if let Some((user, group)) = self.owner {
                chown(&path, Some(user), Some(group))?;
            }
        }
        self.query("ALTER SYSTEM SET ssl = on")?;
        self.admit("hostssl all all 127.0.0.1/32 trust")
    }

    /// Sets the rule for connections to its address. Its socket is for the tests.
    fn admit(&self, line: &str) -> Result<(), PostgresError> {
        std::fs::write(self.data().join("pg_hba.conf"), format!("local all all trust\n{line}\n"))?;
        self.reload()
    }

    /// Reloads the settings, and waits until new connections use them.
    pub fn reload(&self) -> Result<(), PostgresError> {
        let loaded = || self.query("SELECT pg_conf_load_time()");
        let before = loaded()?;
        self.query("SELECT pg_reload_conf()")?;
        for _ in 0..POLLS_MAX {
            if loaded()? != before {
                return Ok(());
            }
            thread::sleep(POLL_EVERY);
        }
        Err(self.timed_out("reading its settings"))
    }

    /// Suspends it (SIGSTOP) with all connections: it answers nothing.
    pub fn stop(&self) -> Result<(), PostgresError> {
        self.signal_all(Signal::STOP)
    }

    /// Resumes it.
    pub fn resume(&self) -> Result<(), PostgresError> {
        self.signal_all(Signal::CONT)
    }

    /// Kills it and its forks, as a power loss would, and waits until they are gone.
    pub fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // A stopped process forks nothing more.
        let _ = kill_process(Pid::from_child(&child), Signal::STOP);
        let forked = child_pids(child.id());
        let _ = child.kill();
        for &pid in &forked {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = child.wait();
        // A server does not start while any old process uses its memory.
        for _ in 0..POLLS_MAX {
            if !forked.iter().any(|&pid| is_running(pid)) {
                return;
            }
            thread::sleep(POLL_EVERY);
        }
    }

    /// Restarts it on the same port, with the present contents of its directory.
    pub fn restart(&mut self) -> Result<(), PostgresError> {
        self.kill();
        // The id in this file may now belong to another process, which the server would take for
        // itself.
        let _ = std::fs::remove_file(self.data().join("postmaster.pid"));
        self.run()
    }

    /// Restarts it on the same port with an empty database.
    pub fn restart_empty(&mut self) -> Result<(), PostgresError> {
        self.kill();
        self.directory = directory(self.owner)?;
        self.init_database()?;
        self.run()
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn init_database(&self) -> Result<(), PostgresError> {
        let mut make = self.command("initdb");
        make.args(["-A", "trust", "-U", USER, "--encoding=UTF8", "--locale=C", "--no-sync", "-D"]).arg(self.data());
        check_output("initdb", make.output()?).map(drop)
    }

    fn run(&mut self) -> Result<(), PostgresError> {
        let mut command = self.command("postgres");
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-k"]).arg(self.directory.path());
        command.arg("-D").arg(self.data());
        // Room for many concurrent tests, even on a machine with little memory.
        for setting in
            ["max_connections=200", "shared_buffers=32MB"].into_iter().chain(self.settings.iter().map(|s| &**s))
        {
            command.args(["-c", setting]);
        }
        let log = std::fs::File::create(self.log())?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn()?);
        for _ in 0..POLLS_MAX {
            if self.query("SELECT 1").is_ok_and(|one| one == "1") {
                return Ok(());
            }
            if self.has_ended() {
                break;
            }
            thread::sleep(POLL_EVERY);
        }
        Err(self.timed_out("the first answer"))
    }

    fn timed_out(&self, what: &'static str) -> PostgresError {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        PostgresError::TimedOut { what, log }
    }

    fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    fn signal_all(&self, signal: Signal) -> Result<(), PostgresError> {
        let child = self.child.as_ref().ok_or_else(|| io::Error::other("the server does not run"))?;
        kill_process(Pid::from_child(child), signal).map_err(io::Error::from)?;
        for pid in child_pids(child.id()) {
            // One may have ended meanwhile.
            let _ = kill_process(pid, signal);
        }
        Ok(())
    }

    fn client(&self, program: &str) -> Command {
        let mut command = self.command(program);
        command.arg("-h").arg(self.directory.path()).args(["-U", USER, "-p", &self.port.to_string()]);
        command
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        // A directory that the user may enter, for any caller.
        command.current_dir("/");
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        command
    }
}

impl TestServer for PostgresServer {
    const USER: &'static str = USER;
    const REFUSES_PLAIN: bool = true;

    fn start() -> Result<PostgresServer, BoxError> {
        Ok(PostgresServer::start()?)
    }

    fn start_durable() -> Result<PostgresServer, BoxError> {
        Ok(PostgresServer::start()?)
    }

    fn start_fast() -> Result<PostgresServer, BoxError> {
        Ok(PostgresServer::start_with(&["synchronous_commit=off"])?)
    }

    fn start_with_tls(home: &Path) -> Result<(PostgresServer, String), BoxError> {
        let server = PostgresServer::start()?;
        server.require_tls(&std::fs::read(home.join("cert.pem"))?, &std::fs::read(home.join("key.pem"))?)?;
        let url = format!("{}?sslmode=require", server.url());
        Ok((server, url))
    }

    fn address(&self) -> SocketAddr {
        self.address()
    }

    fn url_of(&self, address: SocketAddr, user: &str) -> String {
        format!("postgres://{user}@{address}/{USER}")
    }

    fn require_password(&self, password: &str) -> Result<(), BoxError> {
        Ok(self.require_password(password)?)
    }

    fn count_rows(&self) -> Result<u64, BoxError> {
        let tables = self.query(
            "SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public' AND tablename NOT LIKE '%schema'",
        )?;
        let counts: String = tables.lines().map(|table| format!(" + (SELECT count(*) FROM {table})")).collect();
        Ok(self.query(&format!("SELECT 0{counts}"))?.parse()?)
    }

    fn stop(&self) -> Result<(), BoxError> {
        Ok(self.stop()?)
    }

    fn resume(&self) -> Result<(), BoxError> {
        Ok(self.resume()?)
    }

    fn kill(&mut self) {
        self.kill();
    }

    fn restart(&mut self) -> Result<(), BoxError> {
        Ok(self.restart()?)
    }

    fn restart_empty(&mut self) -> Result<(), BoxError> {
        Ok(self.restart_empty()?)
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Standard output, if it succeeded.
fn check_output(program: &'static str, output: Output) -> Result<String, PostgresError> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(PostgresError::Failed { program, said: String::from_utf8_lossy(&output.stderr).into_owned() })
}

/// Folder of the programs: the newest version.
fn find_programs() -> Option<PathBuf> {
    let has_all = |folder: &PathBuf| PROGRAMS.iter().all(|program| folder.join(program).is_file());
    if let Some(folder) = std::env::var_os(PROGRAMS_VARIABLE) {
        return Some(PathBuf::from(folder)).filter(has_all);
    }
    let versions = std::fs::read_dir(VERSIONS).into_iter().flatten().flatten().map(|version| version.path());
    let number =
        |version: &PathBuf| version.file_name().and_then(OsStr::to_str).and_then(|name| name.parse::<u32>().ok());
    let debian = versions.filter(|version| has_all(&version.join("bin"))).max_by_key(number);
    let path = std::env::var_os("PATH").unwrap_or_default();
    debian.map(|version| version.join("bin")).or_else(|| std::env::split_paths(&path).find(has_all))
}

/// Owner of the server's process: its own user if the test is root, else the test's user.
fn owner() -> Result<Option<(u32, u32)>, PostgresError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let id = |flag: &str| -> Result<u32, PostgresError> {
        let output = Command::new("id").args([flag, USER]).output()?;
        String::from_utf8_lossy(&output.stdout).trim().parse().map_err(|_| PostgresError::NoUser)
    };
    Ok(Some((id("-u")?, id("-g")?)))
}

fn directory(owner: Option<(u32, u32)>) -> io::Result<TempDir> {
    let directory = tempfile::tempdir()?;
    if let Some((user, group)) = owner {
        chown(directory.path(), Some(user), Some(group))?;
    }
    Ok(directory)
}

/// Processes that this one forked.
fn child_pids(parent: u32) -> Vec<Pid> {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

fn is_running(pid: Pid) -> bool {
    let status = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    // A zombie has ended too.
    status.is_ok_and(|status| !status.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
}

/// A port without a listener at present.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
