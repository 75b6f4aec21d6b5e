//! Tests of sums: sent together, and sent again.

use std::time::Duration;

use quipu_client::{Adder, AdderOptions, AdderStats, Error, SampleMode, Trouble};

use crate::toy::{ToyAction, ToyServer, run};

const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(20);

/// An adder that sends nothing by itself while a test runs.
async fn adder(toy: &ToyServer, timeout: Duration, counters_max: usize) -> Adder {
    let options = AdderOptions { interval: LONG * 10, counters_max, ..AdderOptions::default() };
    toy.client(timeout).await.adder(options)
}

#[test]
fn adds_are_summed_by_counter_and_sent_in_one_request_each() {
    run(async {
        let toy = ToyServer::start(|_, _| ToyAction::Reply(":1\r\n")).await;
        let adder = adder(&toy, LONG, 100).await;
        let (a, b) = (adder.counter("a"), adder.counter("b"));
        for _ in 0..1_000 {
            a.add(2).await.unwrap();
            b.try_add(-1).unwrap();
        }
        adder.flush().await.unwrap();
        let mut sums: Vec<Vec<String>> = toy.requests().iter().map(|words| words[..3].to_vec()).collect();
        sums.sort();
        assert_eq!(sums, [["INCRBY", "a", "2000"], ["INCRBY", "b", "-1000"]]);
        let stats = AdderStats { adds_acknowledged: 2_000, requests: 2, ..AdderStats::default() };
        assert_eq!(adder.stats(), stats);
        adder.flush().await.expect("nothing to do is done at once");
    });
}

