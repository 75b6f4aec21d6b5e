//! Glob patterns over names, with the meaning Redis gives them: `*`, `?`, `[a-z]`, `[^a]`, `\x`.

/// A pattern, borrowed from the command it came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern<'a>(pub &'a [u8]);

impl Pattern<'_> {
    /// Whether the whole name matches. Takes time at most the product of both lengths.
    pub fn matches(&self, name: &[u8]) -> bool {
        let pattern = self.0;
        let (mut p, mut n) = (0, 0);
        // After a star, where to go back to: one byte more for the star, and on from behind it.
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
            match one(&pattern[p..], name[n]) {
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

/// Matches one byte of a name; returns how many bytes of the pattern that took.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', ..] => class(pattern, byte),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

/// `[abc]`, `[a-z]`, `[^a]`; an unclosed class ends with the pattern, as in Redis.
fn class(pattern: &[u8], byte: u8) -> Option<usize> {
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
    (found != negated).then_some(at)
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
        }
    }

    #[test]
    fn many_stars_do_not_take_for_ever() {
        let pattern = b"*a".repeat(64);
        assert!(!Pattern(&pattern).matches(&[b'b'; 512]));
    }

    proptest! {
        #[test]
        fn any_bytes_may_be_a_pattern(pattern: Vec<u8>, name: Vec<u8>) {
            let _ = Pattern(&pattern).matches(&name);
            prop_assert!(Pattern(b"*").matches(&name));
        }
    }
}
