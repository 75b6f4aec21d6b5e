//! Compares the statements with the model: for any puts and swaps, verdicts and rows are equal.

quipu_testkit::server_tests!(crate::Postgres, law);
