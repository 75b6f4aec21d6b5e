//! `quipu docs`: prints pages of documentation from the code, for the copies in the repository.

use std::io::Write;
use std::process::ExitCode;

use crate::args::DocsPage;

/// Prints a page.
pub fn docs(page: DocsPage, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    match page {
        DocsPage::Metrics => out.write_all(quipu_server::metrics_page().as_bytes())?,
        DocsPage::Configuration => out.write_all(crate::config::page::page().as_bytes())?,
        DocsPage::Commands => out.write_all(quipu_protocol::command::page().as_bytes())?,
        DocsPage::Errors => out.write_all(quipu_server::errors_page().as_bytes())?,
        DocsPage::Openapi => out.write_all(quipu_server::openapi_page().as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}
