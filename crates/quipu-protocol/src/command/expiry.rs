//! Reads expiry times from arguments: `EX 10`, `PXAT 1700000000000`.

use quipu_model::ExpiryTime;

use super::CommandError;
use crate::number;

/// Unit and origin of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    Millis,
    AtSeconds,
    AtMillis,
}

impl Unit {
    /// Unit of an option of SET, GETEX and INCREX.
    pub(super) fn option(word: &[u8]) -> Option<Unit> {
        [(&b"EX"[..], Unit::Seconds), (b"PX", Unit::Millis), (b"EXAT", Unit::AtSeconds), (b"PXAT", Unit::AtMillis)]
            .into_iter()
            .find_map(|(name, unit)| name.eq_ignore_ascii_case(word).then_some(unit))
    }

    /// Reads a time that may lie in the past; EXPIRE then deletes.
    pub(super) fn when(self, bytes: &[u8], command: &'static str) -> Result<ExpiryTime, CommandError> {
        let number = number::integer(bytes).ok_or(CommandError::NotInteger)?;
        let millis = match self {
            Unit::Seconds | Unit::AtSeconds => number.checked_mul(1000).ok_or(CommandError::BadExpiry(command))?,
            Unit::Millis | Unit::AtMillis => number,
        };
        Ok(match self {
            Unit::Seconds | Unit::Millis => ExpiryTime::In(millis),
            Unit::AtSeconds | Unit::AtMillis => ExpiryTime::At(millis),
        })
    }

    /// Reads a time that must be positive: the expiry given together with a value.
    pub(super) fn when_positive(self, bytes: &[u8], command: &'static str) -> Result<ExpiryTime, CommandError> {
        match self.when(bytes, command)? {
            ExpiryTime::In(..=0) | ExpiryTime::At(..=0) => Err(CommandError::BadExpiry(command)),
            when => Ok(when),
        }
    }
}
