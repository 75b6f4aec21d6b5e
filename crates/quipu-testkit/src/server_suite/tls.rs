//! Runs the suite over TLS. openssl must be installed.

use std::path::Path;
use std::process::Command;

use quipu_model::{Store, StoreError};

use super::{StoreAdapter, TestServer};
use crate::store_suite;
use crate::store_suite::block_on;

/// Tells the test that runs itself again where the server is.
const URL: &str = "QUIPU_TEST_TLS_URL";

/// The store trusts a server with a known certificate alone. The test runs itself again, with the
/// certificate known.
pub fn the_suite_passes_over_tls_if_the_server_is_trusted_and_nothing_is_sent_if_not<A: StoreAdapter>() {
    if let Ok(url) = std::env::var(URL) {
        block_on(store_suite(async || A::open_fresh(&url)));
        return;
    }
    let home = tempfile::tempdir().expect("a directory");
    make_certificate(home.path());
    let (server, url) = A::Server::start_with_tls(home.path()).expect("the server starts");
    if A::Server::REFUSES_PLAIN {
        let plain = block_on(A::open_fresh(&server.url()).clock());
        assert!(matches!(plain, Err(StoreError::NotApplied { .. })), "it takes nothing else: {plain:?}");
    }
    let clock = block_on(A::open_fresh(&url).clock());
    assert!(matches!(clock, Err(StoreError::NotApplied { .. })), "nobody knows this certificate: {clock:?}");
    // Whom to trust is read from the environment, which a process cannot safely change for itself.
    let this = "tls::the_suite_passes_over_tls_if_the_server_is_trusted_and_nothing_is_sent_if_not";
    let again = Command::new(std::env::current_exe().expect("the test has a file"))
        .args(["--exact", this])
        .env("SSL_CERT_FILE", home.path().join("cert.pem"))
        .env(URL, url)
        .output()
        .expect("the test runs itself");
    let stdout = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success() && stdout.contains("1 passed"), "{stdout}");
}

fn make_certificate(home: &Path) {
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]);
    openssl.args(["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]);
    openssl.args(["-keyout", "key.pem", "-out", "cert.pem"]).current_dir(home);
    let made = openssl.output().expect("install the Debian package openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}
