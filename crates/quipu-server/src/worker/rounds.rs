//! A worker's rounds: all connections that are ready are read from, what they have sent is run, and all of them are answered.
//!
//! In: sockets, and knocks of those that have sent something. Out: replies.
//!
//! A round: read what each has sent, run it (gathered, where nothing else is asked than to answer: `connection/gathered.rs`), commit once for all of them, and send. So one commit serves all, and whoever waits
//! for replies is woken for many of them at once.
//!
//! Invariants:
//! - a reply is sent after everything it includes is as durable as was asked for, and waits for nothing that others asked for;
//! - nothing is read for a connection whose last replies were not sent;
//! - a connection that needs more than that is served apart, as a future of its own, and keeps nobody waiting.

use std::cell::Cell;
use std::future::poll_fn;
use std::mem;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use quipu_engine::Wait;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

use super::knocks::{Knock, Knocks};
use super::places::{Place, Places, Seat};
use super::{Admitted, HANDED_MAX};
use crate::connection::{Answered, Connection, Ending, Gathered, Turned, with_read_buffer};
use crate::moment;
use crate::shared::{Shared, tally};

/// Where sockets come in; others are numbered from 0 on.
const RECEPTION: usize = usize::MAX;

/// Where the journal says that it has come further.
const JOURNAL: usize = usize::MAX - 1;

/// So many places are looked at in a round, and so much is read, about a millisecond's work: those first in it wait for those last.
const ROUND_PLACES_MAX: usize = 256;
const ROUND_BYTES_MAX: usize = 256 << 10;

/// A buffer for replies larger than this is given back after they were sent.
const REPLIES_KEPT_BYTES: usize = 64 << 10;

/// The connections of a worker.
pub(super) struct Rounds {
    shared: Arc<Shared>,
    handed: mpsc::Receiver<Admitted>,
    stopped: Pin<Box<dyn Future<Output = ()>>>,
    reception: (Arc<Knock>, Waker),
    journal: (Arc<Knock>, Waker),
    /// Whether the acceptor has gone.
    nobody_comes: bool,
    stopping: Rc<Cell<bool>>,
    knocks: Arc<Knocks>,
    /// Who has knocked and was not looked at yet.
    knocked: Vec<usize>,
    /// Who is to be read from in this round.
    ready: Vec<usize>,
    places: Places,
    /// How far each of those has come that were run together.
    answered: Vec<Answered>,
    /// The replies of this round.
    answers: Vec<Answer>,
    /// Replies to those that were run together.
    replies: Vec<u8>,
    /// Replies that wait for the journal, of this round and earlier ones; those of earlier ones are with their connections.
    held_back: Vec<Answer>,
}

/// What a connection is to be told.
struct Answer {
    place: usize,
    turned: Turned,
    /// Where its replies are among those of all; else the connection has them.
    replies: Range<usize>,
}

impl Rounds {
    pub fn new(handed: mpsc::Receiver<Admitted>, mut stopped: watch::Receiver<bool>, shared: Arc<Shared>) -> Rounds {
        let knocks = Arc::<Knocks>::default();
        let [reception, journal] = [RECEPTION, JOURNAL].map(|place| Knock::new(place, &knocks));
        // Who was let in before somebody asked wakes nobody.
        reception.1.wake_by_ref();
        Rounds {
            shared,
            handed,
            stopped: Box::pin(async move {
                // Its sender outlives the acceptor.
                let _ = stopped.wait_for(|stopped| *stopped).await;
            }),
            reception,
            journal,
            nobody_comes: false,
            stopping: Rc::default(),
            places: Places::new(Arc::clone(&knocks)),
            knocks,
            knocked: Vec::new(),
            ready: Vec::new(),
            answered: Vec::new(),
            answers: Vec::new(),
            replies: Vec::new(),
            held_back: Vec::new(),
        }
    }

