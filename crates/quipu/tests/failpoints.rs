//! Ends the built program at each named step, and checks the directory afterwards.
//!
//! Some steps are between receiving and appending, after appending, and after the sync. Others are
//! in the middle of a seal, a cut, a flush, an eviction, a load, a compaction or a recovery.
//! Acknowledged changes are there, once; others are there once or not at all. The number and the
//! list of names agree with the names.
//!
//! A step ends the process by a panic in its thread. So this also proves that a worker's panic
//! never leaves a half-done state behind.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use quipu_model::Durability;
use quipu_protocol::resp::RespConnection;
use quipu_testkit::SeededRng;
use quipu_testkit::load::{CrowdAccount, CrowdNames, LoadDriver, Loss, OnceAccount, UnrepliedAccount, scan_names};
use quipu_testkit::program::{Launch, LaunchError, Program};
use quipu_testkit::small_disk::on_small_disk;

/// Lives ended at each step.
const SEEDS_DEFAULT: u64 = 20;

/// `QUIPU_FAILPOINT_SEEDS`, or the default. Two are the least: one durable, one relaxed.
fn seeds() -> u64 {
    let given = std::env::var("QUIPU_FAILPOINT_SEEDS").ok().map(|text| text.parse().expect("a number of seeds"));
    given.unwrap_or(SEEDS_DEFAULT).max(2)
}

/// Steps of a turn and its commit, in their order, and how often each is passed in a life.
const TURN_STEPS: [(&str, RangeInclusive<i64>); 6] = [
    ("applied", 1..=3_000),
    ("reserved", 1..=500),
    ("filled", 1..=100),
    ("chained", 1..=60),
    ("written", 1..=60),
    ("synced", 1..=30),
];

/// Steps of sealing and cutting: once a seal, of which there are ten a second.
const SEAL_STEPS: [(&str, RangeInclusive<i64>); 6] =
    [("marked", 0..=4), ("collected", 0..=4), ("ingested", 0..=4), ("sealed", 0..=4), ("cut", 0..=4), ("freed", 0..=4)];

/// Steps of preparing segments, and of compaction, which is tried twice a second.
const TEND_STEPS: [(&str, RangeInclusive<i64>); 3] =
    [("prepared", 1..=40), ("compacting", 0..=1), ("compacted", 0..=1)];

/// Steps of counters that leave memory and come back.
const COLD_STEPS: [(&str, RangeInclusive<i64>); 3] =
    [("evicted", 0..=500), ("loading", 0..=5_000), ("loaded", 0..=5_000)];

/// Steps of a counter that is split into lanes, and joined again by whoever looks at it.
const SPLIT_STEPS: [(&str, RangeInclusive<i64>); 3] = [("split", 0..=5), ("joined", 0..=300), ("closed", 0..=3)];

/// Steps at which mutations under tokens are ended: before and after their record is written, and
/// while they move to the ledger.
const TOKEN_STEPS: [(&str, RangeInclusive<i64>); 8] = [
    ("applied", 1..=1_000),
    ("reserved", 1..=100),
    ("filled", 1..=100),
    ("written", 1..=60),
    ("synced", 1..=30),
    ("collected", 0..=3),
    ("ingested", 0..=3),
    ("cut", 0..=3),
];

/// Steps of a start.
const START_STEPS: [&str; 6] = ["control", "watermark", "replayed", "incarnation", "prepared", "begun"];

/// Steps of the first seal after a start.
const FIRST_SEAL_STEPS: [&str; 7] = ["marked", "cleared", "collected", "ingested", "sealed", "cut", "freed"];

const TIMEOUT: Duration = Duration::from_secs(20);

/// Counters that all fit in memory.
const FEW: CrowdNames = CrowdNames { prefix: "few:", count: 5_000, bytes: 12..=40 };

/// Counters that do not: half of them do, since the names are long.
const MANY: CrowdNames = CrowdNames { prefix: "many:", count: 30_000, bytes: 480..=512 };

/// A directory, and what it must hold.
struct Scene {
    data: tempfile::TempDir,
    crowd: CrowdAccount,
    arguments: Vec<&'static str>,
    ended: usize,
}

