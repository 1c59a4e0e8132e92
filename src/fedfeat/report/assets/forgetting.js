// What did it forget? The accuracy matrix, forgetting per task, and which classes are taken for which.

const WRITTEN_TASKS = 10;
const WRITTEN_CLASSES = 14;
const NAMED_CLASSES = 40;
const MOST_BARS = 6;
const ALONE = 380; // height of the three charts of an only method, side by side

const MATRIX = {
  title: "Accuracy matrix",
  caption:
    "Accuracy on each task after each task, in percent. Down a column: what becomes of a task while newer ones are learned. Empty: not learned yet.",
};

/** Return what was forgotten: a matrix per method, or that of the only one beside the other two charts. */
function forgettingFigures() {
  const shown = learned();
  const alone = state.data.groups.length === 1;
  const matrices = shown.map((group) => figure(`matrix-${group.label}`, "small", matrixSpec(group, alone)));
  const others = [
    figure("forgetting", alone ? "small" : "half", forgettingFigure()),
    figure("confusion", alone ? "small" : "half", confusionFigure()),
  ];
  if (alone) return [grid("forgetting", "narrow", null, [...matrices, ...others])];
  return [grid("matrices", "tight", MATRIX, matrices), grid("forgetting", "half", null, others)];
}

function matrixSpec(group, alone = false) {
  const { matrix } = group.now;
  const tasks = oneTo(matrix.length);
  const end = last(matrix);
  const written = matrix.length <= WRITTEN_TASKS;
  const map = heatmap({
    x: tasks,
    y: tasks,
    z: matrix,
    hover: "after task %{y}: %{z:.1f} % on task %{x}",
    gap: written ? 2 : 0,
    bar: written ? null : {},
  });
  return {
    title: alone ? MATRIX.title : withPrediction(group),
    caption: alone ? MATRIX.caption : "",
    summary: `At the end: ${tasks.map((t) => `task ${t} ${number(end[t - 1], 0)} %`).join(", ")}.`,
    height: alone ? ALONE : 290,
    traces: written ? [map, cellNumbers(map)] : [map],
    layout: {
      xaxis: { ...taskAxis(tasks.length, "accuracy on task"), showline: false },
      yaxis: { ...taskAxis(tasks.length, "after task"), autorange: "reversed", showgrid: false },
    },
    numbers: {
      columns: [{ heading: "after task" }, ...tasks.map((t) => ({ heading: `task ${t}`, unit: "%", digits: 1 }))],
      rows: matrix.map((row, i) => [i + 1, ...row]),
    },
  };
}

/** Return how far each old task ended below its best: bars, or a heat map for many methods. */
function forgettingFigure() {
  const shown = learned().filter((group) => group.now.forgetting.mean.length);
  if (!shown.length) return null;
  const longest = Math.max(...shown.map((g) => g.now.forgetting.mean.length));
  const bars = shown.length <= MOST_BARS;
  return {
    title: "Forgetting of each task",
    caption: `How far a task ended below its best, in points${bars && shown.some((g) => g.now.forgetting.std) ? "; whiskers are one standard deviation over seeds" : ""}. Below zero it ended better than ever before.`,
    summary: shown
      .map((g) => `${g.label}: ${g.now.forgetting.mean.map((v, i) => `task ${i + 1} ${number(v, 0)}`).join(", ")}`)
      .join("; "),
    height: state.data.groups.length === 1 ? ALONE : bars ? 320 : 120 + 24 * shown.length,
    traces: bars ? shown.map(forgettingBars) : forgettingMap(shown, longest),
    layout: bars
      ? {
          xaxis: taskAxis(longest, "task"),
          bargap: 0.25,
          bargroupgap: 0.08,
          yaxis: {
            title: { text: "forgetting (points)" },
            zeroline: true,
            zerolinecolor: colour("muted"),
            zerolinewidth: 1,
          },
        }
      : { xaxis: { ...taskAxis(longest, "task"), showline: false }, yaxis: { autorange: "reversed", showgrid: false } },
    numbers: taskNumbers(shown, (group) => group.now.forgetting, longest, "points"),
  };
}

