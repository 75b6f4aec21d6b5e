//! Defines the Lua scripts: every atomic step at the server, each on a single key.
//!
//! Invariants:
//! - a script reads before it writes, and compares text. The only numbers it computes are the time
//!   and the sum of strides;
//! - a script trusts no data under its key. It checks a value before it compares it as a number. No
//!   stored value bounds a loop. It returns unusable data in a reply that is bounded too;
//! - the first command of each script reads its key or the time. If the server refuses that
//!   command, nothing has changed.

use std::sync::LazyLock;

use redis::{Cmd, Pipeline, Script};

/// A script and its digest.
pub(crate) struct RedisScript {
    text: &'static str,
    digest: LazyLock<String>,
}

macro_rules! script {
    ($file:literal) => {
        RedisScript {
            text: include_str!(concat!("scripts/", $file)),
            digest: LazyLock::new(|| Script::new(include_str!(concat!("scripts/", $file))).get_hash().to_owned()),
        }
    };
}

pub(crate) static PUT: RedisScript = script!("put.lua");
pub(crate) static PUT_BODY: RedisScript = script!("put_body.lua");
pub(crate) static READ_HASH: RedisScript = script!("look.lua");
pub(crate) static CLOCK: RedisScript = script!("clock.lua");
pub(crate) static SWAP: RedisScript = script!("swap.lua");
pub(crate) static CLAIM: RedisScript = script!("claim.lua");
pub(crate) static END_CLAIM: RedisScript = script!("end_claim.lua");
pub(crate) static RESTORE_CLAIM: RedisScript = script!("restore_claim.lua");
pub(crate) static REGISTER: RedisScript = script!("register.lua");

static ALL: [&RedisScript; 9] =
    [&PUT, &PUT_BODY, &READ_HASH, &CLOCK, &SWAP, &CLAIM, &END_CLAIM, &RESTORE_CLAIM, &REGISTER];

/// Most fields of a hash: 64 of the largest bodies beside a row. A larger hash is not sent.
const FIELDS_MAX: usize = 1 << 20;

/// Longest field: a page, or the names of the last swaps, with reserve.
const FIELD_BYTES_MAX: usize = 2_048;

impl RedisScript {
    /// Builds a call of the script on this key, without arguments.
    pub(crate) fn on(&self, key: &[u8]) -> Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(self.digest.as_str()).arg(1).arg(key);
        cmd
    }
}

/// Builds a pipeline that loads all scripts.
pub(crate) fn load_scripts() -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(ALL.len());
    for script in ALL {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(script.text);
    }
    pipeline
}

/// Builds a bounded read of a whole hash.
pub(crate) fn read_hash(key: &[u8]) -> Cmd {
    let mut cmd = READ_HASH.on(key);
    cmd.arg(FIELDS_MAX).arg(FIELD_BYTES_MAX);
    cmd
}

#[cfg(test)]
mod tests {
    use quipu_model::shared::body::{BODY_BYTES_MAX, PAGE_BYTES};
    use quipu_model::shared::claim::CLAIM_REPLY_BYTES_MAX;

    use super::*;

    #[test]
    fn the_bounds_in_the_scripts_are_those_of_the_model() {
        assert!(PUT_BODY.text.contains(&format!("local BODY_BYTES_MAX = {BODY_BYTES_MAX}\n")));
        assert!(PUT_BODY.text.contains(&format!("math.ceil(body_bytes / {PAGE_BYTES})")));
        assert!(SWAP.text.contains(&format!("local FIELDS_MAX = {FIELDS_MAX}\n")));
        for script in [&CLAIM, &RESTORE_CLAIM] {
            assert!(script.text.contains(&format!("string.sub(known[at], 1, {})", CLAIM_REPLY_BYTES_MAX + 1)));
        }
        const { assert!(PAGE_BYTES <= FIELD_BYTES_MAX) };
    }
}
