use std::future::poll_fn;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::timeout;

use super::*;

/// Buffer size at both ends: a few events fill it.
const ROOM: u32 = 4_096;

/// Longer than any step takes.
const TEST_TIME_MAX: Duration = Duration::from_secs(20);

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(TEST_TIME_MAX, test).await.unwrap() });
}

/// A writer and its client.
async fn connected_writer() -> (Arc<SocketWriter>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(ROOM).unwrap();
    let client = socket.connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    // Dropping the read half closes nothing, and no test reads the client's bytes.
    let (_, half) = server.into_split();
    (SocketWriter::new(half), client)
}

/// A writer in the events state; its watcher has received 0.
async fn writer_in_use(framing: BodyFraming) -> (Arc<SocketWriter>, TcpStream) {
    let (writer, client) = connected_writer().await;
    writer.start_watching(framing);
    writer.switch_to_events((0, true));
    poll_fn(|cx| writer.poll_flush(cx)).await.unwrap();
    poll_fn(|cx| writer.poll_events(cx)).await.unwrap();
    (writer, client)
}

fn event(value: i64) -> WatchEvent {
    WatchEvent { value: (value, true), sse_text: SseText::new(format!("{value:0>1000}\n").as_bytes()) }
}

/// Sends newer values until one does not fit, and then more; returns the last one.
fn overfill_socket(writer: &SocketWriter) -> i64 {
    sockopt::set_socket_send_buffer_size(writer.socket(), ROOM as usize).unwrap();
    let full = (1..10_000).find(|value| {
        writer.send_event(&event(*value));
        !writer.lock().unsent.is_empty()
    });
    let newest = full.expect("a socket has an end") + 1_000;
    (newest - 1_000..=newest).for_each(|value| writer.send_event(&event(value)));
    newest
}

/// Values in the received bytes, which are whole events.
fn values(mut received: &[u8], framing: BodyFraming) -> Vec<i64> {
    let mut values = Vec::new();
    while !received.is_empty() {
        if framing == BodyFraming::Chunked {
            received = received.strip_prefix(b"3E9\r\n").unwrap();
        }
        let (text, rest) = received.split_at(1_001);
        values.push(str::from_utf8(text).unwrap().trim_end().parse().unwrap());
        received = if framing == BodyFraming::Chunked { rest.strip_prefix(b"\r\n").unwrap() } else { rest };
    }
    values
}

#[test]
fn a_piece_has_its_length_in_front_or_nothing() {
    let sse_text = SseText::new(&[b'a'; 31]);
    assert_eq!(&sse_text.chunk[..], format!("1F\r\n{}\r\n", "a".repeat(31)).as_bytes());
    assert_eq!(&sse_text.chunk[sse_text.framed_range(BodyFraming::Chunked)], &sse_text.chunk[..]);
    assert_eq!(&sse_text.chunk[sse_text.framed_range(BodyFraming::UntilClose)], &[b'a'; 31]);
    assert_eq!(sse_text.plain_bytes(), &[b'a'; 31][..]);
}

#[test]
fn nothing_is_sent_until_hyper_has_flushed_and_then_the_newest() {
    run(async {
        let (writer, mut client) = connected_writer().await;
        writer.start_watching(BodyFraming::Chunked);
        writer.send_event(&event(1));
        poll_fn(|cx| writer.poll_write(cx, b"head")).await.unwrap();
        poll_fn(|cx| writer.poll_flush(cx)).await.unwrap();
        writer.send_event(&event(2));
        writer.send_if_idle(&SseText::new(b":"));
        writer.switch_to_events((0, true));
        writer.send_event(&event(3));
        poll_fn(|cx| writer.poll_events(cx)).await.unwrap();
        poll_fn(|cx| writer.poll_write(cx, b"first")).await.unwrap();
        poll_fn(|cx| writer.poll_flush(cx)).await.unwrap();
        poll_fn(|cx| writer.poll_events(cx)).await.unwrap();
        writer.send_event(&event(3));
        writer.send_event(&event(4));
        drop(writer);
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        assert_eq!(values(received.strip_prefix(b"headfirst").unwrap(), BodyFraming::Chunked), [3, 4]);
    });
}

