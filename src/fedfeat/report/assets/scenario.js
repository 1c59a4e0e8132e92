// Who holds what: tasks, clients and classes on one map.

/** Return the scenario as one map: clients down, classes across in order of arrival, tasks side by side. */
function scenarioFigure() {
  const run = detail();
  const scenario = scenarioOf(run);
  if (!scenario || !scenario.tasks.some((t) => t.held.length)) return null;
  const classes = scenario.tasks.flatMap((task) => task.classes.map((name) => ({ name, task: task.task })));
  const z = Array.from({ length: scenario.clients }, () => classes.map(() => null));
  let first = 0;
  for (const task of scenario.tasks) {
    for (const [client, ...held] of task.held)
      held.forEach((n, i) => {
        z[client][first + i] = n;
      });
    first += task.classes.length;
  }
  const most = Math.max(1, ...z.flat().filter((n) => n !== null));
  const places = classes.map((_, i) => i);
  const few = classes.length <= 30;
  const map = heatmap({
    x: places,
    y: z.map((_, k) => k),
    z: z.map((row) => row.map((n) => (n === null ? null : Math.sqrt(n)))),
    zmax: Math.sqrt(most),
    hover: "%{customdata}",
    gap: scenario.clients > 60 || !few ? 0 : 2,
    bar: {
      tickvals: [0, 0.25, 1].map((part) => Math.sqrt(part * most)),
      ticktext: [0, 0.25, 1].map((part) => number(part * most, 0)),
      title: { text: "images", font: { size: 11 } },
    },
  });
  const named = (n, k, c) =>
    `client ${k}, task ${classes[c].task}, class ${inChart(classes[c].name)}: ${count(n ?? 0, "image")}`;
  return {
    title: `Who holds what: seed ${scenario.seed}`,
    caption:
      "Training images of each class (across, task by task) at each client (down). Empty: not joined yet, or gone. Late images of earlier classes follow those of the task's own. The colour follows the square root, so that a handful differs from none. The same seed gives every method the same split.",
    summary: scenario.tasks
      .map(
        (t) =>
          `Task ${t.task}: ${t.samples} images of ${t.classes.slice(0, 4).join(", ")}${t.classes.length > 4 ? " and more" : ""} at ${count(t.present, "client")}`,
      )
      .join("; "),
    height: clientHeight(scenario.clients) + 20,
    traces: [
      { ...map, customdata: z.map((row, k) => row.map((n, c) => named(n, k, c))) },
      ...(few && scenario.clients <= WRITTEN_CLIENTS ? [cellNumbers(map, (_, k, c) => String(z[k][c]))] : []),
    ],
    layout: {
      margin: { t: 34 },
      xaxis: {
        tickvals: places,
        ticktext: classes.map((c) => inChart(c.name, 12)),
        showticklabels: few,
        title: { text: few ? "class" : `${classes.length} classes` },
        showline: false,
        tickangle: classes.some((c) => c.name.length > 3) ? -40 : 0,
      },
      yaxis: clientAxis(scenario.clients),
      ...taskMarks(scenario),
    },
    numbers: {
      columns: [{ heading: "client" }, ...classes.map((c) => ({ heading: `task ${c.task}: ${c.name}`, digits: 0 }))],
      rows: z.map((row, k) => [k, ...row]),
    },
  };
}

/** Return the names of tasks above the map, and lines between them. */
function taskMarks(scenario) {
  const annotations = [],
    shapes = [];
  let first = 0;
  for (const task of scenario.tasks) {
    const middle = first + (task.classes.length - 1) / 2;
    const text = task.domain ? inChart(task.domain, 12) : scenario.tasks.length <= 6 ? `task ${task.task}` : String(task.task);
    annotations.push({
      x: middle,
      y: 1,
      yref: "paper",
      yanchor: "bottom",
      yshift: 6,
      text,
      showarrow: false,
      font: { color: colour("muted"), size: 12 },
    });
    if (first)
      shapes.push(upright(first - 0.5, { line: { color: colour("ink"), width: 1 }, layer: "above", y1: 1.05 }));
    first += task.classes.length;
  }
  return { annotations, shapes };
}

const listed = (names) => names.slice(0, 6).join(", ") + (names.length > 6 ? ` and ${names.length - 6} more` : "");

/** Return the tasks as a table. */
function taskTable() {
  const scenario = scenarioOf(detail());
  if (!scenario) return null;
  const spread = (s) => (s ? `${s.min} / ${s.median} / ${s.max}` : "not told");
  return table("tasks", {
    caption: `Tasks with seed ${scenario.seed}; per client: smallest / middle / largest`,
    columns: [
      { heading: "task" },
      { heading: "classes", text: true },
      { heading: "images", digits: 0 },
      { heading: "clients", digits: 0 },
      { heading: "in a round", digits: 0 },
      { heading: "images per client" },
      { heading: "classes per client" },
      { heading: "exemplars per client" },
    ],
    rows: scenario.tasks.map((t) => [
      t.task,
      (t.domain ? `${t.domain}: ` : "") + listed(t.classes.slice(0, t.new ?? t.classes.length)),
      t.samples,
      t.present,
      t.participants_per_round,
      spread(t.samples_per_client),
      spread(t.classes_per_client),
      spread(t.exemplars_per_client),
    ]),
  });
}
