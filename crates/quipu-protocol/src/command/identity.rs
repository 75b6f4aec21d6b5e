//! Reads the identity at the end of a mutation's arguments: `IDMP producer item`, in the position
//! of XADD's, or `SEQ producer n`.
//!
//! In: the arguments of any operation. Out: the operation's own arguments, and the identity, if
//! any. All operations that change counters use this one parser.
//!
//! DEL and UNLINK take counter names in the same positions. There only the upper-case keyword
//! begins an identity. A counter of that name must not be third from the end of such a list; move
//! it within the list.

use quipu_model::Identity;

use super::spec::Flag;
use super::{CommandError, CounterRequest, Keys, OnceRequest, Request, Spec};
use crate::number;
use crate::resp::{Args, ReplyShape};

const TOKEN: &str = "IDMP";
const SEQUENCE: &str = "SEQ";

/// Keyword, producer, and item or number.
const ARGS: usize = 3;

/// An identity as received.
pub(super) struct IdentityWords<'a> {
    word: &'static str,
    producer: &'a [u8],
    item: &'a [u8],
}

/// Splits the identity off the arguments, if the operation is a mutation, has one, and has enough
/// arguments without it.
pub(super) fn split<'a>(spec: &Spec, args: &Args<'a>) -> (Args<'a>, Option<IdentityWords<'a>>) {
    let identity = || {
        let at = args.len().checked_sub(ARGS).filter(|_| spec.has(Flag::Write))?;
        let given = args.get(at)?;
        let lists_names = spec.keys == Keys::ALL;
        let is_word = |word: &str| {
            if lists_names { given == word.as_bytes() } else { given.eq_ignore_ascii_case(word.as_bytes()) }
        };
        let word = [TOKEN, SEQUENCE].into_iter().find(|word| is_word(word))?;
        let mut rest = args.from(at + 1);
        Some(IdentityWords { word, producer: rest.next()?, item: rest.next()? })
    };
    match identity() {
        Some(identity) if spec.accepts_plain(&args.without_last(ARGS)) => (args.without_last(ARGS), Some(identity)),
        _ => (*args, None),
    }
}

impl<'a> IdentityWords<'a> {
    /// Makes the request a [`Request::Once`].
    pub fn make_once(&self, request: Request<'a>) -> Result<Request<'a>, CommandError> {
        let identity = match self.word {
            TOKEN => Identity::token(self.producer, self.item)?,
            _ => Identity::sequence(self.producer, number::natural(self.item).ok_or(CommandError::NotInteger)?)?,
        };
        let (commands, shape) = match request {
            Request::Counter(CounterRequest { command, shape }) => (vec![command], shape),
            Request::SetMany(commands) => (commands, ReplyShape::Plain),
            // No other operation changes counters.
            Request::Once(_) | Request::Connection(_) => return Err(CommandError::Syntax),
        };
        Ok(Request::Once(OnceRequest { identity, commands, shape }))
    }
}
