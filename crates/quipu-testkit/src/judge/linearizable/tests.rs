use quipu_model::Reply;

use super::*;
use crate::SeededRng;

const SPEC: CounterSpec = CounterSpec { clock_slack: 10 };

const ABSENT: [CounterState; CELLS] = [CounterState::Absent; CELLS];

const UNKNOWN: [CounterState; CELLS] = [CounterState::Unknown; CELLS];

type CounterOperation = HistoryOperation<Vec<CounterStep>, Vec<Reply>>;

fn first(action: CounterAction) -> CounterStep {
    CounterStep { cell: 0, action }
}

/// An answered operation on the first counter.
fn acked(action: CounterAction, span: (u64, u64), reply: Reply) -> CounterOperation {
    HistoryOperation {
        client: 0,
        action: vec![first(action)],
        reply: Some(vec![reply]),
        invoked: span.0,
        returned: span.1,
        is_certain: true,
        after: None,
    }
}

/// An operation without an answer.
fn unknown(action: CounterAction, span: (u64, u64)) -> CounterOperation {
    HistoryOperation { reply: None, is_certain: false, ..acked(action, span, Reply::Ok) }
}

fn added(delta: i64, span: (u64, u64), sum: i64) -> CounterOperation {
    acked(CounterAction::Add(delta), span, Reply::Integer(sum))
}

fn read(span: (u64, u64), value: Option<i64>) -> CounterOperation {
    acked(CounterAction::Read, span, Reply::Value(value))
}

fn judged(operations: &[CounterOperation]) -> Result<SearchSize, Violation> {
    let mut history = History::new("x");
    for operation in operations {
        history.push(operation.clone());
    }
    history.judge(&SPEC, &ABSENT, Some(&UNKNOWN))
}

#[track_caller]
fn accepts(operations: &[CounterOperation]) {
    if let Err(violation) = judged(operations) {
        panic!("{violation}");
    }
}

#[track_caller]
fn refuses(operations: &[CounterOperation]) -> Violation {
    judged(operations).expect_err("no order explains this")
}

#[test]
fn operations_at_the_same_time_may_have_any_order() {
    accepts(&[added(1, (0, 10), 2), added(1, (1, 9), 1), read((2, 8), None), read((2, 8), Some(2))]);
    refuses(&[added(1, (0, 1), 2), added(1, (2, 9), 1)]);
    refuses(&[added(1, (0, 10), 1), added(1, (0, 10), 1)]);
}

#[test]
fn a_read_may_not_show_less_than_a_read_before_it() {
    let begin = [added(5, (0, 1), 5), unknown(CounterAction::Add(1), (2, 100)), read((3, 4), Some(5))];
    let then = |last| [&begin[..], &[read((5, 6), Some(6)), read((200, 201), Some(last))]].concat();
    accepts(&then(6));
    let violation = refuses(&then(5));
    assert_eq!(
        violation.tail.len(),
        3,
        "the last two reads, and the add that may have been between them:\n{violation}"
    );
}

#[test]
fn an_operation_of_unknown_outcome_takes_effect_once_or_never_and_not_after_its_end() {
    let add = unknown(CounterAction::Add(5), (0, 100));
    for value in [None, Some(5)] {
        accepts(&[add.clone(), read((200, 201), value)]);
    }
    refuses(&[add.clone(), read((200, 201), Some(10))]);
    refuses(&[add, read((200, 201), None), read((202, 203), Some(5))]);
}

#[test]
fn operations_of_one_connection_take_effect_in_their_order() {
    let set = |value, after| HistoryOperation { after, ..unknown(CounterAction::Set(value), (0, 100)) };
    accepts(&[set(1, None), set(2, None), read((200, 201), Some(2))]);
    refuses(&[set(1, None), set(2, Some(0)), read((50, 51), Some(2)), read((200, 201), Some(1))]);
    accepts(&[set(1, None), set(2, None), read((50, 51), Some(2)), read((200, 201), Some(1))]);
}

