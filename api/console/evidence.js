// The side panel: where a spliced value comes from, what became of its fact, and the edits an editor may make.

import { call } from "./client.js";
import { element } from "./output.js";

// `edited(result)` is called after a delete or a restore, `again()` by the button that generates anew.
export async function show(panel, splice, { edited, again }) {
  // What is there is of another span, or older: nobody should begin to fill in its form.
  panel.replaceChildren(element("p", { className: "small" }, "Loading …"));
  const trace = await call("GET", `/v1/facts/${splice.fact_id}/trace`);
  const source = trace.fact.source;
  const document = source && (await call("GET", `/v1/documents/${source.document_id}`));
  panel.replaceChildren(
    ...standing(splice, trace.fact),
    ...(document ? provenance(source, document, trace.fact) : asked(trace.fact)),
    ...history(trace),
    editing(trace.fact, edited, again),
  );
  panel.querySelector(".source mark")?.scrollIntoView({ block: "nearest" });
}

function standing(splice, fact) {
  const facts = { Spliced: splice.value, Fact: `${fact.fact_id}, version ${splice.version}`, Score: splice.score?.toFixed(3) ?? "–" };
  if (fact.deleted_seq !== null) {
    return [element("p", { className: "alarm" }, `This fact was deleted at change ${fact.deleted_seq}. It is spliced no more.`), list(facts)];
  }
  if (fact.value !== splice.value) facts["Now says"] = fact.value;
  return [list(facts)];
}

function provenance(source, document, fact) {
  const text = Array.from(document.text);
  const said = text.slice(source.start, source.end).join("");
  const corrected = said === fact.value ? [] : [element("p", { className: "small" }, `The document says “${said}”; the fact was corrected to “${fact.value}”.`)];
  return [
    element("h3", {}, "Source"),
    list({ Title: document.title, Corpus: document.corpus, Document: document.external_id, Address: document.uri, Licence: document.licence }),
    element("p", { className: "source", tabIndex: 0 }, text.slice(0, source.start).join(""), element("mark", {}, said), text.slice(source.end).join("")),
    ...corrected,
  ];
}

function asked(fact) {
  return [element("h3", {}, "Source"), element("p", {}, "No document: an editor added this fact."), list({ Question: fact.question, Value: fact.value })];
}

function history(trace) {
  const entries = trace.history.map((change) =>
    element("li", {}, `${change.kind}, change ${change.seq}, ${new Date(change.at).toLocaleString()}, ${change.actor}: ${change.reason || "no reason given"}`),
  );
  const uses = new Set(trace.uses.map((use) => use.generation_id)).size;
  return [
    element("h3", {}, "History"),
    entries.length ? element("ol", { className: "history" }, ...entries) : element("p", { className: "small" }, "Unchanged since it was ingested."),
    element("p", { className: "small" }, `Spliced into ${uses} stored ${uses === 1 ? "output" : "outputs"}.`),
  ];
}

function editing(fact, edited, again) {
  const gone = fact.deleted_seq !== null;
  const reason = element("input", { id: "reason", required: true, maxLength: 1000, autocomplete: "off" });
  const verb = gone ? "Restore" : "Delete";
  const button = element("button", { className: gone ? "" : "danger" }, `${verb} this fact`);
  const repeat = element("button", { type: "button", className: "quiet" }, "Generate again");
  const refused = element("p", { className: "alarm" });
  refused.setAttribute("role", "alert");
  repeat.addEventListener("click", again);
  const form = element("form", { className: "edit" }, element("label", { htmlFor: "reason" }, `Reason to ${verb.toLowerCase()} it`), reason);
  form.append(element("div", { className: "row" }, repeat, button), refused);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      const body = { fact_ids: [fact.fact_id], reason: reason.value };
      await edited(gone ? await call("POST", "/v1/facts/restore", body) : await call("DELETE", "/v1/facts", body));
    } catch (error) {
      refused.textContent = error.message;
      button.disabled = false;
    }
  });
  return form;
}

function list(entries) {
  const rows = Object.entries(entries).filter(([, value]) => value !== null);
  return element("dl", {}, ...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}
