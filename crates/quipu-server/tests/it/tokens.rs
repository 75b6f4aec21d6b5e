//! Mutations with an identity, and their retries.

use crate::test_server::TestServer;

#[test]
fn a_retry_gets_the_same_reply_on_any_connection() {
    let server = TestServer::open();
    let mismatch = "-TOKENSPENT the token was used for another command; nothing was applied\r\n";
    for _ in 0..3 {
        server
            .client()
            .ask("INCRBY likes:42 5 IDMP app order-1", ":5\r\n")
            .ask("INCREX stock:7 BYINT 9 UBOUND 4 SATURATE IDMP app order-2", "*2\r\n:4\r\n:4\r\n")
            .ask("SETNX once 1 IDMP app order-3", ":1\r\n")
            .ask("SET once 7 GET IDMP app order-4", "$1\r\n1\r\n")
            .ask("GETDEL nobody IDMP app order-5", "$-1\r\n")
            .ask("MSET a 1 b 2 IDMP app order-6", "+OK\r\n")
            .ask("DEL a b IDMP app order-7", ":2\r\n")
            .ask("INCRBY likes:42 6 IDMP app order-1", mismatch)
            .ask("GET likes:42", "$1\r\n5\r\n");
    }
    server.client().ask("INCRBY likes:42 5 IDMP other order-1", ":10\r\n");
    let stats = server.engine.stats().tokens;
    assert_eq!((stats.tokens, stats.hits), (8, 14));
}

#[test]
fn a_producer_counts_its_mutations() {
    let server = TestServer::open();
    server
        .client()
        .ask("INCR a SEQ p 2", "-SEQGAP the next sequence number of this producer is 1; nothing was applied\r\n")
        .ask("INCR a SEQ p 1\nINCR a SEQ p 1\nINCR a SEQ p 2", ":1\r\n:1\r\n:2\r\n")
        .ask(
            "INCR a SEQ p 1",
            "-SEQAPPLIED this sequence number was already applied, the last one is 2; it was not applied again\r\n",
        )
        .ask("INCR b SEQ p 2", "-TOKENSPENT the token was used for another command; nothing was applied\r\n")
        .ask("GET a\nGET b", "$1\r\n2\r\n$-1\r\n");
}

#[test]
fn a_token_of_another_time_is_refused() {
    let server = TestServer::open();
    server
        .client()
        .ask(
            "INCR a IDMP p 1000000000000-x",
            "-TOKENTIME the token is older than the window of 86400000 ms; nothing was applied\r\n",
        )
        .ask("INCR a IDMP p 9999999999999-x", "-TOKENTIME the token is from the future; nothing was applied\r\n")
        .ask("GET a", "$-1\r\n");
}

#[test]
fn a_named_mutation_is_refused_inside_a_transaction() {
    let server = TestServer::open();
    let refused = "-ERR IDMP and SEQ are not offered inside a transaction\r\n";
    let abort = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    server
        .client()
        .ask("MULTI\nINCR a IDMP p i\nEXEC", format!("+OK\r\n{refused}{abort}"))
        .ask("MULTI\nDEL a seq p i\nEXEC", "+OK\r\n+QUEUED\r\n*1\r\n:0\r\n")
        .ask("GET a", "$-1\r\n");
}

#[test]
fn a_silent_client_may_name_what_it_does() {
    let server = TestServer::open();
    server
        .client()
        .ask("CLIENT REPLY OFF\nINCR a IDMP p i\nINCR a IDMP p i\nCLIENT REPLY ON", "+OK\r\n")
        .ask("GET a", "$1\r\n1\r\n");
}

#[test]
fn a_pipeline_of_named_and_plain_commands_keeps_its_order() {
    let server = TestServer::open();
    server.client().ask(
        "INCR a\nINCR a IDMP p 1\nINCR a\nINCR a IDMP p 1\nGET a\nINCR a",
        ":1\r\n:2\r\n:3\r\n:2\r\n$1\r\n3\r\n:4\r\n",
    );
}
