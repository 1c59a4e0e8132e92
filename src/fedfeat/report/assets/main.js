// Puts the page together. "render" may be called at any time, with new data or new choices: what is there is updated.

/** Show everything as the data and the reader's choices have it. */
function render() {
  const { data } = state;
  applyTheme();
  setText(byId("title"), data.title);
  document.title = `${data.title} | fedfeat report`;
  showSentences(byId("headline"), data.headline);
  showWarning();
  showSwitch();
  showDetailChoice();
  setChildren(byId("answers"), answerCards());
  showSections();
  showContents();
  setText(
    byId("footer"),
    `Made by fedfeat ${data.version} from ${count(data.runs, "run folder")}. Charts: plotly.js (MIT licence).`,
  );
}

function showSections() {
  const some = state.data.groups.length > 0;
  setText(byId("comparison").querySelector("h2"), state.data.groups.length > 1 ? "Comparison" : "Result");
  const note = (text) => sentence(text, "note");
  const clientNote =
    detail() && !chosen(detail().clients)?.length
      ? note("Accuracy per client is not shown: it needs a listed scenario and accuracies per class in events.jsonl.")
      : null;
  const energy = [energyFigure("head"), energyFigure("tail")].map((spec, i) => figure(`energy-${i}`, "half", spec));
  const content = {
    comparison: some ? [comparisonTable(), columnKey()] : [],
    sweep: [grid("sweep", "half", null, sweepFigures())],
    learning: [methodKey("learning"), figure("accuracy", "wide", accuracyFigure()), lossFigures()],
    forgetting: [methodKey("forgetting"), ...forgettingFigures()],
    clients: [
      clientNote,
      grid("clients", "half", null, [
        figure("client-accuracy", "half", clientAccuracyFigure()),
        figure("participation", "half", participationFigure()),
      ]),
      figure("scenario", "wide", scenarioFigure()),
      grid("client-tables", "half", null, [clientTable(), taskTable()]),
    ],
    correction: [
      methodKey("correction"),
      state.data.choices.length < 2 && learned().length
        ? note("None of these methods corrects its predictions.")
        : null,
      ...correctionFigures(),
      energy.some(Boolean) ? energyTask() : null,
      grid("energies", "half", null, energy),
    ],
    cost: [methodKey("cost"), ...costFigures()],
    pictures: [grid("pictures", "narrow", null, pictureFigures())],
    setting: settingTables(),
    missing: [state.data.missing.length ? missingList() : state.data.runs ? note(nothingMissing()) : null],
  };
  for (const [id, nodes] of Object.entries(content)) {
    const kept = nodes.filter(Boolean);
    setChildren(byId(id).querySelector(".body"), kept);
    byId(id).hidden = !kept.some((node) => !node.classList.contains("key"));
  }
}

/** Return figures side by side, as many as there is room for, under a common heading and caption. */
function grid(key, size, heading, nodes) {
  const kept = nodes.filter(Boolean);
  if (!kept.length) return null;
  const node = (grid[key] ??= make(
    "div",
    {},
    ...(heading ? [make("h3", {}), make("p", { class: "caption" })] : []),
    make("div", { class: `grid ${size}` }),
  ));
  if (heading) {
    setText(node.children[0], heading.title);
    setText(node.children[1], heading.caption);
  }
  setChildren(node.lastChild, kept);
  return node;
}

/** Return one sentence as a paragraph that is the same element every time. */
function sentence(text, kind = null) {
  sentence.known ??= new Map();
  const key = `${kind}: ${text}`; // the headline and a note may say the same, and an element has one place
  if (!sentence.known.has(key)) sentence.known.set(key, make("p", { class: kind }, text));
  return sentence.known.get(key);
}

const showSentences = (parent, texts) =>
  setChildren(
    parent,
    texts.map((text) => sentence(text)),
  );

function showWarning() {
  const many = state.data.missing.length;
  byId("warning").hidden = many === 0;
  setText(
    byId("warning").firstChild,
    many === 1 ? "1 thing is missing from what follows" : `${many} things are missing from what follows`,
  );
}

const nothingMissing = () =>
  state.data.progress?.length ? "Nothing so far." : "Nothing: every run folder is complete.";

function missingList() {
  const fresh = JSON.stringify(state.data.missing);
  if (missingList.fresh !== fresh) {
    missingList.fresh = fresh;
    missingList.node = make("ul", { class: "plain" }, ...state.data.missing.map((text) => make("li", {}, text)));
  }
  return missingList.node;
}

/** Paper is light, shows every chart, and has its own width. */
function print(on) {
  state.printing = on;
  applyTheme();
  render();
  redrawFigures();
}

window.addEventListener("beforeprint", () => print(true));
window.addEventListener("afterprint", () => print(false));
let width = innerWidth;
window.addEventListener("resize", () => {
  if ([1, 2].some((n) => innerWidth < n * ROOM_FOR_LABELS !== width < n * ROOM_FOR_LABELS)) render();
  width = innerWidth;
});
startTheme(redrawFigures);
render();
drawVisible();
document.body.dataset.drawn = "true";