impl Scene {
    /// All counters at rest, after a clean stop.
    fn new(names: CrowdNames) -> Scene {
        let data = tempfile::tempdir().expect("a temporary directory");
        let arguments = vec!["--journal-bytes-max", "150000", "--seal-every", "100ms", "--max-memory", "16MB"];
        let mut scene = Scene { data, crowd: CrowdAccount::new(names), arguments, ended: 0 };
        let program = scene.launch(Durability::Relaxed, None).start().expect("it starts on an empty directory");
        scene.crowd.fill(&mut connect(&program)).expect("it takes new counters");
        let (status, stderr) = program.terminate().expect("it can be signalled");
        assert!(status.success(), "{status}: {stderr}");
        scene
    }

    fn launch(&self, durability: Durability, failpoint: Option<&str>) -> Launch {
        launch(self.data.path(), durability, &self.arguments, failpoint)
    }

    /// Adds from two connections, so both workers, until the program is gone.
    fn load_until_it_ends(&mut self, program: Program, rng: &SeededRng, what: &str) {
        let (driver, address, names) = (LoadDriver::new(), program.address(), self.crowd.names().clone());
        let logs = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..2)
                .map(|_| {
                    let (driver, rng, names) = (driver.clone(), rng.fork(), &names);
                    scope.spawn(move || driver.run_crowd(address, names, &rng))
                })
                .collect();
            self.end(program, what);
            driver.stop();
            clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect::<Vec<_>>()
        });
        logs.into_iter().for_each(|log| self.crowd.add_log(log));
    }

    /// Deletes everything, then adds until the program is gone; false if it was gone before it had
    /// answered the first.
    fn flush_and_load(&mut self, program: Program, rng: &SeededRng, what: &str) -> bool {
        let answer =
            RespConnection::connect(program.address(), TIMEOUT).and_then(|mut client| client.call(&["FLUSHALL"]));
        if answer.is_ok() {
            self.crowd.record_flush();
            self.load_until_it_ends(program, rng, what);
            return true;
        }
        self.end(program, what);
        // Deleted or not, but all of it.
        let judging = self.launch(Durability::Durable, None).start().unwrap_or_else(|error| panic!("{what}: {error}"));
        if count(&mut connect(&judging)) == 0 {
            self.crowd.record_flush();
        }
        judging.kill9();
        false
    }

    /// Waits until it has ended at the step.
    fn end(&mut self, program: Program, what: &str) {
        let (status, stderr) = program.wait().expect("it can be waited for");
        assert!(!status.success() && stderr.contains("failpoint"), "{what}: {status}\n{stderr}");
        self.ended += 1;
    }

    /// What is there now, judged by a program that passes all steps, and is killed for it.
    fn judge(&mut self, durability: Durability, what: &str) {
        let program = self.launch(durability, None).start().unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut client = connect(&program);
        let (existing, violations) = self.crowd.judge(&mut client, Loss::Nothing).expect("it answers");
        let messages: Vec<String> = violations.iter().map(ToString::to_string).collect();
        assert!(messages.is_empty(), "{what}:\n{}", messages.join("\n"));
        assert_eq!(count(&mut client), existing as i64, "{what}: DBSIZE");
        assert_eq!(scan_names(&mut client, None).expect("a whole pass").len(), existing, "{what}: SCAN");
        program.kill9();
    }

    /// One life ended at a step, then judged.
    fn live(&mut self, step: &str, passes: i64, seed: u64) {
        let (rng, what) = (SeededRng::new(seed), format!("{step} after {passes} passes, seed {seed}"));
        let durability = if seed.is_multiple_of(2) { Durability::Durable } else { Durability::Relaxed };
        let failpoint = format!("{step}={passes}*off->panic");
        match self.launch(durability, Some(&failpoint)).start() {
            Ok(program) => self.load_until_it_ends(program, &rng, &what),
            // The step was already on the way to serving.
            Err(LaunchError::Ended { stderr, .. }) => {
                assert!(stderr.contains("failpoint"), "{what}: {stderr}");
                self.ended += 1;
            }
            Err(error) => panic!("{what}: {error}"),
        }
        self.judge(durability, &what);
    }

    /// As many lives as there are seeds at each of these steps, on this directory.
    fn live_through(&mut self, steps: &[(&str, RangeInclusive<i64>)]) {
        for (step, passes) in steps {
            for seed in 0..seeds() {
                self.live(step, SeededRng::new(seed).between(passes.clone()), seed);
            }
        }
    }

    fn prove(&self, of: &str, steps: &str) {
        println!("proof: failpoints: ended {} times at the steps of {of}: {steps}, violations 0", self.ended);
    }
}

