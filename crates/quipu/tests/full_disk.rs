//! A full disk, through the built program: it refuses writes with an error, goes on with reads, and
//! heals by itself once there is space.
//!
//! Nothing that was acknowledged is lost, nothing is counted twice. The disk is a tmpfs of 64 MB
//! (see `quipu_testkit::small_disk`). Names are long, so that it fills quickly.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use quipu_model::Durability;
use quipu_protocol::resp::{RespConnection, Value};
use quipu_testkit::load::{CrowdAccount, CrowdNames, Loss, read_info};
use quipu_testkit::program::{Launch, LaunchError, Program};
use quipu_testkit::small_disk::{Filler, SmallDisk, on_small_disk};

const DISK_BYTES: u64 = 64 << 20;

/// How long a reply may take.
const TIMEOUT: Duration = Duration::from_secs(20);

/// How long healing may take once there is space: a full disk is tried again every second.
const HEAL_TIME_MAX: Duration = Duration::from_secs(10);

/// Long names: a counter takes about as much as a hundred would with short ones.
const LONG: CrowdNames = CrowdNames { prefix: "long:", count: 20_000, bytes: 400..=512 };

fn launch(data: &Path, arguments: &[&str]) -> Launch {
    let mut launch = Launch::new(env!("CARGO_BIN_EXE_quipu"), data, Durability::Durable);
    launch.arguments = arguments.iter().map(Into::into).collect();
    launch
}

fn connect(program: &Program) -> RespConnection {
    RespConnection::connect(program.address(), TIMEOUT).expect("it serves")
}

#[allow(clippy::disallowed_methods, reason = "a real program is waited for")]
fn now() -> Instant {
    Instant::now()
}

/// A server, one counter that is added to, and what it must hold.
struct Scene<'d> {
    disk: &'d SmallDisk,
    program: Program,
    client: RespConnection,
    crowd: CrowdAccount,
    /// Of the counter `hits`, whose adds are one at a time.
    acked: i64,
}

