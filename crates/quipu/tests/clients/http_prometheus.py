"""/metrics as Prometheus reads it. Argument: the port of RESP; the port of HTTP is in QUIPU_HTTP."""

import os
import pathlib
import re
import sys
import urllib.request

import redis
from prometheus_client.parser import text_string_to_metric_families

checks = 0


def check(found, expected):
    global checks
    if found != expected:
        sys.exit(f"expected {expected!r}, found {found!r}")
    checks += 1


http = f"http://127.0.0.1:{os.environ['QUIPU_HTTP']}"
client = redis.Redis(port=int(sys.argv[1]))
for _ in range(7):
    client.incr("likes:1")
client.execute_command("INCR", "likes:1", "IDMP", "p", "i")
client.execute_command("INCR", "likes:1", "IDMP", "p", "i")
urllib.request.urlopen(urllib.request.Request(f"{http}/v1/counters/likes:1/add", method="POST")).read()

reply = urllib.request.urlopen(f"{http}/metrics")
check(reply.headers["content-type"].startswith("text/plain; version=0.0.4"), True)
families = {family.name: family for family in text_string_to_metric_families(reply.read().decode())}


def value(name, **labels):
    family = families[re.sub("_(total|count)$", "", name)]
    found = [sample.value for sample in family.samples if sample.name == name and labels.items() <= sample.labels.items()]
    check(len(found), 1)
    return found[0]


check(value("quipu_counters"), 1)
check(value("quipu_token_hits_total"), 1)
check(value("quipu_operations_total", door="resp") >= 9, True)
check(value("quipu_operations_total", door="http"), 1)
check(value("quipu_http_seconds_count", operation="add", namespace="likes"), 1)
check(sum(sample.value for sample in families["quipu_resp_seconds"].samples if sample.name.endswith("_count")) >= 1, True)
for family in families.values():
    check(family.name.startswith("quipu_") and bool(family.documentation), True)
    if family.type != "histogram":
        continue
    # Buckets only grow, and the last has all of them.
    by_labels = {}
    for sample in family.samples:
        key = tuple(sorted((label, text) for label, text in sample.labels.items() if label != "le"))
        by_labels.setdefault(key, {}).setdefault(sample.name.removeprefix(family.name), []).append(sample.value)
    for samples in by_labels.values():
        check(samples["_bucket"] == sorted(samples["_bucket"]), True)
        check(samples["_bucket"][-1:], samples["_count"])

# What is documented is all there is.
page = (pathlib.Path(__file__).parents[4] / "docs/metrics.md").read_text()
documented = {re.sub("_total$", "", name) for name in re.findall(r"`(quipu_\w+)`", page)}
check(set(families) <= documented, True)

print(f"proof: /metrics by prometheus_client: {checks} checks")