fn launch(data: &Path, durability: Durability, arguments: &[&str], failpoint: Option<&str>) -> Launch {
    let mut launch = Launch::new(env!("CARGO_BIN_EXE_quipu"), data, durability);
    launch.arguments = arguments.iter().map(Into::into).collect();
    launch.variables = failpoint.map(|text| ("FAILPOINTS".into(), text.into())).into_iter().collect();
    launch
}

fn connect(program: &Program) -> RespConnection {
    RespConnection::connect(program.address(), TIMEOUT).expect("it serves")
}

fn count(client: &mut RespConnection) -> i64 {
    client.call(&["DBSIZE"]).expect("it answers").number().expect("a number")
}

fn names_of(steps: &[(&str, RangeInclusive<i64>)]) -> String {
    steps.iter().map(|(step, _)| *step).collect::<Vec<_>>().join(", ")
}

#[test]
fn a_turn_that_ends_at_any_step_loses_nothing_acknowledged_and_doubles_nothing() {
    let mut scene = Scene::new(FEW);
    scene.live_through(&TURN_STEPS);
    scene.prove("a turn", &names_of(&TURN_STEPS));
}

#[test]
fn a_seal_or_a_cut_that_ends_at_any_step_changes_no_sum() {
    let mut scene = Scene::new(FEW);
    scene.live_through(&SEAL_STEPS);
    scene.prove("seal and cut", &names_of(&SEAL_STEPS));
}

#[test]
fn a_preparation_or_a_compaction_that_ends_at_any_step_changes_no_sum() {
    let mut scene = Scene::new(FEW);
    scene.live_through(&TEND_STEPS);
    scene.prove("preparing and compaction", &names_of(&TEND_STEPS));
}

#[test]
fn an_eviction_or_a_load_that_ends_at_any_step_changes_no_sum() {
    let mut scene = Scene::new(MANY);
    scene.live_through(&COLD_STEPS);
    scene.prove("evict and load", &names_of(&COLD_STEPS));
}

/// The changes exceed one ingestion, so the ledger gets a seal in pieces. Only the last piece moves
/// the position where the journal is cut.
#[test]
fn a_clean_stop_that_ends_within_its_seal_loses_nothing() {
    let mut scene = Scene::new(CrowdNames { count: 70_000, ..FEW });
    // Nothing is sealed but by the stop.
    scene.arguments = vec!["--seal-every", "1h"];
    let steps =
        [("collected", 0), ("collected", 1), ("ingested", 0), ("ingested", 1), ("sealed", 0), ("cut", 0), ("freed", 0)];
    for (step, passes) in steps {
        let what = format!("{step} after {passes} passes, in a stop");
        let failpoint = format!("{step}={passes}*off->panic");
        let program = scene.launch(Durability::Relaxed, Some(&failpoint)).start().expect("it starts");
        scene.crowd.fill(&mut connect(&program)).expect("it counts");
        let (status, stderr) = program.terminate().expect("it can be signalled");
        assert!(!status.success() && stderr.contains("failpoint"), "{what}: {status}\n{stderr}");
        scene.ended += 1;
        scene.judge(Durability::Relaxed, &what);
    }
    scene.prove("a stop's seal of several ingestions", "collected, ingested, sealed, cut, freed");
}

#[test]
fn a_flush_that_ends_at_any_step_of_being_carried_out_brings_nothing_back_and_loses_nothing_since() {
    let mut scene = Scene::new(FEW);
    let mut unanswered = 0;
    for seed in 0..seeds() {
        for step in FIRST_SEAL_STEPS {
            let (rng, what) = (SeededRng::new(seed), format!("{step} after FLUSHALL, seed {seed}"));
            let program = scene.launch(Durability::Durable, Some(&format!("{step}=panic"))).start();
            let program = program.unwrap_or_else(|error| panic!("{what}: {error}"));
            unanswered += usize::from(!scene.flush_and_load(program, &rng, &what));
            scene.judge(Durability::Durable, &what);
        }
    }
    scene.prove(
        "the seal after a FLUSHALL",
        &format!("{}, {unanswered} of them before its reply", FIRST_SEAL_STEPS.join(", ")),
    );
}

