//! Splits a source file into tokens, with their places.

use std::ops::Range;

use ra_ap_rustc_lexer::{FrontmatterAllowed, LiteralKind, TokenKind, tokenize};

/// The kind of a token, as far as a rename needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeTokenKind {
    /// A name or a keyword.
    Name,
    /// A comment, documentation included.
    Comment,
    /// A string literal of any sort.
    Text,
    /// One character of punctuation, a number, a lifetime or a character literal.
    Other,
}

/// One token that is not white space.
#[derive(Clone, Debug)]
pub struct CodeToken {
    /// Its kind.
    pub kind: CodeTokenKind,
    /// Its place.
    pub range: Range<usize>,
}

/// All tokens but white space.
pub fn tokens(text: &str) -> Vec<CodeToken> {
    let mut start = 0;
    let mut found = Vec::new();
    for token in tokenize(text, FrontmatterAllowed::No) {
        let range = start..start + token.len as usize;
        start = range.end;
        let kind = match token.kind {
            TokenKind::Whitespace => continue,
            TokenKind::Ident => CodeTokenKind::Name,
            TokenKind::LineComment { .. } | TokenKind::BlockComment { .. } => CodeTokenKind::Comment,
            TokenKind::Literal {
                kind:
                    LiteralKind::Str { .. }
                    | LiteralKind::RawStr { .. }
                    | LiteralKind::ByteStr { .. }
                    | LiteralKind::CStr { .. }
                    | LiteralKind::RawByteStr { .. }
                    | LiteralKind::RawCStr { .. },
                ..
            } => CodeTokenKind::Text,
            _ => CodeTokenKind::Other,
        };
        found.push(CodeToken { kind, range });
    }
    found
}

/// The tokens without comments: neighbours of a name are then its neighbours in the code.
pub fn code_tokens(text: &str) -> Vec<CodeToken> {
    tokens(text).into_iter().filter(|token| token.kind != CodeTokenKind::Comment).collect()
}

/// The text of the token at `index + offset`, or nothing beyond the ends.
pub fn text_at<'t>(text: &'t str, tokens: &[CodeToken], index: usize, offset: isize) -> &'t str {
    index.checked_add_signed(offset).and_then(|at| tokens.get(at)).map_or("", |token| &text[token.range.clone()])
}

/// Returns true if the innermost square brackets around a token are an attribute's.
pub fn is_in_attribute(text: &str, tokens: &[CodeToken], index: usize) -> bool {
    let mut depth = 0;
    for at in (0..index).rev() {
        match &text[tokens[at].range.clone()] {
            "]" => depth += 1,
            "[" if depth > 0 => depth -= 1,
            "[" => return text_at(text, tokens, at, -1) == "#",
            ";" | "{" | "}" => return false,
            _ => {}
        }
    }
    false
}
