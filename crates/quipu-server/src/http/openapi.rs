//! Serves `GET /openapi.json`: the table of routes as OpenAPI 3.1.
//!
//! In: `routes::ROUTES` and the schemas below. Out: one document, the same for every request.

use axum::response::Response;
use quipu_model::{Kind, NAMESPACE_KEYS, NamespaceKey, ProblemType, ValueForm};
use serde_json::{Map, Value, json};

use super::counters::json_response;
use super::problem::TYPE_PREFIX;
use super::reason;
use super::routes::{BodyContent, Parameter, ROUTES, Route};

/// Problem types of every route.
const EVERYWHERE: &[&ProblemType] =
    &[reason::BAD_HOST, reason::BAD_QUERY, reason::UNAUTHORIZED, reason::CROSS_ORIGIN, reason::MISDIRECTED];

/// `GET /openapi.json`
pub(super) async fn openapi() -> Response {
    json_response(page().into_bytes())
}

/// Generates the whole document as text.
pub fn page() -> String {
    let mut page = serde_json::to_string_pretty(&document()).expect("a document of plain values can be written");
    page.push('\n');
    page
}

fn document() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.to_ascii_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Quipu",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "A counter server that loses nothing and counts nothing twice.",
            "description": "A success means that the operation is as durable as its namespace asks. A problem means that nothing was applied. No reply means outcome unknown: applied once or not at all. Whole numbers beyond 2^53 are strings, and every total has its string form beside it.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {
                "password": {"type": "http", "scheme": "bearer", "description": "The password of the server, if it has one."},
            },
        },
    })
}

fn operation(route: &Route) -> Value {
    let mut operation = json!({
        "operationId": route.operation,
        "summary": route.summary,
        "responses": responses(route),
        // Either alternative suffices: a server without a password requires none.
        "security": if route.public { json!([]) } else { json!([{}, {"password": []}]) },
    });
    if !route.description.is_empty() {
        operation["description"] = route.description.into();
    }
    if !route.parameters.is_empty() {
        operation["parameters"] = route.parameters.iter().map(parameter).collect();
    }
    if !route.body.is_empty() {
        operation["requestBody"] =
            json!({"required": matches!(route.operation, "batch" | "put_namespace"), "content": contents(route.body)});
    }
    operation
}

fn responses(route: &Route) -> Value {
    let mut responses = Map::new();
    responses.insert(route.status.to_string(), json!({"description": route.summary, "content": contents(route.reply)}));
    if let Some(status) = route.status_empty {
        responses.insert(status.to_string(), json!({"description": "Done, without a body"}));
    }
    let reasons = || EVERYWHERE.iter().chain(route.problems);
    for reason in reasons() {
        let status = reason.status.to_string();
        if responses.contains_key(&status) {
            continue;
        }
        let same: Vec<&ProblemType> = reasons().copied().filter(|other| other.status == reason.status).collect();
        let titles: Vec<&str> = same.iter().map(|reason| reason.title).collect();
        let examples: Map<String, Value> = same.iter().map(|reason| (reason.word.into(), example(reason))).collect();
        let content = json!({"schema": reference("Problem"), "examples": examples});
        let mut response = json!({"description": titles.join("; "), "content": {"application/problem+json": content}});
        if reason.retry_after > 0 {
            let schema = json!({"type": "integer", "minimum": 1});
            response["headers"] = json!({"Retry-After": {"description": "Seconds to the next try", "schema": schema}});
        }
        responses.insert(status, response);
    }
    responses.insert(
        "default".into(),
        json!({
            "description": "Any other problem; nothing was applied",
            "content": {"application/problem+json": {"schema": reference("Problem")}},
        }),
    );
    responses.into()
}

fn example(reason: &ProblemType) -> Value {
    let (kind, title) = (format!("{TYPE_PREFIX}{}", reason.word), reason.title);
    json!({"value": {"type": kind, "title": title, "status": reason.status, "detail": "the cause in this request"}})
}

fn parameter(parameter: &Parameter) -> Value {
    let Parameter { name, location, description, schema, example } = parameter;
    json!({
        "name": name,
        "in": location,
        "required": *location == "path",
        "description": description,
        "schema": parse_json(schema),
        "example": parse_json(example),
    })
}