impl<'d> Scene<'d> {
    fn start(disk: &'d SmallDisk, arguments: &[&str]) -> Scene<'d> {
        let program = launch(&disk.dir().join("data"), arguments).start().expect("it starts on an empty disk");
        let client = connect(&program);
        Scene { disk, program, client, crowd: CrowdAccount::new(LONG), acked: 0 }
    }

    /// One add to a counter with a long name; what it was refused with, if it was.
    fn add(&mut self) -> Option<String> {
        let reply = self.client.call(&["INCR", &hits()]).expect("it answers");
        match &reply {
            Value::Integer(value) => {
                self.acked += 1;
                assert_eq!(*value, self.acked, "a reply shows what was acknowledged, and nothing else");
                None
            }
            Value::Error(text) => Some(text.clone()),
            other => panic!("INCR was answered {other:?}"),
        }
    }

    /// Adds until it is refused, while another file takes whatever space is given back.
    fn add_until_refused(&mut self, filler: &Filler) -> String {
        for adds in 0..400_000 {
            if let Some(text) = self.add() {
                // Refused for good, not only until a seal has given back some space.
                if filler.grow().expect("the disk can be filled") == 0 && self.stays_refused(filler) {
                    return text;
                }
            }
            if adds % 1_000 == 0 {
                filler.grow().expect("the disk can be filled");
            }
        }
        panic!("400,000 adds on a full disk, and none was refused");
    }

    /// Whether adds are refused for two seconds in which the full disk was tried again.
    fn stays_refused(&mut self, filler: &Filler) -> bool {
        let began = now();
        while began.elapsed() < Duration::from_secs(2) {
            if self.add().is_none() {
                return false;
            }
            filler.grow().expect("the disk can be filled");
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Adds until one is taken again; how long that took.
    fn heal(&mut self) -> Duration {
        let began = now();
        while let Some(text) = self.add() {
            assert!(began.elapsed() < HEAL_TIME_MAX, "still refused: {text}");
            std::thread::sleep(Duration::from_millis(20));
        }
        began.elapsed()
    }

    /// Reads go on: counters in memory, and those at rest.
    fn read(&mut self) {
        let reply = self.client.call(&["GET", &hits()]).expect("it answers");
        assert_eq!(reply.number().unwrap_or(0), self.acked, "{reply:?}");
        for number in (0..LONG.count).step_by(997) {
            let reply = self.client.call(&["GET", &LONG.name(number)]).expect("it answers");
            assert_eq!(reply.number().unwrap_or(0), self.crowd.certain(number), "{reply:?}");
        }
    }

    /// What is there, all of it, before and after a kill; returns what was said on stderr until
    /// then.
    fn judge(mut self, arguments: &[&str]) -> String {
        self.judge_now();
        let log = self.program.kill9();
        self.program = launch(&self.disk.dir().join("data"), arguments).start().expect("it starts again");
        self.client = connect(&self.program);
        self.judge_now();
        log
    }

    fn judge_now(&mut self) {
        let (existing, violations) = self.crowd.judge(&mut self.client, Loss::Nothing).expect("it answers");
        let messages: Vec<String> = violations.iter().map(ToString::to_string).collect();
        assert!(messages.is_empty(), "{}", messages.join("\n"));
        let reply = self.client.call(&["GET", &hits()]).expect("it answers");
        assert_eq!(reply.number().unwrap_or(0), self.acked, "{reply:?}");
        let count = self.client.call(&["DBSIZE"]).expect("it answers").number();
        assert_eq!(count, Some(existing as i64 + i64::from(self.acked > 0)));
    }

    fn figure(&mut self, name: &str) -> u64 {
        read_info(&mut self.client, "quipu").expect("it tells of itself")[name].parse().expect("a number")
    }
}

/// A counter with a long name: its records fill the journal quickly.
fn hits() -> String {
    format!("hits:{}", "x".repeat(480))
}

/// One of very many counters.
fn likes(number: usize) -> String {
    format!("likes:{number:08}{}", "x".repeat(480))
}

fn says_full(text: &str) {
    assert!(text.starts_with("NOROOM"), "the refusal says what it is: {text}");
    let why = ["No space left on device", "no space", "full"];
    assert!(why.iter().any(|why| text.contains(why)), "and why: {text}");
}

#[test]
fn a_disk_filled_by_another_file_refuses_adds_and_heals_when_it_is_removed() {
    on_small_disk("a_disk_filled_by_another_file_refuses_adds_and_heals_when_it_is_removed", DISK_BYTES, |disk| {
        let mut scene = Scene::start(disk, &[]);
        scene.crowd.fill(&mut scene.client).expect("there is room for these");
        let filler = disk.fill().expect("the disk can be filled");
        let text = scene.add_until_refused(&filler);
        says_full(&text);
        scene.read();
        filler.remove().expect("it is there");
        let healed = scene.heal();
        let acked = scene.acked;
        for _ in 0..1_000 {
            assert_eq!(scene.add(), None);
        }
        let log = scene.judge(&[]);
        assert!(log.contains("ERROR the disk is full"), "operators are told, too: {log}");
        println!(
            "proof: full disk by another file: {acked} adds, then refused, healed in {} ms, violations 0",
            healed.as_millis()
        );
    });
}

#[test]
fn a_disk_that_gets_full_before_a_seal_of_much_refuses_and_heals() {
    on_small_disk("a_disk_that_gets_full_before_a_seal_of_much_refuses_and_heals", DISK_BYTES, |disk| {
        // All counters have changed when the disk is filled, and the seals come after.
        let arguments = ["--seal-every", "2s"];
        let mut scene = Scene::start(disk, &arguments);
        scene.crowd.fill(&mut scene.client).expect("there is room for these");
        let (seals, began) = (scene.figure("seals_total"), now());
        let filler = disk.fill().expect("the disk can be filled");
        scene.crowd.fill_some(&mut scene.client).expect("a broken connection is not what a full disk looks like");
        // At least one seal is tried while there is no space but what was kept for it.
        let text = scene.add_until_refused(&filler);
        says_full(&text);
        scene.read();
        assert!(began.elapsed() > Duration::from_secs(2), "a seal was due");
        filler.remove().expect("it is there");
        let healed = scene.heal();
        let mut waited = 0;
        while scene.figure("seals_total") <= seals {
            waited += 1;
            assert!(waited < 200, "nothing is sealed after the disk has space again");
            std::thread::sleep(Duration::from_millis(50));
        }
        scene.judge(&arguments);
        println!("proof: full disk in a seal: healed in {} ms, violations 0", healed.as_millis());
    });
}

#[test]
fn a_disk_that_gets_full_before_a_compaction_refuses_and_heals() {
    on_small_disk("a_disk_that_gets_full_before_a_compaction_refuses_and_heals", DISK_BYTES, |disk| {
        // Seals are as frequent as they can be, so that ingestions wait to be merged at any time.
        let arguments = ["--seal-every", "1ms"];
        let mut scene = Scene::start(disk, &arguments);
        scene.crowd.fill(&mut scene.client).expect("there is room for these");
        let filler = disk.fill().expect("the disk can be filled");
        scene.crowd.fill_some(&mut scene.client).expect("a broken connection is not what a full disk looks like");
        let text = scene.add_until_refused(&filler);
        says_full(&text);
        scene.read();
        let (waiting, compactions) = (scene.figure("ledger_runs"), scene.figure("compactions_total"));
        filler.remove().expect("it is there");
        let healed = scene.heal();
        let mut waited = 0;
        while scene.figure("compactions_total") <= compactions {
            let _ = scene.add();
            waited += 1;
            assert!(waited < 1_000, "nothing is merged after the disk has space again");
            std::thread::sleep(Duration::from_millis(20));
        }
        scene.judge(&arguments);
        let healed = healed.as_millis();
        println!(
            "proof: full disk in a compaction: {waiting} ingestions waiting, healed in {healed} ms, then merged, violations 0"
        );
    });
}

#[test]
fn a_journal_that_fills_the_disk_by_itself_is_sealed_and_cut_and_never_stuck() {
    on_small_disk("a_journal_that_fills_the_disk_by_itself_is_sealed_and_cut_and_never_stuck", DISK_BYTES, |disk| {
        // Nothing but a full disk asks for a seal.
        let arguments = ["--seal-every", "1h", "--journal-bytes-max", "1GB"];
        let mut scene = Scene::start(disk, &arguments);
        let (mut refused, mut stuck) = (0_u64, None);
        while scene.figure("journal_written") < 4 * DISK_BYTES {
            for _ in 0..1_000 {
                match scene.add() {
                    None => stuck = None,
                    Some(text) => {
                        says_full(&text);
                        refused += 1;
                        let since = *stuck.get_or_insert_with(now);
                        assert!(since.elapsed() < HEAL_TIME_MAX, "stuck: {text}");
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            }
        }
        let (written, seals, acked) = (scene.figure("journal_written") >> 20, scene.figure("seals_total"), scene.acked);
        assert!(seals > 0, "the journal was never cut");
        scene.judge(&arguments);
        println!(
            "proof: disk filled by the journal: {written} MB through 64 MB, {acked} adds, {refused} refused, {seals} seals, violations 0"
        );
    });
}

#[test]
fn a_kill_on_a_full_disk_is_followed_by_a_start_on_a_full_disk() {
    on_small_disk("a_kill_on_a_full_disk_is_followed_by_a_start_on_a_full_disk", DISK_BYTES, |disk| {
        let mut scene = Scene::start(disk, &[]);
        scene.crowd.fill(&mut scene.client).expect("there is room for these");
        let filler = disk.fill().expect("the disk can be filled");
        says_full(&scene.add_until_refused(&filler));
        for round in 0..3 {
            filler.grow().expect("the disk can be filled");
            scene.program.kill9();
            let again = launch(&disk.dir().join("data"), &[]).start();
            scene.program =
                again.unwrap_or_else(|error| panic!("round {round}: it does not start on a full disk: {error}"));
            scene.client = connect(&scene.program);
            scene.read();
            filler.grow().expect("the disk can be filled");
        }
        filler.remove().expect("it is there");
        let healed = scene.heal();
        scene.judge(&[]);
        println!(
            "proof: killed and started 3 times on a full disk: read each time, healed in {} ms, violations 0",
            healed.as_millis()
        );
    });
}

#[test]
fn a_quota_refuses_by_its_name_and_a_larger_one_heals() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let config = dir.path().join("quipu.toml");
    std::fs::write(&config, "[namespace.views]\ndurability = \"memory\"\n").expect("a file can be written");
    let (config, data) = (config.to_str().expect("its name is plain").to_owned(), dir.path().join("data"));
    let small = launch(&data, &["--config", &config, "--max-disk", "64MB"]);
    let program = small.start().expect("it starts");
    let mut client = connect(&program);
    let (mut acked, mut next, mut refusal) = (Vec::new(), 0, None);
    // New counters until there is no room for another, not even after the journal was cut.
    let began = now();
    while began.elapsed() < Duration::from_secs(60) {
        let numbers = next..next + 100;
        next = numbers.end;
        let pipeline: Vec<Vec<String>> = numbers.clone().map(|number| vec!["INCR".to_owned(), likes(number)]).collect();
        client.send(&pipeline).expect("it reads");
        let mut taken = 0;
        for number in numbers {
            let reply = client.receive().expect("it answers");
            match reply.error() {
                None => {
                    acked.push(number);
                    taken += 1;
                }
                Some(text) => {
                    assert!(text.starts_with("NOROOM"), "{text}");
                    refusal.get_or_insert_with(|| (now(), text.to_owned()));
                }
            }
        }
        match &refusal {
            _ if taken > 0 => refusal = None,
            Some((since, _)) if since.elapsed() > Duration::from_secs(3) => break,
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    let (_, text) = refusal.unwrap_or_else(|| panic!("{} counters of 500 bytes, and no refusal", acked.len()));
    assert!(text.contains("--max-disk") && text.contains("quota"), "the refusal names the quota: {text}");
    // A seal or a merge in progress has its new tables beside the old ones. Once it is done, all of
    // it is within the quota.
    let (began, quota) = (now(), 64_000_000);
    let mut used = u64::MAX;
    while (used > quota || bytes_in(&data) > quota + (2 << 20)) && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(50));
        used = read_info(&mut client, "quipu").expect("it tells of itself")["disk_bytes"].parse().expect("a number");
    }
    assert!(used <= quota, "{used} bytes are more than the quota");
    let on_disk = bytes_in(&data);
    assert!(on_disk <= quota + (2 << 20), "{on_disk} bytes on disk are more than the quota");
    assert_eq!(client.call(&["GET", &likes(acked[0])]).expect("it answers").number(), Some(1), "reads go on");
    // What is not journaled needs no room.
    for value in 1..=1_000 {
        assert_eq!(client.call(&["INCR", "views:1"]).expect("it answers").number(), Some(value));
    }
    program.kill9();

    let large = launch(&data, &["--config", &config, "--max-disk", "1GB"]);
    let program = large.start().expect("it starts with a larger quota");
    let mut client = connect(&program);
    assert_eq!(client.call(&["INCR", "likes:new"]).expect("it answers"), Value::Integer(1));
    let count = client.call(&["DBSIZE"]).expect("it answers").number().expect("a number");
    let views = i64::from(client.call(&["GET", "views:1"]).expect("it answers").number().is_some());
    assert_eq!(count, acked.len() as i64 + 1 + views);
    for number in acked.iter().step_by(503) {
        assert_eq!(client.call(&["GET", &likes(*number)]).expect("it answers").number(), Some(1));
    }
    let acked = acked.len();
    println!(
        "proof: quota of 64 MB: {acked} counters of 500 bytes taken, {used} bytes used, then refused by name; a larger one heals, violations 0"
    );
}

fn bytes_in(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).expect("a directory").filter_map(Result::ok);
    entries
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => bytes_in(&entry.path()),
            Ok(meta) => meta.len(),
            // Removed meanwhile.
            Err(_) => 0,
        })
        .sum()
}

#[test]
fn a_read_only_disk_is_told_as_such_and_not_as_one_in_use() {
    on_small_disk("a_read_only_disk_is_told_as_such_and_not_as_one_in_use", DISK_BYTES, |disk| {
        let data = disk.dir().join("data");
        let program = launch(&data, &[]).start().expect("it starts");
        connect(&program).call(&["INCR", "a"]).expect("it answers");
        let (status, stderr) = program.terminate().expect("it ends");
        assert!(status.success(), "{stderr}");
        let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(disk.dir()).status();
        assert!(remounted.expect("mount can be run").success());

        let dir = data.display();
        let reason =
            "Read-only file system (os error 30); mount its file system for writing, or name another directory";
        let messages = format!("quipu: cannot open {dir}: cannot write to data directory {dir}: {reason}\n");
        let start = launch(&data, &[]).start().map(|_| ());
        match start.expect_err("nothing can be written") {
            LaunchError::Ended { status, stderr } => assert_eq!((status.code(), stderr), (Some(1), messages.clone())),
            other => panic!("{other}"),
        }
        let data = data.to_str().expect("a path of a test is text");
        let backup = std::env::temp_dir().join("quipu-backup-of-a-read-only-disk");
        let backup = backup.to_str().expect("a path of a test is text");
        for words in [&["backup", backup, "--data", data][..], &["clock", "lower", "--data", data]] {
            let output = quipu(words);
            assert_eq!((output.status.code(), text(output.stderr)), (Some(1), messages.clone()), "{words:?}");
        }
        let inspected = quipu(&["inspect", data]);
        assert!(inspected.status.success() && text(inspected.stdout).ends_with("whole\n"));
    });
}

fn quipu(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quipu")).env_clear().args(words).output().expect("the program runs")
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("the program writes text")
}