#[test]
fn adds_are_sent_by_themselves_after_the_interval_or_when_they_are_many() {
    run(async {
        let toy = ToyServer::start(|_, _| ToyAction::Reply(":1\r\n")).await;
        let client = toy.client(LONG).await;
        let soon = client.adder(AdderOptions { interval: Duration::from_millis(5), ..AdderOptions::default() });
        let many = client.adder(AdderOptions { interval: LONG * 10, adds_max: 10, ..AdderOptions::default() });
        soon.add("a", 1).await.unwrap();
        for _ in 0..10 {
            many.add("b", 1).await.unwrap();
        }
        while soon.stats().adds_acknowledged + many.stats().adds_acknowledged < 11 {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn a_flush_that_fails_keeps_its_sums_and_tokens_and_sends_the_same_again() {
    run(async {
        // Hangs once on every request: each sending is unanswered, until the toy has had enough.
        let toy =
            ToyServer::start(|_, before| if before < 2 { ToyAction::Hang } else { ToyAction::Reply(":1\r\n") }).await;
        let options = quipu_client::Options {
            timeout: SHORT,
            reply_timeout: SHORT / 2,
            pause_max: Duration::from_millis(300),
            ..quipu_client::Options::default()
        };
        let client = quipu_client::Client::connect(&toy.address, options).await.unwrap();
        let adder = client.adder(AdderOptions { interval: LONG * 10, ..AdderOptions::default() });
        adder.add("a", 5).await.unwrap();
        let error = adder.flush().await.unwrap_err();
        assert!(matches!(error, Error::Unflushed { adds: 1, .. }), "{error:?}");
        // What is added now is not mixed with what is on its way.
        adder.add("a", 7).await.unwrap();
        while adder.flush().await.is_err() {}
        let requests = toy.requests();
        let (first, rest) = requests.split_first().unwrap();
        let (again, others): (Vec<_>, Vec<_>) = rest.iter().partition(|request| *request == first);
        assert!(first[2] == "5" && again.len() >= 2, "{requests:?}");
        assert!(others.len() == 1 && others[0][2] == "7" && others[0][5] != first[5], "{requests:?}");
        assert_eq!(adder.stats(), AdderStats { adds_acknowledged: 2, requests: 2, ..AdderStats::default() });
    });
}

#[test]
fn a_counter_that_is_refused_for_good_is_told_and_does_not_stop_the_others() {
    run(async {
        let toy = ToyServer::start(|words, _| match words[1].as_str() {
            "bad" => ToyAction::Reply("-WRONGTYPE no\r\n"),
            _ => ToyAction::Reply(":1\r\n"),
        })
        .await;
        let adder = adder(&toy, LONG, 100).await;
        adder.add("bad", 3).await.unwrap();
        adder.add("good", 1).await.unwrap();
        let error = adder.flush().await.unwrap_err();
        assert!(matches!(&error, Error::Refused { text } if text == "+3 to \"bad\": WRONGTYPE no"), "{error:?}");
        let stats = AdderStats { adds_acknowledged: 1, adds_refused: 1, requests: 1, ..AdderStats::default() };
        assert_eq!(adder.stats(), stats);
        adder.flush().await.expect("told once");
    });
}

#[test]
fn a_token_that_is_too_old_is_replaced_only_if_its_add_was_never_applied() {
    run(async {
        let toy = ToyServer::start(|_, before| match before {
            0 => ToyAction::Reply("-TOKENTIME the token is older than the window\r\n"),
            1 => ToyAction::Reply(":1\r\n"),
            2 => ToyAction::Cut,
            _ => ToyAction::Reply("-TOKENTIME the token is older than the window\r\n"),
        })
        .await;
        let adder = adder(&toy, LONG, 100).await;
        adder.add("a", 1).await.unwrap();
        adder.flush().await.unwrap();
        let requests = toy.requests();
        assert!(requests.len() == 2 && requests[0][5] != requests[1][5], "{requests:?}");
        adder.add("b", 1).await.unwrap();
        let error = adder.flush().await.unwrap_err();
        assert!(matches!(error, Error::Unknown { source: Trouble::Refused(_), .. }), "{error:?}");
        let stats = AdderStats { adds_acknowledged: 1, adds_unknown: 1, requests: 1, ..AdderStats::default() };
        assert_eq!(adder.stats(), stats);
    });
}

#[test]
fn who_adds_to_one_counter_too_many_waits_for_room() {
    run(async {
        let toy =
            ToyServer::start(|_, before| if before < 1 { ToyAction::Hang } else { ToyAction::Reply(":1\r\n") }).await;
        let adder = adder(&toy, SHORT, 2).await;
        adder.try_add("a", 1).unwrap();
        adder.try_add("b", 1).unwrap();
        assert!(matches!(adder.try_add("c", 1), Err(Error::Full { counters_max: 2 })));
        adder.try_add("a", 1).expect("a counter that is there already needs no room");
        // Half of the room is taken, so they are sent, and there is room again.
        adder.add("c", 1).await.unwrap();
        adder.add("d", 1).await.unwrap();
        // Those on their way hang, and the next are not taken before they are done.
        let error = adder.add("e", 1).await.unwrap_err();
        assert!(matches!(error, Error::Full { .. }), "{error:?}");
        assert_eq!(adder.stats().adds_pending, 5);
    });
}

#[test]
fn sums_that_would_overflow_are_refused_before_they_are_sent() {
    run(async {
        let toy = ToyServer::start(|_, _| ToyAction::Reply(":1\r\n")).await;
        let adder = adder(&toy, LONG, 100).await;
        adder.add("a", i64::MAX).await.unwrap();
        assert!(matches!(adder.add("a", 1).await, Err(Error::Overflow)));
        assert!(matches!(adder.try_add(vec![b'x'; 513], 1), Err(Error::Name(_))));
        adder.flush().await.unwrap();
        assert_eq!(toy.requests()[0][2], i64::MAX.to_string());
    });
}

#[test]
fn what_is_dropped_without_a_flush_is_counted() {
    run(async {
        let toy = ToyServer::start(|_, _| ToyAction::Reply(":1\r\n")).await;
        let client = toy.client(LONG).await;
        let adder = client.adder(AdderOptions { interval: LONG * 10, ..AdderOptions::default() });
        adder.add("a", 1).await.unwrap();
        adder.flush().await.unwrap();
        let views = adder.counter("views");
        views.add(1).await.unwrap();
        views.add(1).await.unwrap();
        drop(adder);
        assert_eq!(client.adds_dropped(), 0, "a counter holds its adder");
        drop(views);
        assert_eq!((client.adds_dropped(), toy.requests().len()), (2, 1));
    });
}

#[test]
fn what_is_sampled_is_sent_as_such_and_no_add_is_thrown_twice() {
    run(async {
        let toy =
            ToyServer::start(|words, _| if words[1] == "a" { ToyAction::Reply(":1\r\n") } else { ToyAction::Hang })
                .await;
        let options =
            AdderOptions { interval: LONG * 10, counters_max: 2, adds_max: u64::MAX, ..AdderOptions::default() };
        let adder = toy.client(LONG).await.adder(options.sample(10));
        for _ in 0..5_000 {
            adder.add("a", 1).await.unwrap();
        }
        assert!(matches!(adder.try_add("a", -1), Err(Error::Sampled)));
        adder.flush().await.unwrap();
        let requests = toy.requests();
        assert_eq!(
            (requests.len(), &requests[0][..2], &requests[0][3], &requests[0][4]),
            (1, &["QUIPU.THINNED".to_owned(), "a".to_owned()][..], &"10".to_owned(), &"IDMP".to_owned())
        );
        let sent: u64 = requests[0][2].parse().unwrap();
        let stats = adder.stats();
        assert_eq!((sent, stats.adds_acknowledged + stats.adds_skipped), (10 * stats.adds_acknowledged, 5_000));
        // Six deviations: the dice are others in every run.
        assert!((3_700..6_300).contains(&sent), "{sent}");
        // What is on its way stays there, so that no further counter has a place.
        let taken = |name: &str| {
            let before = adder.stats().adds_pending;
            while adder.stats().adds_pending == before {
                adder.try_add(name, 1).unwrap();
            }
        };
        ["b", "c"].into_iter().for_each(taken);
        while toy.requests().len() < 2 {
            tokio::task::yield_now().await;
        }
        ["d", "e"].into_iter().for_each(taken);
        let before = adder.stats();
        let refused = (0..200).filter(|_| matches!(adder.try_add("f", 1), Err(Error::Full { .. }))).count();
        assert_eq!((refused, adder.stats()), (200, before), "refused before the dice are thrown");
        adder.try_add("d", 1).expect("it has a place");
    });
}

#[test]
fn an_adder_at_its_own_pace_says_at_which_rate_it_has_sampled() {
    run(async {
        let toy = ToyServer::start(|_, _| ToyAction::Reply(":1\r\n")).await;
        let sample = SampleMode::Auto { per_second: 100, one_in_max: 50 };
        let options = AdderOptions { interval: Duration::from_millis(20), sample, ..AdderOptions::default() };
        let adder = toy.client(LONG).await.adder(options);
        let (mut added, mut rates) = (0u64, Vec::new());
        while rates.last() != Some(&50) {
            for _ in 0..1_000 {
                adder.add("a", 1).await.unwrap();
            }
            added += 1_000;
            tokio::task::yield_now().await;
            rates = toy.requests().iter().map(|words| words[3].parse::<u64>().unwrap()).collect();
        }
        adder.flush().await.unwrap();
        assert_eq!(rates[0], 1, "{rates:?}");
        let sent: u64 = toy.requests().iter().map(|words| words[2].parse::<u64>().unwrap()).sum();
        let off = sent.abs_diff(added) as f64;
        assert!(off < 5.0 * (49.0 * added as f64).sqrt(), "{sent} of {added}");
    });
}
