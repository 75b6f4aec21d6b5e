//! Runs the examples of one document in a shell with a directory, a network and processes of its
//! own.
//!
//! Invariant: when the session ends, every process that an example has started has ended.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use tempfile::TempDir;

use super::blocks::ShellStep;
use crate::run::now;
use crate::tools::need_programs;

/// Longest time of one block.
const BLOCK_TIME_MAX: Duration = Duration::from_secs(30);

/// Time after which an example that never ends by itself is interrupted.
const WATCH_SECONDS: u32 = 2;

/// Ends the output of a step; its exit status follows.
const END_OF_STEP: &str = "--- end of step, status ";

/// Functions of the shell: a foreground server runs in the background until the next one, as if it
/// had been interrupted.
const PROLOGUE: &str = r#"
serve_pid=
listeners() { awk '$4 == "0A"' /proc/net/tcp | wc -l; }
wait_for_listeners() {
  local quiet=0 before=-1 seen
  for _ in $(seq 250); do
    seen=$(listeners)
    if [ "$seen" -gt "$1" ] && [ "$seen" = "$before" ]; then quiet=$((quiet + 1)); else quiet=0; fi
    [ $quiet -ge 8 ] && return 0
    before=$seen
    sleep 0.1
  done
  return 1
}
stop_server() {
  if [ -n "$serve_pid" ]; then kill -TERM "$serve_pid" 2>/dev/null; wait "$serve_pid"; fi
  serve_pid=
}
"#;

/// The shell and its directory.
pub struct Session {
    shell: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    directory: TempDir,
    /// The line of the running block, and its start.
    block: (usize, std::time::Instant),
}

/// The outcome of a step.
pub struct StepOutcome {
    /// Its whole output.
    pub output: String,
    status: i32,
}

