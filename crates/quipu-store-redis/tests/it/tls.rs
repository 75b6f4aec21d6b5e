//! Runs the suite over TLS. openssl must be installed.

use std::path::Path;
use std::process::Command;

use quipu_model::{Store, StoreError};
use quipu_testkit::servers::redis::RedisServer;
use quipu_testkit::store_suite;
use quipu_testkit::store_suite::block_on;

use crate::fresh;

/// Tells the test that runs itself again where the server is.
const URL: &str = "QUIPU_TEST_TLS_URL";

#[test]
fn the_suite_passes_over_tls_if_the_server_is_trusted_and_nothing_is_sent_if_not() {
    if let Ok(url) = std::env::var(URL) {
        block_on(store_suite(async || fresh(&url)));
        return;
    }
    let home = tempfile::tempdir().unwrap();
    make_certificate(home.path());
    let path = |file: &str| home.path().join(file).to_str().unwrap().to_owned();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = RedisServer::start_with(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &path("cert.pem"),
        "--tls-key-file",
        &path("key.pem"),
        "--tls-ca-cert-file",
        &path("cert.pem"),
        "--tls-auth-clients",
        "no",
    ])
    .unwrap();
    let url = format!("rediss://127.0.0.1:{port}");
    let clock = block_on(fresh(&url).clock());
    assert!(matches!(clock, Err(StoreError::NotApplied { .. })), "nobody knows this certificate: {clock:?}");
    // Whom to trust is read from the environment, which a process cannot safely change for itself.
    let this = "tls::the_suite_passes_over_tls_if_the_server_is_trusted_and_nothing_is_sent_if_not";
    let again = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", this])
        .env("SSL_CERT_FILE", path("cert.pem"))
        .env(URL, url)
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success() && stdout.contains("1 passed"), "{stdout}");
    drop(server);
}

fn make_certificate(home: &Path) {
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]);
    openssl.args(["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]);
    openssl.args(["-keyout", "key.pem", "-out", "cert.pem"]).current_dir(home);
    let made = openssl.output().expect("install the Debian package openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}
