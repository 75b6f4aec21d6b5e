//! One history: runs of a program on one directory, their load, their ends, and the judgement.

use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use quipu_model::{Durability, Reply};
use quipu_protocol::resp;
use quipu_testkit::SeededRng;
use quipu_testkit::judge::{
    CELLS, CounterSpec, CounterState, CounterStep, Deadline, History, HistoryOperation, SearchSize,
};
use quipu_testkit::program::{Launch, Program};
use tempfile::TempDir;

use crate::Figures;
use crate::client::{Client, HistoryClock, OperationOutcome, ProgramRun, Role};
use crate::protocols::Addresses;
use crate::request::{GROUPS, counter_name};

/// Clients over RESP, and over HTTP. Some of those over RESP mostly read. While a change is not yet
/// written, writing clients wait for it, and only a read can show it.
const RESP_CLIENTS: usize = 6;
const HTTP_CLIENTS: usize = 2;
const READERS: usize = 2;

/// A life ends after this long, also with fewer operations than it should have.
const LIFE_MAX: Duration = Duration::from_secs(5);

/// How long the program may take to say what it holds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A worker asks for the time once for several requests, and is delayed and interrupted on a busy
/// machine in between.
const CLOCK_SLACK: Duration = Duration::from_millis(300);

/// Steps of a commit that are delayed: before a record is handed in, before it is written, before
/// its reply may leave. Steps that leave a change applied and unwritten are more frequent.
const DELAYED_STEPS: [&str; 6] = ["reserved", "reserved", "chained", "chained", "filled", "synced"];

type GroupState = [CounterState; CELLS];

type GroupHistory = History<Vec<CounterStep>, Vec<Reply>>;

/// A history that is made.
pub struct Trial {
    seed: u64,
    dice: SeededRng,
    mode: Durability,
    data: TempDir,
    clock: HistoryClock,
    clients: Vec<Client>,
    /// What each group was when a part of the history began. Only in `memory` there are several
    /// parts.
    parts: Vec<[GroupState; GROUPS]>,
    figures: Figures,
}

impl Trial {
    pub fn new(seed: u64) -> Trial {
        let rng = SeededRng::new(seed);
        let mode = match rng.below(100) {
            0..45 => Durability::Durable,
            45..80 => Durability::Relaxed,
            _ => Durability::Memory,
        };
        Trial {
            seed,
            dice: rng,
            mode,
            data: TempDir::new().expect("a temporary directory can be made"),
            clock: HistoryClock::start(),
            clients: (0..RESP_CLIENTS + HTTP_CLIENTS)
                .map(|number| match number {
                    0..READERS => Client::new(number, Role::Reader),
                    READERS..RESP_CLIENTS => Client::new(number, Role::Any),
                    _ => Client::new(number, Role::OverHttp),
                })
                .collect(),
            parts: vec![[[CounterState::Absent; CELLS]; GROUPS]],
            figures: Figures::default(),
        }
    }

    /// Makes the history and judges it.
    pub fn run(mut self) -> Result<Figures, String> {
        let program_runs = 2 + self.dice.below(2);
        let mut was_killed = false;
        for _ in 0..program_runs {
            let program = self.start(was_killed)?;
            was_killed = self.live(program);
        }
        let program = self.start(was_killed)?;
        self.look(&program);
        program.kill9();
        self.figures.kills += 1;
        self.judge()
    }

    /// Starts the program. After a kill in `memory` what it holds is the beginning of another part.
    fn start(&mut self, was_killed: bool) -> Result<Program, String> {
        let launch = self.launch();
        // Some starts are killed, too, at any moment of recovery.
        if was_killed && self.dice.chance(15) {
            let length = Duration::from_micros(self.dice.below(20_000) as u64);
            launch.start_and_kill(length).map_err(|error| self.fail(&error.to_string()))?;
            self.figures.kills += 1;
        }
        let program = launch.start().map_err(|error| self.fail(&error.to_string()))?;
        if was_killed && self.mode == Durability::Memory {
            let part = self.parts.len();
            let state = self.read_state(&program);
            self.parts.push(state);
            self.clients.iter_mut().for_each(|client| client.begin_part(part));
        }
        Ok(program)
    }

    fn launch(&self) -> Launch {
        let mut launch = Launch::new(env!("CARGO_BIN_EXE_quipu"), self.data.path(), self.mode);
        launch.arguments = ["--seal-every", "100ms", "--journal-bytes-max", "1MB"].map(Into::into).to_vec();
        if self.dice.chance(65) {
            let step = self.dice.pick(&DELAYED_STEPS);
            let (percent, millis) = (self.dice.between(5..=15), self.dice.between(5..=25));
            let delay: OsString = format!("{step}={percent}%sleep({millis})").into();
            launch.variables = vec![("FAILPOINTS".into(), delay)];
        }
        launch
    }