#[test]
fn a_transaction_is_one_operation() {
    let both = |action, span, replies: [Reply; 2]| HistoryOperation {
        action: vec![first(action), CounterStep { cell: 1, action }],
        reply: Some(replies.to_vec()),
        ..acked(action, span, Reply::Ok)
    };
    let add = HistoryOperation {
        reply: None,
        is_certain: false,
        ..both(CounterAction::Add(1), (0, 100), [Reply::Ok, Reply::Ok])
    };
    let shown = |span, values: [Option<i64>; 2]| both(CounterAction::Read, span, values.map(Reply::Value));
    accepts(&[add.clone(), shown((1, 2), [None, None]), shown((200, 201), [Some(1), Some(1)])]);
    refuses(&[add.clone(), shown((1, 2), [Some(1), None])]);
    refuses(&[add, shown((200, 201), [None, Some(1)])]);
}

#[test]
fn an_exchange_takes_effect_only_where_the_value_is_the_expected_one() {
    let exchange = |expected, span| HistoryOperation {
        action: vec![first(CounterAction::Expect(expected)), first(CounterAction::Set(9))],
        reply: Some(vec![Reply::Ok, Reply::Ok]),
        ..acked(CounterAction::Read, span, Reply::Ok)
    };
    accepts(&[added(1, (0, 1), 1), exchange(Some(1), (2, 3)), read((4, 5), Some(9))]);
    refuses(&[added(1, (0, 1), 1), added(1, (2, 3), 2), exchange(Some(1), (4, 5))]);
}

#[test]
fn a_counter_expires_between_the_earliest_and_the_latest_deadline() {
    let (set, expire) = (
        acked(CounterAction::Set(1), (0, 1), Reply::Ok),
        acked(CounterAction::ExpireIn(1_000), (2, 100), Reply::Integer(1)),
    );
    for (at, value, is_right) in [
        (900, Some(1), true),
        (900, None, false),
        (1_050, Some(1), true),
        (1_050, None, true),
        (1_200, Some(1), false),
        (1_200, None, true),
    ] {
        let history = [set.clone(), expire.clone(), read((at, at + 1), value)];
        assert_eq!(judged(&history).is_ok(), is_right, "{value:?} at {at}");
    }
    let gone = [set.clone(), expire.clone(), read((1_050, 1_051), None), read((1_060, 1_061), Some(1))];
    refuses(&gone);
    let persisted =
        [set, expire, acked(CounterAction::Persist, (200, 201), Reply::Integer(1)), read((5_000, 5_001), None)];
    refuses(&persisted);
}

#[test]
fn a_set_removes_the_expiry_and_a_reset_keeps_it() {
    let begin = [
        acked(CounterAction::SetFor(4, 1_000), (0, 1), Reply::Ok),
        acked(CounterAction::Reset, (2, 3), Reply::Integer(4)),
        read((4, 5), Some(0)),
    ];
    let with = |more: &[CounterOperation]| judged(&[&begin[..], more].concat()).is_ok();
    assert!(with(&[read((2_000, 2_001), None)]));
    assert!(!with(&[read((2_000, 2_001), Some(0))]));
    let swap = acked(CounterAction::Swap(7), (6, 7), Reply::Value(Some(0)));
    assert!(with(&[swap.clone(), read((2_000, 2_001), Some(7))]));
    assert!(!with(&[swap, read((2_000, 2_001), None)]));
}

#[test]
fn a_violation_names_the_operations_that_contradict_one_another() {
    let mut operations: Vec<CounterOperation> =
        (0..300).map(|n| added(1, (10 * n, 10 * n + 5), n as i64 + 1)).collect();
    operations[200] = added(1, (2_000, 2_005), 200);
    let violation = refuses(&operations);
    assert_eq!(violation.tail.len(), 2, "{violation}");
    assert!(violation.to_string().contains("2000..2005") || violation.to_string().contains("2..2"), "{violation}");
}

