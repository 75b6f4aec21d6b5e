//! Defines every route once: its path, its handler, and its description in `/openapi.json`.
//!
//! Invariant: the router, the `Allow` of a 405, the list of public routes and the documentation
//! come from this table only.

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderValue, Uri};
use axum::routing::{MethodRouter, delete, get, post, put};
use quipu_model::ProblemType;

use super::problem::Problem;
use super::reason;
use super::{
    HttpState, batch, counters, health, hot_keys, items, metrics, namespaces, observe, openapi, uniques, watch,
};

/// A route.
pub(super) struct Route {
    pub method: &'static str,
    pub path: &'static str,
    /// Name of the operation, also in metrics.
    pub operation: &'static str,
    pub summary: &'static str,
    pub description: &'static str,
    /// Served without the password.
    pub public: bool,
    pub parameters: &'static [Parameter],
    /// Body formats, if the route takes a body.
    pub body: &'static [BodyContent],
    pub status: u16,
    pub reply: &'static [BodyContent],
    /// Status of a success without a body, if there is one.
    pub status_empty: Option<u16>,
    /// Problem types beside those of every route.
    pub problems: &'static [&'static ProblemType],
    pub handler: fn() -> MethodRouter<Arc<HttpState>>,
}

/// Part of a path or a query.
pub(super) struct Parameter {
    pub name: &'static str,
    pub location: &'static str,
    pub description: &'static str,
    /// As JSON.
    pub schema: &'static str,
    /// As JSON.
    pub example: &'static str,
}

/// A body: its media type, its schema, and an example.
pub(super) struct BodyContent {
    pub media: &'static str,
    /// Name of a schema in `openapi`; `None` for plain text.
    pub schema: Option<&'static str>,
    /// As JSON, or as plain text where the type is not JSON.
    pub example: &'static str,
}

const JSON: &str = "application/json";

const NAME: Parameter = Parameter {
    name: "name",
    location: "path",
    description: "The counter. Any bytes, percent-encoded, 512 at most; the part before the first ':' is its namespace.",
    schema: r#"{"type": "string", "minLength": 1, "maxLength": 512}"#,
    example: r#""likes:42""#,
};

