//! Runs the shell examples of the documents, as a reader would, and compares their output with the
//! document.
//!
//! - A fence `sh` is run. A comment behind a command is its output, with `…` for anything; a
//!   comment on a line of its own explains.
//! - A fence `console` is only shown; a comment `<!-- console: REASON -->` stands above it.
//! - A fence `toml` with `# NAME.toml` as its first line is written to that file.
//!
//! Invariant: the examples reach nothing but this machine. They run in a network namespace that has
//! the loopback device alone.
//!
//! Not here: links and printed pages (`crates/quipu/tests/docs.rs`).

mod blocks;
mod session;

use anyhow::{Context, bail};

use self::blocks::{Block, Fence};
use self::session::Session;
use crate::clients::build_program;
use crate::parts::PartResult;
use crate::paths::root;
use crate::tools;

/// Documents with examples that are run.
const DOCUMENTS: [&str; 2] = ["README.md", "docs/operating.md"];

/// Most examples that are only shown, in all documents together.
const CONSOLE_MAX: usize = 10;

/// Runs all examples with the debug build of the program.
pub fn documents() -> anyhow::Result<PartResult> {
    tools::install()?;
    let program = build_program("debug")?;
    let mut result = PartResult::default();
    let mut console = 0;
    for document in DOCUMENTS {
        let text = std::fs::read_to_string(root().join(document)).with_context(|| format!("read {document}"))?;
        let blocks = blocks::parse(document, &text)?;
        console += blocks.iter().filter(|block| block.fence == Fence::Console).count();
        let compared = run_document(document, &blocks, &program, &mut result)?;
        let executed = blocks.iter().filter(|block| block.fence == Fence::Shell).count();
        if executed == 0 {
            bail!("{document} has no example to run");
        }
        result.passed += executed;
        result.proofs.push(format!("{document}: {executed} blocks run, {compared} outputs compared"));
        if result.failure.is_some() {
            return Ok(result);
        }
    }
    if console > CONSOLE_MAX {
        bail!("{console} examples are only shown; {CONSOLE_MAX} may be");
    }
    Ok(result)
}

/// Runs the blocks of a document in one session; returns the number of compared outputs.
fn run_document(
    document: &str,
    blocks: &[Block],
    program: &std::path::Path,
    result: &mut PartResult,
) -> anyhow::Result<usize> {
    let mut session = Session::begin(program)?;
    let mut compared = 0;
    for block in blocks {
        match block.fence {
            Fence::Console => {}
            Fence::File => session.write_file(&block.file_name()?, &block.text)?,
            Fence::Shell => {
                for step in block.steps()? {
                    let outcome = session.run_step(&step, block.line)?;
                    compared += usize::from(step.expected.is_some());
                    if let Some(fault) = outcome.fault(&step) {
                        result.failed += 1;
                        result.failure = Some(format!(
                            "{document}:{}: {fault}\n$ {}\n{}",
                            block.line + step.line,
                            step.command,
                            outcome.output
                        ));
                        return Ok(compared);
                    }
                }
                println!("  {document}:{} ran", block.line);
            }
        }
    }
    Ok(compared)
}
