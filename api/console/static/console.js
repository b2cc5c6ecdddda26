// What the console adds to plain links and forms. Every page works without it.
//
//   data-swap="#part"      fetch where the link or form leads and put that page's part in place of this one's
//   data-auto              a form that sends itself when something in it changes
//   data-stream="/path"    a form whose answer is shown as it is written
//   data-poll="2000"       a part that is fetched anew every so many milliseconds, while the new one says so too
//   data-says="#output"    a slider that shows its value there; data-fill="#field" a button that fills a field in
//   data-selects="#form"   a text; what is selected in it fills the form's fields text, start and end (code points)
//                          (from data-offset="12" on, where the text is cut); data-edge and data-way move an end of it
//   data-item              a card that j and k go to; there a accepts, r rejects, f fixes, x chooses, Escape goes back
//   data-key="/"           the key that leads to a field; data-copy="#text" a button that copies what stands there
//   data-announce          read out by screen readers after a swap; data-focus is focused

const $ = (selector, root = document) => root.querySelector(selector);

async function load(url, options = {}) {
  const answer = await fetch(url, { ...options, headers: { accept: "text/html" } });
  if (!(answer.headers.get("content-type") || "").startsWith("text/html")) throw new Error("no page");
  return { page: new DOMParser().parseFromString(await answer.text(), "text/html"), url: answer.url };
}

// The part that was asked for, or where that page has none (an error, the sign-in), the whole page.
function put(selector, page) {
  const fresh = $(selector, page);
  if (!fresh || !$(selector)) return document.documentElement.replaceWith(document.adoptNode(page.documentElement));
  $(selector).replaceWith(document.adoptNode(fresh));
  const told = $("[data-announce], [role=alert]", fresh);
  if (told) $("#said").textContent = told.textContent.trim();
  ready(fresh);
  return fresh;
}

async function swap(selector, url, { options, push = true, focus } = {}) {
  const old = $(selector);
  old?.setAttribute("aria-busy", "true");
  try {
    const loaded = await load(url, options);
    put(selector, loaded.page);
    if (push) history.pushState({}, "", loaded.url);
    page = location.pathname + location.search;
    ($(`${selector} [data-focus]`) || (focus && $(focus)))?.focus({ preventScroll: false });
  } catch {
    location.assign(options ? location.href : url); // the browser's own way also shows what went wrong
  } finally {
    old?.removeAttribute("aria-busy");
  }
}

function asked(form, submitter) {
  const url = new URL(submitter?.formAction || form.action);
  for (const [name, value] of new FormData(form, submitter)) if (value !== "") url.searchParams.append(name, value);
  return url;
}

// Shows the answer as it is written, then goes to where it is stored.
async function stream(form) {
  const box = $("#streaming"), text = $(".said", box), button = $("button.main", form);
  const answer = await fetch(form.dataset.stream, { method: "POST", body: new URLSearchParams(new FormData(form)) });
  if (!(answer.headers.get("content-type") || "").startsWith("text/event-stream")) return form.submit();
  text.textContent = "";
  $("#traced").replaceChildren();
  box.hidden = false;
  button.disabled = true;
  box.scrollIntoView({ block: "nearest" });
  let problem = "The connection ended before the output was stored. Ask again.", stored;
  try {
    for await (const [name, said] of events(answer.body)) {
      if (name === "piece") text.append(said);
      if (name === "problem") problem = said;
      if (name === "done") stored = said;
    }
  } catch { /* cut off: what was not stored is told below */ }
  if (stored) {
    await swap("#content", stored, { focus: "#output-title" });
    $("#said").textContent = "The output is there.";
  } else {
    $(".waiting", box).textContent = $("#said").textContent = problem;
    button.disabled = false;
  }
}

