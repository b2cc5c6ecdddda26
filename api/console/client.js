// The API as this page sees it. The cookie goes along by itself; a lost session shows the sign-in form again.

export class Refusal extends Error {}

export async function call(method, path, body) {
  const response = await send(method, path, body);
  return response.status === 204 ? null : response.json();
}

// Yields [event name, data] of a text/event-stream answer.
export async function* events(path, body) {
  const response = await send("POST", path, body);
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let pending = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    pending = (pending + decoder.decode(value, { stream: true })).replaceAll("\r\n", "\n");
    const blocks = pending.split("\n\n");
    pending = blocks.pop();
    for (const block of blocks) yield parse(block);
  }
}

async function send(method, path, body) {
  const options = { method, credentials: "same-origin", headers: {} };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const response = await fetch(path, options);
  if (response.status === 401) location.assign("/");
  if (!response.ok) throw new Refusal(await reason(response));
  return response;
}

async function reason(response) {
  if (!(response.headers.get("Content-Type") ?? "").includes("json")) return `The server answered ${response.status}.`;
  const problem = await response.json();
  const faults = (problem.errors ?? []).map((fault) => `${fault.field}: ${fault.message}`);
  return [problem.detail, ...faults].join(" ");
}

function parse(block) {
  let name = "message";
  let data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    if (line.startsWith("data:")) data += line.slice(5).trim();
  }
  return [name, JSON.parse(data)];
}
