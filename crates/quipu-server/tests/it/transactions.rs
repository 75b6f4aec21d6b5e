//! MULTI, EXEC, WATCH.

use crate::test_server::TestServer;

#[test]
fn a_transaction_is_one_step() {
    let server = TestServer::open();
    server
        .client()
        .ask("MULTI\nINCR a\nGET a\nMSET b 2 c 3\nPING\nSETNX b 9\nEXEC", {
            let queued = "+QUEUED\r\n".repeat(5);
            format!("+OK\r\n{queued}*5\r\n:1\r\n$1\r\n1\r\n+OK\r\n+PONG\r\n:0\r\n")
        })
        .ask("MGET a b c", "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n")
        .ask(
            "MULTI\nINCRBY s 4 SHARDKEY u:1\nDECR s SHARDKEY u:2\nEXEC",
            "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:4\r\n:3\r\n",
        )
        .ask("MULTI\nEXEC", "+OK\r\n*0\r\n")
        .ask("MULTI\nINCR a\nDISCARD\nGET a", "+OK\r\n+QUEUED\r\n+OK\r\n$1\r\n1\r\n")
        .ask("EXEC\nDISCARD", "-ERR EXEC without MULTI\r\n-ERR DISCARD without MULTI\r\n");
}

#[test]
fn a_mistake_while_queueing_spoils_it_and_one_while_running_does_not() {
    let server = TestServer::open();
    let abort = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    let unknown = "-ERR unknown command 'FOO', with args beginning with: \r\n";
    server
        .client()
        .ask("MULTI\nINCR a\nFOO\nINCR a\nEXEC", format!("+OK\r\n+QUEUED\r\n{unknown}+QUEUED\r\n{abort}"))
        .ask("GET a", "$-1\r\n")
        .ask("MULTI\nINCR a b c\nEXEC", format!("+OK\r\n-ERR wrong number of arguments for 'incr' command\r\n{abort}"))
        .ask("MULTI\nINCR\nEXEC", format!("+OK\r\n-ERR wrong number of arguments for 'incr' command\r\n{abort}"))
        .ask(
            "MULTI\nKEYS *\nSCAN 0\nEXEC",
            format!(
                "+OK\r\n-ERR KEYS is not offered inside a transaction: it would hold every counter\r\n\
                 -ERR SCAN is not offered inside a transaction: it would hold every counter\r\n{abort}"
            ),
        )
        .ask("MULTI\nDBSIZE\nEXEC", "+OK\r\n+QUEUED\r\n*1\r\n:0\r\n")
        .ask("MULTI\nINFO\nEXEC", format!("+OK\r\n-ERR Command not allowed inside a transaction\r\n{abort}"))
        .ask(
            "MULTI\nINCRBY q x\nINCR q\nEXEC",
            "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n-ERR value is not an integer or out of range\r\n:1\r\n",
        )
        .ask(
            "MULTI\nMULTI\nWATCH a\nEXEC",
            "+OK\r\n-ERR MULTI calls can not be nested\r\n-ERR WATCH inside MULTI is not allowed\r\n*0\r\n",
        )
        .ask("MULTI\nRESET\nEXEC", "+OK\r\n+RESET\r\n-ERR EXEC without MULTI\r\n");
}

#[test]
fn a_watched_counter_that_changed_stops_the_transaction() {
    let server = TestServer::open();
    let (mut watcher, mut other) = (server.client(), server.client());
    watcher.ask("SET a 1\nWATCH a", "+OK\r\n+OK\r\n");
    other.ask("INCR a", ":2\r\n");
    watcher.ask("MULTI\nINCR a\nEXEC", "+OK\r\n+QUEUED\r\n*-1\r\n").ask("GET a", "$1\r\n2\r\n");
    watcher.ask("MULTI\nINCR a\nEXEC", "+OK\r\n+QUEUED\r\n*1\r\n:3\r\n");
    watcher.ask("WATCH a\nINCR a\nUNWATCH\nMULTI\nINCR a\nEXEC", "+OK\r\n:4\r\n+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n:5\r\n");
    watcher.ask("WATCH a\nMULTI\nGET a\nEXEC", "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n$1\r\n5\r\n");
    watcher.ask("HELLO 3\nWATCH a\nINCR a\nMULTI\nPING\nEXEC", "%7\r\n");
    while watcher.line() != "+QUEUED" {}
    watcher.expect("_\r\n");
}

#[test]
fn the_queue_has_a_bound_in_commands_and_in_bytes() {
    let server = TestServer::open_with(|options| {
        options.limits.queue_commands_max = 3;
        options.limits.queue_bytes_max = 100;
        options.limits.watches_max = 2;
    });
    let full =
        "-ERR the transaction is too long: at most 3 commands and 100 bytes, and replies within the output bound\r\n";
    let abort = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    let queued = "+QUEUED\r\n";
    server
        .client()
        .ask("MULTI\nPING\nPING\nPING\nEXEC", format!("+OK\r\n{}*3\r\n+PONG\r\n+PONG\r\n+PONG\r\n", queued.repeat(3)))
        .ask("MULTI\nINCR a\nPING\nPING\nPING\nEXEC", format!("+OK\r\n{}{full}{abort}", queued.repeat(3)))
        .ask(&format!("MULTI\nINCR a\nECHO {}\nEXEC", "m".repeat(95)), format!("+OK\r\n{queued}{full}{abort}"))
        .ask("GET a\nWATCH a b\nWATCH c", "$-1\r\n+OK\r\n-ERR too many watched names: at most 2\r\n");
}

#[test]
fn what_a_transaction_answers_is_bounded_like_any_other_output() {
    let server = TestServer::open_with(|options| options.limits.output_bytes_max = 64 << 10);
    let many = format!("MGET{}", " a".repeat(1_000));
    let mut client = server.client();
    client.ask("MULTI", "+OK\r\n").ask(&many, "+QUEUED\r\n").ask(&many, "+QUEUED\r\n");
    client.send(format!("{many}\r\nEXEC\r\n")).expect("-ERR the transaction is too long");
    let _ = client.line();
    client.expect("-EXECABORT");
}
