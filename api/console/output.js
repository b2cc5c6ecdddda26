// An output as text with its spliced spans marked. Everything that came from the server becomes a text node.
// Offsets count Unicode code points, and JavaScript strings count UTF-16 units: slice arrays of code points.

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// `choose(splice)` is called when a span is clicked or, with the keyboard, entered.
export function render(target, trace, choose) {
  const text = Array.from(trace.output);
  const nodes = [];
  let at = 0;
  for (const splice of trace.splices) {
    nodes.push(text.slice(at, splice.output_start).join(""));
    nodes.push(splice.outcome === "hit" ? span(splice, choose) : missed(splice));
    at = splice.output_end;
  }
  nodes.push(text.slice(at).join(""));
  target.replaceChildren(...nodes);
}

// One line for each span whose fact is no longer what it was.
export function renderNotes(target, trace) {
  const notes = trace.splices.filter((splice) => splice.outcome === "hit").flatMap((splice) => {
    if (!splice.live) return [element("li", { className: "gone" }, `“${splice.value}”: fact ${splice.fact_id} has been deleted since.`)];
    if (splice.current_value === splice.value) return [];
    return [element("li", {}, `“${splice.value}”: fact ${splice.fact_id} now says “${splice.current_value}”.`)];
  });
  target.replaceChildren(...notes);
}

function span(splice, choose) {
  const state = splice.live ? "" : ", deleted since";
  const tag = `#${splice.fact_id} · ${score(splice)}${state}`;
  const mark = element("mark", { className: "splice", tabIndex: 0 }, splice.value, element("small", { className: "tag" }, tag));
  mark.setAttribute("role", "button");
  mark.setAttribute("aria-label", `${splice.value}, from fact ${splice.fact_id}, score ${score(splice)}${state}. Show its evidence`);
  mark.classList.toggle("gone", !splice.live);
  mark.dataset.ordinal = splice.ordinal;
  mark.addEventListener("click", () => choose(splice));
  mark.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose(splice);
  });
  return mark;
}

function missed(splice) {
  if (splice.outcome === "abstained") {
    return element("span", { className: "no-match", title: "Looked up here; the fact asked for was forgotten" }, "abstained");
  }
  return element("span", { className: "no-match", title: "Looked up here, and nothing was near enough" }, "no match");
}

function score(splice) {
  return splice.score === null ? "–" : splice.score.toFixed(3);
}
