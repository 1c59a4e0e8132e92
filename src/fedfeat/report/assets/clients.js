// On which clients? Accuracy on each client's own mix of classes, who took part, and who holds what.

const WRITTEN_CLIENTS = 20;

/** Return each client's accuracy after each task, on its own mix of classes. */
function clientAccuracyFigure() {
  const run = detail();
  const rows = run && chosen(run.clients);
  if (!rows || !rows.length) return null;
  const tasks = oneTo(rows[0].length);
  const clients = rows.map((_, k) => k);
  const written = rows.length <= WRITTEN_CLIENTS && tasks.length <= WRITTEN_TASKS;
  const map = heatmap({
    x: tasks,
    y: clients,
    z: rows,
    hover: "client %{y} after task %{x}: %{z:.1f} %",
    gap: rows.length > 60 ? 0 : 2,
    bar: written ? null : { ticksuffix: " %" },
  });
  return {
    title: `Accuracy per client: ${runName(run)}`,
    caption:
      "Test accuracy of each class, weighted by how many training images of it the client has held so far: what the model is worth to this client. " +
      `In percent, ${predictionName(state.data.groups[run.group])}.`,
    summary: clientExtremes(rows),
    height: clientHeight(rows.length),
    traces: written ? [map, cellNumbers(map)] : [map],
    layout: { xaxis: { ...taskAxis(tasks.length, "tasks learned"), showline: false }, yaxis: clientAxis(rows.length) },
    numbers: {
      columns: [{ heading: "client" }, ...tasks.map((t) => ({ heading: `task ${t}`, unit: "%", digits: 1 }))],
      rows: rows.map((row, k) => [k, ...row]),
    },
  };
}

const clientHeight = (many) => Math.min(620, Math.max(220, 90 + 28 * many));
const clientAxis = (many) => ({
  title: { text: "client" },
  autorange: "reversed",
  showgrid: false,
  tickmode: many <= 25 ? "linear" : "auto",
  dtick: 1,
});

/** Return the weakest and the strongest client at the end, or null. */
function clientRange(rows) {
  const ends = rows.map((row, client) => ({ client, value: last(row) })).filter((e) => e.value !== null);
  if (!ends.length) return null;
  ends.sort((a, b) => a.value - b.value);
  return { weakest: ends[0], strongest: last(ends) };
}

function clientExtremes(rows) {
  const range = clientRange(rows);
  if (!range) return "No client holds images yet.";
  const named = ({ client, value }) => `client ${client} with ${number(value, 0)} %`;
  return `At the end the weakest is ${named(range.weakest)}, the strongest ${named(range.strongest)}.`;
}

/** Return each client's training loss over rounds; gaps are rounds without the client. */
function participationFigure() {
  const run = detail();
  const { clients, losses, rounds, task_starts: starts } = run?.client_losses ?? { clients: [] };
  if (!clients.length) return null;
  const x = centres(losses[0].length, rounds);
  const values = losses
    .flat()
    .filter((v) => v !== null)
    .sort((a, b) => a - b);
  return {
    title: `Who took part, and with what loss: ${runName(run)}`,
    caption:
      "Training loss of each client in its last local epoch of a round; the strongest colour stands for the largest twentieth. Gaps are rounds without the client, lines the beginnings of tasks.",
    summary: `${clients.map((k, i) => `client ${k} trained in ${run.client_losses.took_part[i]}`).join(", ")} of ${count(rounds, "round")}.`,
    height: clientHeight(clients.length),
    traces: [
      heatmap({
        x,
        y: clients,
        z: losses,
        zmax: values[Math.floor(0.95 * (values.length - 1))] ?? 1,
        gap: 0,
        hover: "client %{y}, round %{x:.0f}: loss %{z:.3f}",
        bar: { title: { text: "loss", font: { size: 11 } } },
      }),
    ],
    layout: {
      xaxis: { title: { text: "round" }, showline: false },
      yaxis: clientAxis(clients.length),
      shapes: taskLines(starts, colour("page"), "above"),
    },
    numbers: {
      columns: [
        { heading: "client" },
        { heading: "rounds", digits: 0 },
        ...x.map((r) => ({ heading: `loss in round ${number(r, 0)}`, digits: 3 })),
      ],
      rows: clients.map((k, i) => [k, run.client_losses.took_part[i], ...losses[i]]),
    },
  };
}

/** Return where the points of a thinned curve lie: the middles of blocks of rounds. */
const centres = (points, rounds) => Array.from({ length: points }, (_, i) => ((i + 0.5) * rounds) / points + 0.5);

/** Return lines at the beginning of every task but the first. */
const taskLines = (starts, ink = colour("grid"), layer = "below") =>
  starts.slice(1).map((start) => upright(start + 0.5, { line: { color: ink, width: 1.5 }, layer }));

/** Return the clients as a table: what they hold, how often they took part, what they got. */
function clientTable() {
  const run = detail();
  const scenario = scenarioOf(run);
  if (!scenario || !scenario.tasks.some((t) => t.held.length)) return null;
  const accuracies = chosen(run.clients) ?? [];
  const took = new Map(run.client_losses.clients.map((k, i) => [k, run.client_losses.took_part[i]]));
  const rows = Array.from({ length: scenario.clients }, (_, client) => {
    const held = scenario.tasks.flatMap((t) => (t.held.find(([k]) => k === client) ?? [0]).slice(1));
    const curve = (accuracies[client] ?? []).filter((v) => v !== null);
    const lost = curve.length > 1 ? Math.max(...curve.slice(0, -1)) - last(curve) : null;
    return [
      client,
      sum(held),
      held.filter((n) => n > 0).length,
      took.get(client) ?? null,
      last(curve) ?? null,
      lost,
    ];
  });
  return table("clients", {
    caption: `Clients of ${runName(run)}`,
    columns: [
      { heading: "client" },
      { heading: "training images", digits: 0, meaning: "over all tasks, without exemplars" },
      { heading: "classes", digits: 0 },
      { heading: "rounds", digits: 0, meaning: "in which the client trained" },
      {
        heading: "accuracy",
        unit: "%",
        digits: 1,
        better: "more",
        meaning: "on the client's own mix of classes, after the last task",
      },
      {
        heading: "below its best",
        unit: "points",
        digits: 1,
        better: "less",
        meaning: "best accuracy after an earlier task minus the last",
      },
    ],
    rows,
  });
}