#[test]
fn many_adds_without_a_reply_are_judged_in_few_steps() {
    for lifetime in [None, Some(10_000)] {
        let set = match lifetime {
            None => acked(CounterAction::Set(0), (0, 1), Reply::Ok),
            Some(nanos) => acked(CounterAction::SetFor(0, nanos), (0, 1), Reply::Ok),
        };
        let unreplied = |span| HistoryOperation { reply: None, ..acked(CounterAction::Add(1), span, Reply::Ok) };
        let mut operations = vec![set];
        operations.extend(std::iter::repeat_n(unreplied((10, 100)), 80));
        operations.extend(std::iter::repeat_n(unknown(CounterAction::Add(1), (20, 120)), 80));
        operations.extend([read((30, 40), Some(17)), read((110, 115), Some(111)), read((200, 210), Some(119))]);
        let size = judged(&operations).unwrap_or_else(|violation| panic!("{violation}"));
        assert!(size.is_decided && size.points < 100_000, "{size:?}");
    }
}

#[test]
fn a_history_of_eight_clients_is_judged_in_few_steps() {
    let rng = SeededRng::new(5);
    for _ in 0..10 {
        let history = draw_history(&rng, 500, 8);
        let size = history.judge(&SPEC, &ABSENT, None).unwrap_or_else(|violation| panic!("{violation}"));
        assert!(size.is_decided && size.points < 100_000, "{size:?}");
    }
}

/// Compares the search with a trial of every order and every choice of the uncertain operations.
#[test]
fn the_search_agrees_with_the_trial_of_every_order() {
    let (rng, mut explained, mut unexplained) = (SeededRng::new(17), 0, 0);
    for round in 0..20_000 {
        let mut history = draw_history(&rng, 2 + rng.below(4), 3);
        for _ in 0..rng.below(3) {
            spoil(&mut history, &rng);
        }
        let found = history.judge(&SPEC, &ABSENT, Some(&UNKNOWN)).is_ok();
        let every = explains(&history.operations, &mut Vec::new(), ABSENT);
        assert_eq!(found, every, "round {round}: {history:#?}");
        if found { explained += 1 } else { unexplained += 1 }
    }
    assert!(explained > 1_000 && unexplained > 1_000, "{explained} explained, {unexplained} not");
}

/// Returns true if some order of the remaining operations, after the taken ones, explains all
/// replies.
fn explains(operations: &[CounterOperation], taken: &mut Vec<usize>, state: [CounterState; CELLS]) -> bool {
    let rest: Vec<usize> = (0..operations.len()).filter(|index| !taken.contains(index)).collect();
    if rest.iter().all(|&index| !operations[index].is_certain) {
        return true;
    }
    for &index in &rest {
        let operation = &operations[index];
        let is_late = taken.iter().any(|&before| operation.returned < operations[before].invoked);
        let is_early =
            rest.iter().any(|&other| operations[other].is_certain && operations[other].returned < operation.invoked);
        // An operation that can no longer take effect does not hold back its connection.
        let waits = operation.after.is_some_and(|before| {
            let over = taken.iter().any(|&each| operations[before].returned < operations[each].invoked);
            !taken.contains(&before) && (!over || operations[before].is_certain)
        });
        if is_late || is_early || waits {
            continue;
        }
        let mut states = Vec::new();
        SPEC.step(&state, operation, &mut states);
        taken.push(index);
        let found = states.into_iter().any(|state| explains(operations, taken, state));
        taken.pop();
        if found {
            return true;
        }
    }
    false
}

