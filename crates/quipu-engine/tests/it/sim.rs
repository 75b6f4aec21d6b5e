//! Simulates one incarnation of a node: several workers, randomly interleaved steps, a disk with
//! history.
//!
//! Out: a [`Trace`] of the states at each position of the journal, and of each reply with its time
//! and content. From it follows the required state after any crash:
//! - the recovered state is exactly one that existed, at a boundary of a record;
//! - it includes everything that a reply, of a write or a read, had shown when it left, as its
//!   namespace promises.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quipu_engine::{
    Backup, BackupStep, Engine, Handle, LoadFuture, LoadOutcome, NotRun, Position, Seal, SealStep, SimpleReply, Turn,
    Wait,
};
use quipu_model::{
    AddWithin, Command, Durability, Expiry, ExpiryCondition, ExpiryForm, ExpiryTime, Millis, Name, Reply, Set,
    SetCondition, SetExpiry, SimpleCommand,
};
use quipu_testkit::SeededRng;

use crate::model::{self, State};
use crate::once::{AppliedMutation, Expected, MutationName, TokenModel};
use crate::world::World;

/// Names the workers use. Few, so that they meet; of all three namespaces.
const NAMES: [&str; 11] = ["d:a", "d:b", "d:c", "d:d", "plain", "r:a", "r:b", "r:c", "m:a", "m:b", ""];

/// What a life left behind.
pub struct Trace {
    /// Boundaries of records, and the state there: journaled names only.
    pub states: BTreeMap<Position, State>,
    /// What was remembered of tokens there.
    pub token_models: BTreeMap<Position, TokenModel>,
    /// Replies that left.
    pub shown: Vec<SentReply>,
    /// Every value that a name in memory ever had.
    pub memory: BTreeMap<Vec<u8>, Vec<i64>>,
    /// Backups that were begun.
    pub backups: Vec<BackupTrace>,
    pub counts: Counts,
}

/// A backup.
pub struct BackupTrace {
    pub dir: PathBuf,
    /// So many operations of the disk had returned, and the journal was reserved so far, when it began.
    pub begun: usize,
    pub least: Position,
    /// So many had returned when it was done, and it holds the journal so far.
    pub done: Option<(usize, Position)>,
}

/// A reply left when so many operations of the disk had returned, and had shown what stands before this position.
pub struct SentReply {
    pub operations: usize,
    pub position: Position,
    pub durability: Durability,
    pub what: String,
}

/// How much was tried.
#[derive(Default, Debug, Clone, Copy)]
pub struct Counts {
    pub steps: usize,
    pub replies: usize,
    pub switches: usize,
    pub seals: usize,
    pub evicted: usize,
    pub loads: usize,
    pub swept: usize,
    pub refused: usize,
    pub simple: usize,
    /// Mutations with a token or a number that were applied, and those that were answered or refused because of it.
    pub once: usize,
    pub again: usize,
    /// Adds without a value that went to a lane, and those that did not.
    pub in_lanes: usize,
    pub counted: usize,
}

impl Trace {
    /// The least position that any recovery must reach after a crash at this moment.
    pub fn promised(&self, operations: usize, at_least: Durability) -> Option<&SentReply> {
        let left = self.shown.iter().filter(|shown| shown.operations <= operations);
        left.filter(|shown| shown.durability >= at_least).max_by_key(|shown| shown.position)
    }
}

enum Worker<'e> {
    Idle,
    Applied(Box<Turn<'e>>, Vec<PendingReply>, Option<BlockedCommands>),
    Waiting(Wait, Vec<PendingReply>, Option<BlockedCommands>),
    Loading(BlockedCommands),
}

/// Commands that wait for counters at rest.
struct BlockedCommands {
    loading: LoadFuture,
    commands: Vec<Command<'static>>,
    /// What the one command is called, if it has a name.
    named: Option<MutationName>,
}

/// A reply that has not left yet: what it shows.
struct PendingReply {
    position: Position,
    durability: Durability,
    what: String,
}

