//! What a server is started with.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;

use subtle::ConstantTimeEq;

use crate::{HttpHosts, Limits};

/// Longest password. Long enough for any generated one; a bound lets a comparison look at a fixed number of bytes.
pub const PASSWORD_BYTES_MAX: usize = 512;

/// How a server listens and whom it lets in.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where Redis clients connect.
    pub resp: SocketAddr,
    /// Where HTTP is served, if anywhere.
    pub http: Option<SocketAddr>,
    /// The names under which HTTP is served while there is no password.
    pub http_hosts: HttpHosts,
    /// Threads that serve RESP connections.
    pub workers: NonZeroUsize,
    /// What AUTH must give; without one everybody is let in.
    pub password: Option<Password>,
    /// Allows an address that others can reach without a password.
    pub insecure: bool,
    /// The bounds.
    pub limits: Limits,
    /// Where settings came from, for those who ask.
    pub origins: Origins,
    /// The shared store as it is shown: without a password.
    pub store: Option<String>,
}

/// Where the settings of namespaces came from, in words. What is not in it is a default, or was set by the program.
#[derive(Debug, Clone, Default)]
pub struct Origins {
    /// What holds where a namespace says nothing, as it would be written, and where it came from: by key.
    pub server: BTreeMap<&'static str, (String, String)>,
    /// By namespace and key.
    pub namespaces: BTreeMap<(Box<[u8]>, &'static str), String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            resp: SocketAddr::from((Ipv4Addr::LOCALHOST, 7379)),
            http: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 7380))),
            http_hosts: HttpHosts::default(),
            workers: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            password: None,
            insecure: false,
            limits: Limits::default(),
            origins: Origins::default(),
            store: None,
        }
    }
}

/// A password. Shown nowhere, and compared without telling by time how much of a guess was right.
#[derive(Clone)]
pub struct Password {
    padded: [u8; PASSWORD_BYTES_MAX],
    bytes: u64, // 1..=PASSWORD_BYTES_MAX
}

/// Why bytes cannot be a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PasswordError {
    /// Nobody means this.
    #[error("the password is empty: leave it out, or choose one")]
    Empty,
    /// Over the bound.
    #[error("the password has {bytes} bytes, at most {PASSWORD_BYTES_MAX} are allowed")]
    TooLong {
        /// Length of what was given.
        bytes: usize,
    },
}

impl Password {
    /// Takes a password.
    pub fn new(bytes: &[u8]) -> Result<Password, PasswordError> {
        match bytes.len() {
            0 => Err(PasswordError::Empty),
            1..=PASSWORD_BYTES_MAX => Ok(Password { padded: padded(bytes), bytes: bytes.len() as u64 }),
            bytes => Err(PasswordError::TooLong { bytes }),
        }
    }

    /// Whether a guess is right. Takes the same time for every guess of up to the longest password.
    pub fn matches(&self, guess: &[u8]) -> bool {
        // The length is compared in the same breath: it is no secret how long the guess was, but how long the password is.
        let same = self.padded.ct_eq(&padded(guess)) & self.bytes.ct_eq(&(guess.len() as u64));
        same.into()
    }
}

fn padded(bytes: &[u8]) -> [u8; PASSWORD_BYTES_MAX] {
    let mut padded = [0; PASSWORD_BYTES_MAX];
    let len = bytes.len().min(PASSWORD_BYTES_MAX);
    padded[..len].copy_from_slice(&bytes[..len]);
    padded
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_password_itself_is_right() {
        let password = Password::new(b"secret").unwrap();
        assert!(password.matches(b"secret"));
        for guess in [&b""[..], b"secre", b"secret\0", b"secrets", b"Secret"] {
            assert!(!password.matches(guess), "{}", guess.escape_ascii());
        }
        let longest = Password::new(&[b'a'; PASSWORD_BYTES_MAX]).unwrap();
        assert!(longest.matches(&[b'a'; PASSWORD_BYTES_MAX]));
        assert!(!longest.matches(&[b'a'; PASSWORD_BYTES_MAX + 1]));
    }

    #[test]
    fn a_password_has_bounds_and_is_not_shown() {
        assert_eq!(Password::new(b"").unwrap_err(), PasswordError::Empty);
        assert_eq!(Password::new(&[b'a'; 513]).unwrap_err(), PasswordError::TooLong { bytes: 513 });
        assert!(!format!("{:?}", Password::new(b"secret").unwrap()).contains("secret"));
    }
}
