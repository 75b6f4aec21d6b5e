//! Runs a command to its end and keeps its output.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};

/// Longest time of one command. The longest one, a cold build on two cores, takes minutes; a
/// command beyond the bound hangs.
const TIME_MAX: Duration = Duration::from_secs(45 * 60);

/// Time that a command past `TIME_MAX` gets to end by itself.
const KILL_AFTER: Duration = Duration::from_secs(10);

/// Prefix of lines with figures to keep: counts of the work done.
pub const PROOF: &str = "proof: ";

/// The outcome of a command.
pub struct CommandOutcome {
    /// True on success.
    pub success: bool,
    /// The lines of stdout and stderr, in the order in which they came.
    pub lines: Vec<String>,
}

impl CommandOutcome {
    /// Passed and failed tests, by cargo's own count.
    pub fn tests(&self) -> (usize, usize) {
        let results = self.lines.iter().filter_map(|line| line.strip_prefix("test result: "));
        results
            .fold((0, 0), |(passed, failed), line| (passed + number(line, " passed"), failed + number(line, " failed")))
    }

    /// Figures, without their mark.
    pub fn proofs(&self) -> Vec<String> {
        // A harness that shows output as it comes writes "test name ... " before the first line of
        // a test.
        let proofs = self.lines.iter().filter_map(|line| line.find(PROOF).map(|at| &line[at + PROOF.len()..]));
        let mut figures: Vec<String> = Vec::new();
        for proof in proofs {
            if !figures.iter().any(|known| known == proof) {
                figures.push(proof.to_owned());
            }
        }
        figures
    }

    /// The tests that failed.
    pub fn failures(&self) -> Vec<String> {
        let failed = |line: &String| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned());
        self.lines.iter().filter_map(failed).collect()
    }

    /// All lines, or an error that holds them.
    pub fn expect_success(self, what: &str) -> anyhow::Result<CommandOutcome> {
        if !self.success {
            bail!("{what} failed:\n{}", self.lines.join("\n"));
        }
        Ok(self)
    }
}

/// The number in front of a word.
fn number(line: &str, word: &str) -> usize {
    let digits = line.split(word).next().and_then(|before| before.rsplit(' ').next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Runs a command; on a terminal a line shows its progress.
pub fn run(label: &str, command: &Command) -> anyhow::Result<CommandOutcome> {
    let mut child = bounded(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("run {}", command_line(command)))?;
    let (sender, receiver) = mpsc::channel();
    let (stdout, stderr) = (child.stdout.take().expect("it was piped"), child.stderr.take().expect("it was piped"));
    let readers = [listen(stdout, sender.clone()), listen(stderr, sender)];
    let bar = ProgressBar::new_spinner().with_style(
        ProgressStyle::with_template("{spinner} {prefix} {elapsed} {wide_msg}").expect("the template is ours"),
    );
    bar.set_prefix(label.to_owned());
    let mut lines = Vec::new();
    for line in receiver {
        bar.set_message(line.clone());
        bar.tick();
        lines.push(line);
    }
    bar.finish_and_clear();
    for reader in readers {
        let _ = reader.join();
    }
    let status = child.wait().context("wait for a command")?;
    if !status.success() {
        lines.push(format!("{}: {status}", command_line(command)));
    }
    Ok(CommandOutcome { success: status.success(), lines })
}

/// The same command with a time limit: `timeout` ends it and all its children.
fn bounded(command: &Command) -> Command {
    let mut bounded = Command::new("timeout");
    bounded.arg(format!("--kill-after={}", KILL_AFTER.as_secs())).arg(TIME_MAX.as_secs().to_string());
    bounded.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bounded.env(name, value),
            None => bounded.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        bounded.current_dir(dir);
    }
    bounded
}

fn listen(from: impl Read + Send + 'static, to: mpsc::Sender<String>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut reader = BufReader::new(from);
        let mut line = Vec::new();
        while matches!(reader.read_until(b'\n', &mut line), Ok(read) if read > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            if to.send(text).is_err() {
                return;
            }
        }
    })
}

/// A command as typed in a shell.
pub fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// CPU time of all children that have ended, and of theirs.
pub fn children_cpu() -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("read /proc/self/stat")?;
    let ticks = children_ticks(&stat).with_context(|| format!("find the children's CPU time in '{stat}'"))?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// `cutime` and `cstime` of a line of `/proc/PID/stat`. The program's name, in parentheses, may
/// contain anything.
fn children_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split_whitespace().skip(13);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// The clock of measured times.
#[allow(clippy::disallowed_methods, reason = "nothing here is simulated")]
pub fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_figures_and_failures_are_found_in_what_was_said() {
        let said = "\
running 3 tests
test a::b ... proof: crash states: 7 distinct
ok
proof: crash states: 7 distinct
test c::d ... FAILED
test result: FAILED. 12 passed; 1 failed; 0 ignored; 0 measured; 5 filtered out; finished in 0.10s
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s";
        let outcome = CommandOutcome { success: false, lines: said.lines().map(str::to_owned).collect() };
        assert_eq!(outcome.tests(), (15, 1));
        assert_eq!(outcome.proofs(), ["crash states: 7 distinct"]);
        assert_eq!(outcome.failures(), ["c::d"]);
    }

    #[test]
    fn cpu_time_of_children_is_found_behind_a_name_with_spaces() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 1 2 3 4 50 60 70 80 20 0 1 0 1";
        assert_eq!(children_ticks(stat), Some(150));
        assert_eq!(children_ticks("7 (a)"), None);
    }

    #[test]
    fn a_command_that_fails_is_reported_with_all_its_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let outcome = run("test", &command).unwrap();
        assert!(!outcome.success);
        assert!(outcome.lines.contains(&"out".to_owned()) && outcome.lines.contains(&"err".to_owned()));
        assert!(outcome.expect_success("it").is_err());
    }
}