/// Runs a life.
pub fn run_incarnation(world: &World, engine: &Engine, state: &State, workers: usize, steps: usize) -> Trace {
    run_incarnation_after(world, engine, state, &TokenModel::new(world.rng.next_u64()), workers, steps)
}

/// Runs a life that remembers what was done in others.
pub fn run_incarnation_after(
    world: &World,
    engine: &Engine,
    state: &State,
    token_model: &TokenModel,
    workers: usize,
    steps: usize,
) -> Trace {
    run_life(world, engine, (state, token_model), workers, steps, false)
}

/// Runs a life in which backups are made, one after another.
pub fn run_with_backups(world: &World, engine: &Engine, state: &State, workers: usize, steps: usize) -> Trace {
    run_life(world, engine, (state, &TokenModel::new(world.rng.next_u64())), workers, steps, true)
}

fn run_life(
    world: &World,
    engine: &Engine,
    (state, token_model): (&State, &TokenModel),
    workers: usize,
    steps: usize,
    backups: bool,
) -> Trace {
    let rng = world.rng.fork();
    let mut life = LifeRun {
        world,
        engine,
        rng: &rng,
        state: state.clone(),
        token_model: token_model.clone(),
        newest: BTreeMap::new(),
        handles: NAMES.map(|name| engine.handle(name).expect("it is short")),
        lane_totals: BTreeMap::new(),
        backup: None,
        trace: Trace {
            states: BTreeMap::new(),
            token_models: BTreeMap::new(),
            shown: Vec::new(),
            memory: BTreeMap::new(),
            backups: Vec::new(),
            counts: Counts::default(),
        },
    };
    life.record_boundary();
    let mut workers: Vec<Worker<'_>> = (0..workers).map(|_| Worker::Idle).collect();
    let mut seal = None;
    let mut last = 0;
    for _ in 0..steps {
        if world.has_failed() {
            break;
        }
        if backups && rng.chance(12) {
            life.back_up();
            continue;
        }
        if rng.chance(35) {
            life.run_background_step(&mut seal);
            continue;
        }
        let index = rng.below(workers.len());
        life.trace.counts.switches += usize::from(index != last);
        last = index;
        life.step(&mut workers[index]);
    }
    // Turns that are under way end when they are dropped; what they wrote may or may not be handed over: both are fine.
    life.trace
}

struct LifeRun<'w, 'e> {
    world: &'w World,
    engine: &'e Engine,
    rng: &'w SeededRng,
    state: State,
    /// What is remembered of tokens.
    token_model: TokenModel,
    /// Where the newest record of each name ends.
    newest: BTreeMap<Vec<u8>, Position>,
    /// For adds without a value.
    handles: [Handle; NAMES.len()],
    /// What they have left in lanes.
    lane_totals: BTreeMap<Vec<u8>, i64>,
    backup: Option<Backup<'e>>,
    trace: Trace,
}

