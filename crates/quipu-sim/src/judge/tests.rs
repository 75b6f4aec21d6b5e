//! Tests the judge: kept promises pass, and each kind of violation is caught.

use quipu_model::Refusal;

use super::*;
use crate::counters::CounterForm;
use crate::log::EventLog;

const RISING: usize = 0;
const RELAXED: usize = 1;
const MEMORY: usize = 2;

fn judge() -> Judge {
    let mut judge = Judge::new(false);
    judge.begin_incarnation(0);
    judge.begin_incarnation(1);
    judge
}

/// Fair conditions, too short for a freshness bound.
fn at(stamp: u64) -> (u64, Conditions) {
    let (now, lag) = (Duration::from_secs(stamp), Duration::from_secs(9));
    (stamp, Conditions { now, clear_since: Duration::ZERO, fair_since: Duration::ZERO, lag })
}

fn act(counter: usize, what: Action) -> Act {
    Act { counter, what }
}

fn answer(reply: Reply, position: u64) -> ActOutcome {
    ActOutcome { reply: Some(reply), position: Position(position) }
}

/// An add that is acknowledged with this value.
fn add(judge: &mut Judge, node: usize, counter: usize, delta: i64, value: i64) -> Result<i64, String> {
    let (pending, _) = judge.begin_act(node, act(counter, Action::Add(delta)), 0, at(1));
    judge.judge_outcome(pending, &answer(Reply::Integer(value), 10), at(2))
}

fn read(judge: &mut Judge, node: usize, counter: usize, value: i64) -> Result<i64, String> {
    let (pending, _) = judge.begin_act(node, act(counter, Action::Read), 0, at(3));
    judge.judge_outcome(pending, &answer(Reply::Value(Some(value)), 10), at(4))
}

#[test]
fn readings_have_a_nodes_own_adds_and_never_go_back() {
    let mut judge = judge();
    add(&mut judge, 0, RISING, 5, 5).unwrap();
    add(&mut judge, 1, RISING, 7, 7).unwrap();
    read(&mut judge, 0, RISING, 5).unwrap();
    read(&mut judge, 0, RISING, 12).unwrap();
    assert!(read(&mut judge, 0, RISING, 11).is_err(), "it goes back");
    assert!(read(&mut judge, 1, RISING, 6).is_err(), "without its own");
    assert!(read(&mut judge, 1, RISING, 13).is_err(), "more than was asked for");
    judge.end_node(0, NodeEnd::Killed);
    read(&mut judge, 0, RISING, 5).unwrap();
    assert!(read(&mut judge, 0, RISING, 4).is_err(), "a kill takes nothing durable");
}

#[test]
fn a_crash_takes_what_the_durability_lets_it_take() {
    for (end, in_doubt) in [
        (NodeEnd::Clean, [false, false, false]),
        (NodeEnd::Killed, [false, false, true]),
        (NodeEnd::PowerLoss(Position(10)), [false, false, true]),
        (NodeEnd::PowerLoss(Position(9)), [false, true, true]),
        (NodeEnd::DirectoryLost, [true, true, true]),
        (NodeEnd::Restored(3), [false, false, true]),
        (NodeEnd::Restored(2), [true, true, true]),
    ] {
        let mut judge = judge();
        for counter in [RISING, RELAXED, MEMORY] {
            add(&mut judge, 0, counter, 5, 5).unwrap();
        }
        judge.end_node(0, end);
        for (counter, in_doubt) in in_doubt.into_iter().enumerate() {
            judge.judge_sum(counter, 5, false).unwrap();
            assert_eq!(judge.judge_sum(counter, 0, false).is_ok(), in_doubt, "{end:?}, counter {counter}");
            assert!(judge.judge_sum(counter, 10, false).is_err(), "never twice");
        }
    }
}

#[test]
fn unknown_adds_count_once_or_not_at_all_and_refused_ones_never() {
    let mut judge = judge();
    add(&mut judge, 0, RISING, 5, 5).unwrap();
    judge.begin_act(0, act(RISING, Action::Add(100)), 0, at(1));
    let (pending, _) = judge.begin_act(1, act(RISING, Action::Add(30)), 0, at(1));
    let refused = answer(Reply::Refused(Refusal::Overflow), 0);
    assert_eq!(judge.judge_outcome(pending, &refused, at(2)), Ok(30));
    for counted in [5, 105] {
        judge.judge_sum(RISING, counted, false).unwrap();
    }
    for counted in [0, 35, 100, 205] {
        assert!(judge.judge_sum(RISING, counted, false).is_err(), "{counted}");
    }
}

