// Did it learn? Accuracy on all classes seen so far, after each task, and the losses of the rounds.

const LABELLED = 8; // more lines than this have no labels, bands or dotted companions
const ROOM_FOR_LABELS = 560;

/** Return the chart of accuracy after each task. */
function accuracyFigure() {
  const shown = learned();
  if (!shown.length) return null;
  const few = shown.length <= LABELLED;
  const several = shown.some((group) => group.now.accuracy.std);
  const corrected = few && state.prediction !== "none" && shown.some((group) => "own" in group.predictions);
  const traces = shown.flatMap((group) => accuracyTraces(group, few, corrected));
  const values = shown.flatMap((g) => [...g.now.accuracy.mean, ...g.plain.accuracy.mean]);
  const planned = state.data.scenarios.map((scenario) => scenario.tasks.length);
  const longest = Math.max(...planned, ...shown.map((g) => g.now.accuracy.mean.length));
  const axis = percentAxis(values, "accuracy on all classes seen so far (%)");
  const ends = shown.map((group) => ({
    x: group.now.accuracy.mean.length,
    y: last(group.now.accuracy.mean),
    text: inChart(group.name),
    colour: look(group.index).colour,
  }));
  const labels = endLabels(ends, axis.range);
  return {
    title: "Accuracy after each task",
    caption: [
      "Share of test images of all classes seen so far that are recognised.",
      several ? (few ? "Mean over seeds; the band is one standard deviation." : "Mean over seeds.") : "",
      corrected ? "Thin dotted lines: the same models without correction." : "",
    ]
      .filter(Boolean)
      .join(" "),
    summary: shown
      .map(
        (g) =>
          `${g.label}: ${number(g.now.accuracy.mean[0], 0)} % after the first task, ` +
          `${number(last(g.now.accuracy.mean), 0)} % after task ${g.now.accuracy.mean.length}`,
      )
      .join("; "),
    height: 380,
    traces,
    layout: {
      xaxis: { ...taskAxis(longest, "tasks learned"), range: [0.85, Math.max(longest, 2) + 0.15] },
      yaxis: axis,
      hovermode: "x unified",
      annotations: labels,
      margin: { r: roomFor(labels) },
    },
    numbers: taskNumbers(shown, (group) => group.now.accuracy, longest),
  };
}

function accuracyTraces(group, few, corrected) {
  const { mean, std } = group.now.accuracy;
  const tasks = oneTo(mean.length);
  const errors = std ? mean.map((_, i) => ` \u00b1 ${number(std[i])}`) : mean.map(() => "");
  const main = line(group, tasks, mean, { text: errors, hovertemplate: "%{y:.1f}%{text} %" });
  const plain = line(group, tasks, group.plain.accuracy.mean, {
    mode: "lines",
    line: { width: 1.2, dash: "dot" },
    hoverinfo: "skip",
  });
  const bands = few ? band(group, tasks, group.now.accuracy) : [];
  return [...bands, ...(corrected && "own" in group.predictions ? [plain] : []), main];
}

/**
 * Return the names at the ends of lines, moved apart where they would overlap; "ends" are {x, y, text, colour}.
 * A chart that shares its row with another has room for them on a wide screen alone.
 */
function endLabels(ends, [low, high], shared = false) {
  const width = byId("content").clientWidth;
  const narrow = shared ? state.printing || width < 2 * ROOM_FOR_LABELS : !state.printing && width < ROOM_FOR_LABELS;
  if (ends.length < 2 || ends.length > LABELLED || narrow) return [];
  const gap = (high - low) * 0.055;
  const apart = ends.map((end) => ({ ...end })).sort((a, b) => a.y - b.y);
  for (let i = 1; i < apart.length; i++) apart[i].y = Math.max(apart[i].y, apart[i - 1].y + gap);
  return apart.map(({ x, y, text, colour: color }) => ({
    x,
    y,
    text,
    showarrow: false,
    xanchor: "left",
    xshift: 10,
    font: { color, size: 13 },
  }));
}

/** Return the margin that the names at the ends of lines need. */
const roomFor = (labels) =>
  labels.length ? Math.min(280, 24 + 7.2 * Math.max(...labels.map((label) => label.text.length))) : 16;

/** Return numbers by method and task as a table. */
function taskNumbers(shown, spread, longest, unit = "%") {
  const cell = ({ mean, std }, i) => (i < mean.length ? [mean[i], std ? std[i] : null] : null);
  return {
    columns: [
      { heading: "method", text: true },
      ...oneTo(longest).map((t) => ({ heading: `task ${t}`, unit, digits: 1 })),
    ],
    rows: shown.map((group) => [group.label, ...oneTo(longest).map((t) => cell(spread(group), t - 1))]),
  };
}

/** Return a chart of each loss over the rounds. */
function lossFigures() {
  const shown = begun();
  const losses = [...new Set(shown.flatMap((g) => Object.keys(g.rounds.losses)))];
  const all = "Sum of all terms in the first local epoch.";
  return grid(
    "losses",
    "tight",
    { title: "Losses over the rounds", caption: `Training losses of each round, ${ROUNDS}` },
    losses.map((name) =>
      roundFigure(`loss-${name}`, shown, [["", (r) => r.losses[name]]], {
        title: name === "first_epoch" ? "All terms, first epoch" : name,
        caption: name === "first_epoch" ? all : "Weighted, in the last local epoch.",
        unit: "",
        digits: 3,
        axis: "loss",
        log: true,
      }),
    ),
  );
}
