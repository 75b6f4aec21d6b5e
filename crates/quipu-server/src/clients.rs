//! Tracks the connected clients: the connection cap, and the lines of CLIENT LIST.
//!
//! Invariants:
//! - A client counts against the cap from its admission until its entry is dropped.
//! - An id is never reused.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use quipu_model::Millis;
use quipu_protocol::RespVersion;

/// All connections of a server.
#[derive(Default)]
pub(crate) struct Clients {
    last_id: AtomicU64,
    table: Arc<Mutex<ClientTable>>,
}

type ClientTable = BTreeMap<u64, Weak<ClientInfo>>;

/// One connection, as CLIENT LIST shows it.
pub(crate) struct ClientInfo {
    pub id: u64,
    peer: SocketAddr,
    local: SocketAddr,
    connected_at: Millis,
    details: Mutex<ClientDetails>,
    table: Arc<Mutex<ClientTable>>,
}

/// Details that the connection updates once per turn.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClientDetails {
    pub name: String,
    pub lib_name: String,
    pub lib_version: String,
    pub last_active: Millis,
    pub command: &'static str,
    pub version: RespVersion,
    /// Commands queued since MULTI; `None` outside a transaction.
    pub queued: Option<usize>,
    pub watching: usize,
    pub input_bytes: usize,
}

impl Clients {
    /// Admits a connection, unless there are `connections_max`.
    pub fn admit(
        &self,
        peer: SocketAddr,
        local: SocketAddr,
        now: Millis,
        connections_max: u32,
    ) -> Option<Arc<ClientInfo>> {
        let mut table = lock(&self.table);
        if table.len() >= connections_max as usize {
            return None;
        }
        let client = Arc::new(ClientInfo {
            id: self.last_id.fetch_add(1, Ordering::Relaxed) + 1,
            peer,
            local,
            connected_at: now,
            details: Mutex::new(ClientDetails { last_active: now, command: "NULL", ..ClientDetails::default() }),
            table: Arc::clone(&self.table),
        });
        table.insert(client.id, Arc::downgrade(&client));
        Some(client)
    }

    pub fn count(&self) -> usize {
        lock(&self.table).len()
    }

    /// Every client, by id.
    pub fn all(&self) -> Vec<Arc<ClientInfo>> {
        lock(&self.table).values().filter_map(Weak::upgrade).collect()
    }
}

impl ClientInfo {
    pub fn details(&self) -> MutexGuard<'_, ClientDetails> {
        lock(&self.details)
    }

    /// Returns true if the client runs on the server's machine.
    pub fn is_local(&self) -> bool {
        self.peer.ip().to_canonical().is_loopback()
    }

    /// The line of CLIENT LIST, in the order and terms of Redis. Fields without a meaning here have
    /// the values of an idle Redis.
    pub fn line(&self, now: Millis) -> String {
        let details = self.details().clone();
        let ClientDetails {
            name,
            lib_name,
            lib_version,
            last_active: active,
            command,
            version,
            queued,
            watching,
            input_bytes,
        } = details;
        let mut line = String::with_capacity(320);
        let flags = if queued.is_some() { "x" } else { "N" };
        let multi = queued.map_or(-1, |queued| queued as i64);
        let seconds = |since: Millis| since.until(now) / 1000;
        let written = writeln!(
            line,
            "id={} addr={} laddr={} fd=-1 name={name} age={} idle={} flags={flags} db=0 sub=0 psub=0 ssub=0 multi={multi} \
             watch={watching} qbuf={input_bytes} qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 \
             tot-mem=0 events=r cmd={command} user=default redir=-1 resp={} lib-name={lib_name} lib-ver={lib_version}",
            self.id,
            self.peer,
            self.local,
            seconds(self.connected_at),
            seconds(active),
            version.number(),
        );
        written.expect("writing to a string cannot fail");
        line
    }
}

impl Drop for ClientInfo {
    fn drop(&mut self) {
        lock(&self.table).remove(&self.id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds the list of clients")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cap_counts_those_who_are_there() {
        let (clients, addr) = (Clients::default(), SocketAddr::from(([127, 0, 0, 1], 1)));
        let first = clients.admit(addr, addr, Millis(0), 2).unwrap();
        let second = clients.admit(addr, addr, Millis(0), 2).unwrap();
        assert!(clients.admit(addr, addr, Millis(0), 2).is_none());
        drop(first);
        let third = clients.admit(addr, addr, Millis(0), 2).unwrap();
        assert_eq!((second.id, third.id, clients.count()), (2, 3, 2));
    }

    #[test]
    fn a_client_is_local_by_its_loopback_address_alone() {
        let (clients, local) = (Clients::default(), SocketAddr::from(([127, 0, 0, 1], 1)));
        for (peer, is_local) in [
            ("127.0.0.1:9", true),
            ("127.8.8.8:9", true),
            ("[::1]:9", true),
            ("[::ffff:127.0.0.1]:9", true),
            ("192.168.0.7:9", false),
            ("[::ffff:10.0.0.1]:9", false),
            ("[2001:db8::1]:9", false),
        ] {
            let client = clients.admit(peer.parse().unwrap(), local, Millis(0), 1).unwrap();
            assert_eq!(client.is_local(), is_local, "{peer}");
        }
    }

    #[test]
    fn a_line_looks_as_clients_expect_it() {
        let (clients, addr) = (Clients::default(), SocketAddr::from(([127, 0, 0, 1], 1)));
        let client = clients.admit(addr, addr, Millis(1_000), 1).unwrap();
        client.details().name = "me".into();
        let line = client.line(Millis(6_500));
        assert!(line.starts_with("id=1 addr=127.0.0.1:1 laddr=127.0.0.1:1 fd=-1 name=me age=5 idle=5 flags=N db=0 "));
        assert!(line.ends_with("resp=2 lib-name= lib-ver=\n"), "{line}");
    }
}