    /// Serves until the acceptor has gone.
    pub async fn until_nobody_comes(&mut self) {
        poll_fn(|context| {
            self.look(context);
            if self.nobody_comes { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Serves until the last connection has gone.
    pub async fn until_all_have_gone(&mut self) {
        poll_fn(|context| {
            self.look(context);
            if self.places.are_all_free() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Tells every connection that the server stops.
    pub fn stop(&mut self) {
        self.stopping.set(true);
        self.places.knock_everywhere();
    }

    /// Looks at those who have knocked since the last time.
    fn look(&mut self, context: &mut Context<'_>) {
        self.knocks.take(context, &mut self.knocked);
        if self.knocked.is_empty() {
            return;
        }
        moment::pass();
        let (mut knocked, mut ready) = (mem::take(&mut self.knocked), mem::take(&mut self.ready));
        for place in knocked.drain(..knocked.len().min(ROUND_PLACES_MAX)) {
            match place {
                RECEPTION => self.receive_sockets(),
                JOURNAL => {
                    self.journal.0.heed();
                    self.answer_held_back();
                }
                _ => {
                    let Place { seat, knock, .. } = self.places.at(place);
                    knock.heed();
                    match seat {
                        Seat::Rests(_) if self.stopping.get() => self.set_apart(place, None),
                        Seat::Rests(_) => ready.push(place),
                        Seat::Apart(_) => self.go_on(place),
                        Seat::Asked(_) | Seat::Free => {}
                    }
                }
            }
        }
        let served = self.round(&ready);
        // They have knocked before the others.
        knocked.splice(0..0, ready.drain(..).skip(served));
        if !knocked.is_empty() {
            context.waker().wake_by_ref();
        }
        (self.knocked, self.ready) = (knocked, ready);
    }

    /// Reads, runs and answers, for the first of these; for how many.
    fn round(&mut self, ready: &[usize]) -> usize {
        let (mut rest, mut bytes) = (ready.iter().copied(), 0);
        with_read_buffer(|buffer| {
            while rest.len() > 0 && bytes < ROUND_BYTES_MAX {
                bytes += self.gather(&mut rest, buffer);
            }
        });
        let mut answers = mem::take(&mut self.answers);
        let held_back_before = self.held_back.len();
        for answer in answers.drain(..) {
            if answer.turned.wait == Wait::default() {
                self.answer(answer);
            } else {
                self.held_back.push(answer);
            }
        }
        self.answers = answers;
        if self.held_back.len() > held_back_before {
            self.answer_held_back();
            self.keep_held_back();
        }
        self.replies.clear();
        self.replies.shrink_to(REPLIES_KEPT_BYTES);
        ready.len() - rest.len()
    }

    /// Reads from the next ones, and runs what they have sent together, up to the first whose commands have to be run alone; how many bytes were read.
    fn gather(&mut self, ready: &mut impl Iterator<Item = usize>, buffer: &mut [u8]) -> usize {
        let Rounds { shared, places, answers, answered, replies, .. } = self;
        let (mut turn, mut gathered, mut alone) = (None, Gathered::default(), None);
        let (room_bytes, mut room) = (buffer.len(), buffer);
        while !gathered.is_full()
            && let Some(place) = ready.next()
        {
            let Place { seat, waker, .. } = places.at(place);
            let Seat::Rests(connection) = seat else { continue };
            let received = match connection.poll_receive(&mut Context::from_waker(waker), room) {
                // A knock about nothing, or about what was read before.
                Poll::Pending => continue,
                Poll::Ready(Ok(received)) if received > 0 => received,
                Poll::Ready(_) => {
                    places.leave(place);
                    continue;
                }
            };
            let (input, rest) = mem::take(&mut room).split_at_mut(received);
            room = rest;
            let joins = connection.may_join() && {
                let turn = turn.get_or_insert_with(|| shared.engine.turn_at(moment::now(&shared.engine)));
                connection.join(&mut gathered, place, input, turn)
            };
            seat.ask();
            if !joins {
                alone = Some((place, &*input));
                break;
            }
        }
        if let Some(mut turn) = turn.filter(|_| !gathered.is_empty()) {
            let mut from = replies.len();
            let ran = gathered.run(&mut turn, &shared.hot, replies, answered);
            let (now, wait) = (turn.now(), turn.finish());
            tally(&shared.tally.commands, ran.commands);
            shared.tally.note_overflows(ran.errors);
            for (member, answered) in gathered.members().iter().zip(answered) {
                let told = mem::replace(&mut from, answered.to)..answered.to;
                let Some(connection) = places.asked(member.place) else { continue };
                connection.note_ran(answered.command, now);
                let is_whole = answered.bytes == member.input.len();
                // Who was not run with the others has nothing to wait for that they do.
                let wait = if answered.bytes > 0 { wait } else { Wait::default() };
                answers.push(if is_whole {
                    Answer { place: member.place, turned: Turned { wait, ending: Ending::Waits }, replies: told }
                } else {
                    let turned = connection.run(&member.input[answered.bytes..], &replies[told]);
                    Answer { place: member.place, turned: turned.and(wait), replies: 0..0 }
                });
            }
        }
        if let Some((place, input)) = alone
            && let Some(connection) = places.asked(place)
        {
            answers.push(Answer { place, turned: connection.run(input, &[]), replies: 0..0 });
        }
        room_bytes - room.len()
    }

    /// Answers those whose replies the journal has caught up with; commits, for all that is there.
    ///
    /// Only when there are more of them or the journal knocks: each time that it has to be waited for, it has one more to wake.
    fn answer_held_back(&mut self) {
        // Those first that wait for no disk.
        for synced in [false, true] {
            self.answer_those(|wait| (wait.synced != Wait::default().synced) == synced);
        }
    }

    fn answer_those(&mut self, are_these: impl Fn(&Wait) -> bool) {
        let mut held_back = mem::take(&mut self.held_back);
        let waits = held_back.iter().map(|answer| answer.turned.wait).filter(&are_these);
        if let Some(all) = waits.reduce(Wait::and) {
            let (shared, waker, mut later) = (Arc::clone(&self.shared), self.journal.1.clone(), None::<Wait>);
            let mut context = Context::from_waker(&waker);
            let mut committed = |wait| pin!(shared.engine.committed(wait)).poll(&mut context);
            let is_all = matches!(committed(all), Poll::Ready(Ok(())));
            held_back.retain_mut(|Answer { place, turned, replies }| {
                // What comes after something that has not come has not come.
                let comes_after =
                    |later: Wait| later.written <= turned.wait.written && later.synced <= turned.wait.synced;
                if !are_these(&turned.wait) || later.is_some_and(comes_after) {
                    return true;
                }
                match if is_all { Poll::Ready(Ok(())) } else { committed(turned.wait) } {
                    Poll::Ready(Ok(())) => {
                        let ending = mem::replace(&mut turned.ending, Ending::Waits);
                        let turned = Turned { wait: Wait::default(), ending };
                        self.answer(Answer { place: *place, turned, replies: mem::take(replies) });
                    }
                    // Nobody can say what became of it.
                    Poll::Ready(Err(_)) => self.places.leave(*place),
                    Poll::Pending => {
                        later = Some(turned.wait);
                        return true;
                    }
                }
                false
            });
        }
        self.held_back = held_back;
    }

    /// Replies that are still held back go with their connections: those of the next round come where they are.
    fn keep_held_back(&mut self) {
        for Answer { place, replies, .. } in &mut self.held_back {
            let replies = mem::take(replies);
            if let Some(connection) = self.places.asked(*place) {
                connection.keep_replies(&self.replies[replies]);
            }
        }
    }

    /// Sends replies that wait for nothing any more.
    fn answer(&mut self, answer: Answer) {
        let Answer { place, turned, replies } = answer;
        let Some(connection) = self.places.asked(place) else { return };
        if turned.ending != Ending::Waits {
            return self.set_apart(place, Some(turned));
        }
        match connection.send_at_once(&self.replies[replies]) {
            Ok(true) if connection.rests() => self.rest(place),
            Ok(true) => self.set_apart(place, None),
            Ok(false) => self.set_apart(place, Some(turned)),
            Err(_) => self.places.leave(place),
        }
    }

    /// Serves a connection apart from the others from here on.
    fn set_apart(&mut self, place: usize, turned: Option<Turned>) {
        let seat = &mut self.places.at(place).seat;
        *seat = match mem::replace(seat, Seat::Free) {
            Seat::Rests(connection) | Seat::Asked(connection) => Seat::Apart(Box::pin(connection.serve(turned))),
            other => other,
        };
        self.go_on(place);
    }

    /// Goes on with a connection that is served apart.
    fn go_on(&mut self, place: usize) {
        let Place { seat, waker, .. } = self.places.at(place);
        let Seat::Apart(apart) = seat else { return };
        match apart.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Pending => {}
            Poll::Ready(None) => self.places.leave(place),
            Poll::Ready(Some(connection)) => {
                *seat = Seat::Asked(connection);
                self.rest(place);
            }
        }
    }

    /// Everything was answered: the next bytes make it knock.
    fn rest(&mut self, place: usize) {
        let Place { seat, waker, .. } = self.places.at(place);
        *seat = match mem::replace(seat, Seat::Free) {
            Seat::Asked(connection) => {
                if connection.poll_readable(&mut Context::from_waker(waker)).is_ready() {
                    waker.wake_by_ref();
                }
                Seat::Rests(connection)
            }
            other => other,
        };
    }

    /// Gives places to those who were let in.
    fn receive_sockets(&mut self) {
        let (knock, waker) = self.reception.clone();
        let mut context = Context::from_waker(&waker);
        knock.heed();
        if !self.stopping.get() && self.stopped.as_mut().poll(&mut context).is_ready() {
            self.stop();
        }
        for _ in 0..HANDED_MAX {
            let Poll::Ready(next) = self.handed.poll_recv(&mut context) else { return };
            let Some((socket, client)) = next else {
                self.nobody_comes = true;
                return;
            };
            // A socket that cannot be used any more is a client that has gone.
            let Ok(stream) = TcpStream::from_std(socket) else { continue };
            let connection = Connection::new(stream, client, Arc::clone(&self.shared), Rc::clone(&self.stopping));
            let place = self.places.give(connection);
            self.set_apart(place, None);
        }
        // There may be more, after those who are here.
        waker.wake_by_ref();
    }
}
