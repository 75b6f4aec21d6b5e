//! Glob patterns over names, with the semantics of Redis: `*`, `?`, `[a-z]`, `[^a]`, `\x`.
//!
//! Invariants:
//! - matching takes time in proportion to the name, for every pattern up to [`Pattern::BYTES_MAX`];
//!   the protocols refuse longer patterns;
//! - a pattern and its matcher never disagree.

/// A pattern that borrows from its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern<'a>(pub &'a [u8]);

impl<'a> Pattern<'a> {
    /// Longest pattern that a protocol accepts. Half the longest name is more than anyone types,
    /// and it bounds a matcher's memory to 11 KiB.
    pub const BYTES_MAX: usize = 256;

    /// Prepares the pattern for many names.
    pub fn matcher(self) -> Matcher<'a> {
        Matcher {
            pattern: self,
            machine: (self.0.len() <= Pattern::BYTES_MAX).then(|| Box::new(PatternMachine::new(self.0))),
        }
    }

    /// Returns true if the whole name matches. Takes time up to the product of both lengths; use a
    /// matcher for many names.
    pub fn matches(&self, name: &[u8]) -> bool {
        let pattern = self.0;
        let (mut p, mut n) = (0, 0);
        // Retry position of the last star: the star takes one more byte, and matching resumes
        // behind it.
        let mut retry: Option<(usize, usize)> = None;
        loop {
            if p < pattern.len() && pattern[p] == b'*' {
                p += 1;
                retry = Some((p, n));
                continue;
            }
            if n == name.len() {
                return pattern[p..].iter().all(|&byte| byte == b'*');
            }
            match match_byte(&pattern[p..], name[n]) {
                Some(used) => (p, n) = (p + used, n + 1),
                None => match retry {
                    Some((star, from)) => {
                        (p, n) = (star, from + 1);
                        retry = Some((star, from + 1));
                    }
                    None => return false,
                },
            }
        }
    }
}

/// A pattern prepared for many names.
pub struct Matcher<'a> {
    pattern: Pattern<'a>,
    /// `None` for a pattern over the bound; it uses the slow path.
    machine: Option<Box<PatternMachine>>,
}

impl Matcher<'_> {
    /// Returns true if the whole name matches. Takes time in proportion to the name.
    pub fn matches(&self, name: &[u8]) -> bool {
        match &self.machine {
            Some(machine) => machine.accepts(name),
            None => self.pattern.matches(name),
        }
    }
}

/// Number of 64-bit words for the states: one state per gap between tokens, so tokens + 1.
const WORDS: usize = Pattern::BYTES_MAX / 64 + 1;

/// The pattern as a nondeterministic state machine, one bit per state. Bit `i`: the bytes read so
/// far match the first `i` tokens. A token takes one byte; a star makes its state loop.
struct PatternMachine {
    /// States per byte: those with a next token that takes it.
    transitions: [[u64; WORDS]; 256],
    /// States with a star before their next token.
    loops: [u64; WORDS],
    tokens: usize,
}

impl PatternMachine {
    fn new(pattern: &[u8]) -> PatternMachine {
        let mut machine = PatternMachine { transitions: [[0; WORDS]; 256], loops: [0; WORDS], tokens: 0 };
        let mut at = 0;
        while at < pattern.len() {
            let (word, bit) = bit_position(machine.tokens);
            if pattern[at] == b'*' {
                machine.loops[word] |= bit;
                at += 1;
                continue;
            }
            for byte in 0..=u8::MAX {
                if match_byte(&pattern[at..], byte).is_some() {
                    machine.transitions[usize::from(byte)][word] |= bit;
                }
            }
            at += token_bytes(&pattern[at..]);
            machine.tokens += 1;
        }
        machine
    }

    fn accepts(&self, name: &[u8]) -> bool {
        let (last_word, last_bit) = bit_position(self.tokens);
        let mut states = [0; WORDS];
        states[0] = 1;
        for &byte in name {
            let takes = &self.transitions[usize::from(byte)];
            let (mut carried, mut alive) = (0, 0);
            for word in 0..=last_word {
                let taken = states[word] & takes[word];
                states[word] = (taken << 1) | carried | (states[word] & self.loops[word]);
                carried = taken >> 63;
                alive |= states[word];
            }
            if alive == 0 {
                return false;
            }
        }
        states[last_word] & last_bit != 0
    }
}

