//! Runs one incarnation of a node: several workers, whose steps and those of the background come in
//! a random order.
//!
//! A worker applies a pipeline, fills its records, waits for its durability and replies; or it
//! waits for a load and runs again. Every reply is compared with the model's.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use quipu_engine::{Backup, Engine, Handle, LoadFuture, LoadOutcome, NotRun, Position, SimpleReply, Turn, Wait};
use quipu_model::{Command, Durability, Refusal, Reply, SimpleCommand};
use quipu_testkit::{SeededRng, SimMachine};

use super::commands::{NAMES, draw_command, draw_simple_command, durability_of, names_of};
use super::model::{self, ModelState};
use super::tokens::{AppliedMutation, ExpectedReply, MutationName, TokenModel};
use super::trace::{SentReply, Trace};
use crate::machine::step_commit;

/// The beginning and the size of an incarnation.
pub struct IncarnationPlan<'a> {
    /// State that its engine recovered.
    pub state: &'a ModelState,
    /// Tokens that its engine remembers.
    pub token_model: &'a TokenModel,
    /// Number of workers.
    pub workers: usize,
    /// Number of steps, of workers and of the background.
    pub steps: usize,
    /// True if backups are made, one after another.
    pub backups: bool,
}

/// An incarnation under way.
pub(super) struct IncarnationRun<'w, 'e> {
    pub(super) machine: &'w SimMachine,
    pub(super) engine: &'e Engine,
    pub(super) rng: &'w SeededRng,
    pub(super) state: ModelState,
    /// Model of the remembered tokens.
    token_model: TokenModel,
    /// End of the newest record of each name.
    pub(super) newest: BTreeMap<Vec<u8>, Position>,
    /// For adds without a reply.
    pub(super) handles: [Handle; NAMES.len()],
    /// Adds in the lanes of each name.
    pub(super) lane_totals: BTreeMap<Vec<u8>, i64>,
    /// The backup under way.
    pub(super) backup: Option<Backup<'e>>,
    pub(super) trace: Trace,
}

/// The state of a worker.
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
    /// Name of a single mutation, if it has one.
    named: Option<MutationName>,
}

/// A reply that has not left yet.
pub(super) struct PendingReply {
    /// End of the records that it shows.
    pub(super) position: Position,
    pub(super) durability: Durability,
    pub(super) what: String,
}

/// Runs an incarnation, and returns its record.
pub fn run_incarnation(machine: &SimMachine, engine: &Engine, plan: IncarnationPlan<'_>) -> Trace {
    let rng = machine.rng.fork();
    let mut run = IncarnationRun {
        machine,
        engine,
        rng: &rng,
        state: plan.state.clone(),
        token_model: plan.token_model.clone(),
        newest: BTreeMap::new(),
        handles: NAMES.map(|name| engine.handle(name).expect("the names here are short")),
        lane_totals: BTreeMap::new(),
        backup: None,
        trace: Trace::default(),
    };
    run.record_boundary();
    let mut workers: Vec<Worker<'_>> = (0..plan.workers).map(|_| Worker::Idle).collect();
    let mut seal = None;
    let mut last = 0;
    for _ in 0..plan.steps {
        if machine.has_failed() {
            break;
        }
        if plan.backups && rng.chance(12) {
            run.back_up();
            continue;
        }
        if rng.chance(35) {
            run.run_background_step(&mut seal);
            continue;
        }
        let index = rng.below(workers.len());
        run.trace.tally.switches += usize::from(index != last);
        last = index;
        run.step(&mut workers[index]);
    }
    // Unfinished turns end when they are dropped. Their records may or may not be handed over.
    run.trace
}

