//! Documents stay true: what ARCHITECTURE.md points at is there.

use std::path::Path;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Rows of the table "Where is …?": question, file, function.
fn rows(text: &str) -> Vec<(String, String, String)> {
    let table = text.split("## Where is").nth(1).expect("the table is there").split("\n## ").next().expect("a section");
    let rows = table.lines().filter(|line| line.starts_with("| ")).skip(1);
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let [question, file, function] = cells[..] else { panic!("not three cells: {row}") };
        (question.to_owned(), file.to_owned(), function.to_owned())
    })
    .collect()
}

#[test]
fn every_question_of_the_architecture_has_its_answer_where_it_says() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let rows = rows(&text);
    assert!(rows.len() > 20, "only {} rows were understood", rows.len());
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|(question, file, function)| match std::fs::read_to_string(root().join(file)) {
            Err(error) => Some(format!("{question} {file}: {error}")),
            Ok(code) if !code.contains(&format!("fn {function}(")) && !code.contains(&format!("fn {function}<")) => {
                Some(format!("{question} {file} has no function {function}"))
            }
            Ok(_) => None,
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_files_that_documents_link_to_exist() {
    for document in ["README.md", "ARCHITECTURE.md", "docs/guarantees.md", "docs/performance.md"] {
        let text = std::fs::read_to_string(root().join(document)).expect(document);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.starts_with('#') {
                continue;
            }
            let target =
                root().join(document).parent().expect("a directory").join(link.split('#').next().expect("a path"));
            assert!(target.exists(), "{document} links to {link}, which is not there");
        }
    }
}

#[test]
fn the_page_of_metrics_is_what_the_code_prints() {
    let page = std::fs::read_to_string(root().join("docs/metrics.md")).expect("docs/metrics.md");
    let printed = std::process::Command::new(env!("CARGO_BIN_EXE_quipu")).args(["docs", "metrics"]).output();
    let printed = String::from_utf8(printed.expect("the program runs").stdout).expect("text");
    assert!(page == printed, "run: quipu docs metrics > docs/metrics.md");
}

#[test]
fn the_page_of_settings_is_what_the_code_prints() {
    let page = std::fs::read_to_string(root().join("docs/configuration.md")).expect("docs/configuration.md");
    let printed = std::process::Command::new(env!("CARGO_BIN_EXE_quipu")).args(["docs", "configuration"]).output();
    let printed = String::from_utf8(printed.expect("the program runs").stdout).expect("text");
    assert!(page == printed, "run: quipu docs configuration > docs/configuration.md");
}
