//! Prints the pages of docs/ that come from tables of the code: `cargo xtask docs`.

use anyhow::{Context, bail};

use crate::parts::{FEATURES, cargo};
use crate::paths::root;

/// The pages: names of `quipu docs` and of the files.
const PAGES: [&str; 4] = ["commands", "configuration", "errors", "metrics"];

/// Writes all pages, and shows the changed ones.
pub fn print_pages() -> anyhow::Result<()> {
    for page in PAGES {
        let words = format!("run --quiet -p quipu {FEATURES} -- docs {page}");
        let output = cargo(&words, &[]).output().with_context(|| format!("run cargo {words}"))?;
        if !output.status.success() {
            bail!("cargo {words} failed:\n{}", String::from_utf8_lossy(&output.stderr));
        }
        let path = root().join("docs").join(format!("{page}.md"));
        let is_new = std::fs::read(&path).ok().is_none_or(|present| present != output.stdout);
        if is_new {
            std::fs::write(&path, output.stdout).with_context(|| format!("write {}", path.display()))?;
        }
        println!("docs/{page}.md {}", if is_new { "is printed anew" } else { "is up to date" });
    }
    Ok(())
}