    /// One life under load; whether it was killed.
    fn live(&mut self, program: Program) -> bool {
        let (asked, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (end, ended) = mpsc::channel();
        let pause_max = Duration::from_micros(*self.dice.pick(&[0, 500, 3_000]));
        let program_run = ProgramRun {
            addresses: addresses(&program),
            clock: &self.clock,
            operations_sent: &asked,
            operations_max: 40 + self.dice.below(460),
            end,
            is_over: &is_over,
            pause_max,
            has_unreplied: self.dice.chance(40),
        };
        let is_kill = self.dice.chance(85);
        thread::scope(|scope| {
            for client in &mut self.clients {
                let (program_run, rng) = (&program_run, self.dice.fork());
                scope.spawn(move || client.live(program_run, &rng));
            }
            let _ = ended.recv_timeout(LIFE_MAX);
            is_over.store(true, Ordering::SeqCst);
            if is_kill {
                program.kill9();
            } else {
                let _ = program.terminate();
            }
        });
        let at = self.clock.now();
        self.clients.iter_mut().for_each(|client| client.end_life(at));
        if is_kill {
            self.figures.kills += 1
        } else {
            self.figures.stops += 1
        }
        is_kill
    }

    /// What the last start holds, as every client sees it.
    fn look(&mut self, program: &Program) {
        let (asked, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let program_run = ProgramRun {
            addresses: addresses(program),
            clock: &self.clock,
            operations_sent: &asked,
            operations_max: usize::MAX,
            end: mpsc::channel().0,
            is_over: &is_over,
            pause_max: Duration::ZERO,
            has_unreplied: false,
        };
        for client in &mut self.clients {
            client.read_all_groups(&program_run, &self.dice);
        }
        let at = self.clock.now();
        self.clients.iter_mut().for_each(|client| client.end_life(at));
    }

    /// The state of all counters while nobody changes them.
    fn read_state(&self, program: &Program) -> [GroupState; GROUPS] {
        let mut connection =
            resp::RespConnection::connect(program.address(), ANSWER_TIMEOUT).expect("a program that serves accepts");
        let mut ask = |words: &[&str]| connection.call(words).expect("a program that serves answers").number();
        let slack = nanos(CLOCK_SLACK);
        let mut read = |name: &str| {
            let Some(value) = ask(&["GET", name]) else { return CounterState::Absent };
            let before = self.clock.now();
            match ask(&["PTTL", name]) {
                Some(-2) | None => CounterState::Absent,
                Some(-1) => CounterState::Present(value, None),
                Some(millis) => {
                    let left = nanos(Duration::from_millis(millis.unsigned_abs()));
                    let earliest = (before + left).saturating_sub(slack);
                    CounterState::Present(value, Some(Deadline { earliest, latest: self.clock.now() + left + slack }))
                }
            }
        };
        std::array::from_fn(|group| std::array::from_fn(|cell| read(&counter_name(group, cell))))
    }

    fn judge(mut self) -> Result<Figures, String> {
        for client in &self.clients {
            if let Some(wrong) = client.wrong.first() {
                return Err(self.fail(wrong));
            }
            self.figures += client.figures;
        }
        let spec = CounterSpec { clock_slack: nanos(CLOCK_SLACK) };
        for (part, states) in self.parts.iter().enumerate() {
            for (group, state) in states.iter().enumerate() {
                let history = self.history(part, group);
                let judged = history.judge(&spec, state, Some(&[CounterState::Unknown; CELLS]));
                let SearchSize { points, is_decided } =
                    judged.map_err(|violation| self.fail(&violation.to_string()))?;
                self.figures.points += points;
                self.figures.undecided += usize::from(!is_decided);
            }
        }
        self.figures.unknown += self.count_unknown();
        Ok(self.figures)
    }

    fn count_unknown(&self) -> usize {
        let asked = self.clients.iter().flat_map(|client| &client.operations);
        asked.filter(|asked| asked.outcome == OperationOutcome::Unknown).count()
    }

    /// What was asked of a group in a part of the history.
    fn history(&self, part: usize, group: usize) -> GroupHistory {
        let mut history = History::new(format!("group {group}"));
        for (client, Client { operations: asked, .. }) in self.clients.iter().enumerate() {
            let mut places = vec![None; asked.len()];
            for (index, each) in asked.iter().enumerate() {
                let reply = match &each.outcome {
                    OperationOutcome::Refused => continue,
                    // It shows nothing and changes nothing.
                    OperationOutcome::Unknown if each.request.is_read() => continue,
                    OperationOutcome::Unknown => None,
                    OperationOutcome::Acked(replies) => replies.clone(),
                };
                if each.part != part || each.request.group != group {
                    continue;
                }
                let mut before = std::iter::successors(each.after, |&before| asked[before].after);
                places[index] = Some(history.push(HistoryOperation {
                    client,
                    action: each.request.steps.clone(),
                    reply,
                    invoked: each.invoked,
                    returned: each.returned.expect("every life was ended"),
                    is_certain: each.outcome != OperationOutcome::Unknown,
                    after: before.find_map(|before| places[before]),
                }));
            }
        }
        history
    }

    fn fail(&self, what: &str) -> String {
        let Trial { seed, mode, .. } = self;
        format!(
            "seed {seed}, {mode}, {} lives ended: {what}\nrepeat: QUIPU_HISTORY_FROM={seed} QUIPU_HISTORIES=20 cargo test -p \
             quipu --features failpoints --test linearizable",
            self.figures.kills + self.figures.stops
        )
    }
}

fn addresses(program: &Program) -> Addresses {
    Addresses { resp: program.address(), http: program.http().expect("it serves HTTP") }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("a history ends within centuries")
}