impl<'e> LifeRun<'_, 'e> {
    fn step(&mut self, worker: &mut Worker<'e>) {
        self.trace.counts.steps += 1;
        *worker = match std::mem::replace(worker, Worker::Idle) {
            Worker::Idle if self.rng.chance(20) => {
                self.count_adds();
                Worker::Idle
            }
            Worker::Idle => {
                let mut turn = self.engine.turn();
                let (pending, blocked) =
                    if self.rng.chance(10) { (self.flush(&mut turn), None) } else { self.apply_pipeline(&mut turn) };
                turn.end_run();
                Worker::Applied(Box::new(turn), pending, blocked)
            }
            Worker::Applied(mut turn, pending, blocked) => {
                turn.fill();
                Worker::Waiting(turn.finish(), pending, blocked)
            }
            Worker::Waiting(wait, pending, blocked) => {
                let steps = self.engine.steps();
                if steps.has_reached(wait) {
                    let operations = self.world.disk.operations();
                    self.trace.counts.replies += pending.len();
                    self.trace.shown.extend(pending.into_iter().map(|pending| SentReply {
                        operations,
                        position: pending.position,
                        durability: pending.durability,
                        what: pending.what,
                    }));
                    blocked.map_or(Worker::Idle, Worker::Loading)
                } else {
                    if self.rng.chance(50) {
                        steps.write_filled()
                    } else {
                        steps.sync()
                    }
                    Worker::Waiting(wait, pending, blocked)
                }
            }
            Worker::Loading(mut blocked) => {
                if self.rng.chance(50) {
                    self.trace.counts.loads += self.engine.steps().run_loads().0;
                }
                match Pin::new(&mut blocked.loading).poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Pending => Worker::Loading(blocked),
                    Poll::Ready(loaded) => {
                        assert_eq!(loaded, LoadOutcome::Retry);
                        let mut turn = self.engine.turn();
                        let mut pending = Vec::new();
                        // It may have left memory again, or everything may have been deleted.
                        let again = match blocked.named {
                            Some(named) => self.run_once(&mut turn, named, blocked.commands, &mut pending).err(),
                            None => self.run(&mut turn, blocked.commands, &mut pending).err(),
                        };
                        turn.end_run();
                        Worker::Applied(Box::new(turn), pending, again)
                    }
                }
            }
        };
    }

    /// Adds a few times without asking for a value.
    fn count_adds(&mut self) {
        // Lanes of one counter at a time: a look at all of them writes a record for each, and only the last one's end would be known here.
        let picked = self.rng.pick(&self.handles);
        let holding = self.handles.iter().find(|handle| self.lane_totals.contains_key(handle.name()));
        let handle = holding.unwrap_or(picked).clone();
        for _ in 0..1 + self.rng.below(5) {
            let (delta, name) = (self.rng.between(-3..=9), handle.name().to_vec());
            let in_lanes = handle.is_split();
            if handle.count(delta).is_err() {
                assert!(!in_lanes, "lanes take everything that is small");
                self.trace.counts.refused += 1;
                continue;
            }
            if in_lanes {
                self.trace.counts.in_lanes += 1;
                *self.lane_totals.entry(name).or_default() += delta;
                continue;
            }
            self.trace.counts.counted += 1;
            self.merge_lanes(&name);
            let add = Command::Add { name: Name::new(&name).unwrap(), delta, shard_key: None };
            let expected = model::apply(&mut self.state, &add, self.engine.now());
            assert!(matches!(expected, Reply::Integer(_)), "{add:?} -> {expected:?}");
            self.newest.insert(name, self.engine.steps().reserved());
            self.record_boundary();
        }
    }

    /// Asks for what was counted to be durable.
    fn flush(&mut self, turn: &mut Turn<'_>) -> Vec<PendingReply> {
        let handle = self.rng.pick(&self.handles).clone();
        match turn.flush(&handle) {
            Ok(()) => {}
            other => panic!("lanes hold the room they need: {other:?}"),
        }
        turn.end_run();
        let name = handle.name();
        self.merge_lanes(name);
        self.record_boundary();
        let position = self.newest.get(name).copied().unwrap_or_default();
        vec![PendingReply {
            position,
            durability: durability(name),
            what: format!("flush of {:?}", name.escape_ascii()),
        }]
    }

    /// Somebody has looked at a counter: what was in its lanes is in its value, and in the newest record.
    fn merge_lanes(&mut self, name: &[u8]) {
        let in_lanes = self.lane_totals.remove(name).unwrap_or(0);
        if in_lanes != 0 {
            let (value, expiry) = self.state.get(name).copied().expect("only a counter that exists has lanes");
            self.state.insert(name.to_vec(), (value + in_lanes, expiry));
            self.newest.insert(name.to_vec(), self.engine.steps().reserved());
        }
    }

    /// A look at all lanes writes a record for each counter, and a crash may come between any two of them: so that the states between are known, one is left to it.
    fn flush_all_but_one(&mut self) {
        let in_lanes: Vec<Vec<u8>> =
            self.lane_totals.iter().filter(|(_, in_lanes)| **in_lanes != 0).map(|(name, _)| name.clone()).collect();
        for name in in_lanes.iter().skip(1) {
            let handle = self.handles.iter().find(|handle| handle.name() == name).expect("all have one").clone();
            let mut turn = self.engine.turn();
            assert_eq!(turn.flush(&handle), Ok(()));
            turn.finish();
            self.merge_lanes(name);
            self.record_boundary();
        }
    }

    /// Somebody has looked at all lanes.
    fn merge_all_lanes(&mut self) {
        for name in all_names() {
            self.merge_lanes(name);
        }
    }

    /// Applies a short pipeline, up to the first command that needs counters at rest.
    fn apply_pipeline(&mut self, turn: &mut Turn<'_>) -> (Vec<PendingReply>, Option<BlockedCommands>) {
        let mut pending = Vec::new();
        for _ in 0..1 + self.rng.below(4) {
            if self.rng.chance(40) {
                let simple_commands: Vec<SimpleCommand<'static>> =
                    (0..1 + self.rng.below(12)).map(|_| draw_simple_command(self.rng)).collect();
                if let Err(blocked) = self.run_simple_commands(turn, &simple_commands, &mut pending) {
                    return (pending, Some(blocked));
                }
                continue;
            }
            if self.rng.chance(40) {
                let (named, command) = self.token_model.draw(self.rng, turn.now(), || draw(self.rng));
                if let Err(blocked) = self.run_once(turn, named, vec![command], &mut pending) {
                    return (pending, Some(blocked));
                }
                continue;
            }
            let commands: Vec<Command<'static>> =
                (0..if self.rng.chance(25) { 2 + self.rng.below(3) } else { 1 }).map(|_| draw(self.rng)).collect();
            if let Err(blocked) = self.run(turn, commands, &mut pending) {
                return (pending, Some(blocked));
            }
        }
        (pending, None)
    }

    /// Runs adds and reads many at a time; one that cannot be run so, by itself.
    fn run_simple_commands(
        &mut self,
        turn: &mut Turn<'_>,
        mut simple_commands: &[SimpleCommand<'static>],
        pending: &mut Vec<PendingReply>,
    ) -> Result<(), BlockedCommands> {
        while let Some(first) = simple_commands.first() {
            let mut replies = Vec::new();
            let ran = turn.run_simple(simple_commands, |reply| {
                replies.push(match reply {
                    SimpleReply::Added(value) => Reply::Integer(value),
                    SimpleReply::Read(value) => Reply::Value(value),
                    SimpleReply::Overflow => Reply::Refused(quipu_model::Refusal::Overflow),
                });
            });
            assert_eq!(ran, replies.len());
            if ran == 0 {
                self.run(turn, vec![(*first).into()], pending)?;
                simple_commands = &simple_commands[1..];
                continue;
            }
            self.trace.counts.simple += ran;
            let commands: Vec<Command<'static>> =
                simple_commands[..ran].iter().map(|simple| (*simple).into()).collect();
            self.check_replies(turn, &commands, &replies, pending);
            simple_commands = &simple_commands[ran..];
        }
        Ok(())
    }

    /// Runs commands together and compares every reply with the model's.
    fn run(
        &mut self,
        turn: &mut Turn<'_>,
        commands: Vec<Command<'static>>,
        pending: &mut Vec<PendingReply>,
    ) -> Result<(), BlockedCommands> {
        let ran = if commands.len() == 1 {
            turn.run(&commands[0]).map(|reply| vec![reply]).map_err(NotRun::Load)
        } else {
            turn.run_transaction(&commands, &[]).map(|replies| replies.expect("nothing was watched"))
        };
        match ran {
            Ok(replies) => self.check_replies(turn, &commands, &replies, pending),
            Err(NotRun::Refused(_)) => self.trace.counts.refused += 1,
            Err(NotRun::Load(load)) => {
                return Err(BlockedCommands { loading: self.engine.steps().enqueue_load(load), commands, named: None });
            }
        }
        Ok(())
    }

    /// Runs a mutation under its name, and compares the reply with what is remembered or, if it is new, with the model's.
    fn run_once(
        &mut self,
        turn: &mut Turn<'_>,
        named: MutationName,
        commands: Vec<Command<'static>>,
        pending: &mut Vec<PendingReply>,
    ) -> Result<(), BlockedCommands> {
        let (command, now) = (&commands[0], turn.now());
        let reply = match turn.run_once(&named.identity(), &commands) {
            Ok(reply) => reply,
            Err(load) => {
                return Err(BlockedCommands {
                    loading: self.engine.steps().enqueue_load(load),
                    commands,
                    named: Some(named),
                });
            }
        };
        match self.token_model.expected(&named, command, now) {
            Expected::New => {
                if !matches!(reply, Reply::Refused(_)) {
                    self.trace.counts.once += 1;
                    let (command, reply, position) = (command.clone(), reply.clone(), self.engine.steps().reserved());
                    self.token_model.remember(&named, AppliedMutation { command, reply, at: now, position });
                }
                self.check_replies(turn, &commands, &[reply], pending);
            }
            Expected::Repeat(expected, position) => {
                self.trace.counts.again += 1;
                assert_eq!(reply, expected, "{named:?} with {command:?} at {now}");
                let durability = names(command).iter().map(|name| durability(name.bytes())).max();
                let durability = durability.unwrap_or(Durability::Memory);
                pending.push(PendingReply {
                    position,
                    durability,
                    what: format!("{named:?}, {command:?} -> {reply:?} again"),
                });
            }
        }
        Ok(())
    }

    /// Compares the replies of one run with the model's, and notes what they show.
    fn check_replies(
        &mut self,
        turn: &mut Turn<'_>,
        commands: &[Command<'static>],
        replies: &[Reply],
        pending: &mut Vec<PendingReply>,
    ) {
        let now = turn.now();
        // One run, one record: ended here so that the boundary after it is known.
        turn.end_run();
        let end = self.engine.steps().reserved();
        let before = self.state.clone();
        let durabilities = commands.iter().flat_map(names).map(|name| durability(name.bytes()));
        let together = durabilities.clone().max().unwrap_or(Durability::Memory);
        for (command, reply) in commands.iter().zip(replies) {
            if let Reply::Refused(quipu_model::Refusal::NoRoom { .. } | quipu_model::Refusal::Behind { .. }) = reply {
                self.trace.counts.refused += 1;
                continue;
            }
            names(command).iter().for_each(|name| self.merge_lanes(name.bytes()));
            let expected = model::apply(&mut self.state, command, now);
            assert_eq!(reply, &expected, "{command:?} at {now}");
        }
        let touched: Vec<Vec<u8>> = commands.iter().flat_map(names).map(|name| name.bytes().to_vec()).collect();
        let changed = end > *self.trace.states.keys().next_back().expect("there is always one");
        for name in &touched {
            if changed && (before.get(name) != self.state.get(name)) {
                self.newest.insert(name.clone(), end);
            }
        }
        if commands.iter().any(|command| matches!(command, Command::Flush)) {
            self.newest.extend(before.keys().map(|name| (name.clone(), end)));
        }
        self.record_boundary();
        let shows = touched.iter().filter_map(|name| self.newest.get(name)).max().copied();
        let own = if changed && together > Durability::Memory { end } else { Position(0) };
        pending.push(PendingReply {
            position: shows.unwrap_or_default().max(own),
            durability: together,
            what: format!("{commands:?} -> {replies:?}"),
        });
    }

    fn back_up(&mut self) {
        let (steps, operations) = (self.engine.steps(), self.world.disk.operations());
        let Some(backup) = &mut self.backup else {
            let dir = PathBuf::from(format!("/backup-{}", self.trace.backups.len()));
            self.backup = Some(steps.begin_backup(&dir).expect("the disk is good"));
            self.trace.backups.push(BackupTrace { dir, begun: operations, least: steps.reserved(), done: None });
            return;
        };
        match backup.step().expect("the disk is good") {
            BackupStep::More => {}
            BackupStep::WaitFor(_) => {
                if self.rng.chance(50) {
                    steps.write_filled()
                } else {
                    steps.sync()
                }
            }
            BackupStep::Done(done) => {
                let backup_trace = self.trace.backups.last_mut().expect("it was noted when it began");
                backup_trace.done = Some((self.world.disk.operations(), done.position));
                self.backup = None;
            }
        }
    }

    fn run_background_step(&mut self, seal: &mut Option<Seal>) {
        let steps = self.engine.steps();
        let clock = &self.world.clock;
        match self.rng.below(15) {
            14 => {
                self.flush_all_but_one();
                steps.join_lanes();
                self.merge_all_lanes();
            }
            0..2 => steps.write_filled(),
            2..4 => steps.sync(),
            4 => steps.prepare_segments().expect("the disk is good"),
            5 => steps.record_synced().expect("the disk is good"),
            6 => {
                let shard = self.rng.below(steps.shard_count());
                self.trace.counts.swept += usize::from(steps.sweep(shard).expect("the disk is good"));
                steps.expire(shard);
            }
            7 => {
                let shard = self.rng.below(steps.shard_count());
                // Once lets stay what was used lately.
                for _ in 0..2 {
                    self.trace.counts.evicted += steps.evict(shard);
                }
            }
            8 => clock.advance(Duration::from_millis(self.rng.below(400) as u64)),
            9 if self.rng.chance(10) => {
                // Half an hour passes, or the wall clock jumps by as much, forwards or back.
                if self.rng.chance(50) {
                    clock.advance(Duration::from_millis(self.rng.below(1_800_000) as u64));
                } else {
                    let wall = self.engine.now().0 + self.rng.below(3_600_000) as u64;
                    clock.set_wall(Millis(wall - 1_800_000));
                }
            }
            _ => (0..2).for_each(|_| match seal.take() {
                None if steps.needs_seal() || self.rng.chance(40) => {
                    self.flush_all_but_one();
                    *seal = Some(steps.begin_seal());
                    self.merge_all_lanes();
                }
                None => {}
                Some(mut sealing) => match steps.step_seal(&mut sealing) {
                    Ok(SealStep::More) => *seal = Some(sealing),
                    Ok(SealStep::WaitFor(_)) => {
                        if self.rng.chance(50) {
                            steps.write_filled()
                        } else {
                            steps.sync()
                        }
                        *seal = Some(sealing);
                    }
                    Ok(SealStep::Done) => {
                        self.trace.counts.seals += 1;
                        steps.finish_seal(sealing).expect("the disk is good");
                    }
                    Err(_) => {}
                },
            }),
        }
        self.record_boundary();
    }

    /// Notes the state at the present end of the journal.
    fn record_boundary(&mut self) {
        let journaled = self.state.iter().filter(|(name, _)| durability(name) > Durability::Memory);
        let state = journaled.map(|(name, cell)| (name.clone(), *cell)).collect();
        self.trace.states.insert(self.engine.steps().reserved(), state);
        self.trace.token_models.insert(self.engine.steps().reserved(), self.token_model.clone());
        for (name, (value, _)) in self.state.iter().filter(|(name, _)| durability(name) == Durability::Memory) {
            let values = self.trace.memory.entry(name.clone()).or_default();
            if !values.contains(value) {
                values.push(*value);
            }
        }
    }
}

/// What the small world's configuration says of a name.
pub fn durability(name: &[u8]) -> Durability {
    match name {
        [b'r', b':', ..] => Durability::Relaxed,
        [b'm', b':', ..] => Durability::Memory,
        _ => Durability::Durable,
    }
}

/// All names there are.
pub fn all_names() -> impl Iterator<Item = &'static [u8]> {
    NAMES.iter().map(|name| name.as_bytes())
}

