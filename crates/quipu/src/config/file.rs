//! Reads the configuration file: TOML, with the line of every value.
//!
//! In: the text of a file. Out: changes to a configuration, and every mistake in the file, never
//! just the first.

use std::path::Path;

use quipu_model::{ValueForm, check_namespace_name};
use toml::de::{DeTable, DeValue};

use super::settings::SETTINGS;
use super::{EffectiveConfig, Mistake, NAMESPACE_KEYS, NAMESPACES_MAX, Origin};

/// Most differing letters between a mistyped key and the suggested one.
const TYPO_LETTERS_MAX: usize = 2;

/// Reads a file into the effective configuration.
pub fn read(path: &Path, text: &str, effective: &mut EffectiveConfig) {
    let mut reader = Reader { path, text, effective };
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        reader.mistake(error.span().map_or(0, |span| span.start), error.message().to_owned());
    }
    for (key, value) in root.get_ref() {
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("server", DeValue::Table(table)) => reader.server("", table),
            ("namespace", DeValue::Table(table)) => reader.namespaces(table),
            (word @ ("server" | "namespace"), other) => {
                let found = article(other.type_str());
                reader.mistake(key.span().start, format!("'{word}' is a table, written [{word}], not {found}"));
            }
            (word, _) => {
                let hint = nearest(word, ["server", "namespace"].into_iter());
                reader.mistake(key.span().start, format!("unknown key '{word}'{hint}"));
            }
        }
    }
}

struct Reader<'r> {
    path: &'r Path,
    text: &'r str,
    effective: &'r mut EffectiveConfig,
}

impl Reader<'_> {
    /// Reads `[server]`, or a table within it.
    fn server(&mut self, prefix: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let name = format!("{prefix}{}", key.get_ref());
            let setting = SETTINGS.iter().find(|setting| setting.key == name);
            match (setting, value.get_ref()) {
                (Some(setting), found) => {
                    let origin = self.origin(key.span().start);
                    match value_text(setting.form, found) {
                        Ok(text) => self.effective.apply(setting, &text, origin),
                        Err(found) => {
                            let text = format!("'{name}' must be {}, not {found}", setting.form.expected());
                            self.effective.mistakes.push(Mistake { origin, text });
                        }
                    }
                }
                (None, DeValue::Table(inner)) if SETTINGS.iter().any(|s| s.key.starts_with(&format!("{name}."))) => {
                    self.server(&format!("{name}."), inner);
                }
                (None, _) => {
                    let hint = nearest(&name, SETTINGS.iter().map(|setting| setting.key));
                    self.mistake(key.span().start, format!("unknown key '{name}' in [server]{hint}"));
                }
            }
        }
    }

    fn namespaces(&mut self, table: &DeTable<'_>) {
        for (index, (key, value)) in table.iter().enumerate() {
            let (at, name) = (key.span().start, key.get_ref());
            if let Err(mistake) = check_namespace_name(name.as_bytes()) {
                self.mistake(at, mistake);
            }
            if index == NAMESPACES_MAX {
                self.mistake(at, format!("more than {NAMESPACES_MAX} namespaces, which is the limit"));
            }
            match value.get_ref() {
                DeValue::Table(inner) => self.namespace(name, inner),
                other => {
                    let found = article(other.type_str());
                    self.mistake(at, format!("'{name}' is a table, written [namespace.{name}], not {found}"));
                }
            }
        }
    }

    fn namespace(&mut self, name: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let (at, word) = (key.span().start, key.get_ref().as_ref());
            let Some(key) = NAMESPACE_KEYS.iter().find(|known| known.key == word) else {
                let hint = nearest(word, NAMESPACE_KEYS.iter().map(|known| known.key));
                self.mistake(at, format!("unknown key '{word}' in [namespace.{name}]{hint}"));
                continue;
            };
            let origin = self.origin(at);
            match value_text(key.form, value.get_ref()) {
                Ok(text) => self.effective.apply_to_namespace(name, key, &text, origin),
                Err(found) => {
                    let expected = key.form.expected();
                    self.mistake(at, format!("in [namespace.{name}]: '{word}' must be {expected}, not {found}"));
                }
            }
        }
    }

    fn mistake(&mut self, at: usize, text: String) {
        let origin = self.origin(at);
        self.effective.mistakes.push(Mistake { origin, text });
    }

    fn origin(&self, at: usize) -> Origin {
        let before = self.text.as_bytes().iter().take(at);
        let line = 1 + before.filter(|&&byte| byte == b'\n').count();
        Origin::File { path: self.path.to_path_buf(), line }
    }
}

/// A value as text for a flag. If its type is wrong: the name of that type.
fn value_text(form: ValueForm, value: &DeValue<'_>) -> Result<String, String> {
    match (form, value) {
        (form, DeValue::String(text)) if form.takes_text() => Ok(text.as_ref().to_owned()),
        (form, DeValue::Integer(integer)) if form.takes_number() => {
            // Written in any base, and possibly too long for any number.
            let number = i128::from_str_radix(integer.as_str(), integer.radix());
            Ok(number.map_or_else(|_| integer.as_str().to_owned(), |number| number.to_string()))
        }
        (ValueForm::Switch, DeValue::Boolean(switch)) => Ok(switch.to_string()),
        (_, other) => Err(article(other.type_str())),
    }
}

fn article(noun: &str) -> String {
    let an = noun.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {noun}", if an { "an" } else { "a" })
}

/// ", did you mean …?" if a known word is close.
pub fn nearest<'k>(word: &str, known: impl Iterator<Item = &'k str>) -> String {
    let close = known.map(|known| (letters_different(word, known), known)).min();
    match close {
        Some((different, known)) if different <= TYPO_LETTERS_MAX => format!(", did you mean '{known}'?"),
        _ => String::new(),
    }
}

/// Edit distance: the number of letters to change, add or remove.
fn letters_different(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, other) in b.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
