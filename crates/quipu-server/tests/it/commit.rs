//! No reply leaves before its content is on disk.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use quipu_engine::{Environment, SystemDisk};
use quipu_model::{DirLock, LockError, Vfs, VfsFile};

use crate::test_server::TestServer;

/// Long enough for a reply that is not held back to arrive, many times over.
pub const SILENCE_TIME: Duration = Duration::from_millis(300);

/// How a sync of this disk ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sync {
    Passes,
    Waits,
    Fails,
}

/// A disk whose syncs a test holds back or fails.
#[derive(Clone)]
pub struct Gate(Arc<(Mutex<Sync>, Condvar)>);

impl Gate {
    pub fn open() -> Gate {
        Gate(Arc::new((Mutex::new(Sync::Passes), Condvar::new())))
    }

    pub fn set(&self, sync: Sync) {
        *self.0.0.lock().unwrap() = sync;
        self.0.1.notify_all();
    }

    fn pass(&self) -> io::Result<()> {
        let state = self.0.1.wait_while(self.0.0.lock().unwrap(), |sync| *sync == Sync::Waits).unwrap();
        if *state == Sync::Fails { Err(io::Error::other("the disk failed")) } else { Ok(()) }
    }

    pub fn environment(&self) -> Environment {
        let gated = GatedDisk { disk: SystemDisk, gate: self.clone() };
        Environment { vfs: Arc::new(gated), on_failure: Arc::new(|_| {}), ..Environment::system() }
    }
}

struct GatedDisk {
    disk: SystemDisk,
    gate: Gate,
}

impl GatedDisk {
    fn file(&self, file: Arc<dyn VfsFile>) -> Arc<dyn VfsFile> {
        Arc::new(GatedFile { file, gate: self.gate.clone() })
    }
}

impl Vfs for GatedDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.create_dir(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        Ok(self.file(self.disk.create(path)?))
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        Ok(self.file(self.disk.open(path)?))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn clear_dir(&self, dir: &Path, keep: &str) -> io::Result<()> {
        self.disk.clear_dir(dir, keep)
    }
    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.remove_dir(dir)
    }
    fn identity(&self, path: &Path) -> io::Result<u64> {
        self.disk.identity(path)
    }
    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.disk.free_bytes(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> Result<Box<dyn DirLock>, LockError> {
        self.disk.lock(path)
    }
}

struct GatedFile {
    file: Arc<dyn VfsFile>,
    gate: Gate,
}

impl VfsFile for GatedFile {
    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buf, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.gate.pass()?;
        self.file.sync_data()
    }
}

#[test]
fn writes_and_reads_wait_for_the_disk_and_nothing_else_does() {
    let gate = Gate::open();
    let server = TestServer::open_on(gate.environment());
    // Connections go to the two workers in turn.
    let (mut writer, mut reader) = (server.client(), server.client());
    writer.ask("INCR n", ":1\r\n");
    gate.set(Sync::Waits);
    writer.send("INCR n\r\n").expect_silence(SILENCE_TIME);
    reader.ask("PING", "+PONG\r\n");
    reader.ask("CONFIG GET appendfsync", "*2\r\n$11\r\nappendfsync\r\n$6\r\nalways\r\n");
    reader.send("GET n\r\n").expect_silence(SILENCE_TIME);
    gate.set(Sync::Passes);
    writer.expect(":2\r\n");
    reader.expect("$1\r\n2\r\n");
}

/// A command as clients send it.
fn encode_command(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let bulks: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{bulks}", words.len())
}

