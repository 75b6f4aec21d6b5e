//! `docs/configuration.md`, from the tables of settings.

use std::fmt::Write;

use quipu_model::{NAMESPACE_BYTES_MAX, NAMESPACE_KEYS, NAMESPACES_MAX};

use super::settings::SETTINGS;

const HEAD: &str = "\
# Configuration

This page is printed from the code: `quipu docs configuration > docs/configuration.md`.

`quipu serve --config quipu.toml` reads a file; every setting of the server is also a flag and a variable. A flag goes before a variable, a variable before the file, the
file before the default. A variable that begins with `QUIPU_` and is no setting is a mistake; those by which Kubernetes describes services are ignored.
Nothing starts with a mistake: `serve` and `config check` tell every one, with its line. `quipu config check` prints what is in force and where each value came from.

## `[server]`

| key | flag | variable | default | what it is |
|---|---|---|---|---|
";

/// The whole page.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    for setting in SETTINGS {
        let (key, flag, variable) = (setting.key, setting.flag(), setting.variable());
        let default = match setting.key {
            // Those are what the machine has.
            "workers" => "as many as there are cores".to_owned(),
            _ => setting.default_text().map_or_else(|| "none".to_owned(), |text| format!("`{text}`")),
        };
        let _ = writeln!(page, "| `{key}` | `--{flag}` | `{variable}` | {default} | {} |", setting.help);
    }
    let _ = write!(
        page,
        "\n## `[namespace.<name>]`

The namespace of a counter is the part of its name before the first `:`; names without one are in `default`. What a namespace leaves open is as the server says, or
the default. The same keys are set at run time with `PUT /v1/namespaces/<name>`, and shown with `GET /v1/namespaces/<name>` and `GET /v1/namespaces`, each with where it
came from. A name has at most {NAMESPACE_BYTES_MAX} bytes; a file may say something of {NAMESPACES_MAX} namespaces, and as much may be said at run time.

| key | JSON and TOML | default | what it is |
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
What is put at run time goes before the file, for the keys that it names. A `PUT` replaces all that was put of that namespace before: a key that it leaves out, or that is `null`, is
as the file says again, and `{}` takes everything back. It is in force, and durable, when it is answered; with a mistake in it, all are named and nothing is changed. It outlives restarts,
and `FLUSHALL`.

```sh
curl -X PUT localhost:7380/v1/namespaces/views -d '{\"durability\": \"relaxed\", \"ttl\": \"24h\"}'
```
";