#[test]
fn what_is_added_silently_counts_once_wherever_a_split_or_a_join_ends() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let (mut account, mut ended) = (UnrepliedAccount::default(), 0);
    for seed in 0..seeds() {
        for (step, passes) in SPLIT_STEPS {
            let rng = SeededRng::new(seed);
            let (what, passes) = (format!("{step}, seed {seed}"), rng.between(passes));
            let failpoint = format!("{step}={passes}*off->panic");
            let program = launch(data.path(), Durability::Relaxed, &[], Some(&failpoint)).start();
            let program = program.unwrap_or_else(|error| panic!("{what}: {error}"));
            let mut closing = connect(&program);
            let (status, stderr) = account.load(program.address(), &rng, || {
                // Closes what adders keep open, and changes nothing.
                while closing.call(&["GETEX", "hot:1", "PERSIST"]).is_ok() {}
                program.wait().expect("it can be waited for")
            });
            assert!(!status.success() && stderr.contains("failpoint"), "{what}: {status}\n{stderr}");
            ended += 1;
            let program = launch(data.path(), Durability::Relaxed, &[], None).start().expect("it starts");
            let violations = account.judge(&mut connect(&program), Loss::Nothing);
            assert!(violations.is_empty(), "{what}:\n{}", violations.join("\n"));
            program.kill9();
        }
    }
    let UnrepliedAccount { acked, unknown, .. } = account;
    println!(
        "proof: failpoints: ended {ended} times at the steps of splitting and joining: split, joined, closed; added silently \
         and acknowledged {acked}, not acknowledged {unknown}, \
         violations 0"
    );
}

#[test]
fn what_has_a_token_is_applied_once_wherever_a_turn_or_a_seal_ends() {
    const ARGUMENTS: [&str; 4] = ["--journal-bytes-max", "150000", "--seal-every", "50ms"];
    let (mut ended, mut adds, mut retried) = (0, 0, 0);
    for seed in 0..seeds() {
        // Anew for each seed: whatever was sent is sent again in each life.
        let data = tempfile::tempdir().expect("a temporary directory");
        let mut account = OnceAccount::default();
        for (step, passes) in TOKEN_STEPS {
            let rng = SeededRng::new(seed);
            let (what, passes) = (format!("{step}, seed {seed}"), rng.between(passes));
            let failpoint = format!("{step}={passes}*off->panic");
            // It may end before anyone has come to it: a start commits, too.
            if let Ok(program) = launch(data.path(), Durability::Durable, &ARGUMENTS, Some(&failpoint)).start() {
                let address = program.address();
                let (status, stderr) = account.load(address, &rng, || program.wait().expect("it can be waited for"));
                assert!(!status.success() && stderr.contains("failpoint"), "{what}: {status}\n{stderr}");
                ended += 1;
            }
            let program = launch(data.path(), Durability::Durable, &ARGUMENTS, None).start().expect("it starts");
            let violations = account.judge(&mut connect(&program), &rng);
            assert!(violations.is_empty(), "{what}:\n{}", violations.join("\n"));
            program.kill9();
        }
        (adds, retried) = (adds + account.adds(), retried + account.retried);
    }
    assert!(2 * ended > TOKEN_STEPS.len() * seeds() as usize, "only {ended} were ended under load");
    println!(
        "proof: failpoints: ended {ended} times while mutations had tokens: applied, reserved, filled, written, synced, collected, ingested, cut; \
         {adds} of them, {retried} retries compared, violations 0"
    );
}

