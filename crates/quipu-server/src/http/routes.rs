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
    description: "The counter's name: any bytes, percent-encoded, 512 at most. The part before the first ':' is its namespace.",
    schema: r#"{"type": "string", "minLength": 1, "maxLength": 512}"#,
    example: r#""likes:42""#,
};

const UNIQUE_NAME: Parameter = Parameter { example: r#""visitors:today""#, ..NAME };

const FREQUENCY_NAME: Parameter = Parameter { example: r#""searches:words""#, ..NAME };

const TOP_NAME: Parameter = Parameter { example: r#""pages:top""#, ..NAME };

const TOKEN: Parameter = Parameter {
    name: "Idempotency-Key",
    location: "header",
    description: "Token of this mutation. A retry under the same token gets the first reply and is not applied again. The server refuses another mutation under that token with 422. It also refuses a token that carries its time (a UUID of version 7, or <milliseconds>-<nonce>) after that time is over.",
    schema: r#"{"type": "string", "minLength": 1, "maxLength": 100}"#,
    example: r#""order-1017""#,
};

const NAMESPACE: Parameter = Parameter {
    name: "name",
    location: "path",
    description: "The namespace: the part before the first ':' in the names of its counters, or 'default' without a ':'. Any bytes but ':', percent-encoded, 128 at most.",
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
        description: "Creates the counter at 0 first if it does not exist. The reply has the value after the add. The server sends it when the add is as durable as the namespace asks.",
        parameters: &[
            NAME,
            TOKEN,
            Parameter {
                name: "reply",
                location: "query",
                description: "'none': the reply is 204, without a body and with the same meaning.",
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
        description: "The value and its accuracy. A counter that does not exist reads as 0. The value of a unique is the estimate; that of a frequency or a top is the total of all counts. Of these two, error is the greatest excess of one item's count.",
        parameters: &[
            NAME,
            Parameter {
                name: "freshness",
                location: "query",
                description: "On a shared store: greatest age of other nodes' values in the reading. 'cached', 'fresh', or a time up to an hour.",
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
        description: "The reply has the value before the reset. Every add is in that value or comes after it.",
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
        description: "A counter that does not exist is no error. In the reply, deleted is true if the counter existed.",
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
        summary: "Adds items to a counter of an approximate kind",
        description: "Creates the counter if it does not exist. Its kind is that of the body, or else that of the namespace, or else unique. A repeated item changes nothing in a unique, so a repeated request does no harm; the reply states if the estimate has changed. Frequencies and tops count each item as often as the request states. The reply of a frequency has the greatest possible count of each item, that of a top the items that have left the list. All items are counted or none is.",
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
        summary: "Estimates the number of distinct items in a counter",
        description: "The estimate, with bounds that hold in 95 of 100 cases. With other counters: the estimate of their union. A counter that does not exist has no items.",
        parameters: &[
            UNIQUE_NAME,
            Parameter {
                name: "with",
                location: "query",
                description: "Other counters, separated by commas; 63 at most. Percent-encode a name with a comma or a percent sign by itself, then the whole list.",
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
        summary: "Reads the counts of items",
        description: "The count of an item is at most at_most, and most likely typical. Nearly always, the excess of at_most is no more than error. The total is the sum of all counts. In a counter that does not exist all counts are 0.",
        parameters: &[
            FREQUENCY_NAME,
            Parameter {
                name: "item",
                location: "query",
                description: "An item; repeat the parameter for further items, up to 64 in all.",
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
        summary: "Lists the most frequent items",
        description: "The most frequent item comes first. The count of each item lies between at_least and at_most. If certain is true, no item outside the list came more often. The list of a counter that does not exist is empty.",
        parameters: &[
            TOP_NAME,
            Parameter {
                name: "k",
                location: "query",
                description: "Number of rows, within the list that the counter keeps.",
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
        description: "The counters come in no particular order, each with its value; for an approximate kind that is the estimate or the total. A counter that exists from the first page to the last is listed at least once. A page with a cursor may be short or empty. The list ends with a null cursor.",
        parameters: &[
            Parameter {
                name: "prefix",
                location: "query",
                description: "Prefix of the listed names, as percent-encoded bytes.",
                schema: r#"{"type": "string", "maxLength": 255}"#,
                example: r#""likes:""#,
            },
            Parameter {
                name: "cursor",
                location: "query",
                description: "Cursor from the page before; absent for the first page.",
                schema: r#"{"type": "string", "pattern": "^[0-9]{1,19}$"}"#,
                example: r#""0""#,
            },
            Parameter {
                name: "limit",
                location: "query",
                description: "Approximate number of counters on the page.",
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
        summary: "Lists the most used counters",
        description: "Separate lists of reads and of writes, for the last one to two minutes. The server samples one command in 64, and about is 64 times the samples. The true count lies between at_least and at_most with a probability of 95 %. A list with fewer than 100 samples is not reliable; note then names it.",
        parameters: &[Parameter {
            name: "count",
            location: "query",
            description: "Number of counters in each list.",
            schema: r#"{"type": "integer", "minimum": 1, "maximum": 100, "default": 10}"#,
            example: "10",
        }],
        reply: &[BodyContent {
            media: JSON,
            schema: Some("Hot"),
            example: r#"{"since": "2026-11-16T11:05:39.123Z", "sample": 64, "writes": [{"name": "likes:42", "about": 12800, "at_least": 11114, "at_most": 14736}], "writes_enough": true, "reads": [], "reads_enough": false, "note": "too little traffic to find hot reads: fewer than 100 were sampled"}"#,
        }],
        handler: || get(hot_keys::hot_keys),
        ..PLAIN
    },
    Route {
        method: "POST",
        path: "/v1/batch",
        operation: "batch",
        summary: "Carries out many operations",
        description: "The server applies or refuses each operation by itself, in order. The reply has a result for each, in the same order. A mistake in any operation refuses the whole batch before the first one is applied. The reply to an array is an array, the reply to lines is lines.",
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
        description: "Server-sent events: a reading at once, then another within 100 ms of a change of the value. The stream may leave out values in between, and never the newest.",
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
        description: "The namespaces with settings in the file or at run time.",
        reply: &[BodyContent { media: JSON, schema: Some("Namespaces"), example: r#"{"namespaces": []}"# }],
        handler: || get(namespaces::list),
        ..PLAIN
    },
    Route {
        path: "/v1/namespaces/{name}",
        operation: "show_namespace",
        summary: "Shows the settings in force in a namespace",
        description: "Every setting with its origin. A namespace without settings of its own has those of the server.",
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
        summary: "Replaces the run-time settings of a namespace",
        description: "Replaces all earlier run-time settings of the namespace; they override the file. A key that is absent or null has the value of the file again, or else of the server. An empty object removes all run-time settings. The settings are durable and in force before the reply. After a mistake the reply names every mistake, and nothing changes.",
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
        summary: "Checks the health of the server",
        description: "A failed journal ends the process, so a server that answers is healthy.",
        public: true,
        reply: &[BodyContent { media: "text/plain", schema: None, example: "ok\n" }],
        handler: || get(health::healthz),
        ..PLAIN
    },
    Route {
        path: "/readyz",
        operation: "readyz",
        summary: "Checks the readiness for reads and writes",
        description: "A node counts without its shared store. With `store=required` it is ready only while the store answers.",
        public: true,
        parameters: &[Parameter {
            name: "store",
            location: "query",
            description: "'required': the node is not ready while the shared store is unreachable, or if none is configured.",
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
        summary: "Returns the metrics, in Prometheus's text format",
        description: "",
        reply: &[BodyContent {
            media: "text/plain",
            schema: None,
            example: "# HELP quipu_counters Number of counters, in memory and on disk.\n# TYPE quipu_counters gauge\nquipu_counters 43\n",
        }],
        handler: || get(metrics::metrics),
        ..PLAIN
    },
    Route {
        path: "/openapi.json",
        operation: "openapi",
        summary: "Returns this document",
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
