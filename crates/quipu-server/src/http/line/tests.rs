use std::future::poll_fn;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::timeout;

use super::*;

/// Room at both ends: a few events fill it.
const ROOM: u32 = 4_096;

/// No step takes so long.
const PATIENCE: Duration = Duration::from_secs(20);

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(PATIENCE, test).await.unwrap() });
}

/// A line and its client.
async fn line() -> (Arc<Line>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(ROOM).unwrap();
    let client = socket.connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    // The other half would close nothing, and nobody reads what clients say.
    let (_, half) = server.into_split();
    (Line::new(half), client)
}

/// A line that is ours; its watcher was told 0.
async fn ours(form: Form) -> (Arc<Line>, TcpStream) {
    let (line, client) = line().await;
    line.begin(form);
    line.hand_over((0, true));
    poll_fn(|cx| line.poll_flush(cx)).await.unwrap();
    poll_fn(|cx| line.poll_told(cx)).await.unwrap();
    (line, client)
}

fn event(value: i64) -> Event {
    Event { value: (value, true), piece: Piece::new(format!("{value:0>1000}\n").as_bytes()) }
}

/// Tells ever newer values until some of it does not fit, and then more; the last that was told.
fn tell_too_much(line: &Line) -> i64 {
    sockopt::set_socket_send_buffer_size(line.socket(), ROOM as usize).unwrap();
    let full = (1..10_000).find(|value| {
        line.tell(&event(*value));
        !line.lock().rest.is_empty()
    });
    let newest = full.expect("a socket has an end") + 1_000;
    (newest - 1_000..=newest).for_each(|value| line.tell(&event(value)));
    newest
}

/// The values in what was heard, which is whole events.
fn values(mut heard: &[u8], form: Form) -> Vec<i64> {
    let mut values = Vec::new();
    while !heard.is_empty() {
        if form == Form::Chunks {
            heard = heard.strip_prefix(b"3E9\r\n").unwrap();
        }
        let (text, rest) = heard.split_at(1_001);
        values.push(str::from_utf8(text).unwrap().trim_end().parse().unwrap());
        heard = if form == Form::Chunks { rest.strip_prefix(b"\r\n").unwrap() } else { rest };
    }
    values
}

#[test]
fn a_piece_has_its_length_in_front_or_nothing() {
    let piece = Piece::new(&[b'a'; 31]);
    assert_eq!(&piece.chunk[..], format!("1F\r\n{}\r\n", "a".repeat(31)).as_bytes());
    assert_eq!(&piece.chunk[piece.range(Form::Chunks)], &piece.chunk[..]);
    assert_eq!(&piece.chunk[piece.range(Form::Plain)], &[b'a'; 31]);
    assert_eq!(piece.text(), &[b'a'; 31][..]);
}

#[test]
fn nothing_is_told_until_hyper_has_flushed_and_then_the_newest() {
    run(async {
        let (line, mut client) = line().await;
        line.begin(Form::Chunks);
        line.tell(&event(1));
        poll_fn(|cx| line.poll_write(cx, b"head")).await.unwrap();
        poll_fn(|cx| line.poll_flush(cx)).await.unwrap();
        line.tell(&event(2));
        line.mention(&Piece::new(b":"));
        line.hand_over((0, true));
        line.tell(&event(3));
        poll_fn(|cx| line.poll_told(cx)).await.unwrap();
        poll_fn(|cx| line.poll_write(cx, b"first")).await.unwrap();
        poll_fn(|cx| line.poll_flush(cx)).await.unwrap();
        poll_fn(|cx| line.poll_told(cx)).await.unwrap();
        line.tell(&event(3));
        line.tell(&event(4));
        drop(line);
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.unwrap();
        assert_eq!(values(heard.strip_prefix(b"headfirst").unwrap(), Form::Chunks), [3, 4]);
    });
}

#[test]
fn a_slow_client_hears_whole_events_and_the_newest_last() {
    for form in [Form::Chunks, Form::Plain] {
        run(async {
            let (line, mut client) = ours(form).await;
            let newest = tell_too_much(&line);
            let (mut heard, mut room) = (Vec::new(), [0; 700]);
            while !String::from_utf8_lossy(&heard).contains(&format!("{newest:0>1000}\n")) {
                tokio::select! {
                    read = client.read(&mut room) => heard.extend_from_slice(&room[..read.unwrap()]),
                    told = poll_fn(|cx| line.poll_told(cx)), if !line.lock().rest.is_empty() => told.unwrap(),
                }
            }
            assert!(line.lock().next.is_none() && line.lock().rest.is_empty());
            drop(line);
            client.read_to_end(&mut heard).await.unwrap();
            let values = values(&heard, form);
            assert!(values.is_sorted() && values.len() < 900, "{values:?}");
            assert_eq!(values.last(), Some(&newest));
        });
    }
}

#[test]
fn what_waits_for_a_slow_client_is_two_events_at_most() {
    run(async {
        let (line, _client) = ours(Form::Chunks).await;
        let newest = tell_too_much(&line);
        line.mention(&Piece::new(b":"));
        let wire = line.lock();
        assert!(wire.rest.len() <= event(1).piece.chunk.len());
        assert_eq!(wire.next.as_ref().map(|event| event.value), Some((newest, true)));
    });
}

#[test]
fn what_was_begun_is_ended_before_hyper_speaks_again() {
    run(async {
        let (line, mut client) = ours(Form::Chunks).await;
        let newest = tell_too_much(&line);
        assert_eq!(line.take_back(), Some(event(newest).piece.text()));
        assert_eq!(line.take_back(), None);
        line.end();
        let (mut heard, mut said) = (Vec::new(), false);
        let mut room = [0; 700];
        while !said {
            tokio::select! {
                read = client.read(&mut room) => heard.extend_from_slice(&room[..read.unwrap()]),
                written = poll_fn(|cx| line.poll_write(cx, b"0\r\n\r\n")) => {
                    assert_eq!(written.unwrap(), 5);
                    said = true;
                }
            }
        }
        drop(line);
        client.read_to_end(&mut heard).await.unwrap();
        let values = values(heard.strip_suffix(b"0\r\n\r\n").unwrap(), Form::Chunks);
        assert!(values.is_sorted() && !values.is_empty(), "{values:?}");
    });
}

#[test]
fn a_shutdown_waits_for_what_was_begun() {
    run(async {
        let (line, mut client) = ours(Form::Plain).await;
        tell_too_much(&line);
        line.take_back();
        let mut heard = Vec::new();
        let (read, shut) = tokio::join!(client.read_to_end(&mut heard), poll_fn(|cx| line.poll_shutdown(cx)));
        read.unwrap();
        shut.unwrap();
        assert!(!values(&heard, Form::Plain).is_empty());
    });
}

#[test]
fn a_client_that_has_gone_is_an_error() {
    run(async {
        let (line, client) = ours(Form::Chunks).await;
        drop(client);
        for value in 1.. {
            line.tell(&event(value));
            // The other end's answer comes by itself.
            tokio::task::yield_now().await;
            let told = poll_fn(|cx| Poll::Ready(line.poll_told(cx))).await;
            if matches!(told, Poll::Ready(Err(_))) {
                break;
            }
        }
    });
}
