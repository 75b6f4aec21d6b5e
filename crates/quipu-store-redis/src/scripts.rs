//! The scripts: everything that must be one step at the server, each on a single key.
//!
//! Invariants:
//! - a script reads before it writes, and what it compares is text: the only numbers it makes are the time and the sum of strides;
//! - the first command of each is a read of its key, or of the time: one that the server refuses there has changed nothing.

use std::sync::LazyLock;

use redis::{Cmd, Pipeline, Script};

/// One script.
pub(crate) struct Known {
    text: &'static str,
    digest: LazyLock<String>,
}

macro_rules! script {
    ($file:literal) => {
        Known {
            text: include_str!(concat!("scripts/", $file)),
            digest: LazyLock::new(|| Script::new(include_str!(concat!("scripts/", $file))).get_hash().to_owned()),
        }
    };
}

pub(crate) static PUT: Known = script!("put.lua");
pub(crate) static PUT_BODY: Known = script!("put_body.lua");
pub(crate) static LOOK: Known = script!("look.lua");
pub(crate) static CLOCK: Known = script!("clock.lua");
pub(crate) static SWAP: Known = script!("swap.lua");
pub(crate) static CLAIM: Known = script!("claim.lua");
pub(crate) static END_CLAIM: Known = script!("end_claim.lua");
pub(crate) static REGISTER: Known = script!("register.lua");

static ALL: [&Known; 8] = [&PUT, &PUT_BODY, &LOOK, &CLOCK, &SWAP, &CLAIM, &END_CLAIM, &REGISTER];

impl Known {
    /// A call of it on this key, without its arguments.
    pub(crate) fn on(&self, key: &[u8]) -> Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(self.digest.as_str()).arg(1).arg(key);
        cmd
    }
}

/// Makes a server know all of them.
pub(crate) fn load() -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(ALL.len());
    for script in ALL {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(script.text);
    }
    pipeline
}