#[test]
fn a_slow_client_hears_whole_events_and_the_newest_last() {
    for framing in [BodyFraming::Chunked, BodyFraming::UntilClose] {
        run(async {
            let (writer, mut client) = writer_in_use(framing).await;
            let newest = overfill_socket(&writer);
            let (mut received, mut room) = (Vec::new(), [0; 700]);
            while !String::from_utf8_lossy(&received).contains(&format!("{newest:0>1000}\n")) {
                tokio::select! {
                    read = client.read(&mut room) => received.extend_from_slice(&room[..read.unwrap()]),
                    sent = poll_fn(|cx| writer.poll_events(cx)), if !writer.lock().unsent.is_empty() => sent.unwrap(),
                }
            }
            assert!(writer.lock().next_event.is_none() && writer.lock().unsent.is_empty());
            drop(writer);
            client.read_to_end(&mut received).await.unwrap();
            let values = values(&received, framing);
            assert!(values.is_sorted() && values.len() < 900, "{values:?}");
            assert_eq!(values.last(), Some(&newest));
        });
    }
}

#[test]
fn what_waits_for_a_slow_client_is_two_events_at_most() {
    run(async {
        let (writer, _client) = writer_in_use(BodyFraming::Chunked).await;
        let newest = overfill_socket(&writer);
        writer.send_if_idle(&SseText::new(b":"));
        let state = writer.lock();
        assert!(state.unsent.len() <= event(1).sse_text.chunk.len());
        assert_eq!(state.next_event.as_ref().map(|event| event.value), Some((newest, true)));
    });
}

#[test]
fn what_was_begun_is_ended_before_hyper_speaks_again() {
    run(async {
        let (writer, mut client) = writer_in_use(BodyFraming::Chunked).await;
        let newest = overfill_socket(&writer);
        assert_eq!(writer.switch_to_hyper(), Some(event(newest).sse_text.plain_bytes()));
        assert_eq!(writer.switch_to_hyper(), None);
        writer.stop_watching();
        let (mut received, mut is_written) = (Vec::new(), false);
        let mut room = [0; 700];
        while !is_written {
            tokio::select! {
                read = client.read(&mut room) => received.extend_from_slice(&room[..read.unwrap()]),
                written = poll_fn(|cx| writer.poll_write(cx, b"0\r\n\r\n")) => {
                    assert_eq!(written.unwrap(), 5);
                    is_written = true;
                }
            }
        }
        drop(writer);
        client.read_to_end(&mut received).await.unwrap();
        let values = values(received.strip_suffix(b"0\r\n\r\n").unwrap(), BodyFraming::Chunked);
        assert!(values.is_sorted() && !values.is_empty(), "{values:?}");
    });
}

#[test]
fn a_shutdown_waits_for_what_was_begun() {
    run(async {
        let (writer, mut client) = writer_in_use(BodyFraming::UntilClose).await;
        overfill_socket(&writer);
        writer.switch_to_hyper();
        let mut received = Vec::new();
        let (read, shut) = tokio::join!(client.read_to_end(&mut received), poll_fn(|cx| writer.poll_shutdown(cx)));
        read.unwrap();
        shut.unwrap();
        assert!(!values(&received, BodyFraming::UntilClose).is_empty());
    });
}

#[test]
fn a_client_that_has_gone_is_an_error() {
    run(async {
        let (writer, client) = writer_in_use(BodyFraming::Chunked).await;
        drop(client);
        for value in 1.. {
            writer.send_event(&event(value));
            // The peer's reset arrives by itself.
            tokio::task::yield_now().await;
            let sent = poll_fn(|cx| Poll::Ready(writer.poll_events(cx))).await;
            if matches!(sent, Poll::Ready(Err(_))) {
                break;
            }
        }
    });
}
