//! Replacements in source files, by byte range of the text before them.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::bail;

/// The replacements of one file. Ranges never overlap.
#[derive(Clone, Default)]
pub struct Edits {
    by_start: BTreeMap<usize, (usize, String)>,
}

impl Edits {
    /// Adds a replacement. A repeated one counts once; two different ones for a range are an error.
    pub fn add(&mut self, range: Range<usize>, new: &str) -> anyhow::Result<()> {
        match self.by_start.get(&range.start) {
            Some((end, known)) if *end == range.end && known == new => Ok(()),
            Some((_, known)) => bail!("'{known}' and '{new}' are both to stand at byte {}", range.start),
            None => {
                self.by_start.insert(range.start, (range.end, new.to_owned()));
                Ok(())
            }
        }
    }

    /// Replaces the replacement at `range`.
    pub fn replace(&mut self, range: Range<usize>, new: String) {
        self.by_start.insert(range.start, (range.end, new));
    }

    /// The replacement of exactly this range.
    pub fn at(&self, range: &Range<usize>) -> Option<&str> {
        self.by_start.get(&range.start).filter(|(end, _)| *end == range.end).map(|(_, new)| new.as_str())
    }

    /// All of them, in the order of the text.
    pub fn iter(&self) -> impl Iterator<Item = (Range<usize>, &str)> {
        self.by_start.iter().map(|(start, (end, new))| (*start..*end, new.as_str()))
    }

    /// Number of replacements.
    pub fn len(&self) -> usize {
        self.by_start.len()
    }

    /// The text with all replacements made.
    pub fn apply(&self, text: &str) -> String {
        let mut result = String::with_capacity(text.len());
        let mut done = 0;
        for (range, new) in self.iter() {
            result.push_str(&text[done..range.start]);
            result.push_str(new);
            done = range.end;
        }
        result.push_str(&text[done..]);
        result
    }
}
