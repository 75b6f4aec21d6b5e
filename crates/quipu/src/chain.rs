//! Formats an error and its causes as one line.

/// The error and its causes, each text once: drivers repeat the text of their cause in their own.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if line.is_empty() {
            line = text;
        } else if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_that_its_error_repeats_is_said_once() {
        #[derive(Debug)]
        struct DriverError(std::io::Error);

        impl std::fmt::Display for DriverError {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl std::error::Error for DriverError {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }

        let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = Err::<(), _>(DriverError(refused())).context("list the writers").unwrap_err();
        assert_eq!(one_line(&error), "list the writers: connection refused");
        let error = Err::<(), _>(refused()).context("open the store").context("start").unwrap_err();
        assert_eq!(one_line(&error), "start: open the store: connection refused");
    }
}
