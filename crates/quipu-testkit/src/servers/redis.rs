//! Runs Redis servers and Clusters as child processes.
//!
//! Invariants:
//! - a dropped server is killed, and its directory removed: no test leaves one behind;
//! - a restarted server keeps its port;
//! - every wait has a bound.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use quipu_model::BoxError;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::server_suite::TestServer;
use quipu_protocol::resp::{RespConnection, Value};

/// Package to install if there is no server.
const PACKAGE: &str = "redis-server";

/// Variable with another server program, such as valkey-server.
const PROGRAM_VARIABLE: &str = "QUIPU_TEST_REDIS_SERVER";

/// Number and interval of the polls for a slow event: half a minute in all.
const POLLS_MAX: u32 = 1_500;
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Timeout of a reply to this helper.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Most ports tried, if another process takes a free one first.
const PORTS_TRIED: u32 = 5;

/// Masters of a Cluster, each with one replica: the fewest that can lose one and still agree.
const MASTERS: usize = 3;

/// Time without an answer after which a master counts as dead: longer than any pause on a busy
/// machine.
const NODE_TIMEOUT_LONG: Duration = Duration::from_secs(30);

/// The same, for a test in which a master dies.
const NODE_TIMEOUT_SHORT: Duration = Duration::from_secs(1);

/// Number of slots of a Cluster.
const SLOTS: usize = 16_384;