#[test]
fn counters_that_expire_at_rest_are_gone_after_a_sweep_that_ended() {
    const EXPIRING: usize = 300;
    let mut scene = Scene::new(CrowdNames { count: 500, ..FEW });
    for seed in 0..5 {
        let program = scene.launch(Durability::Durable, None).start().expect("it starts");
        let mut client = connect(&program);
        for number in 0..EXPIRING {
            client.call(&["SET", &format!("short:{number}"), "7", "PX", "1000"]).expect("it counts");
        }
        let (status, stderr) = program.terminate().expect("it can be signalled");
        assert!(status.success(), "{stderr}");
        let what = format!("swept, seed {seed}");
        let failpoint = format!("swept={}*off->panic", seed * 20);
        match scene.launch(Durability::Durable, Some(&failpoint)).start() {
            Ok(program) => scene.end(program, &what),
            Err(error) => panic!("{what}: {error}"),
        }
    }
    let program = scene.launch(Durability::Durable, None).start().expect("it starts");
    let (mut client, mut tries) = (connect(&program), 0);
    // Nobody looks at them: they go by themselves.
    while count(&mut client) != 500 {
        tries += 1;
        assert!(tries < 400, "{} are left", count(&mut client));
        std::thread::sleep(Duration::from_millis(50));
    }
    program.kill9();
    scene.judge(Durability::Durable, "swept");
    scene.prove("the expiry of counters at rest", "swept");
}

#[test]
fn a_recovery_that_ends_again_and_again_converges() {
    let mut scene = Scene::new(FEW);
    for round in 0..4 {
        // A life that leaves a journal behind, and every second time a flush that the ledger has
        // not heard of.
        let program = scene.launch(Durability::Durable, Some("marked=panic")).start().expect("it starts");
        let (rng, what) = (SeededRng::new(round), "a journal to recover");
        if round % 2 == 1 {
            scene.flush_and_load(program, &rng, what);
        } else {
            scene.load_until_it_ends(program, &rng, what);
        }
        for step in START_STEPS.iter().chain(&FIRST_SEAL_STEPS) {
            let what = format!("{step} of a start, round {round}");
            match scene.launch(Durability::Durable, Some(&format!("{step}=panic"))).start() {
                Err(LaunchError::Ended { stderr, .. }) => {
                    assert!(stderr.contains("failpoint"), "{what}: {stderr}");
                    scene.ended += 1;
                }
                // A start prepares segments only when they have run out, and clears the ledger only
                // after a flush.
                Ok(program) if ["prepared", "cleared", "freed"].contains(step) => drop(program),
                Ok(program) => scene.end(program, &what),
                Err(error) => panic!("{what}: {error}"),
            }
        }
        scene.judge(Durability::Durable, &format!("round {round}"));
    }
    let steps = format!("{}, and of its first seal: {}", START_STEPS.join(", "), FIRST_SEAL_STEPS.join(", "));
    scene.prove("a start", &steps);
}

/// The space kept for a seal on a full disk is given up, and the process ends before the seal.
#[test]
fn a_full_disk_whose_reserve_was_given_up_in_vain_loses_nothing() {
    let name = "a_full_disk_whose_reserve_was_given_up_in_vain_loses_nothing";
    on_small_disk(name, 32 << 20, |disk| {
        let data = disk.dir().join("data");
        let arguments = ["--seal-every", "1h"];
        let mut ended = 0;
        let mut expected = 0;
        for round in 0..3 {
            let program =
                launch(&data, Durability::Durable, &arguments, Some("given=panic")).start().expect("it starts");
            let mut client = connect(&program);
            let filler = disk.fill().expect("the disk can be filled");
            let (long, mut acked) = ("x".repeat(500), 0);
            let gone = loop {
                match client.call(&["INCR", &long]) {
                    Ok(reply) => match reply.number() {
                        Some(_) => acked += 1,
                        None => assert!(reply.error().is_some_and(|text| text.starts_with("NOROOM")), "{reply:?}"),
                    },
                    Err(_) => break 1,
                }
                assert!(acked < 200_000, "the disk never got full");
            };
            let (status, stderr) = program.wait().expect("it has ended");
            assert!(!status.success() && stderr.contains("failpoint"), "round {round}: {status}\n{stderr}");
            ended += 1;
            filler.remove().expect("it is there");
            let program = launch(&data, Durability::Durable, &arguments, None).start().expect("it starts again");
            let found = connect(&program).call(&["GET", &long]).expect("it answers").number().unwrap_or(0);
            assert!(
                (expected + acked..=expected + acked + gone).contains(&found),
                "{found} after {expected} and {acked}"
            );
            expected = found;
            program.kill9();
        }
        println!("proof: failpoints: ended {ended} times with the reserve of a full disk given up, violations 0");
    });
}
