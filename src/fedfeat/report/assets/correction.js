// What did the correction change? New and old classes with and without it, and the energies it rests on.

const NEW = { name: "head", symbol: "square", label: "newest classes" };
const OLD = { name: "tail", symbol: "circle", label: "earlier classes" };

/** Return one chart per method: accuracy on the newest and on all earlier classes; and what the correction gained. */
function correctionFigures() {
  const heading = {
    title: "New and old classes",
    caption:
      "Red squares: classes of the newest task (head). Circles: all earlier classes (tail), of which only exemplars are left." +
      (state.prediction === "none" || state.data.choices.length < 2
        ? ""
        : " Dotted: the same models without correction."),
  };
  const shown = learned().filter((g) => g.now.tail.mean.length > 1);
  const alone = state.data.groups.length === 1;
  const spec = (group) => (alone ? { ...headTailSpec(group), ...heading } : headTailSpec(group));
  const charts = shown.map((group) => figure(`head-tail-${group.label}`, alone ? "half" : "small", spec(group)));
  const gain = figure("gain", alone ? "half" : "wide", gainFigure());
  if (alone) return [grid("head-tail", "half", null, [...charts, gain])];
  return [grid("head-tail", "tight", heading, charts), gain];
}

function headTailSpec(group) {
  const corrected = state.prediction !== "none" && "own" in group.predictions;
  const tasks = oneTo(group.now.tail.mean.length).slice(1);
  const kinds = [
    [NEW, "head"],
    [OLD, "tail"],
  ];
  const traces = kinds.flatMap(([kind, key]) => [
    ...(corrected
      ? [
          groupLine(kind, tasks, group.plain[key].mean.slice(1), {
            mode: "lines",
            line: { width: 1.2, dash: "dot" },
            name: `${kind.label}, no correction`,
          }),
        ]
      : []),
    groupLine(kind, tasks, group.now[key].mean.slice(1)),
  ]);
  return {
    title: withPrediction(group),
    caption: "",
    summary:
      kinds
        .map(
          ([kind, key]) =>
            `${kind.label}: ${number(last(group.now[key].mean), 0)} %` +
            (corrected ? `, without correction ${number(last(group.plain[key].mean), 0)} %` : ""),
        )
        .join("; ") + " after the last task.",
    height: 250,
    traces,
    layout: {
      xaxis: taskAxis(tasks.length, "tasks learned"),
      yaxis: { title: { text: "accuracy (%)" }, range: [-3, 103] },
      hovermode: "x unified",
    },
    numbers: {
      columns: [
        { heading: "tasks learned" },
        ...["newest", "earlier"].flatMap((name) => [
          { heading: name, unit: "%", digits: 1 },
          { heading: `${name}, no correction`, unit: "%", digits: 1 },
        ]),
      ],
      rows: tasks.map((t) => [
        t,
        ...["head", "tail"].flatMap((key) => [group.now[key].mean[t - 1], group.plain[key].mean[t - 1]]),
      ]),
    },
  };
}

function groupLine(kind, x, y, more = {}) {
  return merged(
    {
      type: "scatter",
      mode: "lines+markers",
      name: kind.label,
      x,
      y,
      hovertemplate: "%{y:.1f} %",
      line: { color: colour(kind.name), width: 2 },
      marker: { symbol: kind.symbol, size: 8, color: colour(kind.name) },
    },
    more,
  );
}

/** Return what the correction brought after each task, in points of accuracy on all classes. */
function gainFigure() {
  const kind = state.prediction === "none" ? "own" : state.prediction;
  const shown = learned().filter((g) => "own" in g.predictions && g.plain.accuracy.mean.length > 1);
  if (!shown.length) return null;
  const gains = shown.map((g) => chosen(g.predictions, kind).accuracy.mean.map((v, i) => v - g.plain.accuracy.mean[i]));
  const longest = Math.max(...gains.map((g) => g.length));
  return {
    title: "Gained by the correction",
    caption: `Accuracy on all classes seen so far with ${kind === "own" ? "the method's correction" : predictionName()} minus the same models without, in points; mean over seeds.`,
    summary: shown
      .map((g, i) => `${g.label}: ${gains[i].map((v, t) => `task ${t + 1} ${signed(v)}`).join(", ")}`)
      .join("; "),
    height: 240,
    traces: shown.map((g, i) =>
      line(g, oneTo(gains[i].length), gains[i], {
        hovertemplate: "after task %{x}: %{y:+.1f} points<extra>%{fullData.name}</extra>",
      }),
    ),
    layout: {
      xaxis: taskAxis(longest, "tasks learned"),
      yaxis: { title: { text: "points" }, zeroline: true, zerolinecolor: colour("muted"), zerolinewidth: 1 },
    },
    numbers: taskNumbers(
      shown.map((g, i) => ({ ...g, gain: { mean: gains[i], std: null } })),
      (g) => g.gain,
      longest,
      "points",
    ),
  };
}

