//! Tests of calls to a server that refuses, disconnects, hangs or sends nonsense.

use std::task::Poll;
use std::time::Duration;

use quipu_client::{Client, Error, Options, Trouble};

use crate::toy::{ToyAction, ToyServer, run};

const SHORT: Duration = Duration::from_millis(150);
const LONG: Duration = Duration::from_secs(20);

#[test]
fn a_passing_refusal_is_sent_again_under_the_same_token() {
    run(async {
        let toy = ToyServer::start(|_, before| match before {
            0 => ToyAction::Reply("-TRYAGAIN the journal is behind\r\n"),
            1 => ToyAction::Reply("-NOROOM no room in the journal\r\n"),
            _ => ToyAction::Reply(":7\r\n"),
        })
        .await;
        assert_eq!(toy.client(LONG).await.add("likes:42", 5).await.unwrap(), 7);
        let requests = toy.requests();
        assert_eq!(requests.len(), 3);
        assert!(requests.iter().all(|request| *request == requests[0]), "{requests:?}");
        assert_eq!(requests[0][..4], ["INCRBY", "likes:42", "5", "IDMP"]);
    });
}

#[test]
fn a_lost_reply_is_asked_for_again_on_the_next_connection() {
    run(async {
        let toy =
            ToyServer::start(|_, before| if before < 3 { ToyAction::Cut } else { ToyAction::Reply(":1\r\n") }).await;
        assert_eq!(toy.client(LONG).await.add("a", 1).await.unwrap(), 1);
        let requests = toy.requests();
        assert!(requests.len() == 4 && requests.iter().all(|request| *request == requests[0]), "{requests:?}");
    });
}

#[test]
fn each_mutation_has_a_token_of_its_own_and_reads_have_none() {
    run(async {
        let toy = ToyServer::start(|words, _| match words[0].as_str() {
            "SET" => ToyAction::Reply("+OK\r\n"),
            "QUIPU.RESET" => ToyAction::Reply("$-1\r\n"),
            "QUIPU.READ" => ToyAction::Reply("*0\r\n"),
            _ => ToyAction::Reply(":1\r\n"),
        })
        .await;
        let client = toy.client(LONG).await;
        client.add("a", 1).await.unwrap();
        client.set("a", -3).await.unwrap();
        assert_eq!(client.reset("a").await.unwrap(), 0);
        assert!(client.delete("a").await.unwrap());
        assert!(matches!(client.read("a").await, Err(Error::Unknown { source: Trouble::Nonsense(_), .. })));
        let requests = toy.requests();
        let mut items: Vec<&String> = requests[..4].iter().map(|words| &words[words.len() - 1]).collect();
        items.sort();
        items.dedup();
        assert_eq!(items.len(), 4, "{requests:?}");
        assert_eq!(requests[4], ["QUIPU.READ", "a"]);
    });
}

#[test]
fn a_refusal_for_good_is_told_and_not_repeated() {
    run(async {
        let toy = ToyServer::start(|_, _| ToyAction::Reply("-ERR increment or decrement would overflow\r\n")).await;
        let error = toy.client(LONG).await.add("a", 1).await.unwrap_err();
        assert!(matches!(&error, Error::Refused { text } if text.contains("overflow")), "{error:?}");
        assert!(error.is_known_not_applied());
        assert_eq!(toy.requests().len(), 1);
    });
}

#[test]
fn a_refusal_after_a_lost_reply_says_nothing_of_the_first_sending() {
    run(async {
        let toy =
            ToyServer::start(|_, before| if before == 0 { ToyAction::Cut } else { ToyAction::Reply("-ERR no\r\n") })
                .await;
        let error = toy.client(LONG).await.add("a", 1).await.unwrap_err();
        assert!(matches!(error, Error::Unknown { attempts: 2, .. }), "{error:?}");
    });
}