#[test]
fn a_token_is_counted_once_by_each_node_that_it_was_sent_to_where_the_store_may_lose_its_claim() {
    for (may_lose, fits) in [(false, [5].as_slice()), (true, &[5, 10])] {
        let mut judge = Judge::new(may_lose);
        (0..3).for_each(|node| judge.begin_incarnation(node));
        let mut requested = 0;
        // Twice to one node, and once to another.
        for node in [0, 0, 1] {
            let (pending, adds) = judge.begin_act(node, act(RISING, Action::Once { token: 1, delta: 5 }), 0, at(1));
            judge.judge_outcome(pending, &answer(Reply::Integer(5), 5), at(2)).unwrap();
            requested += adds;
        }
        assert_eq!(i128::from(requested), *fits.last().unwrap());
        for counted in [0, 5, 10, 15] {
            assert_eq!(
                judge.judge_sum(RISING, counted, false).is_ok(),
                fits.contains(&counted),
                "{may_lose} {counted}"
            );
        }
    }
}

#[test]
fn what_needs_one_owner_must_be_refused() {
    let mut judge = judge();
    for what in [Action::Flush, Action::SetIfAbsent, Action::AddWithin] {
        let (pending, _) = judge.begin_act(0, act(RISING, what), 0, at(1));
        assert!(judge.judge_outcome(pending, &answer(Reply::Ok, 0), at(2)).is_err());
        judge.judge_outcome(pending, &answer(Reply::Refused(Refusal::Overflow), 0), at(2)).unwrap();
    }
}

#[test]
fn a_store_that_lost_data_leaves_all_certain_until_a_registration_was_removed() {
    let mut judge = judge();
    add(&mut judge, 0, RISING, 5, 5).unwrap();
    judge.end_node(0, NodeEnd::Killed);
    judge.begin_incarnation(0);
    add(&mut judge, 0, RISING, 2, 7).unwrap();
    let (pending, _) = judge.begin_act(0, act(RISING, Action::Read), 0, at(3));
    judge.record_store_loss();
    judge.judge_outcome(pending, &answer(Reply::Value(Some(2)), 0), at(4)).unwrap();
    for (counted, fits) in [(2, true), (7, true), (5, false), (0, false), (9, false)] {
        assert_eq!(judge.judge_sum(RISING, counted, true).is_ok(), fits, "{counted}");
        assert_eq!(judge.judge_sum(RISING, counted, false).is_ok(), counted == 7, "{counted}");
    }
    assert!(read(&mut judge, 0, RISING, 1).is_err(), "its own adds of this life are still in");
}

#[test]
fn in_the_end_everybody_shows_the_rows_sum() {
    let (judge, truth) = (judge(), Truth::new(EventLog::disabled()));
    judge.judge_counter(&truth, RISING, 0, 0, &[(0, 0), (1, 0)]).unwrap();
    assert!(judge.judge_counter(&truth, RISING, 0, 0, &[(0, 0), (1, 3)]).is_err());
}

#[test]
fn a_scan_names_what_its_node_has_added_to_and_nothing_unknown() {
    let mut judge = judge();
    add(&mut judge, 0, RISING, 5, 5).unwrap();
    let (pending, _) = judge.begin_act(0, act(RISING, Action::Scan), 0, at(1));
    let page = |names: &[&[u8]]| answer(Reply::Page(0, names.iter().map(|name| (*name).into()).collect()), 0);
    judge.judge_outcome(pending, &page(&[b"d:rising", b"m:mixed"]), at(2)).unwrap();
    assert!(judge.judge_outcome(pending, &page(&[b"m:mixed"]), at(2)).is_err());
    assert!(judge.judge_outcome(pending, &page(&[b"d:rising", b"x"]), at(2)).is_err());
}

#[test]
fn what_a_node_has_taken_is_not_shown_there_again() {
    const HARVESTED: usize = 5;
    let mut judge = judge();
    add(&mut judge, 0, HARVESTED, 50, 50).unwrap();
    read(&mut judge, 0, HARVESTED, 50).unwrap();
    let (pending, _) = judge.begin_act(0, act(HARVESTED, Action::GetSet), 10, at(5));
    judge.judge_outcome(pending, &answer(Reply::Value(Some(30)), 0), at(6)).unwrap();
    read(&mut judge, 0, HARVESTED, 10).unwrap();
    assert!(read(&mut judge, 0, HARVESTED, 11).is_err(), "30 were taken now, and 10 before");
    read(&mut judge, 1, HARVESTED, 50).unwrap();
}

