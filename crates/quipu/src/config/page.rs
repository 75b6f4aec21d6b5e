//! Prints `docs/configuration.md` from the tables of settings.

use std::fmt::Write;

use quipu_model::{NAMESPACE_BYTES_MAX, NAMESPACE_KEYS, NAMESPACES_MAX};

use super::settings::SETTINGS;

const HEAD: &str = "\
# Configuration

This page is printed from the code by `cargo xtask docs`.

`quipu serve --config quipu.toml` reads a file. Every server setting is a key of that file, a flag
and an environment variable. A flag overrides a variable, a variable the file, the file the default.

- A variable that begins with `QUIPU_` and is no setting is a mistake. The server ignores the
  variables with which Kubernetes describes services.
- Nothing starts with a mistake: `serve` and `config check` report every mistake with its line.
- `quipu config check` prints the effective value of each setting and its origin.

## `[server]`

| key | flag | variable | default | meaning |
|---|---|---|---|---|
";

/// The whole page.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    for setting in SETTINGS {
        let (key, flag, variable) = (setting.key, setting.flag(), setting.variable());
        let default = match setting.key {
            // This default depends on the machine.
            "workers" => "the number of cores".to_owned(),
            _ => setting.default_text().map_or_else(|| "none".to_owned(), |text| format!("`{text}`")),
        };
        let _ = writeln!(page, "| `{key}` | `--{flag}` | `{variable}` | {default} | {} |", setting.help);
    }
    let _ = write!(
        page,
        "\n## `[namespace.<name>]`

The namespace of a counter is the part of its name before the first `:`; names without one are in
`default`. A key that a namespace does not set has the server's value, or else the default.

- `PUT /v1/namespaces/<name>` sets the same keys at run time.
- `GET /v1/namespaces/<name>` and `GET /v1/namespaces` show each value with its origin.
- A name has at most {NAMESPACE_BYTES_MAX} bytes. A file may configure up to {NAMESPACES_MAX} namespaces,
  and the run-time settings up to {NAMESPACES_MAX} more.

| key | JSON and TOML | default | meaning |
|---|---|---|---|
"
    );
    for key in NAMESPACE_KEYS {
        let is_setting = SETTINGS.iter().any(|setting| setting.key == key.key);
        let default = match (is_setting, key.default) {
            (true, _) => format!("`[server] {}`", key.key),
            (false, "") => "none".to_owned(),
            (false, default) => format!("`{default}`"),
        };
        let _ = writeln!(page, "| `{}` | {} | {default} | {} |", key.key, key.form.expected(), key.help);
    }
    page.push_str(TAIL);
    page
}

const TAIL: &str = "
A run-time setting overrides the file, for the keys that it names.

- A `PUT` replaces all earlier run-time settings of its namespace. A key that it leaves out, or sets
  to `null`, has the file's value again; `{}` removes all run-time settings.
- The settings are in force and durable before the reply.
- After a mistake the reply names every mistake, and nothing changes.
- Run-time settings outlive restarts and `FLUSHALL`.

```sh
curl -X PUT localhost:7380/v1/namespaces/views -d '{\"durability\": \"relaxed\", \"ttl\": \"24h\"}'
```
";