#[test]
fn who_is_served_in_one_round_gets_its_own_replies_in_its_own_order() {
    let gate = Gate::open();
    let directory = tempfile::tempdir().unwrap();
    let options = quipu_engine::Options::new(directory.path());
    let engine = quipu_engine::Engine::open_with(options, gate.environment()).unwrap();
    let server = TestServer::serve(engine, directory, |options| options.workers = std::num::NonZeroUsize::MIN);
    let mut first = server.client();
    first.ask("PFADD sketch item", ":1\r\n").ask("SET full 9223372036854775807", "+OK\r\n");
    let mut clients: Vec<_> = (0..300).map(|_| server.client()).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        // Every third understands another dialect, in which nothing is another nothing.
        client.ask("CLIENT ID", format!(":{}\r\n", at + 2));
        if at % 3 == 0 {
            client.send("HELLO 3\r\n");
            while !client.line().starts_with("*0") {}
        }
    }
    // The only worker waits for the disk, so all that is sent meanwhile is there in its next round.
    gate.set(Sync::Waits);
    first.send(encode_command("INCR n")).expect_silence(SILENCE_TIME);
    for (at, client) in clients.iter_mut().enumerate() {
        let own = encode_command(&format!("INCRBY own:{at} {at}")) + &encode_command(&format!("INCR own:{at}"));
        let odd = match at % 5 {
            0 => encode_command("INCR sketch"),
            1 => encode_command("INCR full"),
            2 => encode_command("GET none"),
            3 => "PING\r\n".to_owned(),
            _ => String::new(),
        };
        // The last bytes of some come later.
        let unfinished = if at % 7 == 0 { encode_command("INCR late").trim_end().to_owned() } else { String::new() };
        client.send(format!("{own}{odd}{}{unfinished}", encode_command("INCR n")));
    }
    gate.set(Sync::Passes);
    first.expect(":1\r\n");
    let mut counted = std::collections::BTreeSet::new();
    for (at, client) in clients.iter_mut().enumerate() {
        client.expect(format!(":{at}\r\n:{}\r\n", at + 1));
        match at % 5 {
            0 => client.expect("-WRONGTYPE Operation against a key holding the wrong kind of value: it is of kind unique, which PFCOUNT reads\r\n"),
            1 => client.expect("-ERR increment or decrement would overflow\r\n"),
            2 if at % 3 == 0 => client.expect("_\r\n"),
            2 => client.expect("$-1\r\n"),
            3 => client.expect("+PONG\r\n"),
            _ => client,
        };
        counted.insert(client.line());
        if at % 7 == 0 {
            client.send("\r\n");
            assert!(client.line().starts_with(':'));
        }
    }
    assert_eq!(counted, (2..=301).map(|value| format!(":{value}")).collect(), "no two replies are equal");
    first.ask("GET n", "$3\r\n301\r\n").ask("GET late", "$2\r\n43\r\n").ask("GET none", "$-1\r\n");
}

#[test]
fn the_next_reply_waits_for_adds_that_had_none() {
    let gate = Gate::open();
    let server = TestServer::open_on(gate.environment());
    let mut client = server.client();
    let adds = "INCR n\r\n".repeat(200);
    client.send(format!("CLIENT REPLY OFF\r\n{adds}CLIENT REPLY ON\r\n")).expect("+OK\r\n");
    assert_eq!(server.engine.stats().counters_split, 1);
    gate.set(Sync::Waits);
    // Lanes are not synced by anyone; a reply to whatever comes next says that they are.
    client.send(format!("CLIENT REPLY OFF\r\n{adds}")).expect_silence(SILENCE_TIME);
    client.send("CLIENT REPLY ON\r\nPING\r\n").expect_silence(SILENCE_TIME);
    gate.set(Sync::Passes);
    client.expect("+OK\r\n+PONG\r\n").ask("GET n", "$3\r\n400\r\n");
}

#[test]
fn when_the_disk_fails_connections_close_and_nothing_is_acknowledged() {
    let gate = Gate::open();
    let server = TestServer::open_on(gate.environment());
    let (mut writer, mut reader) = (server.client(), server.client());
    writer.ask("INCR n", ":1\r\n");
    gate.set(Sync::Waits);
    writer.send("INCR n\r\nPING\r\n").expect_silence(SILENCE_TIME);
    reader.send("GET n\r\n").expect_silence(SILENCE_TIME);
    gate.set(Sync::Fails);
    writer.expect_closed_after("");
    reader.expect_closed_after("");
    gate.set(Sync::Passes);
    server.client().send("INCR n\r\n").expect_closed_after("");
}