// The server-sent events of a body: their names and what they say.
async function* events(body) {
  let rest = "";
  for await (const chunk of body.pipeThrough(new TextDecoderStream())) {
    const whole = (rest + chunk).split(/\r?\n\r?\n/);
    rest = whole.pop();
    for (const event of whole) {
      const field = (name) => event.match(new RegExp(`^${name}: ?(.*)$`, "m"))?.[1].trim();
      if (field("data")) yield [field("event"), JSON.parse(field("data"))];
    }
  }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-swap]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0) {
    event.preventDefault();
    swap(link.dataset.swap, link.href, { focus: link.dataset.focusOn });
  }
  const filler = event.target.closest("[data-fill]");
  if (filler) {
    $(filler.dataset.fill).value = filler.dataset.value;
    $(filler.dataset.fill).focus();
  }
});

document.addEventListener("click", async ({ target }) => {
  if (!target.dataset?.copy) return;
  try {
    await navigator.clipboard.writeText($(target.dataset.copy).textContent);
    target.textContent = $("#said").textContent = "Copied";
  } catch {
    getSelection().selectAllChildren($(target.dataset.copy)); // the browser forbids it: ready for Ctrl+C
  }
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.stream && $("#prompt").value.trim()) {
    event.preventDefault();
    stream(form).catch(() => form.submit());
  } else if (form.dataset.swap && form.method === "get") {
    event.preventDefault();
    swap(form.dataset.swap, asked(form, event.submitter));
  } else if (form.dataset.swap) {
    event.preventDefault();
    settle(form, event.submitter);
  }
});

// Sends a form of the inbox and goes on to the card that takes the place of the one that was settled.
const cards = () => [...document.querySelectorAll("[data-item]")];
async function settle(form, submitter) {
  const at = cards().indexOf((submitter || form).closest("[data-item]"));
  const body = new URLSearchParams(new FormData(form, submitter));
  await swap(form.dataset.swap, form.action, { options: { method: "POST", body }, push: false });
  if ($("[data-focus]", $(form.dataset.swap))) return; // it was refused, and the refusal has the focus
  (cards()[Math.min(Math.max(at, 0), cards().length - 1)] || $(form.dataset.swap))?.focus();
}

document.addEventListener("keydown", (event) => {
  const { target, key } = event, card = document.activeElement?.closest("[data-item]");
  if (event.ctrlKey || event.metaKey || event.altKey || $("[aria-busy=true]")) return;
  if (key === "Escape" && card) return card.focus();
  if (!cards().length || target.closest?.("input:not([type=checkbox]), textarea, select")) return;
  const chosen = $("[name=fact]:checked"), here = card || cards()[0], fix = $("details", here);
  const go = (step) => cards()[card ? cards().indexOf(card) + step : 0]?.focus();
  const does = {
    j: () => go(1),
    k: () => go(-1),
    a: () => (chosen ? $("#accept-chosen") : $("[name=accept]", here))?.click(),
    r: () => (chosen ? $("#reject-chosen") : $("[name=reject]", here))?.click(),
    x: () => $("[name=fact]", here)?.click(),
    f: () => { if (fix) { fix.open = true; ($("[data-edge]", fix) || $("textarea", fix)).focus(); } },
  }[key];
  if (does) { event.preventDefault(); does(); }
});

// Moves an end of the words that a form names to the next word of the text that fills it.
document.addEventListener("click", ({ target }) => {
  if (!target.dataset?.edge) return;
  const { form, dataset: { edge, way } } = target, text = $(`[data-selects="#${form.id}"]`), said = text.textContent;
  const offset = Number(text.dataset.offset || 0), points = [...said], fields = form.elements;
  const now = { start: Number(fields.start.value) - offset, end: Number(fields.end.value) - offset };
  const stops = [...said.matchAll(/[\p{L}\p{N}]+/gu)].map(
    (word) => [...said.slice(0, word.index + (edge === "end" ? word[0].length : 0))].length);
  const next = way < 0 ? stops.filter((at) => at < now[edge]).pop() : stops.find((at) => at > now[edge]);
  if (next === undefined) return;
  now[edge] = next;
  if (now.start >= now.end) return;
  const mark = document.createElement("mark"), cut = (from, to) => points.slice(from, to).join("");
  mark.textContent = fields.text.value = $("#said").textContent = cut(now.start, now.end);
  text.replaceChildren(cut(0, now.start), mark, cut(now.end));
  fields.start.value = offset + now.start;
  fields.end.value = offset + now.end;
});