/// A correct history: each operation took effect at some time between request and reply.
fn draw_history(rng: &SeededRng, length: usize, clients: usize) -> History<Vec<CounterStep>, Vec<Reply>> {
    let mut history = History::new("x");
    let mut state = ABSENT;
    let mut free_at = vec![0; clients];
    let mut last: Vec<Option<usize>> = vec![None; clients];
    let mut drawn: Vec<(u64, usize, CounterOperation)> = Vec::new();
    for _ in 0..length {
        let client = rng.below(clients);
        let invoked = free_at[client] + rng.below(30) as u64;
        let effect = invoked + rng.below(40) as u64;
        let returned = effect + rng.below(40) as u64;
        free_at[client] = returned + 1;
        let operation = HistoryOperation {
            client,
            action: draw_steps(rng),
            reply: None,
            invoked,
            returned,
            is_certain: !rng.chance(10),
            after: None,
        };
        drawn.push((effect, client, operation));
    }
    // Applied in the order of their effects. One client's operations keep their order, since each
    // begins after the end of the last one.
    drawn.sort_by_key(|(effect, ..)| *effect);
    for (effect, client, mut operation) in drawn {
        let mut took_effect = operation.is_certain || rng.chance(50);
        if took_effect {
            let at = HistoryOperation { invoked: effect, returned: effect, ..operation.clone() };
            if let Some((after, replies)) = carry_out(state, &at) {
                state = after;
                operation.reply = operation.is_certain.then_some(replies);
            } else {
                (operation.is_certain, took_effect) = (false, false);
            }
        }
        operation.after = last[client].filter(|_| rng.chance(20));
        let position = history.push(operation);
        last[client] = took_effect.then_some(position);
    }
    history
}

fn draw_steps(rng: &SeededRng) -> Vec<CounterStep> {
    let count = if rng.chance(15) { 2 } else { 1 };
    (0..count).map(|_| CounterStep { cell: rng.below(CELLS), action: draw_action(rng) }).collect()
}

fn draw_action(rng: &SeededRng) -> CounterAction {
    let value = rng.between(0..=3);
    match rng.below(20) {
        0..6 => CounterAction::Add(value),
        6..11 => CounterAction::Read,
        11 | 12 => CounterAction::Set(value),
        13 => CounterAction::SetFor(value, 60),
        14 => CounterAction::Swap(value),
        15 => CounterAction::Reset,
        16 => CounterAction::Take,
        17 => CounterAction::Delete,
        18 => CounterAction::ExpireIn(60),
        _ => CounterAction::Persist,
    }
}

/// State and replies of counters that expire exactly at their time.
fn carry_out(
    mut state: [CounterState; CELLS],
    operation: &CounterOperation,
) -> Option<([CounterState; CELLS], Vec<Reply>)> {
    let exact = CounterSpec { clock_slack: 0 };
    let mut replies = Vec::new();
    for step in &operation.action {
        let mut possible = [Reply::Ok, Reply::Value(None)].into_iter().collect::<Vec<_>>();
        possible.extend((-10..=100).flat_map(|n| [Reply::Integer(n), Reply::Value(Some(n))]));
        let (after, reply) = possible.into_iter().find_map(|reply| {
            let one = HistoryOperation {
                action: vec![*step],
                reply: Some(vec![reply.clone()]),
                after: None,
                ..operation.clone()
            };
            let mut states = Vec::new();
            exact.step(&state, &one, &mut states);
            states.first().map(|after| (*after, reply))
        })?;
        state = after;
        replies.push(reply);
    }
    Some((state, replies))
}

/// Changes one reply.
fn spoil(history: &mut History<Vec<CounterStep>, Vec<Reply>>, rng: &SeededRng) {
    let index = rng.below(history.operations.len());
    let operation = &mut history.operations[index];
    let Some(replies) = &mut operation.reply else { return };
    let position = rng.below(replies.len());
    replies[position] = match replies[position].clone() {
        Reply::Integer(number) => Reply::Integer(number + rng.between(-1..=1)),
        Reply::Value(Some(number)) if rng.chance(70) => Reply::Value(Some(number + rng.between(-1..=1))),
        Reply::Value(None) => Reply::Value(Some(rng.between(0..=2))),
        Reply::Value(_) => Reply::Value(None),
        other => other,
    };
}
