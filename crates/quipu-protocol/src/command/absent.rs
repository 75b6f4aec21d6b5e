//! Operations of Redis that Quipu does not offer, with the reason and an alternative.
//!
//! This tells a client more than "unknown command" does.

use super::CommandError;

const STRINGS: &str = "a counter is a whole number, not a string; read it with GET and write it with SET";
const BITS: &str = "a counter is a whole number, not a string of bits; use one counter per bit";

/// Name in upper case, and the rest of the sentence "… is not offered:".
const ABSENT: &[(&str, &str)] = &[
    ("APPEND", STRINGS),
    ("BITCOUNT", BITS),
    ("BITFIELD", BITS),
    ("BITFIELD_RO", BITS),
    ("BITOP", BITS),
    ("BITPOS", BITS),
    ("COPY", "a count belongs to its name; read it with GET and SET the other name"),
    ("DUMP", "a counter has no serialized form; read it with GET"),
    ("GETBIT", BITS),
    ("INCRBYFLOAT", "counters are whole numbers; count in the smallest unit (cents, milliseconds) with INCRBY"),
    ("LCS", STRINGS),
    ("MOVE", "there is one database; put a namespace in front of the name (likes:42)"),
    ("MSETNX", "use WATCH, EXISTS and MULTI, or SET … NX for each name"),
    ("RENAME", "a count belongs to its name on every node; read it with GETDEL and INCRBY the other name"),
    ("RENAMENX", "a count belongs to its name on every node; read it with GETDEL and INCRBY the other name"),
    ("RESTORE", "a counter has no serialized form; write it with SET"),
    ("SETBIT", BITS),
    ("SETRANGE", STRINGS),
    ("SWAPDB", "there is one database; put a namespace in front of the name (likes:42)"),
];

/// Finds the error for an operation that Quipu deliberately does not offer.
pub(super) fn find(name: &[u8]) -> Option<CommandError> {
    let (name, instead) = ABSENT.iter().find(|(absent, _)| absent.as_bytes().eq_ignore_ascii_case(name))?;
    Some(CommandError::Absent { name, instead })
}