// What was chosen before this program was there, or kept by the browser from before, is sent as well.
const changed = (field) => (field.options
  ? !([...field.options].find((one) => one.defaultSelected) ?? field.options[0])?.selected
  : field.checked !== field.defaultChecked || (!/checkbox|radio/.test(field.type) && field.value !== field.defaultValue));
for (const form of document.querySelectorAll("form[data-auto]"))
  if ([...form.elements].filter((field) => field.name).some(changed)) swap(form.dataset.swap, asked(form));

let waiting;
document.addEventListener("input", (event) => {
  const field = event.target;
  if (field.dataset.says) $(field.dataset.says).textContent = field.value;
  const form = field.form;
  if (form?.dataset.auto === undefined) return;
  clearTimeout(waiting);
  waiting = setTimeout(() => swap(form.dataset.swap, asked(form)), field.matches("select, [type=range]") ? 80 : 400);
});

document.addEventListener("keydown", (event) => {
  const field = event.target.closest?.("input, textarea, select");
  if (field && event.key === "Enter" && (event.ctrlKey || event.metaKey)) field.form?.requestSubmit();
  if (field || event.ctrlKey || event.metaKey || event.altKey) return;
  const wanted = [...document.querySelectorAll("[data-key]")].find((one) => one.dataset.key === event.key);
  if (wanted) { event.preventDefault(); wanted.focus(); }
});

// The words of a range as the document says them, without what is there for screen readers alone.
function words(range) {
  const part = range.cloneContents();
  for (const unseen of part.querySelectorAll(".unseen")) unseen.remove();
  return part.textContent;
}

document.addEventListener("selectionchange", () => {
  const chosen = getSelection();
  if (!chosen.rangeCount || chosen.isCollapsed) return;
  const range = chosen.getRangeAt(0), around = range.commonAncestorContainer;
  const text = (around.closest ? around : around.parentElement)?.closest("[data-selects]");
  const said = text && words(range);
  if (!said?.trim()) return;
  const before = document.createRange();
  before.setStart(text, 0);
  before.setEnd(range.startContainer, range.startOffset);
  const start = Number(text.dataset.offset || 0) + [...words(before)].length + [...said].length - [...said.trimStart()].length;
  const { elements } = $(text.dataset.selects), fix = $(text.dataset.selects).closest("details");
  if (fix) fix.open = true;
  elements.text.value = said.trim();
  elements.start.value = start;
  elements.end.value = start + [...said.trim()].length;
});

let page = location.pathname + location.search; // a step to another part of the same page fetches nothing
addEventListener("popstate", () => {
  if (page !== location.pathname + location.search) swap("#content", location.href, { push: false });
});

// Parts that change by themselves. Where the server is away for a moment it is asked again.
function ready(root) {
  for (const button of root.querySelectorAll("[data-edge]")) button.hidden = false;
  for (const part of [root, ...root.querySelectorAll("[data-poll]")]) {
    if (!part.dataset?.poll) continue;
    setTimeout(async () => {
      if (!part.isConnected) return;
      if (part.contains(document.activeElement)) return ready(part); // not from under somebody's fingers
      try {
        put(`#${part.id}`, (await load(location.href)).page);
      } catch {
        ready(part);
      }
    }, Number(part.dataset.poll));
  }
}

// Words that are typed are sought in the text, whatever its offsets were.
document.addEventListener("input", ({ target }) => {
  if (target.name === "text" && target.closest("[data-item]")) target.form.elements.start.value = target.form.elements.end.value = "";
});

ready(document.body);
for (const button of document.querySelectorAll("[data-copy]")) button.hidden = !navigator.clipboard;
$("[data-focus]")?.focus();
