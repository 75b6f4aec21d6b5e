//! The name of a mutation, at the end of its arguments: `IDMP producer item`, where XADD of Redis has it, or `SEQ producer n`.
//!
//! In: the arguments of any operation. Out: those of the operation alone, and the name, if there is one. Of all operations that change counters, in this one place.
//!
//! Where names of counters may stand in the same places (DEL, UNLINK), only the word in capitals is one: a counter of that name, third from the end of such a list, has to be moved in it.

use quipu_model::Identity;

use super::spec::Flag;
use super::{CommandError, CounterRequest, Keys, OnceRequest, Request, Spec};
use crate::number;
use crate::resp::{Args, ReplyShape};

const TOKEN: &str = "IDMP";
const SEQUENCE: &str = "SEQ";

/// The word, the producer, and the item or number.
const ARGS: usize = 3;

/// The words with which a mutation is named, as they stand.
pub(super) struct IdentityWords<'a> {
    word: &'static str,
    producer: &'a [u8],
    item: &'a [u8],
}

/// Takes the name of a mutation off its arguments, if the operation is one, has one, and has enough arguments without it.
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
    /// The request, to be carried out once.
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