impl<'e> IncarnationRun<'_, 'e> {
    /// Runs one step of a worker.
    fn step(&mut self, worker: &mut Worker<'e>) {
        self.trace.tally.steps += 1;
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
                    let operations = self.machine.disk.operations();
                    self.trace.tally.replies += pending.len();
                    self.trace.sent.extend(pending.into_iter().map(|pending| SentReply {
                        operations,
                        position: pending.position,
                        durability: pending.durability,
                        what: pending.what,
                    }));
                    blocked.map_or(Worker::Idle, Worker::Loading)
                } else {
                    step_commit(self.engine, self.rng);
                    Worker::Waiting(wait, pending, blocked)
                }
            }
            Worker::Loading(mut blocked) => {
                if self.rng.chance(50) {
                    self.trace.tally.loads += self.engine.steps().run_loads().0;
                }
                match Pin::new(&mut blocked.loading).poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Pending => Worker::Loading(blocked),
                    Poll::Ready(loaded) => {
                        assert_eq!(loaded, LoadOutcome::Retry);
                        let mut turn = self.engine.turn();
                        let mut pending = Vec::new();
                        // The counter may have left memory again, or a flush may have deleted it.
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
                let (named, command) = self.token_model.draw(self.rng, turn.now(), || draw_command(self.rng));
                if let Err(blocked) = self.run_once(turn, named, vec![command], &mut pending) {
                    return (pending, Some(blocked));
                }
                continue;
            }
            let commands: Vec<Command<'static>> = (0..if self.rng.chance(25) { 2 + self.rng.below(3) } else { 1 })
                .map(|_| draw_command(self.rng))
                .collect();
            if let Err(blocked) = self.run(turn, commands, &mut pending) {
                return (pending, Some(blocked));
            }
        }
        (pending, None)
    }

    /// Runs adds and reads on the fast path, and alone where that does not take them.
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
                    SimpleReply::Overflow => Reply::Refused(Refusal::Overflow),
                });
            });
            assert_eq!(ran, replies.len());
            if ran == 0 {
                self.run(turn, vec![(*first).into()], pending)?;
                simple_commands = &simple_commands[1..];
                continue;
            }
            self.trace.tally.simple += ran;
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
            Err(NotRun::Refused(_)) => self.trace.tally.refused += 1,
            Err(NotRun::Load(load)) => {
                return Err(BlockedCommands { loading: self.engine.steps().enqueue_load(load), commands, named: None });
            }
        }
        Ok(())
    }

    /// Runs a mutation under its name. A repeat must be answered as before, a new one as the model
    /// does.
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
        match self.token_model.expected_reply(&named, command, now) {
            ExpectedReply::New => {
                if !matches!(reply, Reply::Refused(_)) {
                    self.trace.tally.once += 1;
                    let (command, reply, position) = (command.clone(), reply.clone(), self.engine.steps().reserved());
                    self.token_model.remember(&named, AppliedMutation { command, reply, at: now, position });
                }
                self.check_replies(turn, &commands, &[reply], pending);
            }
            ExpectedReply::Repeat(expected, position) => {
                self.trace.tally.again += 1;
                assert_eq!(reply, expected, "{named:?} with {command:?} at {now}");
                let durability = names_of(command).iter().map(|name| durability_of(name.bytes())).max();
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

    /// Compares the replies of one run with the model's, and notes the records that they show.
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
        let durabilities = commands.iter().flat_map(names_of).map(|name| durability_of(name.bytes()));
        let together = durabilities.clone().max().unwrap_or(Durability::Memory);
        for (command, reply) in commands.iter().zip(replies) {
            if let Reply::Refused(Refusal::NoRoom { .. } | Refusal::Behind { .. }) = reply {
                self.trace.tally.refused += 1;
                continue;
            }
            names_of(command).iter().for_each(|name| self.merge_lanes(name.bytes()));
            let expected = model::apply(&mut self.state, command, now);
            assert_eq!(reply, &expected, "{command:?} at {now}");
        }
        let touched: Vec<Vec<u8>> = commands.iter().flat_map(names_of).map(|name| name.bytes().to_vec()).collect();
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

    /// Notes the state at the present end of the journal.
    pub(super) fn record_boundary(&mut self) {
        let journaled = self.state.iter().filter(|(name, _)| durability_of(name) > Durability::Memory);
        let state = journaled.map(|(name, cell)| (name.clone(), *cell)).collect();
        self.trace.states.insert(self.engine.steps().reserved(), state);
        self.trace.token_models.insert(self.engine.steps().reserved(), self.token_model.clone());
        for (name, (value, _)) in self.state.iter().filter(|(name, _)| durability_of(name) == Durability::Memory) {
            let values = self.trace.memory.entry(name.clone()).or_default();
            if !values.contains(value) {
                values.push(*value);
            }
        }
    }
}