/// The names that a command touches.
pub fn names<'c>(command: &'c Command<'static>) -> Vec<Name<'c>> {
    match command {
        Command::Add { name, .. }
        | Command::Read { name }
        | Command::Take { name }
        | Command::ReadAndExpire { name, .. }
        | Command::Reset { name }
        | Command::Expire { name, .. }
        | Command::Persist { name }
        | Command::ExpiryOf { name, .. } => vec![*name],
        Command::AddWithin(add) => vec![add.name],
        Command::Set(set) => vec![set.name],
        Command::ReadMany { names } | Command::Delete { names } | Command::Exists { names } => names.clone(),
        Command::Flush => all_names().map(|name| Name::new(name).unwrap()).collect(),
        other => panic!("not drawn: {other:?}"),
    }
}

/// An add or a read.
fn draw_simple_command(rng: &SeededRng) -> SimpleCommand<'static> {
    let name = Name::new(rng.pick(&NAMES).as_bytes()).expect("it is short");
    let delta = *rng.pick(&[1, 1, 1, -1, 7, i64::MAX, i64::MIN]);
    SimpleCommand { name, delta: (!rng.chance(25)).then_some(delta) }
}

fn draw(rng: &SeededRng) -> Command<'static> {
    let name = || Name::new(rng.pick(&NAMES).as_bytes()).unwrap();
    let names = || (0..1 + rng.below(3)).map(|_| name()).collect();
    let when = || match rng.below(4) {
        0 => ExpiryTime::In(rng.between(-5..=2000)),
        1 => ExpiryTime::In(1 + rng.below(100) as i64),
        2 => ExpiryTime::In(3_600_000),
        _ => ExpiryTime::At(1_780_000_000_000 + rng.between(-1000..=100_000)),
    };
    let expiry = || match rng.below(3) {
        0 => Expiry::Keep,
        1 => Expiry::Remove,
        _ => Expiry::At(when()),
    };
    match rng.below(40) {
        0..14 => Command::Add { name: name(), delta: rng.between(-3..=9), shard_key: None },
        14 => Command::Add { name: name(), delta: i64::MAX - 5, shard_key: None },
        15 => Command::AddWithin(AddWithin {
            name: name(),
            delta: rng.between(-9..=9),
            lower: -3,
            upper: 12,
            saturate: rng.chance(50),
            expiry: expiry(),
            expiry_if_none: rng.chance(50),
        }),
        16..21 => Command::Read { name: name() },
        21 => Command::ReadMany { names: names() },
        22..26 => Command::Set(Set {
            name: name(),
            value: rng.between(-1000..=1000),
            condition: *rng.pick(&[SetCondition::Always, SetCondition::IfAbsent, SetCondition::IfPresent]),
            expiry: match rng.below(4) {
                0 => SetExpiry::Keep,
                1 => SetExpiry::At(when()),
                _ => SetExpiry::Remove,
            },
            reply_old: rng.chance(50),
        }),
        26 => Command::Take { name: name() },
        27 => Command::ReadAndExpire { name: name(), expiry: expiry() },
        28..30 => Command::Reset { name: name() },
        30..32 => Command::Delete { names: names() },
        32 => Command::Exists { names: names() },
        33..36 => Command::Expire {
            name: name(),
            when: when(),
            condition: *rng.pick(&[
                ExpiryCondition::Always,
                ExpiryCondition::IfNone,
                ExpiryCondition::IfSome,
                ExpiryCondition::IfLater,
                ExpiryCondition::IfEarlier,
                ExpiryCondition::IfSomeEarlier,
            ]),
        },
        36 => Command::Persist { name: name() },
        37 | 38 => Command::ExpiryOf { name: name(), form: ExpiryForm::MillisLeft },
        _ if rng.chance(8) => Command::Flush,
        _ => Command::Read { name: name() },
    }
}
