"""redis-py on counters at rest. Arguments: the port, and `before` or `after` the restart that leaves them all on disk."""

import sys

import redis

port, phase = int(sys.argv[1]), sys.argv[2]
checks = 0
COUNTERS = 5_000


def check(found, expected):
    global checks
    if found != expected:
        raise AssertionError(f"expected {expected!r}, found {found!r}")
    checks += 1


client = redis.Redis(port=port, decode_responses=True)
if phase == "before":
    with client.pipeline(transaction=False) as pipeline:
        for number in range(COUNTERS):
            pipeline.set(f"c:{number}", number)
        check(pipeline.execute(), [True] * COUNTERS)
    check(client.expire("c:7", 1000), True)
else:
    check(client.dbsize(), COUNTERS)
    check(client.get("c:1"), "1")
    check(client.mget("c:2", "nobody", "c:3"), ["2", None, "3"])
    check(client.incr("c:4"), 5)
    check(client.exists("c:5", "nobody"), 1)
    check(client.type("c:6"), "string")
    check(0 < client.ttl("c:7") <= 1000, True)
    check(set(client.scan_iter(count=500)), {f"c:{number}" for number in range(COUNTERS)})
    check(set(client.scan_iter(match="c:12?")), {f"c:{number}" for number in range(120, 130)})
    check(sorted(client.keys("c:1?")), [f"c:{number}" for number in range(10, 20)])

    # A pipeline and a transaction over what is at rest, in memory, and new.
    with client.pipeline(transaction=False) as pipeline:
        pipeline.get("c:100").incr("c:4").incr("new").get("nobody").incr("c:101")
        check(pipeline.execute(), ["100", 6, 1, None, 102])
    with client.pipeline() as pipeline:
        pipeline.watch("c:200")
        value = int(pipeline.get("c:200"))
        pipeline.multi()
        pipeline.set("c:200", value + 1).incr("c:201")
        check(pipeline.execute(), [True, 202])
    with client.pipeline() as pipeline:
        pipeline.watch("c:300")
        client.incr("c:300")
        pipeline.multi()
        pipeline.incr("c:301")
        try:
            pipeline.execute()
            raise AssertionError("a watched counter has changed, and the transaction went through")
        except redis.WatchError:
            checks += 1
    check(client.get("c:301"), "301")

    check(client.delete("c:400", "nobody"), 1)
    check(client.dbsize(), COUNTERS)
    check(client.flushall(), True)
    check(client.dbsize(), 0)
    check(client.get("c:500"), None)
    check(client.incr("c:500"), 1)
    check(list(client.scan_iter()), ["c:500"])

print(f"proof: redis-py {redis.__version__} on counters at rest, {phase} a restart: {checks} checks")
