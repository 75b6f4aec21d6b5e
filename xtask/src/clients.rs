//! Runs real clients against the real program: each script under `crates/quipu/tests/clients` gets
//! a fresh server.
//!
//! A script with a name ending in `_at_rest` runs twice on the same directory, with a clean stop
//! between: first with the word `before`, then with `after`.
//!
//! A script gets the RESP port as an argument and the HTTP port in `QUIPU_HTTP`. It ends with
//! status 0 on success, and prints the number of its checks.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use anyhow::{Context, anyhow, bail};

use crate::parts::{PartResult, cargo};
use crate::paths::{root, target};
use crate::run::{CommandOutcome, command_line, run};
use crate::tools::{self, Tools};

/// The interpreter of a script, by the extension of its name.
fn interpreter(script: &Path, tools: &Tools) -> anyhow::Result<PathBuf> {
    match script.extension().and_then(|extension| extension.to_str()) {
        Some("sh") => Ok("bash".into()),
        Some("py") => Ok(tools.python.clone()),
        Some("cjs") => Ok("node".into()),
        _ => bail!("nobody knows how to run {}", script.display()),
    }
}

/// Runs all scripts against the program of a profile; their checks are the tests.
pub fn clients(profile: &str) -> anyhow::Result<PartResult> {
    let tools = tools::install()?;
    let program = build_program(profile)?;
    let scripts = scripts()?;
    let mut result = PartResult::default();
    for script in &scripts {
        let outcome = against_server(&program, script, &tools)?;
        let proofs = outcome.proofs();
        result.passed += proofs.iter().filter_map(|proof| check_count(proof)).sum::<usize>();
        if !outcome.success || proofs.is_empty() {
            result.failed += 1;
            result.failure = Some(format!("{}\n{}", script.display(), outcome.lines.join("\n")));
            return Ok(result);
        }
        result.proofs.extend(proofs);
    }
    Ok(result)
}

/// Builds the program in a profile, and returns its path.
pub fn build_program(profile: &str) -> anyhow::Result<PathBuf> {
    let build = match profile {
        // With the features of the part `build`, or most crates would be built twice. A test of the
        // program needs the program.
        "debug" => "test {whole} --test cli --no-run".to_owned(),
        _ => format!("build --profile {profile} -p quipu"),
    };
    run("build", &cargo(&build, &[]))?.expect_success(&build)?;
    Ok(target().join(profile).join("quipu"))
}

fn scripts() -> anyhow::Result<Vec<PathBuf>> {
    let folder = root().join("crates/quipu/tests/clients");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?;
    let mut scripts = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    scripts.sort();
    if scripts.is_empty() {
        bail!("{} is empty", folder.display());
    }
    Ok(scripts)
}

/// The number in "…: 34 checks".
fn check_count(proof: &str) -> Option<usize> {
    proof.strip_suffix(" checks")?.rsplit(' ').next()?.parse().ok()
}

fn against_server(program: &Path, script: &Path, tools: &Tools) -> anyhow::Result<CommandOutcome> {
    let data = tempfile::tempdir().context("make a directory for the server")?;
    if !script.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("_at_rest")) {
        return run_script(program, script, None, data.path(), tools);
    }
    let before = run_script(program, script, Some("before"), data.path(), tools)?;
    if !before.success {
        return Ok(before);
    }
    run_script(program, script, Some("after"), data.path(), tools)
}

fn run_script(
    program: &Path,
    script: &Path,
    phase: Option<&str>,
    data: &Path,
    tools: &Tools,
) -> anyhow::Result<CommandOutcome> {
    let server = ScriptServer::start(program, data)?;
    let mut command = Command::new(interpreter(script, tools)?);
    command.arg(script).arg(server.port.to_string()).args(phase);
    command.env("NODE_PATH", tools.node.join("node_modules")).env("QUIPU_HTTP", server.http.to_string());
    let name = script.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut outcome = run(&name, &command)?;
    // A server that did not survive its client, or cannot stop, has failed too.
    let (stopped, log) = server.stop();
    outcome.lines.extend(log.lines().map(|line| format!("server: {line}")));
    if let Err(error) = stopped {
        outcome.success = false;
        outcome.lines.push(format!("{error:#}"));
    }
    Ok(outcome)
}

/// The program, serving.
struct ScriptServer {
    child: Child,
    port: u16,
    http: u16,
    /// Reads its stderr until it ends.
    log_reader: Option<JoinHandle<String>>,
}

impl ScriptServer {
    fn start(program: &Path, data: &Path) -> anyhow::Result<ScriptServer> {
        let mut command = Command::new(program);
        command.env_clear().args(["serve", "--resp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data"]).arg(data);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("run {}", command_line(&command)))?;
        let stdout = child.stdout.take().ok_or_else(|| anyhow!("stdout was piped"))?;
        let mut stderr = child.stderr.take().ok_or_else(|| anyhow!("stderr was piped"))?;
        let log = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        let mut server = ScriptServer { child, port: 0, http: 0, log_reader: Some(log) };
        // Ends at the line with the address, or at the end of a program that printed none.
        for line in BufReader::new(stdout).lines() {
            let line = line.context("read what the server says")?;
            if let (Some(port), Some(http)) = (port_in(&line, "resp"), port_in(&line, "http")) {
                (server.port, server.http) = (port, http);
                return Ok(server);
            }
        }
        bail!("the server ended before it served:\n{}", server.read_log())
    }

    /// Stops it; returns whether it stopped cleanly, and its log.
    fn stop(mut self) -> (anyhow::Result<()>, String) {
        let stopped = self.terminate();
        // No effect if it has ended; otherwise its log would never end.
        let _ = self.child.kill();
        let log = self.read_log();
        (stopped, log)
    }

    fn terminate(&mut self) -> anyhow::Result<()> {
        let kill_status =
            Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().context("run kill")?;
        let ended = self.child.wait().context("wait for the server")?;
        if !kill_status.success() || !ended.success() {
            bail!("the server did not stop cleanly: {ended}");
        }
        Ok(())
    }

    fn read_log(&mut self) -> String {
        self.log_reader.take().and_then(|reader| reader.join().ok()).unwrap_or_default()
    }
}

/// The port behind `scheme://127.0.0.1:`.
fn port_in(line: &str, scheme: &str) -> Option<u16> {
    let (_, after) = line.split_once(&format!("{scheme}://127.0.0.1:"))?;
    after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

impl Drop for ScriptServer {
    fn drop(&mut self) {
        // No effect if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_found() {
        let line = "  ready  resp://127.0.0.1:4711 http://127.0.0.1:4712";
        assert_eq!((port_in(line, "resp"), port_in(line, "http")), (Some(4711), Some(4712)));
        assert_eq!(port_in("  found  nothing", "http"), None);
    }

    #[test]
    fn checks_are_counted() {
        assert_eq!(check_count("redis-py 8.1.0: 34 checks"), Some(34));
        assert_eq!(check_count("redis-py 8.1.0"), None);
    }
}
