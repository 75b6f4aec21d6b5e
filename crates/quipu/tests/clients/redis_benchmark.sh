#!/usr/bin/env bash
# redis-benchmark: that it runs to its end, and that every increment it made was counted. Argument: the port.
set -euo pipefail
port=$1
requests=20000

said=$(timeout 300 redis-benchmark -p "$port" -t incr,get -P 16 -q -n "$requests" 2>&1 | tr '\r' '\n')
for test in INCR GET; do
  line=$(grep "^$test: .*requests per second" <<<"$said") || { printf '%s did not end:\n%s\n' "$test" "$said" >&2; exit 1; }
  echo "$line"
done
# Without -r all increments go to one counter.
counted=$(redis-cli -p "$port" GET counter:__rand_int__)
[ "$counted" = "$requests" ] || { echo "counted $counted of $requests" >&2; exit 1; }

echo "proof: $(redis-benchmark --version | head -n 1), $requests increments counted: 3 checks"
