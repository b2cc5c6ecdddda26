// The page: ask, show the output with its spans, show a span's evidence. One output is shown at a time.

import { call, events } from "./client.js";
import { show } from "./evidence.js";
import { element, render, renderNotes } from "./output.js";

const $ = (id) => document.getElementById(id);
let shown = null; // the trace on the page
let minSeq = null; // the last edit made here: generations after it must see it

function say(message, isAlarm = false) {
  $("status").textContent = message;
  $("status").classList.toggle("alarm", isAlarm);
}

// Runs what a button started; whatever goes wrong is said on the page.
async function doing(work) {
  try {
    await work();
  } catch (error) {
    say(error.message, true);
  }
}

function showTrace(trace) {
  shown = trace;
  $("output-section").hidden = false;
  $("asked").textContent = trace.prompt;
  render($("output"), trace, (splice) => doing(() => choose(splice)));
  renderNotes($("notes"), trace);
  history.replaceState(null, "", `#output-${trace.generation_id}`);
}

async function choose(splice) {
  for (const mark of $("output").querySelectorAll("mark.splice")) {
    mark.classList.toggle("chosen", mark.dataset.ordinal === String(splice.ordinal));
  }
  await show($("evidence-body"), splice, { edited: (result) => afterEdit(splice, result), again: () => $("ask").requestSubmit() });
  $("evidence").focus({ preventScroll: true });
}

async function afterEdit(splice, result) {
  minSeq = Math.max(minSeq ?? 0, result.min_seq);
  showTrace(await call("GET", `/v1/generations/${shown.generation_id}`));
  await choose(shown.splices[splice.ordinal]);
  const done = result.kind === "delete" ? "deleted" : "restored";
  say(`Fact ${result.fact_ids[0]} is ${done} since change ${result.seq}. Generate again to see what is said now.`);
}

async function generate() {
  const request = { prompt: $("prompt").value, mode: $("mode").value, max_tokens: Number($("max-tokens").value), stream: true };
  if (minSeq !== null) request.min_seq = minSeq;
  say("Generating …");
  const stream = events("/v1/generations", request);
  $("output-section").hidden = false;
  $("asked").textContent = request.prompt;
  $("output").replaceChildren();
  $("notes").replaceChildren();
  for await (const [name, data] of stream) {
    if (name === "piece") $("output").append(data.text);
    if (name === "error") throw new Error(data.detail);
    if (name === "trace") showTrace(data);
  }
  const hits = shown.splices.filter((splice) => splice.outcome === "hit").length;
  say(`Done: ${shown.splices.length} looked up, ${hits} found.`);
  await showEarlier();
}

async function showEarlier() {
  const earlier = await call("GET", "/v1/generations?limit=10");
  $("earlier").replaceChildren(...earlier.map((generation) => {
    const button = element("button", { type: "button", className: "link" }, generation.prompt.slice(0, 120));
    button.addEventListener("click", () => doing(() => open(generation.generation_id)));
    return element("li", { value: generation.generation_id }, button);
  }));
}

async function open(generationId) {
  const trace = await call("GET", `/v1/generations/${generationId}`);
  $("prompt").value = trace.prompt;
  $("mode").value = trace.mode;
  showTrace(trace);
  say(`Output ${generationId}, stored ${new Date(trace.at).toLocaleString()}.`);
}

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("generate").disabled = true;
  await doing(generate);
  $("generate").disabled = false;
});

$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask").requestSubmit();
});

$("sign-out").addEventListener("click", () => doing(async () => {
  await call("DELETE", "/session");
  location.assign("/");
}));

// Nothing can be pressed before it would be heard.
for (const id of ["prompt", "generate", "sign-out"]) $(id).disabled = false;

doing(async () => {
  await showEarlier();
  const linked = /^#output-(\d+)$/.exec(location.hash);
  if (linked) await open(linked[1]);
});