#[test]
fn what_is_refused_until_its_deadline_was_not_applied_and_what_is_not_answered_may_have_been() {
    run(async {
        let refusing = ToyServer::start(|_, _| ToyAction::Reply("-TRYAGAIN later\r\n")).await;
        let error = refusing.client(SHORT).await.add("a", 1).await.unwrap_err();
        assert!(matches!(&error, Error::NotApplied { attempts: 2.., source: Trouble::Refused(_) }), "{error:?}");
        for script in [|_: &[String], _| ToyAction::Hang, |_: &[String], _| ToyAction::Cut] {
            let silent = ToyServer::start(script).await;
            let error = silent.client(SHORT).await.add("a", 1).await.unwrap_err();
            assert!(matches!(error, Error::Unknown { .. }) && !error.is_known_not_applied(), "{error:?}");
        }
    });
}

#[test]
fn what_was_never_sent_was_not_applied() {
    run(async {
        let toy = ToyServer::start(|_, _| ToyAction::Hang).await;
        let options = Options { timeout: SHORT, in_flight_max: 2, ..Options::default() };
        let client = Client::connect(&toy.address, options).await.unwrap();
        let add = |name: &'static str| {
            let client = client.clone();
            async move { client.add(name, 1).await.unwrap_err() }
        };
        let (first, second, third) = tokio::join!(add("a"), add("b"), add("c"));
        assert!(matches!((&first, &second), (Error::Unknown { .. }, Error::Unknown { .. })), "{first:?} {second:?}");
        assert!(matches!(third, Error::NotApplied { attempts: 0, .. }), "{third:?}");
        assert_eq!(toy.requests().len(), 1, "the toy hangs on the first; the third never had a place");
    });
}

#[test]
fn a_server_that_owes_a_reply_for_too_long_is_left() {
    run(async {
        let toy =
            ToyServer::start(|_, before| if before == 0 { ToyAction::Hang } else { ToyAction::Reply(":1\r\n") }).await;
        let options = Options { timeout: LONG, reply_timeout: Duration::from_millis(50), ..Options::default() };
        let client = Client::connect(&toy.address, options).await.unwrap();
        assert_eq!(client.add("a", 1).await.unwrap(), 1);
        let requests = toy.requests();
        assert!(requests.len() == 2 && requests[0] == requests[1], "{requests:?}");
    });
}

#[test]
fn replies_go_to_those_who_asked_also_when_one_has_stopped_waiting() {
    run(async {
        let toy = ToyServer::start(|words, _| match words[1].as_str() {
            "a" => ToyAction::Reply(":1\r\n"),
            "b" => ToyAction::Reply(":2\r\n"),
            _ => ToyAction::Reply(":3\r\n"),
        })
        .await;
        let client = toy.client(LONG).await;
        let (a, b, c) = tokio::join!(client.add("a", 1), client.add("b", 1), client.add("c", 1));
        assert_eq!((a.unwrap(), b.unwrap(), c.unwrap()), (1, 2, 3));
        {
            let mut dropped = std::pin::pin!(client.add("a", 1));
            // Polled once, so that it is on its way.
            std::future::poll_fn(|context| {
                assert!(dropped.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        assert_eq!(client.add("b", 1).await.unwrap(), 2);
    });
}

#[test]
fn a_first_connection_that_fails_is_told_with_its_reason() {
    run(async {
        let error = Client::connect("127.0.0.1:1", Options::default()).await.unwrap_err();
        assert!(matches!(&error, Error::Connect { source: Trouble::Connection(_), .. }), "{error:?}");
        let long = "x".repeat(513);
        let toy = ToyServer::start(|_, _| ToyAction::Reply("-WRONGPASS no\r\n")).await;
        assert!(matches!(toy.client(LONG).await.add(&long, 1).await, Err(Error::Name(_))));
        let echo = ToyServer::start(|_, _| ToyAction::Reply("*1\r\n$4\r\nAUTH\r\n")).await;
        let options = Options { password: Some("any".into()), ..Options::default() };
        let error = Client::connect(&echo.address, options).await.unwrap_err();
        assert!(matches!(&error, Error::Connect { source: Trouble::Nonsense(_), .. }), "{error:?}");
        let options = Options { password: Some("wrong".into()), ..Options::default() };
        let error = Client::connect(&toy.address, options).await.unwrap_err();
        assert!(matches!(&error, Error::Connect { source: Trouble::Refused(text), .. } if text == "WRONGPASS no"));
        assert_eq!(toy.requests(), [["AUTH", "default", "wrong"]]);
    });
}
