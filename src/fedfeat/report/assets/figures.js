// One figure: heading, chart, caption, and its numbers as a table. Charts are drawn when they come near the screen.

const figures = new Map(); // by key: what lasts from one update to the next
const PAPER = { wide: 680, half: 330, small: 330 }; // widths on paper, in CSS pixels
const CONFIG = {
  displaylogo: false,
  responsive: true,
  displayModeBar: "hover",
  modeBarButtons: [["toImage", "resetScale2d"]],
};
const waiting = new Set(); // figures that came near the screen and are drawn one per frame, so that the page stays quick
const nearScreen = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      const kept = figures.get(entry.target.dataset.key);
      kept.near = entry.isIntersecting;
      if (kept.near && kept.dirty) waiting.add(kept);
    }
    requestAnimationFrame(drawNext);
  },
  { rootMargin: "100% 0px" },
);

function drawNext() {
  const [kept] = waiting;
  if (!kept) return;
  waiting.delete(kept);
  draw(kept);
  if (waiting.size) requestAnimationFrame(drawNext);
}

/**
 * Return a figure. "spec" is {title, caption, summary, height, traces, layout, numbers}: summary is the chart in
 * words, numbers is {columns, rows} for those who want or need a table. Without a spec there is no figure.
 */
function figure(key, size, spec) {
  if (!spec) return null;
  const kept = figures.get(key) ?? newFigure(key, size);
  kept.spec = spec;
  kept.dirty = true;
  setText(kept.title, spec.title);
  setText(kept.caption, spec.caption);
  kept.caption.hidden = !spec.caption;
  kept.plot.setAttribute("aria-label", `${spec.title}. ${spec.summary}`);
  kept.plot.style.height = `${spec.height ?? 320}px`;
  kept.node.classList.toggle("tabular", typeof Plotly === "undefined");
  if (kept.numbers.open) showNumbers(kept);
  draw(kept);
  return kept.node;
}

function newFigure(key, size) {
  const numbers = make(
    "details",
    { class: "numbers", open: typeof Plotly === "undefined" },
    make("summary", {}, "Numbers"),
  );
  const kept = {
    key,
    size,
    numbers,
    near: false,
    dirty: true,
    title: make("h3", {}),
    plot: make("div", { class: "plot", role: "group", "aria-roledescription": "chart", "data-key": key }),
    caption: make("figcaption", {}),
  };
  kept.node = make(
    "figure",
    { class: size, id: `figure-${key.replace(/\W+/g, "-")}` },
    kept.title,
    kept.plot,
    kept.caption,
    numbers,
  );
  numbers.addEventListener("toggle", () => numbers.open && showNumbers(kept));
  figures.set(key, kept);
  nearScreen.observe(kept.plot);
  return kept;
}

function showNumbers(kept) {
  const { columns, rows } = kept.spec.numbers;
  const shown = table(`numbers-${kept.key}`, { caption: kept.spec.title, columns, rows });
  setChildren(kept.numbers, [kept.numbers.firstChild, shown]);
}

/** Draw a figure if it changed and can be seen. */
function draw(kept) {
  if (!kept.dirty || typeof Plotly === "undefined" || !(kept.near || state.printing)) return;
  kept.dirty = false;
  const width = state.printing ? PAPER[kept.size] : undefined;
  const layout = merged(baseLayout(), {
    height: kept.spec.height ?? 320,
    width,
    autosize: !width,
    ...kept.spec.layout,
  });
  Plotly.react(kept.plot, kept.spec.traces, layout, CONFIG);
  // The label says what the chart shows, and the table below has its numbers; loose tick labels would only be noise.
  for (const svg of kept.plot.querySelectorAll(".main-svg")) svg.setAttribute("aria-hidden", "true");
}

/** Draw what is on the screen at once: a picture of the page may be taken as soon as it has loaded. */
function drawVisible() {
  for (const kept of figures.values()) {
    const { top, bottom } = kept.plot.getBoundingClientRect();
    kept.near ||= top < innerHeight && bottom > 0;
    draw(kept);
  }
}

/** Draw everything anew, after colours or widths changed. */
function redrawFigures() {
  for (const kept of figures.values()) {
    kept.dirty = true;
    draw(kept);
  }
}

/** Return the key to the methods: buttons that take a method out of all charts, or bring it back. */
function methodKey(section) {
  const { data } = state;
  if (data.groups.length < 2) return null;
  const kept = (methodKey[section] ??= make("div", {
    class: "key",
    role: "group",
    "aria-label": "Methods in the charts",
  }));
  const fresh = JSON.stringify([data.groups.map((g) => g.label), [...state.hidden]]);
  if (kept.fresh === fresh) return kept;
  kept.fresh = fresh;
  const focused = [...kept.children].indexOf(document.activeElement);
  kept.replaceChildren(
    ...data.groups.map((group, index) => {
      const { name, glyph } = look(index);
      const shown = !state.hidden.has(group.label);
      const press = () => {
        state.hidden[shown ? "add" : "delete"](group.label);
        render();
      };
      const mark = make("span", { style: `color: var(--${name})`, "aria-hidden": "true" }, glyph);
      return make(
        "button",
        { type: "button", "aria-pressed": String(shown), title: group.label, onclick: press },
        mark,
        short(group.name, 60),
      );
    }),
  );
  if (focused >= 0) kept.children[focused]?.focus();
  return kept;
}