fn contents(contents: &[BodyContent]) -> Value {
    let content = |content: &BodyContent| match content.schema {
        Some(schema) => json!({"schema": reference(schema), "example": parse_json(content.example)}),
        None => json!({"schema": {"type": "string"}, "example": content.example}),
    };
    contents.iter().map(|each| (each.media.to_owned(), content(each))).collect::<Map<_, _>>().into()
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

fn parse_json(text: &str) -> Value {
    serde_json::from_str(text).expect("examples and schemas of the table are JSON")
}

/// Schemas of all bodies.
fn schemas() -> Value {
    let total = json!({
        "description": "A whole number; beyond 2^53 a string of its digits.",
        "oneOf": [
            {"type": "integer", "minimum": -(1_i64 << 53), "maximum": 1_i64 << 53},
            {"type": "string", "pattern": "^-?[0-9]{16,19}$"},
        ],
    });
    let text = json!({"type": "string", "pattern": "^-?[0-9]{1,19}$"});
    let name = json!({"type": "string", "description": "The name. If it is not text, it has replacement characters here and is whole in name_encoded."});
    let encoded = json!({"type": "string", "description": "The name as in a path; only for a name that is not text."});
    let kinds = json!({"type": "string", "enum": Kind::ALL.map(Kind::name)});
    let sorts = json!({"type": "string", "enum": Kind::ALL.into_iter().filter(|kind| *kind != Kind::Count).map(Kind::name).collect::<Vec<_>>()});
    let item = json!({"type": "string", "description": "The item. If it is not text, it has replacement characters here and its encoded form beside it."});
    let coverage = object(&["seen", "total"], json!({"seen": {"type": "integer"}, "total": {"type": "integer"}}));
    let time = json!({"type": "string", "format": "date-time"});
    let delta = json!({
        "description": "A whole number of 64 bits, also as a string. With a point or an exponent it is at most 2^53; beyond that, write all digits.",
        "oneOf": [
            {"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX},
            {"type": "string", "pattern": "^-?[0-9]{1,18}$"},
        ],
        "default": 1,
    });
    let token = json!({"type": ["string", "null"], "minLength": 1, "maxLength": 100, "description": "Token of this mutation; a retry under the same token is not applied again. It has the meaning of the header Idempotency-Key."});
    let producer = json!({"type": ["string", "null"], "maxLength": 100, "description": "Producer of the token, or of the number in seq."});
    let seq = json!({"type": ["integer", "null"], "minimum": 1, "description": "The number of this mutation; its producer numbers its mutations from 1."});
    let shard_key = json!({"type": ["string", "null"], "description": "Key that picks the shard, in a namespace with pick = 'hash'."});
    let counted = json!({"name": name, "name_encoded": encoded, "value": total, "value_string": text});
    let with = |more: Value| {
        let mut properties = counted.clone();
        let more = more.as_object().cloned().unwrap_or_default();
        properties.as_object_mut().expect("it is an object").extend(more);
        properties
    };
    json!({
        "Add": closed(&[], json!({"delta": delta, "shard_key": shard_key, "token": token, "producer": producer, "seq": seq})),
        "Mutation": closed(&[], json!({"token": token, "producer": producer, "seq": seq})),
        "Hot": object(&["since", "sample", "writes", "writes_enough", "reads", "reads_enough", "note"], json!({
            "since": time,
            "sample": {"type": "integer", "description": "Number of commands per sampled command."},
            "writes": {"type": "array", "items": reference("HotName")},
            "writes_enough": {"type": "boolean", "description": "True with enough samples of writes for a reliable list."},
            "reads": {"type": "array", "items": reference("HotName")},
            "reads_enough": {"type": "boolean", "description": "True with enough samples of reads for a reliable list."},
            "note": {"type": ["string", "null"], "description": "Names the lists with too few samples; null if both have enough."},
        })),
        "HotName": object(&["name", "about", "at_least", "at_most"], json!({
            "name": name, "name_encoded": encoded,
            "about": {"type": "integer", "description": "The estimate: samples times sample."},
            "at_least": {"type": "integer", "description": "Lower bound, at 95 % confidence."},
            "at_most": {"type": "integer", "description": "Upper bound, at 95 % confidence."},
        })),
        "Observe": closed(&["items"], json!({
            "items": {
                "type": "array",
                "maxItems": quipu_protocol::json::OBSERVE_ITEMS_MAX,
                "items": {"oneOf": [{"type": "string"}, closed(&["item"], json!({"item": {"type": "string"}, "count": {"type": "integer", "minimum": 0, "maximum": 1_000_000_000, "default": 1}}))]},
                "description": format!("The observed items. A count beside an item is for frequencies and tops, which take at most {} items at once.", quipu_protocol::json::COUNTED_ITEMS_MAX),
            },
            "kind": {"oneOf": [{"type": "null"}, sorts], "description": "Kind that the counter has, or gets if it does not exist."},
            "at": {"type": ["integer", "null"], "minimum": 0, "maximum": 1_i64 << 53, "description": "Time of the observation, in milliseconds since 1970; without it, now. In a window the items go to the pane of that time; late items are not counted."},
            "token": token, "producer": producer, "seq": seq,
        })),
        "Observed": object(&["name", "kind"], json!({
            "name": name, "name_encoded": encoded, "kind": sorts,
            "changed": {"type": "boolean", "description": "Of a unique: true if the estimate has changed."},
            "items": {"type": "array", "description": "Of a frequency: the greatest possible count of each item.", "items": object(&["item", "at_most", "at_most_string"], json!({"item": item, "item_encoded": encoded, "at_most": total, "at_most_string": text}))},
            "expelled": {"type": "array", "description": "Of a top: the items that have left the list.", "items": object(&["item"], json!({"item": item, "item_encoded": encoded}))},
        })),
        "Frequencies": object(&["name", "kind", "total", "total_string", "error", "error_string", "items"], json!({
            "name": name, "name_encoded": encoded, "kind": {"type": "string", "enum": ["frequency"]},
            "total": total, "total_string": text, "error": total, "error_string": text,
            "items": {"type": "array", "items": object(&["item", "at_most", "at_most_string", "typical", "typical_string"], json!({
                "item": item, "item_encoded": encoded, "at_most": total, "at_most_string": text, "typical": total, "typical_string": text,
            }))},
        })),
        "Top": object(&["name", "kind", "rows"], json!({
            "name": name, "name_encoded": encoded, "kind": {"type": "string", "enum": ["top"]},
            "rows": {"type": "array", "items": object(&["key", "at_most", "at_most_string", "at_least", "at_least_string", "certain"], json!({
                "key": item, "key_encoded": encoded, "at_most": total, "at_most_string": text, "at_least": total, "at_least_string": text, "certain": {"type": "boolean"},
            }))},
        })),
        "Uniques": object(&["name", "kind", "value", "value_string", "exact", "bound", "display"], with(json!({
            "kind": {"type": "string", "enum": ["unique"]},
            "exact": {"type": "boolean"},
            "bound": object(&["low", "low_string", "high", "high_string"], json!({"low": total, "low_string": text, "high": total, "high_string": text})),
            "display": {"type": "string"},
        }))),
        "Added": object(&["name", "value", "value_string"], counted.clone()),
        "Reading": object(
            &["name", "kind", "value", "value_string", "exists", "exact", "as_of", "lag_ms", "bound", "shards", "writers", "expires_at", "display"],
            with(json!({
                "kind": kinds,
                "exists": {"type": "boolean"},
                "exact": {"type": "boolean", "description": "True if the value includes every operation acknowledged before the read began. Always false for approximate kinds and for sampled counts."},
                "as_of": time,
                "lag_ms": {"type": ["integer", "null"], "description": "Age of the known values of other nodes, in milliseconds; null if none are known."},
                "error": {"description": "Of frequencies and tops: greatest excess of one item's count.", "oneOf": total["oneOf"]},
                "sampled": object(&["rate", "deviation"], json!({
                    "rate": {"type": "integer", "description": "Events per counted event, at most."},
                    "deviation": {"description": "Standard deviation of the value, at most.", "oneOf": total["oneOf"]},
                })),
                "window": object(&["from", "to", "panes", "late"], json!({
                    "from": time, "to": time,
                    "panes": {"type": "integer", "description": "Number of panes with events."},
                    "late": {"type": "integer", "description": "Number of events that ever came too late to be counted."},
                })),
                "bound": {"description": "Bounds of the true value. They always hold, except for uniques (95 of 100 cases) and sampled counts (99 of 100 cases). null: unknown.", "oneOf": [{"type": "null"}, object(&["low", "high"], json!({"low": total, "high": total}))]},
                "shards": coverage,
                "writers": coverage,
                "expires_at": {"oneOf": [{"type": "null"}, time]},
                "display": {"type": "string", "description": "Short form for people, such as 1.2M."},
            })),
        ),
        "Reset": object(
            &["name", "value", "value_string", "before", "before_string"],
            with(json!({"before": total, "before_string": text})),
        ),
        "Deleted": object(&["name", "deleted"], json!({"name": name, "name_encoded": encoded, "deleted": {"type": "boolean"}})),
        "List": object(&["counters", "cursor"], json!({
            "counters": {"type": "array", "items": object(&["name", "kind", "value", "value_string"], with(json!({"kind": kinds})))},
            "cursor": {"type": ["string", "null"], "description": "Start of the next page; null on the last page."},
        })),
        "Batch": {
            "type": "array",
            "description": format!("At most {} items; more are refused with 413.", super::batch::BATCH_ITEMS_MAX),
            "items": reference("Item"),
        },
        "Item": closed(&[], json!({
            "op": {"type": "string", "enum": ["add", "read", "reset", "delete"], "default": "add"},
            "name": {"type": "string", "maxLength": 512},
            "name_encoded": encoded,
            "delta": delta,
            "shard_key": shard_key,
            "token": token,
            "producer": producer,
            "seq": seq,
        })),
        "Results": {"type": "array", "items": object(&["status"], json!({"status": {"type": "integer"}}))},
        "Problem": object(&["type", "title", "status", "detail"], json!({
            "type": {"type": "string", "enum": reason::all().map(|reason| format!("{TYPE_PREFIX}{}", reason.word)).collect::<Vec<_>>()},
            "title": {"type": "string"},
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "detail": {"type": "string"},
            "errors": {"type": "array", "description": "Every mistake, for requests that may have several.", "items": object(&["detail"], json!({"detail": {"type": "string"}, "pointer": {"type": "string"}}))},
        })),
        "Settings": settings(),
        "Namespace": namespace(&name, &encoded),
        "Namespaces": object(&["namespaces"], json!({"namespaces": {"type": "array", "items": reference("Namespace")}})),
        "Description": {"type": "object"},
    })
}

/// Schema of a namespace's settings.
fn settings() -> Value {
    let property = |key: &NamespaceKey| {
        let mut schema = match key.form {
            ValueForm::Time => json!({"type": ["string", "null"], "pattern": "^[0-9]{1,9}(ms|s|m|h)$"}),
            ValueForm::NumberOrAuto => {
                json!({"oneOf": [{"type": "null"}, {"type": "integer", "minimum": 1}, {"type": "string", "enum": ["auto"]}]})
            }
            ValueForm::Number => json!({"type": ["integer", "null"], "minimum": 1}),
            ValueForm::Text | ValueForm::Size | ValueForm::Switch => json!({"type": ["string", "null"]}),
        };
        schema["description"] = key.help.into();
        (key.key.to_owned(), schema)
    };
    closed(&[], NAMESPACE_KEYS.iter().map(property).collect::<Map<_, _>>().into())
}

/// Schema of the settings in force in a namespace.
fn namespace(name: &Value, encoded: &Value) -> Value {
    let setting = object(
        &["value", "from"],
        json!({
            "value": {"type": ["string", "integer", "null"], "description": "The value in force; null if there is none."},
            "from": {"type": "string", "description": "Origin of the value: a file and its line, a variable, a flag, 'default', or 'run time at' a time."},
        }),
    );
    let keys: Map<String, Value> = NAMESPACE_KEYS.iter().map(|key| (key.key.to_owned(), setting.clone())).collect();
    object(
        &["name", "settings", "put", "put_at"],
        json!({
            "name": name,
            "name_encoded": encoded,
            "settings": {"type": "object", "properties": keys},
            "put": {"description": "The run-time settings.", "$ref": "#/components/schemas/Settings"},
            "put_at": {"description": "Time of the request that put them.", "oneOf": [{"type": "null"}, {"type": "string", "format": "date-time"}]},
        }),
    )
}

fn object(required: &[&str], properties: Value) -> Value {
    json!({"type": "object", "required": required, "properties": properties})
}

/// Schema of an object without other keys.
fn closed(required: &[&str], properties: Value) -> Value {
    let mut object = object(required, properties);
    object["additionalProperties"] = false.into();
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_referred_to_is_there() {
        fn references(value: &Value, found: &mut Vec<String>) {
            match value {
                Value::Object(map) => {
                    found.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
                    map.values().for_each(|value| references(value, found));
                }
                Value::Array(values) => values.iter().for_each(|value| references(value, found)),
                _ => {}
            }
        }
        let (document, mut found) = (document(), Vec::new());
        references(&document, &mut found);
        assert!(found.len() > 20);
        for reference in found {
            let pointer = reference.strip_prefix('#').expect("a reference within the document");
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }

    #[test]
    fn an_operation_is_named_once_and_names_its_parameters() {
        let mut names: Vec<&str> = ROUTES.iter().map(|route| route.operation).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ROUTES.len());
        for route in ROUTES {
            let in_path = route.parameters.iter().any(|parameter| parameter.location == "path");
            assert_eq!(route.path.contains("{name}"), in_path, "{}", route.path);
        }
    }
}
