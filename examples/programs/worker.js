// A worker in plain JavaScript, without packages. It runs up to eight calls at once, cancels what it is told to,
// and sends no more items of a stream than it was asked for.

"use strict";
const readline = require("node:readline");

const say = (message) => process.stdout.write(JSON.stringify(message) + "\n");
const calls = new Map(); // by id: what can be done to a call that runs

const methods = {
  add: async (call, first, second) => first + second,
  fail: async (call, text) => {
    throw new RangeError(text);
  },
  sleep: (call, seconds) =>
    new Promise((resolve, reject) => {
      const timer = setTimeout(resolve, seconds * 1000, seconds);
      call.cancelled = () => {
        clearTimeout(timer);
        reject(Object.assign(new Error("as it was told to"), { name: "Cancelled" }));
      };
    }),
  count: async function* (call, limit) {
    for (let number = 0; number < limit; number += 1) yield number;
  },
};

async function run({ id, method, args, stream }) {
  const call = { room: 0, wake: () => {}, cancelled: () => {}, unwanted: false };
  calls.set(id, call);
  try {
    let value = await methods[method](call, ...args);
    if (stream) {
      for await (const item of value) {
        while (call.room === 0 && !call.unwanted) await new Promise((resolve) => (call.wake = resolve));
        if (call.unwanted) throw Object.assign(new Error("nobody reads it"), { name: "Cancelled" });
        call.room -= 1;
        say({ type: "item", id, value: item });
      }
      value = null;
    }
    say({ type: "result", id, value });
  } catch (error) {
    say({ type: "error", id, name: error.name, message: error.message, details: { stack: error.stack } });
  } finally {
    calls.delete(id);
  }
}

const handlers = {
  hello: () => say({ type: "ready", protocol: 1, name: "worker.js", capacity: 8, methods: Object.keys(methods) }),
  call: run,
  more: ({ id, count }) => {
    const call = calls.get(id);
    if (call) {
      call.room += count;
      call.wake();
    }
  },
  cancel: ({ id }) => {
    const call = calls.get(id);
    if (call) {
      call.unwanted = true;
      call.cancelled();
      call.wake();
    }
  },
  ping: ({ id }) => say({ type: "pong", id }),
  stop: () => process.exit(0),
};

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const message = JSON.parse(line);
  handlers[message.type]?.(message);
});
