#!/usr/bin/env bash
# redis-cli as people type it. Argument: the port.
set -euo pipefail
port=$1
checks=0

# check EXPECTED ARGUMENTS…: what redis-cli prints for a command, in RESP2 and in RESP3.
check() {
  local expected=$1 found
  shift
  found=$(redis-cli -p "$port" "$@")
  if [ "$found" != "$expected" ]; then
    printf 'redis-cli %s\nexpected: %s\nfound:    %s\n' "$*" "$expected" "$found" >&2
    exit 1
  fi
  checks=$((checks + 1))
}

check PONG PING
check PONG -3 PING
check 1 INCR likes:42
check 42 INCRBY likes:42 41
check 41 DECR likes:42
check 41 GET likes:42
check 41 -3 GET likes:42
check "" GET nobody
check OK SET s 5 EX 100
check 100 TTL s
check $'7\n2' INCREX s BYINT 2 UBOUND 7
check $'7\n0' INCREX s BYINT 2 UBOUND 7
check $'7\n0' INCREX s BYINT 0 UBOUND 7 SATURATE
check string TYPE s
check 2 DEL s likes:42
check 0 DBSIZE
check "ERR value is not an integer or out of range" SET word hello
check "ERR wrong number of arguments for 'incr' command" INCR

# A transaction, typed line by line as into the prompt.
found=$(printf 'MULTI\nINCR a\nINCRBY b 5\nGET a\nEXEC\n' | redis-cli -p "$port")
expected=$'OK\nQUEUED\nQUEUED\nQUEUED\n1\n5\n1'
[ "$found" = "$expected" ] || { printf 'MULTI: found %s\n' "$found" >&2; exit 1; }
checks=$((checks + 1))

found=$(printf 'MULTI\nINCR a\nDISCARD\nGET a\n' | redis-cli -p "$port")
[ "$found" = $'OK\nQUEUED\nOK\n1' ] || { printf 'DISCARD: found %s\n' "$found" >&2; exit 1; }
checks=$((checks + 1))

# The walk over all names and the mass insertion mode.
found=$(redis-cli -p "$port" --scan | sort | tr '\n' ' ')
[ "$found" = "a b " ] || { printf 'scan: found %s\n' "$found" >&2; exit 1; }
checks=$((checks + 1))
found=$(for _ in $(seq 1000); do printf '*2\r\n$4\r\nINCR\r\n$4\r\npipe\r\n'; done | redis-cli -p "$port" --pipe | tail -n 1)
[ "$found" = "errors: 0, replies: 1000" ] || { printf 'pipe: found %s\n' "$found" >&2; exit 1; }
check 1000 GET pipe

# INFO is what dashboards read first.
redis-cli -p "$port" INFO server | grep -q '^redis_version:' || { echo 'INFO has no redis_version' >&2; exit 1; }
checks=$((checks + 1))

echo "proof: $(redis-cli --version): $checks checks"