/** Return the chart of energies in the span of new or of old prototypes, after the chosen task. */
function energyFigure(span) {
  const run = detail();
  const found = run?.energies.find((e) => e.task === state.task) ?? last(run?.energies ?? []);
  if (!found) return null;
  const { of_head: ofNew, of_tail: ofOld, prior } = found[span];
  const kinds = [
    [OLD, ofOld],
    [NEW, ofNew],
  ];
  const edges = ofNew.map((_, i) => (i + 0.5) / ofNew.length);
  const share = (counts) => {
    const all = sum(counts) || 1;
    return counts.map((n) => (100 * n) / all);
  };
  const middle = (counts) => {
    const all = sum(counts) || 1;
    return counts.reduce((a, n, i) => a + n * edges[i], 0) / all;
  };
  const filled = Math.max(...[ofNew, ofOld].flatMap((counts) => counts.map((n, i) => (n ? i + 1 : 0)))) / ofNew.length;
  const reach = Math.min(1, 1.15 * Math.max(filled, prior ?? 0));
  const where = span === "head" ? "newest" : "earlier";
  return {
    title: `Energy along the ${where} prototypes: ${runName(run)}, task ${found.task}`,
    caption:
      `Share of a test feature's energy in the span of the ${where} classes' prototypes. ` +
      (prior === null
        ? "There is no prior to show."
        : span === "head"
          ? "Dashed: the prior, measured on exemplars of earlier classes. EGC corrects the features to the right of it."
          : "Dashed: the prior of the same exemplars."),
    summary: `Mean share: ${kinds.map(([kind, counts]) => `${kind.label} ${number(middle(counts), 2)}`).join(", ")}${prior === null ? "" : `; the prior is ${number(prior, 2)}`}.`,
    height: 310,
    traces: kinds.map(([kind, counts]) => ({
      type: "scatter",
      mode: "lines",
      name: kind.label,
      x: edges,
      y: share(counts),
      line: { shape: "hvh", color: colour(kind.name), width: 1.6, dash: kind === OLD ? "solid" : "dot" },
      fill: "tozeroy",
      fillcolor: faded(kind.name, 0.22),
      hovertemplate: `%{y:.1f} % of the ${kind.label} at share %{x:.2f}<extra></extra>`,
    })),
    layout: {
      showlegend: true,
      margin: { t: 62 },
      legend: { y: 1.13 },
      xaxis: { title: { text: "share of energy" }, range: [0, reach] },
      yaxis: { title: { text: "test images (%)" }, rangemode: "tozero" },
      shapes:
        prior === null
          ? []
          : [upright(prior, { line: { color: colour("ink"), width: 1.6, dash: "dash" }, layer: "above" })],
      annotations:
        prior === null
          ? []
          : [
              {
                x: prior,
                y: 1,
                yref: "paper",
                text: `prior ${number(prior, 2)}`,
                showarrow: false,
                xanchor: prior < 0.1 * reach ? "left" : prior > 0.9 * reach ? "right" : "center",
                yanchor: "bottom",
              },
            ],
    },
    numbers: {
      columns: [
        { heading: "share of energy from", digits: 2 },
        { heading: "images of earlier classes", digits: 0 },
        { heading: "images of newest classes", digits: 0 },
      ],
      rows: ofNew.map((n, i) => [i / ofNew.length, ofOld[i], n]),
    },
  };
}

/** Return the choice of the task whose energies are shown. */
function energyTask() {
  const tasks = (detail()?.energies ?? []).map((e) => e.task);
  if (tasks.length < 2) return null;
  const now = tasks.includes(state.task) ? state.task : last(tasks);
  const node = (energyTask.node ??= make(
    "label",
    { class: "choice" },
    make("span", {}, "Energies after task"),
    make("select", {
      onchange: (event) => {
        state.task = Number(event.target.value);
        render();
      },
    }),
  ));
  fillSelect(
    node.querySelector("select"),
    tasks.map((t) => [String(t), String(t)]),
    String(now),
  );
  return node;
}
