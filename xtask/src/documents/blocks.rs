//! Parses the fenced blocks of a document, and the steps of a shell block.

use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// The kind of a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// Run it.
    Shell,
    /// Show it; a reason stands above.
    Console,
    /// Write it to a file.
    File,
}

/// One fenced block.
#[derive(Debug)]
pub struct Block {
    /// The kind of its fence.
    pub fence: Fence,
    /// The line of its fence, from 1.
    pub line: usize,
    /// The text between the fences.
    pub text: String,
}

/// One command of a shell block, which may span lines.
#[derive(Debug, PartialEq, Eq)]
pub struct ShellStep {
    /// The command, without the comment behind it.
    pub command: String,
    /// Its output, if the document has it.
    pub expected: Option<String>,
    /// Its last line within the block, from 1.
    pub line: usize,
}

/// Reads the blocks of a document and checks the rules for them.
pub fn parse(document: &str, text: &str) -> anyhow::Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut open: Option<(Option<Fence>, Block)> = None;
    let mut above = "";
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(language)) => {
                let fence = match language.trim() {
                    "sh" => Some(Fence::Shell),
                    "console" => Some(Fence::Console),
                    "toml" => Some(Fence::File),
                    "bash" | "shell" | "" => {
                        bail!("{document}:{number}: a fence says `sh` (it is run) or `console` (it is only shown)")
                    }
                    _ => None,
                };
                if fence == Some(Fence::Console) && !(above.starts_with("<!-- console: ") && above.ends_with(" -->")) {
                    bail!("{document}:{number}: a reason stands above a console block: <!-- console: REASON -->");
                }
                let block = Block { fence: fence.unwrap_or(Fence::Console), line: number, text: String::new() };
                open = Some((fence, block));
            }
            (Some(_), Some(_)) => {
                if let Some((Some(_), block)) = open.take() {
                    if block.fence == Fence::Shell {
                        check_hosts(document, &block)?;
                    }
                    if block.fence != Fence::File || block.text.starts_with("# ") {
                        blocks.push(block);
                    }
                }
            }
            (Some((_, block)), None) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
        if !line.trim().is_empty() {
            above = line.trim();
        }
    }
    if let Some((_, block)) = open {
        bail!("{document}:{}: the fence is not closed", block.line);
    }
    Ok(blocks)
}

/// Checks that examples use this machine, by its address.
fn check_hosts(document: &str, block: &Block) -> anyhow::Result<()> {
    let is_local = |rest: &str| {
        let host = rest.rsplit_once('@').filter(|(user, _)| !user.contains('/')).map_or(rest, |(_, host)| host);
        host.starts_with("127.0.0.1")
    };
    for (index, line) in block.text.lines().enumerate() {
        let foreign =
            line.split("://").skip(1).any(|rest| !is_local(rest.split_whitespace().next().unwrap_or_default()));
        if foreign || line.contains("localhost") {
            bail!("{document}:{}: examples name 127.0.0.1 and no other host: {line}", block.line + index + 1);
        }
    }
    Ok(())
}

impl Block {
    /// The name of the block's file: its first line is `# NAME`.
    pub fn file_name(&self) -> anyhow::Result<String> {
        let first = self.text.lines().next().unwrap_or_default();
        let name = first.strip_prefix("# ").context("the first line of the block names its file")?.trim();
        if name.is_empty() || !name.ends_with(".toml") || name.contains(['/', ' ']) {
            bail!("'{name}' is not the name of a file");
        }
        Ok(name.to_owned())
    }

    /// The commands of the block, in order.
    pub fn steps(&self) -> anyhow::Result<Vec<ShellStep>> {
        let mut steps = Vec::new();
        let mut command = String::new();
        for (index, line) in self.text.lines().enumerate() {
            let (code, comment) = split_comment(line);
            if command.is_empty() && code.trim().is_empty() {
                continue;
            }
            command.push_str(code.trim_end());
            if is_complete(&command)? {
                let expected = comment.map(str::to_owned);
                steps.push(ShellStep { command: std::mem::take(&mut command), expected, line: index + 1 });
            } else {
                command.push('\n');
            }
        }
        if !command.is_empty() {
            bail!("line {}: the command is not complete: {command}", self.line);
        }
        Ok(steps)
    }
}

/// The code of a line, and the comment behind it.
fn split_comment(line: &str) -> (&str, Option<&str>) {
    let mut quote = None;
    let mut before = ' ';
    for (at, letter) in line.char_indices() {
        match quote {
            Some(mark) if letter == mark => quote = None,
            Some(_) => {}
            None if letter == '\'' || letter == '"' => quote = Some(letter),
            None if letter == '#' && before == ' ' => return (&line[..at], Some(line[at + 1..].trim())),
            None => {}
        }
        before = letter;
    }
    (line, None)
}

/// Returns true if the shell would run this instead of waiting for more.
fn is_complete(command: &str) -> anyhow::Result<bool> {
    if command.ends_with('\\') {
        return Ok(false);
    }
    if let Some((_, rest)) = command.split_once("<<") {
        let mark = rest.trim_start_matches('-').split_whitespace().next().unwrap_or_default().trim_matches(['\'', '"']);
        if !command.lines().skip(1).any(|line| line.trim() == mark) {
            return Ok(false);
        }
    }
    let mut check = Command::new("bash");
    check.args(["-n", "-c", command]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(check.status().context("run bash -n")?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(text: &str) -> Vec<ShellStep> {
        Block { fence: Fence::Shell, line: 1, text: text.to_owned() }.steps().unwrap()
    }

    fn step(command: &str, expected: Option<&str>, line: usize) -> ShellStep {
        ShellStep { command: command.to_owned(), expected: expected.map(str::to_owned), line }
    }

    #[test]
    fn a_comment_behind_a_command_is_its_output_and_one_alone_explains() {
        let found = steps("# explains\nquipu add a  # 1\ncurl -d '{\"a\": \"#\"}' x#y\n");
        assert_eq!(found, [step("quipu add a", Some("1"), 2), step("curl -d '{\"a\": \"#\"}' x#y", None, 3)]);
    }

    #[test]
    fn a_loop_a_continued_line_and_a_here_document_are_one_command_each() {
        let found = steps("for n in 1 2; do\n  echo $n\ndone\necho a \\\n  b\ncat <<END\nx\nEND\n");
        let commands: Vec<&str> = found.iter().map(|step| step.command.as_str()).collect();
        assert_eq!(commands, ["for n in 1 2; do\n  echo $n\ndone", "echo a \\\n  b", "cat <<END\nx\nEND"]);
    }

    #[test]
    fn a_block_that_is_only_shown_has_a_reason_and_an_example_stays_on_this_machine() {
        assert!(parse("x", "<!-- console: it takes minutes -->\n```console\na\n```\n").is_ok());
        for bad in [
            "```console\na\n```\n",
            "```bash\na\n```\n",
            "```sh\ncurl localhost:1\n```\n",
            "```sh\nquipu import redis://old:6379\n```\n",
            "```sh\na\n",
        ] {
            assert!(parse("x", bad).is_err(), "{bad}");
        }
        let good = "```sh\nquipu import redis://user:word@127.0.0.1:6379 --store redis://127.0.0.1:1\n```\n";
        assert_eq!(parse("x", good).unwrap().len(), 1);
    }
}