/// Word index and bit of a state.
fn bit_position(state: usize) -> (usize, u64) {
    (state / 64, 1 << (state % 64))
}

/// Length in bytes of the pattern's first token.
fn token_bytes(pattern: &[u8]) -> usize {
    match pattern {
        [b'[', ..] => match_class(pattern, 0).1,
        [b'\\', _, ..] => 2,
        _ => 1,
    }
}

/// Matches one byte of a name; returns the length of the pattern token that took it.
fn match_byte(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', ..] => match match_class(pattern, byte) {
            (true, used) => Some(used),
            (false, _) => None,
        },
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

/// Matches `[abc]`, `[a-z]`, `[^a]`: returns true if the class holds the byte, and the class's
/// length. An unclosed class ends with the pattern, as in Redis.
fn match_class(pattern: &[u8], byte: u8) -> (bool, usize) {
    let mut at = 1;
    let negated = pattern.get(at) == Some(&b'^');
    at += usize::from(negated);
    let mut found = false;
    loop {
        match &pattern[at.min(pattern.len())..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', literal, ..] => {
                found |= *literal == byte;
                at += 2;
            }
            [low, b'-', high, ..] => {
                found |= (*low.min(high)..=*low.max(high)).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                found |= *literal == byte;
                at += 1;
            }
        }
    }
    (found != negated, at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_in_redis() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("likes:*", "likes:42", true),
            ("likes:*", "like:42", false),
            ("*:42", "likes:42:42", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a[bx]c", "axc", true),
            ("a[^bx]c", "axc", false),
            ("a[b-d]c", "acc", true),
            ("a[d-b]c", "acc", true),
            ("a\\*c", "a*c", true),
            ("a\\*c", "abc", false),
            ("a[\\]]c", "a]c", true),
            ("a[b", "ab", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(Pattern(pattern.as_bytes()).matches(name.as_bytes()), expected, "{pattern} {name}");
            assert_eq!(Pattern(pattern.as_bytes()).matcher().matches(name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn many_stars_do_not_take_for_ever() {
        let pattern = b"*a".repeat(64);
        assert!(!Pattern(&pattern).matches(&[b'b'; 512]));
    }

    #[test]
    fn a_pattern_at_the_bound_is_matched_as_any_other() {
        let name = [b'a'; 512];
        let literal = vec![b'a'; Pattern::BYTES_MAX];
        assert!(Pattern(&literal).matcher().matches(&name[..Pattern::BYTES_MAX]));
        assert!(!Pattern(&literal).matcher().matches(&name[..Pattern::BYTES_MAX - 1]));
        assert!(!Pattern(&literal).matcher().matches(&name[..=Pattern::BYTES_MAX]));
        let class = [b"*[".to_vec(), vec![b'b'; Pattern::BYTES_MAX - 3], b"]".to_vec()].concat();
        let late = [b"*".to_vec(), vec![b'a'; Pattern::BYTES_MAX - 2], b"b".to_vec()].concat();
        for pattern in [class, late] {
            assert_eq!(pattern.len(), Pattern::BYTES_MAX);
            let matcher = Pattern(&pattern).matcher();
            // Linear in the name's length alone; without the machine this takes 10 thousand million
            // comparisons.
            assert!((0..100_000).all(|_| !matcher.matches(&name)));
            let mut ends_in_b = name;
            ends_in_b[511] = b'b';
            assert!(matcher.matches(&ends_in_b));
        }
        let over = vec![b'a'; Pattern::BYTES_MAX + 1];
        assert!(Pattern(&over).matcher().matches(&over));
    }

    proptest! {
        #[test]
        fn a_matcher_and_its_pattern_agree(pattern in "[ab*?^\\[\\]\\\\-]{0,12}", name in "[ab\\[\\]*-]{0,8}") {
            let pattern = Pattern(pattern.as_bytes());
            prop_assert_eq!(pattern.matches(name.as_bytes()), pattern.matcher().matches(name.as_bytes()));
        }

        #[test]
        fn any_bytes_may_be_a_pattern(pattern: Vec<u8>, name: Vec<u8>) {
            let _ = Pattern(&pattern).matches(&name);
            prop_assert!(Pattern(b"*").matches(&name));
        }
    }
}
