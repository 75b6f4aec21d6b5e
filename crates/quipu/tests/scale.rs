//! Many counters and little memory, through the built program.
//!
//! The disk bounds the number of counters, the memory limit bounds the resident ones, and a start
//! reads neither.
//!
//! The sizes below hold for the shipped program (`QUIPU_TEST_BIN` names it); the debug build does a
//! tenth of the work. `QUIPU_COUNTERS` and `QUIPU_SECONDS` set sizes by hand.

use std::time::{Duration, Instant};

use quipu_model::Durability;
use quipu_protocol::resp::{RespConnection, Value, write_request};
use quipu_testkit::SeededRng;
use quipu_testkit::load::{BackgroundStats, CrowdAccount, CrowdNames, LoadDriver, Loss, read_info};
use quipu_testkit::program::{Launch, Program};

/// How long a reply may take: a counter may wait for memory for some seconds.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Distinct counters of the first test.
const COUNTERS: usize = 10_000_000;

/// Memory for them: about a tenth of what all of them would take.
const MEMORY: (&str, u64) = ("192MB", 192_000_000);

/// Counters under random adds in the second test, unless told otherwise: many times what fits.
const CROWD: usize = 1_000_000;

/// Memory for those.
const MEMORY_SMALL: (&str, u64) = ("64MB", 64_000_000);

/// For how long they are added to.
const SECONDS: usize = 20;

/// Counters made by one pipeline.
const PIPELINE: usize = 1_000;

/// So many records are few: what two or three seconds of a slow client write, not what millions of
/// counters do.
const RECORDS_FEW: u64 = 20_000;

fn size(variable: &str, release: usize) -> usize {
    let is_shipped = std::env::var_os("QUIPU_TEST_BIN").is_some();
    let default = if is_shipped { release } else { release / 10 };
    std::env::var(variable)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not '{text}'")))
}

fn launch(data: &std::path::Path, memory: &str) -> Launch {
    let mut launch = Launch::new(env!("CARGO_BIN_EXE_quipu"), data, Durability::Relaxed);
    let words = ["--max-memory", memory, "--seal-every", "1s", "--journal-bytes-max", "32MB"];
    // As many bytes as are sealed and cut at once are a few segments.
    launch.segment_bytes = 4 << 20;
    launch.arguments = words.map(Into::into).to_vec();
    launch
}

fn connect(program: &Program) -> RespConnection {
    RespConnection::connect(program.address(), TIMEOUT).expect("it serves")
}

fn count(program: &Program) -> i64 {
    connect(program).call(&["DBSIZE"]).expect("it answers").number().expect("a number")
}

#[allow(clippy::disallowed_methods, reason = "a real program is waited for")]
fn now() -> Instant {
    Instant::now()
}

/// High-water marks of the program's runs in a test. They are compared with the limit at its end,
/// after all other checks are done and printed.
#[derive(Default)]
struct Memory {
    most: u64,
}

impl Memory {
    /// Takes note of a life; says what it was.
    fn record(&mut self, program: &Program) -> String {
        let most = program.memory_bytes_most().expect("a running process has one");
        self.most = self.most.max(most);
        format!("memory at most {} MB", most / 1_000_000)
    }

    fn judge(&self, limit: u64) {
        let (most, limit_mb) = (self.most / 1_000_000, limit / 1_000_000);
        assert!(self.most <= limit + limit / 5, "memory at most {most} MB, more than {limit_mb} MB and a fifth");
    }
}

/// Makes counters with these numbers, each by one add; all must be taken.
fn make(program: &Program, numbers: std::ops::Range<usize>) {
    let (mut client, mut number) = (connect(program), numbers.start);
    let mut bytes = Vec::new();
    while number < numbers.end {
        let end = (number + PIPELINE).min(numbers.end);
        bytes.clear();
        (number..end).for_each(|number| write_request(&["INCR".to_owned(), format!("c:{number:016}")], &mut bytes));
        client.send_encoded(&bytes).expect("it reads");
        for number in number..end {
            let reply = client.receive().expect("it answers");
            assert_eq!(reply, Value::Integer(1), "counter {number}");
        }
        number = end;
    }
}