const OBSERVED: usize = 11;
const DISCARDED: usize = 13;
const RANKED: usize = 17;

/// An observation that is acknowledged.
fn observe(judge: &mut Judge, node: usize, counter: usize, item: usize, by: u64) {
    let (pending, _) = judge.begin_act(node, act(counter, Action::Observe(item, by)), 0, at(1));
    judge.judge_outcome(pending, &answer(Reply::Integer(1), 10), at(2)).unwrap();
}

/// Returns true if the judge accepts these final readings.
fn closed(judge: &Judge, counter: usize, shows: &[SketchReading]) -> bool {
    let shown: Vec<(usize, SketchReading)> = shows.iter().cloned().enumerate().collect();
    judge.judge_sketch(&Truth::new(EventLog::disabled()), counter, &shown).is_ok()
}

#[test]
fn a_sketch_has_what_was_acknowledged_and_nothing_that_nobody_asked_for() {
    let mut judge = judge();
    (0..3).for_each(|item| observe(&mut judge, 0, OBSERVED, item, 1));
    observe(&mut judge, 1, OBSERVED, 0, 1);
    judge.begin_act(1, act(OBSERVED, Action::Observe(7, 1)), 0, at(1));
    for (value, fits) in [(2, false), (3, true), (4, true), (5, false)] {
        assert_eq!(
            closed(&judge, OBSERVED, &[SketchReading::Uniques(value), SketchReading::Uniques(value)]),
            fits,
            "{value}"
        );
        let (pending, _) = judge.begin_act(0, act(OBSERVED, Action::Estimate), 0, at(3));
        let estimate = quipu_model::Estimate { value: value as u64, low: 0, high: 9 };
        assert_eq!(
            judge.judge_outcome(pending, &answer(Reply::Estimate(estimate), 10), at(4)).is_ok(),
            fits,
            "{value}"
        );
    }
    assert!(!closed(&judge, OBSERVED, &[SketchReading::Uniques(3), SketchReading::Uniques(4)]), "all show the same");
    let (certain, pending) = judge.items(&Truth::new(EventLog::disabled()), OBSERVED);
    assert!(certain.iter().eq([0, 1, 2]) && pending.iter().eq([0, 1, 2, 7]));
    judge.end_node(0, NodeEnd::DirectoryLost);
    assert!(
        closed(&judge, OBSERVED, &[SketchReading::Uniques(1)])
            && !closed(&judge, OBSERVED, &[SketchReading::Uniques(0)])
    );
}

#[test]
fn what_was_observed_before_a_delete_may_be_gone_and_what_was_after_may_not() {
    let mut judge = judge();
    observe(&mut judge, 0, DISCARDED, 0, 1);
    let (pending, _) = judge.begin_act(1, act(DISCARDED, Action::Delete), 0, at(1));
    judge.judge_outcome(pending, &answer(Reply::Integer(1), 10), at(2)).unwrap();
    let (pending, _) = judge.begin_act(0, act(DISCARDED, Action::Observe(1, 1)), 0, at(3));
    judge.judge_outcome(pending, &answer(Reply::Integer(1), 10), at(4)).unwrap();
    for (value, fits) in [(0, false), (1, true), (2, true), (3, false)] {
        assert_eq!(closed(&judge, DISCARDED, &[SketchReading::Uniques(value)]), fits, "{value}");
    }
}

#[test]
fn bounds_of_what_was_counted_hold() {
    let mut judge = judge();
    observe(&mut judge, 0, RANKED, 2, 5);
    observe(&mut judge, 1, RANKED, 2, 3);
    let shows = |at_least, at_most| {
        let SketchReading::Counts(mut counts) = SketchReading::nothing(CounterForm::Top) else { panic!("it counts") };
        counts[2] = (at_least, at_most);
        [SketchReading::Counts(counts)]
    };
    for ((at_least, at_most), fits) in [((8, 8), true), ((0, 9), true), ((7, 7), false), ((9, 9), false)] {
        assert_eq!(closed(&judge, RANKED, &shows(at_least, at_most)), fits, "{at_least} to {at_most}");
    }
    let [one] = shows(8, 8);
    let [other] = shows(8, 9);
    assert!(!closed(&judge, RANKED, &[one, other]), "all show the same");
}
