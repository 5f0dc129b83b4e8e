// A worker in another language: the lock of docs/guide/moving.md, over a socket, without any package.
// Called with the URL of a server, a name, and the code of the page. Each line of standard input says what to do.
const net = require("node:net");
const readline = require("node:readline");
const { setTimeout: sleep } = require("node:timers/promises");

const [address, name, code] = process.argv.slice(2);
const url = new URL(address);
const socket = net.connect(Number(url.port), url.hostname).setNoDelay();
const waiting = [];
let received = "";

socket.on("data", (data) => {
  received += data;
  for (let end; (end = received.indexOf("\r\n")) >= 0; ) {
    const [kind, line] = [received[0], received.slice(1, end)];
    let reply = line;
    end += 2;
    if (kind === ":") reply = Number(line);
    if (kind === "-") reply = new Error(line);
    if (kind === "$" && Number(line) < 0) reply = null;
    if (kind === "$" && Number(line) >= 0) {
      if (received.length < end + Number(line) + 2) return;
      reply = received.slice(end, end + Number(line));
      end += Number(line) + 2;
    }
    received = received.slice(end);
    waiting.shift()(reply);
  }
});

async function send(...words) {
  const parts = words.map(String).map((word) => `$${Buffer.byteLength(word)}\r\n${word}\r\n`);
  const reply = await new Promise((resolve) => {
    waiting.push(resolve);
    socket.write(`*${words.length}\r\n${parts.join("")}`);
  });
  if (reply instanceof Error) throw reply;
  return reply;
}

const withLock = new Function("sleep", `${code}; return withLock;`)(sleep);

async function hold(lines) {
  await withLock(send, name, 60000, async () => {
    console.log("held");
    await lines.next();
  });
  console.log("free");
}

async function count(lines) {
  let stopped = false;
  let rounds = 0;
  const stop = lines.next().then(() => (stopped = true));
  while (!stopped) {
    await withLock(send, name, 60000, async () => {
      const seen = Number((await send("GET", `${name}:count`)) ?? 0);
      await sleep(1);
      await send("SET", `${name}:count`, seen + 1);
    });
    rounds += 1;
    if (rounds === 1) console.log("counting");
    await sleep(1);
  }
  await stop;
  console.log(rounds);
}

(async () => {
  await send("SELECT", url.pathname.slice(1) || "0");
  const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  for (let line; !(line = await lines.next()).done; ) await { hold, count }[line.value](lines);
  socket.end();
})();
