// What the page asks of the server. The key lives in this tab's session storage and goes nowhere else.

const KEY = "ramet-api-key";

export function apiKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function setApiKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function send(path, options = {}) {
  const headers = { ...options.headers };
  if (apiKey()) headers.authorization = `Bearer ${apiKey()}`;
  const response = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // Not ours: what a proxy says is its status.
  }
  throw new Refused(response.status, message);
}

export async function get(path) {
  return (await send(path)).json();
}

export async function post(path, body, signal) {
  return send(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
}

// The data of server-sent events, one after the other.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data) yield data;
    }
  }
}