/// Waits until everything is sealed and the journal is short.
fn settle(program: &Program) {
    let mut client = connect(program);
    let began = now();
    loop {
        let info_lines = read_info(&mut client, "quipu").expect("it tells of itself");
        let bytes: u64 = info_lines["journal_bytes"].parse().expect("a number");
        if bytes < 1 << 20 {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "the journal stays at {bytes} bytes");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn many_counters_stay_within_memory_and_a_start_reads_none_of_them() {
    let (data, counters) = (tempfile::tempdir().expect("a temporary directory"), size("QUIPU_COUNTERS", COUNTERS));
    let launch = launch(data.path(), MEMORY.0);
    let program = launch.start().expect("it starts");
    let old: Vec<String> = (0..100).map(|number| format!("old:{number}")).collect();
    let mut client = connect(&program);
    for name in &old {
        client.call(&["INCRBY", name, "41"]).expect("it answers");
    }
    let began = now();
    let middle = counters / 2;
    std::thread::scope(|scope| {
        scope.spawn(|| make(&program, 0..middle));
        scope.spawn(|| make(&program, middle..counters));
    });
    let took = began.elapsed().as_secs_f64();
    for name in &old {
        assert_eq!(client.call(&["INCR", name]).expect("it answers"), Value::Integer(42), "{name} goes on counting");
    }
    assert_eq!(count(&program), (counters + old.len()) as i64);
    let figures = BackgroundStats::fetch(&mut client).expect("it tells of itself");
    settle(&program);
    let mut memory = Memory::default();
    let most = memory.record(&program);
    println!("proof: {counters} counters made in {took:.1} s, {most} (limit {}), {figures}", MEMORY.0);

    program.kill9();
    let program = started(&launch, "a kill -9 with a short journal", counters);
    check(&program, counters, &old);
    let (status, stderr_text) = program.terminate().expect("it can be signalled");
    assert!(status.success(), "{stderr_text}");
    let program = started(&launch, "a clean stop", counters);
    check(&program, counters, &old);
    memory.record(&program);
    memory.judge(MEMORY.1);
}

/// A start that reads few records, and how long it took.
fn started(launch: &Launch, after: &str, counters: usize) -> Program {
    let program = launch.start().expect("it starts again");
    let records = program.records_replayed().expect("it says how many records it has read");
    println!(
        "proof: {counters} counters: ready {} ms after {after}, {records} records read",
        program.ready_after().as_millis()
    );
    assert!(records <= RECORDS_FEW, "{records} records are not few: {}", program.directory_report());
    program
}

fn check(program: &Program, counters: usize, old: &[String]) {
    assert_eq!(count(program), (counters + old.len()) as i64);
    let mut client = connect(program);
    for name in old {
        assert_eq!(client.call(&["GET", name]).expect("it answers").number(), Some(42), "{name}");
    }
    for number in (0..counters).step_by(counters / 1_000 + 1) {
        assert_eq!(client.call(&["GET", &format!("c:{number:016}")]).expect("it answers").number(), Some(1));
    }
}

#[test]
fn random_adds_over_more_counters_than_fit_stay_within_memory_and_are_exact() {
    // Earlier tests leave unwritten data, gigabytes after the test before this one, which slow the
    // disk down. Then seals, loads and merges coincide more often. The memory of all of them at
    // once is another measurement than that of one.
    let synced = std::process::Command::new("sync").status().expect("every system has it");
    assert!(synced.success());
    let (data, counters) = (tempfile::tempdir().expect("a temporary directory"), size("QUIPU_COUNTERS", CROWD));
    let length = Duration::from_secs(size("QUIPU_SECONDS", SECONDS) as u64);
    let launch = launch(data.path(), MEMORY_SMALL.0);
    let mut crowd = CrowdAccount::new(CrowdNames { prefix: "crowd:", count: counters, bytes: 20..=40 });
    let mut program = launch.start().expect("it starts");
    crowd.fill(&mut connect(&program)).expect("it takes new counters");
    let (mut figures, mut memory, mut most) = (BackgroundStats::default(), Memory::default(), String::new());
    // Two lives, the first one ended by a kill.
    for life in 0..2 {
        let (driver, address, names) = (LoadDriver::new(), program.address(), crowd.names().clone());
        let logs = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..2)
                .map(|client| {
                    let (driver, names) = (driver.clone(), &names);
                    scope.spawn(move || driver.run_crowd(address, names, &SeededRng::new(10 * life + client)))
                })
                .collect();
            std::thread::sleep(length / 2);
            figures += BackgroundStats::fetch(&mut connect(&program)).expect("it tells of itself");
            most = memory.record(&program);
            program.kill9();
            driver.stop();
            clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect::<Vec<_>>()
        });
        logs.into_iter().for_each(|log| crowd.add_log(log));
        program = launch.start().expect("it starts again");
    }
    let (existing, violations) = crowd.judge(&mut connect(&program), Loss::Nothing).expect("it answers");
    let info_lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(info_lines.is_empty(), "{}", info_lines.join("\n"));
    assert_eq!((existing, count(&program)), (counters, counters as i64));
    let (tally, reading, limit) = (crowd.tally(), memory.record(&program), MEMORY_SMALL.0);
    println!(
        "proof: random adds over {counters} counters: acked {}, unknown {}, refused {}, {figures}, {most} (limit {limit}), \
         when all were read {reading}, violations 0",
        tally.acked, tally.unknown, tally.refused
    );
    memory.judge(MEMORY_SMALL.1);
}
