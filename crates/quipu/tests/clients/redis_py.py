"""redis-py at its defaults, as a program would use it. Argument: the port."""

import sys

import redis

port = int(sys.argv[1])
checks = 0


def check(found, expected):
    global checks
    if found != expected:
        raise AssertionError(f"expected {expected!r}, found {found!r}")
    checks += 1


def refused(text, call, *arguments):
    """An error reply whose text begins so."""
    global checks
    try:
        found = call(*arguments)
    except redis.ResponseError as error:
        if str(error).startswith(text):
            checks += 1
            return
        raise
    raise AssertionError(f"expected the error {text!r}, found {found!r}")


client = redis.Redis(port=port, decode_responses=True)
check(client.ping(), True)
# The defaults of this version open with HELLO 3.
check(client.execute_command("CLIENT INFO")["resp"], "3")

# Counts.
check(client.incr("a"), 1)
check(client.incr("a", 41), 42)
check(client.decr("a", 2), 40)
check(client.get("a"), "40")
check(client.get("nobody"), None)
check(client.mget("a", "nobody", "a"), ["40", None, "40"])
check(client.set("b", 5), True)
check(client.set("b", 6, nx=True), None)
check(client.set("b", 7, xx=True, get=True), "5")
check(client.getset("b", 9), "7")
check(client.getdel("b"), "9")
check(client.exists("a", "b"), 1)
check(client.type("a"), "string")
check(client.delete("a", "b"), 1)
refused("value is not an integer or out of range", client.set, "word", "hello")
client.set("edge", 2**63 - 1)
refused("increment or decrement would overflow", client.incr, "edge")
check(client.get("edge"), str(2**63 - 1))

# Names are bytes.
raw = redis.Redis(port=port)
check(raw.incr(b"\xff\x00\r\n"), 1)
check(raw.get(b"\xff\x00\r\n"), b"1")
check(raw.delete(b"\xff\x00\r\n"), 1)

# Expiry.
check(client.set("t", 1, ex=100), True)
check(0 < client.ttl("t") <= 100, True)
check(client.expire("t", 200), True)
check(100_000 < client.pttl("t") <= 200_000, True)
check(client.expire("t", 50, gt=True), False)
check(client.persist("t"), True)
check(client.ttl("t"), -1)
check(client.ttl("nobody"), -2)
check(client.pexpireat("t", 1), True)
check(client.get("t"), None)

# Pipelines, plain and as a transaction (the default).
with client.pipeline(transaction=False) as pipe:
    for _ in range(100):
        pipe.incr("p")
    check(pipe.execute(), list(range(1, 101)))
with client.pipeline() as pipe:
    pipe.incr("p").incr("q", 5).get("p").delete("q")
    check(pipe.execute(), [101, 5, "101", 1])
with client.pipeline() as pipe:
    pipe.incr("p").incr("edge").incr("p")
    found = pipe.execute(raise_on_error=False)
    check((found[0], type(found[1]), found[2]), (102, redis.ResponseError, 103))

# WATCH: a change by someone else in between is seen, and the loop tries again.
other = redis.Redis(port=port)
with client.pipeline() as pipe:
    pipe.watch("w")
    other.incr("w")
    pipe.multi()
    pipe.incr("w")
    try:
        pipe.execute()
        raise AssertionError("a watched counter changed and the transaction ran")
    except redis.WatchError:
        checks += 1
tries = 0


def double(pipe):
    global tries
    tries += 1
    value = int(pipe.get("w"))
    if tries == 1:
        other.incr("w", 9)
    pipe.multi()
    pipe.set("w", value * 2)


check(client.transaction(double, "w"), [True])
check((tries, client.get("w")), (2, "20"))

# Walking names.
client.flushall()
with client.pipeline(transaction=False) as pipe:
    for i in range(500):
        pipe.incr(f"likes:{i}")
        pipe.incr(f"views:{i}")
    pipe.execute()
check(client.dbsize(), 1000)
check(sorted(client.scan_iter("likes:*", count=50)), sorted(f"likes:{i}" for i in range(500)))
check(len(set(client.scan_iter())), 1000)
check(len(client.keys("views:1*")), 111)

# The connection.
check(client.client_setinfo("LIB-NAME", "quipu-test"), True)
check(client.client_setname("me"), True)
check(client.client_getname(), "me")
check(client.client_info()["name"], "me")
check(client.echo("hello"), "hello")
check(client.config_get("maxclients")["maxclients"].isdigit(), True)
check(client.info("server")["tcp_port"], port)
check(client.info("keyspace")["db0"]["keys"], 1000)
check(client.command_count() > 50, True)
check(client.time()[0] > 1_700_000_000, True)

# The older protocol, asked for.
old = redis.Redis(port=port, protocol=2, decode_responses=True)
check(old.incr("two"), 1)
check(old.config_get("databases"), {"databases": "1"})
check(old.mget("two", "nobody"), ["1", None])

print(f"proof: redis-py {redis.__version__}: {checks} checks")
