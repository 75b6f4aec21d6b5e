//! Runs the suite over TLS. openssl must be installed.

quipu_testkit::server_tests!(crate::Redis, tls);