function forgettingBars(group) {
  const { mean, std } = group.now.forgetting;
  const { colour: ink } = look(group.index);
  return {
    type: "bar",
    name: inChart(group.name),
    x: oneTo(mean.length),
    y: mean,
    marker: {
      color: ink,
      pattern: {
        fillmode: "overlay",
        shape: ["", "/", ".", "x", "\\", "-"][group.index % 6],
        fgcolor: colour("page"),
        size: 6,
        solidity: 0.25,
      },
    },
    error_y: std ? { type: "data", array: std, color: colour("muted"), thickness: 1, width: 3 } : undefined,
    hovertemplate: "task %{x}: %{y:.1f} points<extra>%{fullData.name}</extra>",
  };
}

function forgettingMap(shown, longest) {
  const z = shown.map((group) => group.now.forgetting.mean);
  const map = heatmap({
    x: oneTo(longest),
    y: shown.map((g) => inChart(g.name)),
    z,
    zmax: Math.max(1, ...z.flat()),
    zmin: Math.min(0, ...z.flat()),
    hover: "%{y}, task %{x}: %{z:.1f} points",
  });
  return [map, cellNumbers(map)];
}

/** Return the confusion table of the run in detail, rows in percent of a class's test images. */
function confusionFigure() {
  const run = detail();
  const counts = run && chosen(run.confusion);
  if (!counts || !counts.length) return null;
  const scenario = scenarioOf(run);
  const found = scenario ? [...new Set(scenario.tasks.flatMap((t) => t.classes))] : [];
  const names = counts.map((_, i) => found[i] ?? String(i));
  const share = counts.map((row) => {
    const all = sum(row);
    return row.map((n) => (all ? (100 * n) / all : null));
  });
  const latest = scenario && last(scenario.tasks);
  const old = latest ? counts.length - (latest.new ?? latest.classes.length) : 0;
  const written = counts.length <= WRITTEN_CLASSES;
  const places = counts.map((_, i) => i);
  const ticks = {
    tickvals: places,
    ticktext: names.map((n) => inChart(n, 14)),
    showticklabels: names.length <= NAMED_CLASSES,
    showgrid: false,
    showline: false,
  };
  const map = heatmap({
    x: places,
    y: places,
    z: share,
    hover: "%{customdata}",
    gap: written ? 2 : 0,
    bar: { ticksuffix: " %" },
  });
  const named = (n, i, j) =>
    `${inChart(names[i])} taken for ${inChart(names[j])}: ${count(n, "image")} (${number(share[i][j], 0)} %)`;
  const border =
    old > 0
      ? [upright(old - 0.5, { line: { color: colour("ink"), width: 1.5 }, layer: "above" }), across(old - 0.5)]
      : [];
  return {
    title: `Confusion: ${runName(run)}`,
    caption:
      `Test images of a class (rows) by predicted class (columns), ${predictionName(state.data.groups[run.group])}, in order of arrival.` +
      (written ? " Numbers are images." : "") +
      (border.length ? " The lines part earlier classes from those of the last task." : ""),
    summary: worstConfusions(counts, names),
    height: state.data.groups.length === 1 ? ALONE : Math.min(640, Math.max(320, 110 + 30 * counts.length)),
    traces: [
      { ...map, customdata: counts.map((row, i) => row.map((n, j) => named(n, i, j))) },
      ...(written ? [cellNumbers(map, (_, i, j) => (counts[i][j] ? String(counts[i][j]) : ""))] : []),
    ],
    layout: {
      xaxis: { ...ticks, title: { text: "predicted class" }, tickangle: names.some((n) => n.length > 3) ? -40 : 0 },
      yaxis: { ...ticks, title: { text: "true class" }, autorange: "reversed" },
      shapes: border,
    },
    numbers: {
      columns: [{ heading: "true class", text: true }, ...names.map((n) => ({ heading: n, digits: 0 }))],
      rows: counts.map((row, i) => [names[i], ...row]),
    },
  };
}

const across = (y) => ({
  type: "line",
  xref: "paper",
  yref: "y",
  x0: 0,
  x1: 1,
  y0: y,
  y1: y,
  line: { color: colour("ink"), width: 1.5 },
});

function worstConfusions(counts, names) {
  const pairs = counts.flatMap((row, i) => row.map((n, j) => ({ n, i, j }))).filter((p) => p.i !== p.j && p.n > 0);
  const worst = pairs.sort((a, b) => b.n - a.n).slice(0, 3);
  if (!worst.length) return "Every test image is recognised.";
  return `Most frequent mistakes: ${worst.map((p) => `${names[p.i]} taken for ${names[p.j]} ${count(p.n, "time")}`).join(", ")}.`;
}
