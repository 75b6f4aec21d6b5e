//! Options of a server.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;

use subtle::ConstantTimeEq;

use crate::{HttpHosts, Limits};

/// Longest password. Long enough for any generated one; the bound lets a comparison read a fixed
/// number of bytes.
pub const PASSWORD_BYTES_MAX: usize = 512;

/// Listeners, access and limits of a server.
#[derive(Debug, Clone)]
pub struct Options {
    /// RESP address.
    pub resp: SocketAddr,
    /// HTTP address; `None` turns HTTP off.
    pub http: Option<SocketAddr>,
    /// Names under which HTTP is served while no password is set.
    pub http_hosts: HttpHosts,
    /// Threads that serve RESP connections.
    pub workers: NonZeroUsize,
    /// Password for AUTH; without one every client is admitted.
    pub password: Option<Password>,
    /// Allows an address that other hosts can reach without a password.
    pub insecure: bool,
    /// Bounds on clients.
    pub limits: Limits,
    /// Origins of the settings, for reports.
    pub origins: Origins,
    /// Shared store in displayable form: without a password.
    pub store: Option<String>,
}

/// Origins of namespace settings, as text. A setting without an entry is a default, or was set by
/// the program.
#[derive(Debug, Clone, Default)]
pub struct Origins {
    /// By key: the server's setting, as written, and its origin. It applies where a namespace has
    /// none.
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

/// A password. Never shown. Comparison takes constant time, so it does not reveal how much of a
/// guess is right.
#[derive(Clone)]
pub struct Password {
    padded: [u8; PASSWORD_BYTES_MAX],
    bytes: u64, // 1..=PASSWORD_BYTES_MAX
}

/// Reason why bytes cannot be a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PasswordError {
    /// Certainly a mistake.
    #[error("the password is empty: leave it out, or choose one")]
    Empty,
    /// Over the bound.
    #[error("the password has {bytes} bytes, at most {PASSWORD_BYTES_MAX} are allowed")]
    TooLong {
        /// Given length.
        bytes: usize,
    },
}

impl Password {
    /// Creates a password.
    pub fn new(bytes: &[u8]) -> Result<Password, PasswordError> {
        match bytes.len() {
            0 => Err(PasswordError::Empty),
            1..=PASSWORD_BYTES_MAX => Ok(Password { padded: padded(bytes), bytes: bytes.len() as u64 }),
            bytes => Err(PasswordError::TooLong { bytes }),
        }
    }

    /// Returns true for the right password, in the same time for every guess within the bound.
    pub fn matches(&self, guess: &[u8]) -> bool {
        // Compares the length in the same pass: the guess's length is not secret, the password's
        // is.
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