impl Session {
    /// Starts a shell that finds the program as `quipu`.
    pub fn begin(program: &Path) -> anyhow::Result<Session> {
        need_programs(&["unshare"], &["util-linux"])?;
        need_programs(&["ip"], &["iproute2"])?;
        let directory = tempfile::tempdir().context("make a directory for the examples")?;
        let (programs, work) = (directory.path().join("bin"), directory.path().join("work"));
        std::fs::create_dir_all(&programs).context("make a directory for programs")?;
        std::fs::create_dir_all(&work).context("make a directory for the examples")?;
        symlink(program, programs.join("quipu")).context("link the program")?;
        // Without a terminal, redis-cli prints types such as `(integer) 1` only with `--no-raw`.
        let redis_cli = programs.join("redis-cli");
        let path = std::env::var("PATH").unwrap_or_default();
        let real = std::env::split_paths(&path).map(|folder| folder.join("redis-cli")).find(|file| file.is_file());
        let real = real.context("redis-cli is not on the PATH")?;
        std::fs::write(&redis_cli, format!("#!/bin/sh\nexec {} --no-raw \"$@\"\n", real.display()))
            .context("write redis-cli")?;
        std::fs::set_permissions(&redis_cli, std::fs::Permissions::from_mode(0o755)).context("write redis-cli")?;
        let mut command = Command::new("unshare");
        // A user namespace permits the others to any user but root, who needs none.
        if !rustix::process::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        let path = format!("{}:{path}", programs.display());
        command
            .args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["bash", "-c", "ip link set lo up && exec bash 2>&1"])
            .current_dir(&work)
            .env("PATH", path)
            .env("NO_COLOR", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("QUIPU_") {
                command.env_remove(name);
            }
        }
        let mut shell = command.spawn().context("run unshare")?;
        let input = shell.stdin.take().context("the shell's input is piped")?;
        let output = shell.stdout.take().context("the shell's output is piped")?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n') {
                let Ok(line) = line else { break };
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
        let mut session = Session { shell, input, lines, directory, block: (0, now()) };
        session.input.write_all(PROLOGUE.as_bytes()).context("write to the shell")?;
        Ok(session)
    }

    /// Writes a file into the directory of the examples.
    pub fn write_file(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.directory.path().join("work").join(name);
        let mut file = File::create(&path).with_context(|| format!("write {name}"))?;
        file.write_all(text.as_bytes()).with_context(|| format!("write {name}"))
    }

    /// Runs one step of the block at this line, and waits for its end.
    pub fn run_step(&mut self, step: &ShellStep, block: usize) -> anyhow::Result<StepOutcome> {
        if self.block.0 != block {
            self.block = (block, now());
        }
        let command = executable(&step.command);
        let script = format!("{command}\nprintf '\\n%s%s\\n' '{END_OF_STEP}' \"$?\"\n");
        self.input.write_all(script.as_bytes()).context("write to the shell")?;
        let mut output = String::new();
        loop {
            let left = BLOCK_TIME_MAX.saturating_sub(self.block.1.elapsed());
            let line = match self.lines.recv_timeout(left) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => {
                    bail!(
                        "line {block}: the block takes more than {BLOCK_TIME_MAX:?}, at\n$ {}\n{output}",
                        step.command
                    )
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("line {block}: the shell has ended, at\n$ {}\n{output}", step.command)
                }
            };
            if let Some(status) = line.strip_prefix(END_OF_STEP) {
                let status = status.trim().parse().context("read the status of a step")?;
                return Ok(StepOutcome { output: output.trim_end().to_owned(), status });
            }
            output.push_str(&line);
            output.push('\n');
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The processes of the namespace end with its first one.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// A command of the document, as the session runs it.
fn executable(command: &str) -> String {
    let command = command.replace("cargo run --release --", "quipu");
    let is_background = command.trim_end().ends_with('&') || command.contains(" &\n");
    let is_server = command.split_whitespace().any(|word| word == "serve");
    if is_background {
        return format!("before=$(listeners)\n{command}\nwait_for_listeners $before");
    }
    if is_server {
        return format!(
            "stop_server\nbefore=$(listeners)\n{command} > serve.log 2>&1 &\nserve_pid=$!\nwait_for_listeners $before; ready=$?; cat serve.log; (exit $ready)"
        );
    }
    if command.contains("/watch") || command.contains("quipu watch") {
        return format!("timeout --signal=INT {WATCH_SECONDS} {command}; status=$?; [ $status = 124 ]");
    }
    command
}

impl StepOutcome {
    /// The mistake in the step's outcome, if any.
    pub fn fault(&self, step: &ShellStep) -> Option<String> {
        if self.status != 0 {
            return Some(format!("the command ends with status {}", self.status));
        }
        let output = collapse(&self.output);
        match &step.expected {
            Some(expected) if !matches(&collapse(expected), &output) => Some(format!("does not print '{expected}'")),
            Some(_) => None,
            None if output.starts_with("(error)") || output.contains("urn:quipu:problem:") => {
                Some("the server refuses it".to_owned())
            }
            None => None,
        }
    }
}

fn collapse(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns true if the parts of a pattern, separated by `…`, occur in a text in this order, as
/// whole words.
fn matches(pattern: &str, text: &str) -> bool {
    let mut rest = text;
    pattern.split('…').map(str::trim).all(|part| match find_words(rest, part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

/// The first position of a part in a text with a word boundary at each end of the part.
fn find_words(text: &str, part: &str) -> Option<usize> {
    let goes_on = |one: Option<char>, other: Option<char>| {
        one.is_some_and(char::is_alphanumeric) && other.is_some_and(char::is_alphanumeric)
    };
    text.match_indices(part).map(|(at, _)| at).find(|&at| {
        let (before, after) = (&text[..at], &text[at + part.len()..]);
        !goes_on(before.chars().next_back(), part.chars().next())
            && !goes_on(part.chars().next_back(), after.chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ellipsis_stands_for_anything_and_parts_keep_their_order() {
        assert!(matches("a … c", "a b c"));
        assert!(matches("", "a"));
        assert!(!matches("c … a", "a b c"));
        assert!(!matches("(integer) 2", "(integer) 1"));
        assert!(!matches("1", "10"));
        assert!(matches("1", "10 1"));
        assert!(matches("quipu_", "quipu_seals"));
    }

    #[test]
    fn a_step_fails_by_its_status_by_another_output_and_by_a_refusal_that_the_document_does_not_show() {
        let step = |expected: Option<&str>| ShellStep {
            command: String::new(),
            expected: expected.map(str::to_owned),
            line: 1,
        };
        let outcome = |output: &str, status| StepOutcome { output: output.to_owned(), status };
        assert!(outcome("(integer) 1", 0).fault(&step(Some("(integer) 1"))).is_none());
        assert!(outcome("(integer) 1", 1).fault(&step(Some("(integer) 1"))).is_some());
        assert!(outcome("(integer) 2", 0).fault(&step(Some("(integer) 1"))).is_some());
        assert!(outcome("(error) ERR no", 0).fault(&step(None)).is_some());
        assert!(outcome("(error) ERR no", 0).fault(&step(Some("(error) ERR no"))).is_none());
    }
}
