//! Checks the documents against the code: links, files and printed pages.

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
    for document in ["README.md", "ARCHITECTURE.md", "docs/guarantees.md", "docs/performance.md", "docs/operating.md"] {
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
    assert!(page == printed, "run: cargo xtask docs");
}

/// The metrics that a text of Prometheus's language names; a histogram by its own name.
fn metrics_in(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let metrics = words.filter(|word| word.starts_with("quipu_"));
    metrics.map(|word| word.strip_suffix("_bucket").unwrap_or(word).to_owned()).collect()
}

#[test]
fn the_dashboard_shows_only_metrics_that_exist_each_with_title_and_unit() {
    let text = std::fs::read_to_string(root().join("deploy/grafana.json")).expect("deploy/grafana.json");
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    // Which is what the code prints; see the test above.
    let page = std::fs::read_to_string(root().join("docs/metrics.md")).expect("docs/metrics.md");
    let mut shown = 0;
    for panel in dashboard["panels"].as_array().expect("panels") {
        let title = panel["title"].as_str().filter(|title| !title.is_empty()).expect("every panel has a title");
        if panel["type"] == "row" {
            continue;
        }
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title} has no unit");
        for target in panel["targets"].as_array().filter(|targets| !targets.is_empty()).expect(title) {
            let metrics = metrics_in(target["expr"].as_str().expect(title));
            assert!(!metrics.is_empty(), "{title} asks for no metric");
            for metric in metrics {
                assert!(page.contains(&format!("| `{metric}` |")), "{title}: there is no metric {metric}");
                shown += 1;
            }
        }
    }
    assert!(shown > 30, "only {shown} metrics were understood");
}

#[test]
fn metrics_to_alert_on_exist() {
    let text = std::fs::read_to_string(root().join("docs/operating.md")).expect("docs/operating.md");
    let page = std::fs::read_to_string(root().join("docs/metrics.md")).expect("docs/metrics.md");
    let metrics = metrics_in(&text);
    assert!(metrics.len() > 5, "only {metrics:?}");
    for metric in metrics {
        assert!(page.contains(&format!("| `{metric}` |")), "there is no metric {metric}");
    }
}

#[test]
fn variables_of_unit_and_image_are_those_of_the_program() {
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_quipu")).args(["serve", "--help"]).output();
    let help = String::from_utf8(help.expect("the program runs").stdout).expect("text");
    for file in ["deploy/quipu.service", "deploy/Dockerfile"] {
        let text = std::fs::read_to_string(root().join(file)).expect(file);
        let words = text.split(|c: char| !c.is_ascii_uppercase() && c != '_');
        let variables: Vec<&str> = words.filter(|word| word.starts_with("QUIPU_")).collect();
        assert!(variables.len() >= 3, "{file}: {variables:?}");
        for variable in variables {
            // One name in three spellings.
            let flag = variable.replacen("QUIPU_", "--", 1).replace('_', "-").to_lowercase();
            let mut flags = help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            assert!(flags.any(|given| given == flag), "{file}: there is no variable {variable}");
        }
    }
}

#[test]
fn the_page_of_settings_is_what_the_code_prints() {
    let page = std::fs::read_to_string(root().join("docs/configuration.md")).expect("docs/configuration.md");
    let printed = std::process::Command::new(env!("CARGO_BIN_EXE_quipu")).args(["docs", "configuration"]).output();
    let printed = String::from_utf8(printed.expect("the program runs").stdout).expect("text");
    assert!(page == printed, "run: cargo xtask docs");
}

#[test]
fn the_page_of_errors_is_what_the_code_prints() {
    let page = std::fs::read_to_string(root().join("docs/errors.md")).expect("docs/errors.md");
    let printed = std::process::Command::new(env!("CARGO_BIN_EXE_quipu")).args(["docs", "errors"]).output();
    let printed = String::from_utf8(printed.expect("the program runs").stdout).expect("text");
    assert!(page == printed, "run: cargo xtask docs");
}

#[test]
fn the_page_of_commands_is_what_the_code_prints() {
    let page = std::fs::read_to_string(root().join("docs/commands.md")).expect("docs/commands.md");
    let printed = std::process::Command::new(env!("CARGO_BIN_EXE_quipu")).args(["docs", "commands"]).output();
    let printed = String::from_utf8(printed.expect("the program runs").stdout).expect("text");
    assert!(page == printed, "run: cargo xtask docs");
}

/// The anchors of a page's headings, as the usual renderers of Markdown make them.
fn anchors(page: &str) -> Vec<String> {
    let headings = page
        .lines()
        .filter_map(|line| line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#')));
    let letter = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    headings.map(|text| text.to_lowercase().chars().filter(letter).collect::<String>().replace(' ', "-")).collect()
}

#[test]
fn links_within_and_between_the_printed_pages_lead_to_a_heading() {
    for file in ["docs/commands.md", "docs/errors.md"] {
        let page = std::fs::read_to_string(root().join(file)).expect(file);
        let links: Vec<&str> = page.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
        assert!(links.len() > 100, "only {} links were found in {file}", links.len());
        for link in links {
            let (target, anchor) = link.split_once('#').map_or((link, None), |(target, anchor)| (target, Some(anchor)));
            let target = if target.is_empty() { file.to_owned() } else { format!("docs/{target}") };
            let text = std::fs::read_to_string(root().join(&target)).expect(&target);
            assert!(
                anchor.is_none_or(|anchor| anchors(&text).iter().any(|known| known == anchor)),
                "{file} links to {link}"
            );
        }
    }
}