const UNIQUE_NAME: Parameter = Parameter { example: r#""visitors:today""#, ..NAME };

const FREQUENCY_NAME: Parameter = Parameter { example: r#""searches:words""#, ..NAME };

const TOP_NAME: Parameter = Parameter { example: r#""pages:top""#, ..NAME };

const TOKEN: Parameter = Parameter {
    name: "Idempotency-Key",
    location: "header",
    description: "What the client calls this mutation: sent again under the same name, it is answered as the first time and not applied again; another one under that name is refused with 422. One that carries its time (a UUID of version 7, or <milliseconds>-<nonce>) is refused when that is over.",
    schema: r#"{"type": "string", "minLength": 1, "maxLength": 100}"#,
    example: r#""order-1017""#,
};

const NAMESPACE: Parameter = Parameter {
    name: "name",
    location: "path",
    description: "The namespace: what stands before the first ':' in the names of its counters, 'default' if there is none. Any bytes but that, percent-encoded, 128 at most.",
    schema: r#"{"type": "string", "minLength": 1, "maxLength": 128}"#,
    example: r#""likes""#,
};

const NAMESPACE_SHOWN: &str = r#"{"name": "likes", "settings": {"durability": {"value": "relaxed", "from": "run time at 2026-11-16T11:05:39.123Z"}, "ttl": {"value": null, "from": "default"}, "token_window": {"value": "24h", "from": "quipu.toml:3"}}, "put": {"durability": "relaxed"}, "put_at": "2026-11-16T11:05:39.123Z"}"#;

const ADDED: &str = r#"{"name": "likes:42", "value": 43, "value_string": "43"}"#;

const READING: &str = r#"{"name": "likes:42", "kind": "count", "value": 43, "value_string": "43", "exists": true, "exact": true, "as_of": "2026-11-16T11:05:39.123Z", "lag_ms": 0, "bound": {"low": 43, "high": 43}, "shards": {"seen": 1, "total": 1}, "writers": {"seen": 1, "total": 1}, "expires_at": null, "display": "43"}"#;

const MUTATION: &[BodyContent] = &[BodyContent { media: JSON, schema: Some("Mutation"), example: "{}" }];

/// Problem types of mutations.
const WRITES: &[&ProblemType] = &[
    reason::BAD_PATH,
    reason::BAD_BODY,
    reason::BODY_TIMEOUT,
    reason::BODY_TOO_LARGE,
    reason::OVERFLOW,
    reason::WRONG_KIND,
    reason::TOO_MUCH,
    reason::TOO_WIDE,
    reason::TOO_MANY_COUNTERS,
    reason::ONE_OWNER,
    reason::NO_SHARD_KEY,
    reason::TOKEN_IN_USE,
    reason::TOKEN_SPENT,
    reason::TOKEN_MISMATCH,
    reason::TOKEN_TOO_OLD,
    reason::TOKEN_FROM_FUTURE,
    reason::BAD_TOKEN,
    reason::SEQUENCE_GAP,
    reason::SEQUENCE_APPLIED,
    reason::TOKENS_FULL,
    reason::AT_REST,
    reason::NO_ROOM,
    reason::BEHIND,
    reason::STORE_DOWN,
    reason::FENCED,
    reason::NO_MEMORY,
];

/// Problem types of reads.
const READS: &[&ProblemType] = &[
    reason::BAD_PATH,
    reason::WRONG_KIND,
    reason::TOO_MUCH,
    reason::TOO_WIDE,
    reason::AT_REST,
    reason::NO_MEMORY,
    reason::STORE_DOWN,
    reason::FENCED,
];

/// Default values of a route.
const PLAIN: Route = Route {
    method: "GET",
    path: "/",
    operation: "",
    summary: "",
    description: "",
    public: false,
    parameters: &[],
    body: &[],
    status: 200,
    reply: &[],
    status_empty: None,
    problems: &[],
    handler: MethodRouter::new,
};

/// All routes.
pub(super) const ROUTES: &[Route] = &[
    Route {
        method: "POST",
        path: "/v1/counters/{name}/add",
        operation: "add",
        summary: "Adds to a counter",
        description: "Creates it at 0 first if it does not exist. The reply is sent when the add is as durable as the namespace asks, and has the value after it.",
        parameters: &[
            NAME,
            TOKEN,
            Parameter {
                name: "reply",
                location: "query",
                description: "'none': there is nothing to tell, and the reply is 204; it means the same.",
                schema: r#"{"type": "string", "enum": ["none"]}"#,
                example: r#""none""#,
            },
        ],
        body: &[BodyContent { media: JSON, schema: Some("Add"), example: r#"{"delta": 1}"# }],
        reply: &[BodyContent { media: JSON, schema: Some("Added"), example: ADDED }],
        status_empty: Some(204),
        problems: WRITES,
        handler: || post(counters::add),
        ..PLAIN
    },
    Route {
        path: "/v1/counters/{name}",
        operation: "read",
        summary: "Reads a counter",
        description: "A value, and how far to trust it. A counter that does not exist reads as 0. Of different items it is the estimate, of frequencies and tops how much came in all; error then says by how much what is told of one item may be too high.",
        parameters: &[
            NAME,
            Parameter {
                name: "freshness",
                location: "query",
                description: "On a shared store: how old what is known of other nodes may be. 'cached', 'fresh', or a time up to an hour.",
                schema: r#"{"type": "string", "pattern": "^(cached|fresh|[0-9]{1,3}ms)$"}"#,
                example: r#""500ms""#,
            },
        ],
        reply: &[BodyContent { media: JSON, schema: Some("Reading"), example: READING }],
        problems: READS,
        handler: || get(counters::read),
        ..PLAIN
    },
    Route {
        method: "POST",
        path: "/v1/counters/{name}/reset",
        operation: "reset",
        summary: "Sets a counter to 0",
        description: "The reply has what it had before: every add is in that value or comes after it.",
        parameters: &[NAME, TOKEN],
        body: MUTATION,
        reply: &[BodyContent {
            media: JSON,
            schema: Some("Reset"),
            example: r#"{"name": "likes:42", "value": 0, "value_string": "0", "before": 43, "before_string": "43"}"#,
        }],
        problems: WRITES,
        handler: || post(counters::reset),
        ..PLAIN
    },
    Route {
        method: "DELETE",
        path: "/v1/counters/{name}",
        operation: "delete",
        summary: "Deletes a counter",
        description: "One that does not exist is no error; the reply says whether it did.",
        parameters: &[NAME, TOKEN],
        reply: &[BodyContent {
            media: JSON,
            schema: Some("Deleted"),
            example: r#"{"name": "likes:42", "deleted": true}"#,
        }],
        problems: WRITES,
        handler: || delete(counters::delete),
        ..PLAIN
    },
    Route {
        method: "POST",
        path: "/v1/counters/{name}/observe",
        operation: "observe",
        summary: "Notes items as seen by a counter of an approximate kind",
        description: "Creates it if it does not exist: of the kind that the body names, or else the one that the namespace is for, or else a counter of different items. To such a one an item that was seen before changes nothing, so this may be sent again without harm; the reply says whether the estimate has changed. Frequencies and tops count each item as often as it says; the reply has the most that each may have come to, or the items that have left the list. All items are counted or none is.",
        parameters: &[UNIQUE_NAME, TOKEN],
        body: &[BodyContent {
            media: JSON,
            schema: Some("Observe"),
            example: r#"{"items": ["visitor-17", "visitor-18"]}"#,
        }],
        reply: &[BodyContent {
            media: JSON,
            schema: Some("Observed"),
            example: r#"{"name": "visitors:today", "kind": "unique", "changed": true}"#,
        }],
        problems: WRITES,
        handler: || post(observe::observe),
        ..PLAIN
    },
    Route {
        path: "/v1/counters/{name}/uniques",
        operation: "uniques",
        summary: "Reads how many different items a counter has seen",
        description: "An estimate, and what it lies between in 95 of 100 cases. With others: how many any of them has seen. One that does not exist has seen none.",
        parameters: &[
            UNIQUE_NAME,
            Parameter {
                name: "with",
                location: "query",
                description: "Other counters, with commas between them; 63 at most. A name with a comma or a percent sign in it is percent-encoded for itself, before the whole is.",
                schema: r#"{"type": "string", "maxLength": 128}"#,
                example: r#""visitors:yesterday""#,
            },
        ],
        reply: &[BodyContent {
            media: JSON,
            schema: Some("Uniques"),
            example: r#"{"name": "visitors:today", "kind": "unique", "value": 1017, "value_string": "1017", "exact": false, "bound": {"low": 1002, "low_string": "1002", "high": 1032, "high_string": "1032"}, "display": "1K"}"#,
        }],
        problems: READS,
        handler: || get(uniques::uniques),
        ..PLAIN
    },
    Route {
        path: "/v1/counters/{name}/frequency",
        operation: "frequency",
        summary: "Reads how often items came",
        description: "Of each item, not more often than at_most, and most likely typical; nearly always at_most is too high by error at most. Total is how much came in all. To one that does not exist nothing has come.",
        parameters: &[
            FREQUENCY_NAME,
            Parameter {
                name: "item",
                location: "query",
                description: "The item; given once for each, 64 times at most.",
                schema: r#"{"type": "string", "maxLength": 128}"#,
                example: r#""quipu""#,
            },
        ],
        reply: &[BodyContent {
            media: JSON,
            schema: Some("Frequencies"),
            example: r#"{"name": "searches:words", "kind": "frequency", "total": 1017, "total_string": "1017", "error": 1, "error_string": "1", "items": [{"item": "quipu", "at_most": 43, "at_most_string": "43", "typical": 43, "typical_string": "43"}]}"#,
        }],
        problems: READS,
        handler: || get(items::frequency),
        ..PLAIN
    },
    Route {
        path: "/v1/counters/{name}/top",
        operation: "top",
        summary: "Reads which items came most often",
        description: "The most frequent first. Each came at_least so often and at_most so often; certain says that nothing outside the list came more often. Of one that does not exist the list is empty.",
        parameters: &[
            TOP_NAME,
            Parameter {
                name: "k",
                location: "query",
                description: "Rows, of those that the counter keeps.",
                schema: r#"{"type": "integer", "minimum": 1, "maximum": 10000, "default": 10}"#,
                example: "10",
            },
        ],
        reply: &[BodyContent {
            media: JSON,
            schema: Some("Top"),
            example: r#"{"name": "pages:top", "kind": "top", "rows": [{"key": "/", "at_most": 43, "at_most_string": "43", "at_least": 43, "at_least_string": "43", "certain": true}]}"#,
        }],
        problems: READS,
        handler: || get(items::top),
        ..PLAIN
    },
    Route {
        path: "/v1/counters",
        operation: "list",
        summary: "Lists counters, a page at a time",
        description: "In no particular order, each with its value, or what stands for it where the kind is approximate. A counter that exists from the first page to the last is listed at least once. A page may be short, or empty, and yet have a cursor: the list is over when the cursor is null.",
        parameters: &[
            Parameter {
                name: "prefix",
                location: "query",
                description: "Only names that begin so. Percent-encoded bytes.",
                schema: r#"{"type": "string", "maxLength": 255}"#,
                example: r#""likes:""#,
            },
            Parameter {
                name: "cursor",
                location: "query",
                description: "What the last page said; left out for the first.",
                schema: r#"{"type": "string", "pattern": "^[0-9]{1,19}$"}"#,
                example: r#""0""#,
            },
            Parameter {
                name: "limit",
                location: "query",
                description: "About how many.",
                schema: r#"{"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}"#,
                example: "100",
            },
        ],
        reply: &[BodyContent {
            media: JSON,
            schema: Some("List"),
            example: r#"{"counters": [{"name": "likes:42", "kind": "count", "value": 43, "value_string": "43"}], "cursor": null}"#,
        }],
        problems: READS,
        handler: || get(counters::list),
        ..PLAIN
    },
    Route {
        path: "/v1/hot",
        operation: "hot",
        summary: "Which counters are asked for most often",
        description: "Reads and writes apart, of the last one to two minutes. One command in 64 is sampled: about is 64 times the samples, and the true count lies between at_least and at_most with a probability of 95 %. With fewer than 100 samples a list is not enough to tell, and note says so.",
        parameters: &[Parameter {
            name: "count",
            location: "query",
            description: "Counters of each list.",
            schema: r#"{"type": "integer", "minimum": 1, "maximum": 100, "default": 10}"#,
            example: "10",
        }],
        reply: &[BodyContent {
            media: JSON,
            schema: Some("Hot"),
            example: r#"{"since": "2026-11-16T11:05:39.123Z", "sample": 64, "writes": [{"name": "likes:42", "about": 12800, "at_least": 11114, "at_most": 14736}], "writes_enough": true, "reads": [], "reads_enough": false, "note": "too little traffic to tell hot reads: fewer than 100 were sampled"}"#,
        }],
        handler: || get(hot_keys::hot_keys),
        ..PLAIN
    },
    Route {
        method: "POST",
        path: "/v1/batch",
        operation: "batch",
        summary: "Carries out many operations",
        description: "In order, each applied or refused by itself, with a result each, in order. A mistake in any of them refuses all before any is applied. An array is answered with an array, lines with lines.",
        parameters: &[TOKEN],
        body: &[
            BodyContent {
                media: JSON,
                schema: Some("Batch"),
                example: r#"[{"name": "likes:42", "delta": 2}, {"op": "read", "name": "likes:42"}]"#,
            },
            BodyContent {
                media: "application/x-ndjson",
                schema: None,
                example: "{\"name\": \"likes:42\", \"delta\": 2}\n{\"op\": \"delete\", \"name\": \"likes:43\"}\n",
            },
        ],
        reply: &[
            BodyContent {
                media: JSON,
                schema: Some("Results"),
                example: r#"[{"status": 200, "name": "likes:42", "value": 45, "value_string": "45"}, {"type": "urn:quipu:problem:overflow", "title": "The sum would leave the range of 64 bits", "status": 409, "detail": "increment or decrement would overflow"}]"#,
            },
            BodyContent {
                media: "application/x-ndjson",
                schema: None,
                example: "{\"status\": 200, \"name\": \"likes:42\", \"value\": 45, \"value_string\": \"45\"}\n",
            },
        ],
        problems: &[reason::BAD_BODY, reason::BODY_TIMEOUT, reason::BODY_TOO_LARGE, reason::BAD_TOKEN, reason::BUSY],
        handler: || post(batch::batch),
        ..PLAIN
    },
    Route {
        path: "/v1/counters/{name}/watch",
        operation: "watch",
        summary: "Watches a counter",
        description: "Server-sent events: a reading at once, then another whenever the value has changed, within 100 ms. Values in between may be left out, the newest never is.",
        parameters: &[NAME],
        reply: &[BodyContent {
            media: "text/event-stream",
            schema: None,
            example: "event: reading\ndata: {\"name\": \"likes:42\", \"value\": 43}\n\n",
        }],
        problems: &[
            reason::BAD_PATH,
            reason::WRONG_KIND,
            reason::TOO_WIDE,
            reason::AT_REST,
            reason::NO_MEMORY,
            reason::STORE_DOWN,
            reason::FENCED,
            reason::BUSY,
            reason::NOT_READY,
        ],
        handler: || get(watch::watch),
        ..PLAIN
    },
    Route {
        path: "/v1/namespaces",
        operation: "list_namespaces",
        summary: "Lists namespaces",
        description: "Those of which something was said, in the file or at run time.",
        reply: &[BodyContent { media: JSON, schema: Some("Namespaces"), example: r#"{"namespaces": []}"# }],
        handler: || get(namespaces::list),
        ..PLAIN
    },
    Route {
        path: "/v1/namespaces/{name}",
        operation: "show_namespace",
        summary: "Shows what is in force in a namespace",
        description: "Every setting, and where it came from. Also for a namespace of which nothing was said: then it is what the server says.",
        parameters: &[NAMESPACE],
        reply: &[BodyContent { media: JSON, schema: Some("Namespace"), example: NAMESPACE_SHOWN }],
        problems: &[reason::BAD_PATH],
        handler: || get(namespaces::show),
        ..PLAIN
    },
    Route {
        method: "PUT",
        path: "/v1/namespaces/{name}",
        operation: "put_namespace",
        summary: "Says what holds in a namespace",
        description: "In place of what was said of it at run time before, and before what the file says. What is left out, or null, is as the file says again, or as the server; an empty object takes everything back. It is durable and in force when it is answered; with a mistake in it, all are named and nothing is changed.",
        parameters: &[NAMESPACE],
        body: &[BodyContent {
            media: JSON,
            schema: Some("Settings"),
            example: r#"{"durability": "relaxed", "ttl": "24h"}"#,
        }],
        reply: &[BodyContent { media: JSON, schema: Some("Namespace"), example: NAMESPACE_SHOWN }],
        problems: &[
            reason::BAD_PATH,
            reason::BAD_BODY,
            reason::BODY_TIMEOUT,
            reason::BODY_TOO_LARGE,
            reason::BAD_SETTINGS,
            reason::NO_ROOM,
            reason::BEHIND,
            reason::BUSY,
        ],
        handler: || put(namespaces::put),
        ..PLAIN
    },
    Route {
        path: "/healthz",
        operation: "healthz",
        summary: "Whether the server is well",
        description: "A server whose journal has failed has ended, so one that answers is well.",
        public: true,
        reply: &[BodyContent { media: "text/plain", schema: None, example: "ok\n" }],
        handler: || get(health::healthz),
        ..PLAIN
    },
    Route {
        path: "/readyz",
        operation: "readyz",
        summary: "Whether the server takes reads and writes",
        description: "A node counts without its shared store. With `store=required` it is ready only while the store answers.",
        public: true,
        parameters: &[Parameter {
            name: "store",
            location: "query",
            description: "'required': not ready while the shared store cannot be reached, or if none is configured.",
            schema: r#"{"type": "string", "enum": ["required"]}"#,
            example: r#""required""#,
        }],
        reply: &[BodyContent { media: "text/plain", schema: None, example: "ready\n" }],
        problems: &[reason::BAD_QUERY, reason::NOT_READY],
        handler: || get(health::readyz),
        ..PLAIN
    },
    Route {
        path: "/metrics",
        operation: "metrics",
        summary: "What has happened, for Prometheus",
        description: "",
        reply: &[BodyContent {
            media: "text/plain",
            schema: None,
            example: "# HELP quipu_counters How many counters there are.\n# TYPE quipu_counters gauge\nquipu_counters 43\n",
        }],
        handler: || get(metrics::metrics),
        ..PLAIN
    },
    Route {
        path: "/openapi.json",
        operation: "openapi",
        summary: "This description",
        description: "",
        reply: &[BodyContent { media: JSON, schema: Some("Description"), example: r#"{"openapi": "3.1.0"}"# }],
        handler: || get(openapi::openapi),
        ..PLAIN
    },
];

/// Builds the router of all routes.
pub(super) fn router(state: Arc<HttpState>) -> Router {
    let mut router = Router::new();
    for (index, Route { path, .. }) in ROUTES.iter().enumerate() {
        if ROUTES[..index].iter().any(|before| before.path == *path) {
            continue;
        }
        let methods = routes_at(path).fold(MethodRouter::new(), |methods, route| methods.merge((route.handler)()));
        let allow = allowed_methods(path);
        router = router.route(path, methods.fallback(move |uri: Uri| std::future::ready(wrong_method(&uri, &allow))));
    }
    router.fallback(|uri: Uri| std::future::ready(not_found(&uri))).with_state(state)
}

/// Returns true if a path is served without the password.
pub(super) fn is_public(path: &str) -> bool {
    ROUTES.iter().any(|route| route.public && route.path == path)
}

fn routes_at(path: &str) -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().filter(move |route| route.path == path)
}

/// Methods of a path.
fn allowed_methods(path: &str) -> String {
    let methods: Vec<&str> = routes_at(path)
        .flat_map(|route| if route.method == "GET" { vec!["GET", "HEAD"] } else { vec![route.method] })
        .collect();
    methods.join(", ")
}

fn wrong_method(uri: &Uri, allow: &str) -> Problem {
    let header = HeaderValue::from_str(allow).expect("methods are plain words");
    let problem = Problem::new(reason::METHOD_NOT_ALLOWED, format!("{} is offered with {allow}", uri.path()));
    Problem { allow: Some(header), ..problem }
}

fn not_found(uri: &Uri) -> Problem {
    Problem::new(reason::NO_ROUTE, format!("{} is not the path of anything; see /openapi.json", uri.path()))
}
