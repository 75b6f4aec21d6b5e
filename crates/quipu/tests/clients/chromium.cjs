// What web pages can do, in a real Chromium: those of other origins read nothing and change nothing, nor does a name that
// was pointed at the server (DNS rebinding); a page of the server's own origin can do all of it, so the attempts are real ones.
// Argument: the port of RESP; the port of HTTP is in QUIPU_HTTP.
"use strict";

const assert = require("node:assert/strict");
const http = require("node:http");
const { chromium } = require("playwright-core");

const resp = process.argv[2];
const port = process.env.QUIPU_HTTP;
const server = `http://127.0.0.1:${port}`;

// The value that no other origin may see.
const SECRET = "424242";

// The attempts that read; the others change.
const READS = ["fetch", "fetch without CORS", "XMLHttpRequest", "EventSource", "frame", "WebSocket"];

// The attempts that work for no page: nothing here speaks WebSocket, and what looks like HTTP is no RESP.
const NEVER = ["WebSocket", "POST to RESP"];

let checks = 0;
function check(found, expected, what) {
  assert.deepEqual(found, expected, what);
  checks += 1;
}

// Runs in the page. Returns, by attempt, what the page has learnt.
async function attempt({ server, resp }) {
  const name = (attempt) => `${server}/v1/counters/changed:${encodeURIComponent(attempt)}/add`;
  const event = (target, ...kinds) =>
    new Promise((resolve) => kinds.forEach((kind) => target.addEventListener(kind, resolve, { once: true })));
  const frame = () => {
    const frame = document.createElement("iframe");
    frame.name = `frame${document.querySelectorAll("iframe").length}`;
    document.body.append(frame);
    return frame;
  };
  const send = (method, url) => {
    const request = new XMLHttpRequest();
    request.open(method, url);
    request.send();
    return event(request, "loadend").then(() => request.responseText);
  };
  const body = '{"delta": 1}';
  const attempts = {
    fetch: async () => (await fetch(`${server}/v1/counters/secret`)).text(),
    "fetch without CORS": async () => (await fetch(`${server}/v1/counters/secret`, { mode: "no-cors" })).text(),
    XMLHttpRequest: () => send("GET", `${server}/v1/counters/secret`),
    EventSource: async () => {
      const events = new EventSource(`${server}/v1/counters/secret/watch`);
      const first = await event(events, "reading", "error");
      events.close();
      return first.data ?? "";
    },
    frame: async () => {
      const reader = frame();
      reader.src = `${server}/v1/counters/secret`;
      await event(reader, "load");
      return reader.contentDocument.body.textContent;
    },
    WebSocket: async () => {
      const socket = new WebSocket(`${server.replace("http", "ws")}/v1/counters/secret/watch`);
      return (await event(socket, "message", "error", "close")).data ?? "";
    },
    "POST of JSON": async () => {
      const headers = { "Content-Type": "application/json" };
      return (await fetch(name("POST of JSON"), { method: "POST", headers, body })).text();
    },
    "POST of text": async () => (await fetch(name("POST of text"), { method: "POST", body })).text(),
    "POST without CORS": async () =>
      (await fetch(name("POST without CORS"), { method: "POST", mode: "no-cors", body })).text(),
    "POST without a referrer": async () => {
      const options = { method: "POST", mode: "no-cors", referrerPolicy: "no-referrer", body };
      return (await fetch(name("POST without a referrer"), options)).text();
    },
    "POST by XMLHttpRequest": () => send("POST", name("POST by XMLHttpRequest")),
    batch: async () => {
      const batch = '[{"name": "changed:batch"}]';
      return (await fetch(`${server}/v1/batch`, { method: "POST", mode: "no-cors", body: batch })).text();
    },
    beacon: async () => {
      navigator.sendBeacon(name("beacon"), body);
      // Nobody tells when it has arrived; what goes the same way after it has.
      await fetch(`${server}/healthz`, { mode: "no-cors" });
      return "";
    },
    form: async () => {
      // A form writes `NAME=VALUE`, which can be JSON: `{"delta":1,"token":"a=0.7"}`. Each page has a token of its own.
      const [form, field, reply] = [document.createElement("form"), document.createElement("input"), frame()];
      Object.assign(form, { action: name("form"), method: "POST", enctype: "text/plain", target: reply.name });
      Object.assign(field, { name: '{"delta":1,"token":"a', value: `${Math.random()}"}` });
      form.append(field);
      document.body.append(form);
      const loaded = event(reply, "load");
      form.submit();
      await loaded;
      return reply.contentDocument.body.textContent;
    },
    PUT: async () => (await fetch(`${server}/v1/namespaces/changed`, { method: "PUT", body: '{"ttl": "1h"}' })).text(),
    DELETE: async () => (await fetch(`${server}/v1/counters/kept:deleted`, { method: "DELETE" })).text(),
    reset: async () => (await fetch(`${server}/v1/counters/kept:reset/reset`, { method: "POST", mode: "no-cors" })).text(),
    "POST to RESP": async () => {
      const commands = { method: "POST", mode: "no-cors", body: "INCR changed:resp\r\nGET secret\r\n" };
      return (await fetch(`http://127.0.0.1:${resp}/`, commands)).text();
    },
  };
  const learnt = {};
  for (const [attempt, run] of Object.entries(attempts)) {
    const late = new Promise((resolve) => setTimeout(() => resolve("no event came"), 20_000));
    learnt[attempt] = await Promise.race([run().catch(() => ""), late]);
  }
  return { origin: location.origin, learnt };
}

