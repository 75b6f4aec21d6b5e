#!/usr/bin/env bash
# The README's section on HTTP, as people type it. Argument: the port of RESP; the port of HTTP is in QUIPU_HTTP.
set -euo pipefail
http=localhost:$QUIPU_HTTP
checks=0

# check EXPECTED ARGUMENTS…: what curl prints begins with.
check() {
  local expected=$1 found
  shift
  found=$(curl --silent --show-error "$@")
  if [[ "$found" != "$expected"* ]]; then
    printf 'curl %s\nexpected: %s\nfound:    %s\n' "$*" "$expected" "$found" >&2
    exit 1
  fi
  checks=$((checks + 1))
}

check '{"name":"likes:42","value":1,"value_string":"1"}' -X POST "$http/v1/counters/likes:42/add"
check '{"name":"likes:42","value":1201,' -d '{"delta": 1200}' "$http/v1/counters/likes:42/add"
check '{"name":"likes:42","kind":"count","value":1201,"value_string":"1201","exists":true,"exact":true,' "$http/v1/counters/likes:42"
check '{"counters":[{"name":"likes:42","kind":"count","value":1201,' "$http/v1/counters?prefix=likes:&limit=10"
check '[{"status":200,"name":"likes:42","value":1202,' -d '[{"name":"likes:42"},{"name":"likes:43","delta":2}]' "$http/v1/batch"
for _ in 1 2 3 4 5; do
  check '{"name":"likes:44","value":5,"value_string":"5"}' -H 'Idempotency-Key: order-1017' -d '{"delta": 5}' "$http/v1/counters/likes:44/add"
done
check 422 -o /dev/null -w '%{http_code}' -H 'Idempotency-Key: order-1017' -d '{"delta": 6}' "$http/v1/counters/likes:44/add"
check '{"name":"likes:42","value":0,"value_string":"0","before":1202,' -X POST "$http/v1/counters/likes:42/reset"
check '{"name":"likes:42","deleted":true}' -X DELETE "$http/v1/counters/likes:42"
check 'ok' "$http/healthz"
check 'ready' "$http/readyz"

# A watcher hears of a change without asking.
heard=$(mktemp)
trap 'rm -f "$heard"' EXIT
curl --silent --no-buffer --max-time 10 "$http/v1/counters/watched/watch" >"$heard" &
watcher=$!
until grep -q '"value":0' "$heard"; do sleep 0.02; done
check '{"name":"watched","value":1,' -X POST "$http/v1/counters/watched/add"
for _ in $(seq 500); do
  if grep -q '"value":1,' "$heard"; then break; fi
  sleep 0.01
done
grep -q '"value":1,' "$heard" || { echo "the watcher did not hear of the change" >&2; exit 1; }
checks=$((checks + 1))
kill "$watcher"
wait "$watcher" || true

echo "proof: curl: $checks checks"
