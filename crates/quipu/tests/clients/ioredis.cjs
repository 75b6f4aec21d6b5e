// ioredis, as a program would use it. Argument: the port.
"use strict";

const assert = require("node:assert/strict");
const Redis = require("ioredis");
const { version } = require("ioredis/package.json");

let checks = 0;
function check(found, expected) {
  assert.deepEqual(found, expected);
  checks += 1;
}

async function main() {
  const redis = new Redis({ port: Number(process.argv[2]), host: "127.0.0.1", maxRetriesPerRequest: 1 });
  check(await redis.ping(), "PONG");
  check(await redis.incr("a"), 1);
  check(await redis.incrby("a", 41), 42);
  check(await redis.get("a"), "42");
  check(await redis.mget("a", "nobody"), ["42", null]);
  check(await redis.set("t", 5, "EX", 100), "OK");
  check((await redis.ttl("t")) > 0, true);
  check(await redis.getdel("t"), "5");
  await assert.rejects(redis.set("word", "hello"), /value is not an integer or out of range/);
  checks += 1;

  // Commands sent without waiting share a pipeline by themselves.
  check(await Promise.all([1, 2, 3].map(() => redis.incr("auto"))), [1, 2, 3]);

  const pipeline = redis.pipeline();
  for (let i = 0; i < 100; i += 1) pipeline.incr("p");
  check((await pipeline.exec()).map(([error, value]) => error ?? value), Array.from({ length: 100 }, (_, i) => i + 1));

  check(await redis.multi().incr("p").incrby("q", 5).get("p").exec(), [[null, 101], [null, 5], [null, "101"]]);

  // A watched counter that changes in between.
  const other = redis.duplicate();
  await redis.watch("w");
  await other.incr("w");
  check(await redis.multi().incr("w").exec(), null);
  check(await redis.get("w"), "1");

  const fill = redis.pipeline();
  for (let i = 0; i < 500; i += 1) fill.incr(`likes:${i}`);
  await fill.exec();
  const seen = new Set();
  for await (const page of redis.scanStream({ match: "likes:*", count: 50 })) page.forEach((name) => seen.add(name));
  check(seen.size, 500);

  check(await redis.flushall(), "OK");
  check(await redis.dbsize(), 0);
  check(await redis.quit(), "OK");
  check(await other.quit(), "OK");
  console.log(`proof: ioredis ${version}: ${checks} checks`);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