// What a plain client sees: counters by name, and the namespaces that were put.
async function state() {
  const list = await (await fetch(`${server}/v1/counters?limit=1000`)).json();
  assert.equal(list.cursor, null);
  const { namespaces } = await (await fetch(`${server}/v1/namespaces`)).json();
  const counters = Object.fromEntries(list.counters.map(({ name, value }) => [name, value]));
  return { counters, namespaces: namespaces.map(({ name }) => name) };
}

// Sets up what pages are to read and to change.
async function reset() {
  for (const { name } of (await (await fetch(`${server}/v1/counters?limit=1000`)).json()).counters) {
    await fetch(`${server}/v1/counters/${encodeURIComponent(name)}`, { method: "DELETE" });
  }
  await fetch(`${server}/v1/namespaces/changed`, { method: "PUT", body: "{}" });
  for (const [name, delta] of [["secret", SECRET], ["kept:deleted", 1], ["kept:reset", 1]]) {
    const reply = await fetch(`${server}/v1/counters/${name}/add`, { method: "POST", body: `{"delta": ${delta}}` });
    assert.equal(reply.status, 200);
  }
}

async function main() {
  const elsewhere = http.createServer((request, response) => {
    response.setHeader("Content-Type", "text/html");
    response.end(`<!doctype html><a href="${server}/v1/counters/secret">secret</a>`);
  });
  await new Promise((resolve) => elsewhere.listen(0, "127.0.0.1", resolve));
  const { port: elsewherePort } = elsewhere.address();
  const browser = await chromium.launch({
    executablePath: "/usr/bin/chromium",
    args: [
      "--no-sandbox",
      "--disable-gpu",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
      "--host-resolver-rules=MAP evil.example 127.0.0.1",
    ],
  });
  const pages = [
    // Another port of this machine, another site, and a name that was pointed here after its page was loaded.
    [`http://127.0.0.1:${elsewherePort}/`, server, false],
    [`http://localhost:${elsewherePort}/`, server, false],
    [`http://evil.example:${elsewherePort}/`, server, false],
    [`http://evil.example:${elsewherePort}/`, `http://evil.example:${port}`, false],
    [`http://evil.example:${port}/healthz`, `http://evil.example:${port}`, false],
    [`${server}/healthz`, server, true],
    [`http://localhost:${port}/healthz`, `http://localhost:${port}`, true],
  ];
  for (const [url, target, own] of pages) {
    await reset();
    const before = await state();
    const page = await browser.newPage();
    await page.goto(url);
    const { origin, learnt } = await page.evaluate(attempt, { server: target, resp });
    await page.close();
    const what = (attempt) => `${attempt}, from ${origin} to ${target}: ${learnt[attempt]}`;
    for (const attempt of READS) {
      check(learnt[attempt].includes(SECRET), own && !NEVER.includes(attempt), what(attempt));
    }
    const after = await state();
    for (const attempt of Object.keys(learnt).filter((attempt) => !READS.includes(attempt))) {
      check(learnt[attempt].includes(SECRET), false, what(attempt));
      const counter = `changed:${attempt}`;
      const changed = {
        PUT: after.namespaces.includes("changed"),
        DELETE: after.counters["kept:deleted"] !== 1,
        reset: after.counters["kept:reset"] !== 1,
        "POST to RESP": "changed:resp" in after.counters,
      };
      check(changed[attempt] ?? counter in after.counters, own && !NEVER.includes(attempt), what(attempt));
    }
    if (!own) check(after, before, `${origin} changed something at ${target}`);
  }

  // A link is no attempt: the reply is a page of its own.
  const page = await browser.newPage();
  await page.goto(`http://evil.example:${elsewherePort}/`);
  await page.click("a");
  await page.waitForURL(`${server}/v1/counters/secret`);
  check((await page.textContent("body")).includes(SECRET), true, "a link to a counter");

  const version = browser.version();
  await browser.close();
  elsewhere.close();
  console.log(`proof: chromium ${version}: ${checks} checks`);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