/// Error of starting or using a server.
#[derive(Debug, thiserror::Error)]
pub enum RedisError {
    /// The program cannot be run.
    #[error("cannot run {PACKAGE}: install the Debian package {PACKAGE}")]
    Missing(#[source] io::Error),
    /// It runs and does not answer.
    #[error("{what} took too long; the server's log:\n{log}")]
    TimedOut {
        /// The awaited event.
        what: &'static str,
        /// Its log.
        log: String,
    },
    /// An unexpected answer.
    #[error("the server answered {request:?} with {answer}")]
    Answer {
        /// The request.
        request: String,
        /// The answer.
        answer: String,
    },
    /// Failure of a file, port or signal call.
    #[error("cannot prepare a server")]
    Io(#[from] io::Error),
}

/// A Redis server.
#[derive(Debug)]
pub struct RedisServer {
    directory: TempDir,
    port: u16,
    arguments: Vec<String>,
    child: Option<Child>,
}

impl RedisServer {
    /// Starts a server that keeps everything in memory.
    pub fn start() -> Result<RedisServer, RedisError> {
        RedisServer::start_with(&["--save", "", "--appendonly", "no"])
    }

    /// Starts a server with these arguments beside the common ones.
    pub fn start_with(arguments: &[&str]) -> Result<RedisServer, RedisError> {
        let mut tries = 1;
        loop {
            let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
            let mut server =
                RedisServer { directory: tempfile::tempdir()?, port: free_port()?, arguments, child: None };
            match server.run() {
                Err(RedisError::TimedOut { .. }) if tries < PORTS_TRIED && server.has_ended() => tries += 1,
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
        format!("redis://{}", self.address())
    }

    /// Opens a connection to it.
    pub fn connect(&self) -> io::Result<RespConnection> {
        RespConnection::connect(self.address(), REPLY_TIMEOUT)
    }

    /// Sends one command; an error reply is returned as an error.
    pub fn call(&self, request: &[&str]) -> Result<Value, RedisError> {
        let answer = self.connect()?.call(request)?;
        match answer.error() {
            Some(error) => Err(RedisError::Answer { request: request.join(" "), answer: error.to_owned() }),
            None => Ok(answer),
        }
    }

    /// Suspends it (SIGSTOP): connections stay, and it answers nothing.
    pub fn stop(&self) -> Result<(), RedisError> {
        self.signal(Signal::STOP)
    }

    /// Resumes it.
    pub fn resume(&self) -> Result<(), RedisError> {
        self.signal(Signal::CONT)
    }

    /// Kills it, as `kill -9` does, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Restarts it on the same port, with the present contents of its directory.
    pub fn restart(&mut self) -> Result<(), RedisError> {
        self.kill();
        self.run()
    }

    /// Restarts it on the same port without data.
    pub fn restart_empty(&mut self) -> Result<(), RedisError> {
        self.kill();
        self.directory = tempfile::tempdir()?;
        self.run()
    }

    fn run(&mut self) -> Result<(), RedisError> {
        let program = std::env::var_os(PROGRAM_VARIABLE).unwrap_or_else(|| PACKAGE.into());
        let mut command = Command::new(program);
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--logfile", "log", "--dir"]);
        command.arg(self.directory.path()).args(&self.arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().map_err(RedisError::Missing)?);
        self.wait_until("the first answer", |server| {
            let pong = server.connect().and_then(|mut client| client.call(&["PING"]));
            Ok(matches!(pong, Ok(Value::Simple(pong)) if pong == "PONG"))
        })
    }

    fn wait_until(
        &mut self,
        what: &'static str,
        condition: impl Fn(&RedisServer) -> Result<bool, RedisError>,
    ) -> Result<(), RedisError> {
        for _ in 0..POLLS_MAX {
            if condition(self)? {
                return Ok(());
            }
            if self.has_ended() {
                break;
            }
            thread::sleep(POLL_EVERY);
        }
        let log = std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        Err(RedisError::TimedOut { what, log })
    }

    fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    fn signal(&self, signal: Signal) -> Result<(), RedisError> {
        let child = self.child.as_ref().ok_or_else(|| io::Error::other("the server does not run"))?;
        Ok(kill_process(Pid::from_child(child), signal).map_err(io::Error::from)?)
    }
}

impl TestServer for RedisServer {
    const USER: &'static str = "";
    const REFUSES_PLAIN: bool = false;

    fn start() -> Result<RedisServer, BoxError> {
        Ok(RedisServer::start()?)
    }

    fn start_durable() -> Result<RedisServer, BoxError> {
        Ok(RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"])?)
    }

    fn start_fast() -> Result<RedisServer, BoxError> {
        Ok(RedisServer::start()?)
    }

    fn start_with_tls(home: &Path) -> Result<(RedisServer, String), BoxError> {
        let path = |file: &str| home.join(file).to_string_lossy().into_owned();
        let port = free_port()?;
        let server = RedisServer::start_with(&[
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &path("cert.pem"),
            "--tls-key-file",
            &path("key.pem"),
            "--tls-ca-cert-file",
            &path("cert.pem"),
            "--tls-auth-clients",
            "no",
        ])?;
        Ok((server, format!("rediss://127.0.0.1:{port}")))
    }

    fn address(&self) -> SocketAddr {
        self.address()
    }

    fn url_of(&self, address: SocketAddr, user: &str) -> String {
        let at = if user.is_empty() { "" } else { "@" };
        format!("redis://{user}{at}{address}")
    }

    fn require_password(&self, password: &str) -> Result<(), BoxError> {
        self.call(&["CONFIG", "SET", "requirepass", password])?;
        Ok(())
    }

    fn count_rows(&self) -> Result<u64, BoxError> {
        let keys = self.call(&["DBSIZE"])?.number().ok_or("DBSIZE is a number")?;
        Ok(keys.try_into()?)
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

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A Redis Cluster: three masters, each with a replica.
#[derive(Debug)]
pub struct RedisCluster {
    /// The servers: first the initial masters, then the replica of each.
    pub servers: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts a Cluster, and waits until it serves all slots and every replica follows. Its
    /// failover is slow: no server in it should die.
    pub fn start() -> Result<RedisCluster, RedisError> {
        RedisCluster::start_with(NODE_TIMEOUT_LONG)
    }

    /// Starts a Cluster that quickly notices and replaces a dead master.
    pub fn start_with_fast_failover() -> Result<RedisCluster, RedisError> {
        RedisCluster::start_with(NODE_TIMEOUT_SHORT)
    }

    fn start_with(node_timeout: Duration) -> Result<RedisCluster, RedisError> {
        let mut servers = Vec::new();
        let mut bus_ports = Vec::new();
        for _ in 0..2 * MASTERS {
            let bus_port = free_port()?;
            bus_ports.push(bus_port.to_string());
            servers.push(RedisServer::start_with(&[
                "--save",
                "",
                "--appendonly",
                "no",
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &bus_port.to_string(),
                "--cluster-node-timeout",
                &node_timeout.as_millis().to_string(),
                "--cluster-replica-validity-factor",
                "0",
            ])?);
        }
        let mut cluster = RedisCluster { servers };
        cluster.join(&bus_ports)?;
        Ok(cluster)
    }

    /// URL with the addresses of the masters.
    pub fn url(&self) -> String {
        let addresses: Vec<String> =
            self.servers[..MASTERS].iter().map(|server| server.address().to_string()).collect();
        format!("redis-cluster://{}", addresses.join(","))
    }

    /// Indexes of the answering servers that report themselves as masters.
    pub fn masters(&self) -> Vec<usize> {
        let is_master =
            |server: &RedisServer| info(server, "replication").is_ok_and(|info| info.contains("role:master"));
        (0..self.servers.len()).filter(|&at| self.servers[at].child.is_some() && is_master(&self.servers[at])).collect()
    }

    /// Kills a master and waits until its replica has taken over and all slots are served again.
    pub fn fail_over(&mut self, master: usize) -> Result<(), RedisError> {
        let id = my_id(&self.servers[master])?;
        self.servers[master].kill();
        // At first the others still take it for a live master.
        for server in self.servers.iter_mut().filter(|server| server.child.is_some()) {
            server.wait_until("replacing a dead master", |server| {
                let nodes = text(&server.call(&["CLUSTER", "NODES"])?);
                Ok(nodes.lines().any(|line| line.starts_with(&id) && line.contains("fail")))
            })?;
        }
        self.wait_until_served(MASTERS)
    }

    fn join(&mut self, bus_ports: &[String]) -> Result<(), RedisError> {
        let ids = self.servers.iter().map(my_id).collect::<Result<Vec<String>, RedisError>>()?;
        for (at, server) in self.servers.iter().enumerate() {
            server.call(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()])?;
            if at < MASTERS {
                let (from, to) = (SLOTS * at / MASTERS, SLOTS * (at + 1) / MASTERS - 1);
                server.call(&["CLUSTER", "ADDSLOTSRANGE", &from.to_string(), &to.to_string()])?;
            }
            if at > 0 {
                let port = self.servers[0].port.to_string();
                server.call(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus_ports[0]])?;
            }
        }
        let know_all = |server: &RedisServer| {
            let nodes = server.call(&["CLUSTER", "NODES"])?;
            let nodes = text(&nodes);
            Ok(ids.iter().all(|id| nodes.contains(id)) && !nodes.contains("handshake"))
        };
        for server in &mut self.servers {
            server.wait_until("meeting the others", know_all)?;
        }
        for at in MASTERS..2 * MASTERS {
            self.servers[at].call(&["CLUSTER", "REPLICATE", &ids[at - MASTERS]])?;
        }
        for replica in &mut self.servers[MASTERS..] {
            replica.wait_until("following a master", |server| {
                Ok(info(server, "replication")?.contains("master_link_status:up"))
            })?;
        }
        self.wait_until_served(MASTERS)
    }

    fn wait_until_served(&mut self, masters: usize) -> Result<(), RedisError> {
        for at in 0..self.servers.len() {
            if self.servers[at].child.is_some() {
                self.servers[at].wait_until("serving all slots", |server| {
                    let state = text(&server.call(&["CLUSTER", "INFO"])?);
                    let nodes = text(&server.call(&["CLUSTER", "NODES"])?);
                    let alive = |line: &&str| line.contains("master") && !line.contains("fail");
                    let owners = nodes.lines().filter(alive).filter(|line| line.split(' ').count() > 8).count();
                    Ok(state.contains("cluster_state:ok") && owners == masters)
                })?;
            }
        }
        Ok(())
    }
}

fn my_id(server: &RedisServer) -> Result<String, RedisError> {
    Ok(text(&server.call(&["CLUSTER", "MYID"])?))
}

fn info(server: &RedisServer, section: &str) -> Result<String, RedisError> {
    Ok(text(&server.call(&["INFO", section])?))
}

fn text(value: &Value) -> String {
    match value {
        Value::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Simple(text) => text.clone(),
        other => format!("{other:?}"),
    }
}

/// A port without a listener at present.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
