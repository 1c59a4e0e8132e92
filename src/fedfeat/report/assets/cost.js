// What did it cost? Losses, speed and bytes over rounds, and bytes by operation.

const LOG_FROM = 50; // a loss that spans more than this factor gets a logarithmic axis

/** Return every chart over rounds: each loss, speed, and communication. */
function roundFigures() {
  const shown = groups().filter((group) => group.rounds.count);
  if (!shown.length) return null;
  const losses = [...new Set(shown.flatMap((g) => Object.keys(g.rounds.losses)))];
  return grid(
    "rounds",
    "narrow",
    {
      title: "Over the rounds",
      caption:
        "Losses, speed and bytes of each round, mean over clients and seeds. Upright lines are the beginnings of tasks. Drag to zoom, double-click to come back.",
    },
    [
      ...losses.map((name) =>
        roundFigure(`loss-${name}`, shown, [["", (r) => r.losses[name]]], {
          title: `Loss: ${lossWords(name)}`,
          caption:
            name === "first_epoch"
              ? "Sum of all terms in the first local epoch."
              : "Weighted, in the last local epoch.",
          unit: "",
          digits: 3,
          axis: "loss",
          log: true,
        }),
      ),
      roundFigure("speed", shown, [["", (r) => r.images_per_second]], {
        title: "Training speed",
        caption: "Images per second through local training, requests and averaging.",
        unit: "images/s",
        digits: 0,
        axis: "images/s",
      }),
      roundFigure(
        "bytes",
        shown,
        [
          ["up", (r) => r.up],
          ["down", (r) => r.down],
        ],
        {
          title: "Communication per round",
          caption: "Megabytes of all clients together. Solid: to the server; dotted: to the clients.",
          unit: "MB",
          digits: 3,
          axis: "MB",
        },
      ),
    ],
  );
}

const lossWords = (name) => (name === "first_epoch" ? "first epoch, all terms" : name);

function roundFigure(key, shown, curves, { title, caption, unit, digits, axis, log = false }) {
  const traces = shown
    .flatMap((group) => curves.map(([way, curve]) => roundLine(group, curve(group.rounds) ?? [], way, digits)))
    .filter((t) => t.x.length);
  const values = traces.flatMap((t) => t.y).filter((v) => v !== null);
  if (!values.length) return null;
  const wide = log && Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) > LOG_FROM;
  const longest = shown.reduce((a, b) => (b.rounds.count > a.rounds.count ? b : a));
  const ends = shown.map(
    (g) =>
      `${g.label} ${curves.map(([way, curve]) => `${way} ${number(last(curve(g.rounds) ?? []) ?? null, digits)}`).join(", ")}`,
  );
  return figure(key, "small", {
    title,
    caption,
    summary: `In the last round: ${ends.join("; ")} ${unit}.`,
    height: 260,
    traces,
    layout: {
      xaxis: { title: { text: "round" }, range: [0, longest.rounds.count + 1] },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      yaxis: {
        title: { text: axis + (wide ? ", logarithmic" : "") },
        ...(wide ? logAxis(values) : { rangemode: "tozero" }),
      },
      shapes: taskLines(longest.rounds.task_starts),
    },
    numbers: {
      columns: [
        { heading: "method", text: true },
        { heading: "round", digits: 0 },
        ...curves.map(([way]) => ({ heading: `${way} ${axis}`.trim(), digits })),
      ],
      rows: shown.flatMap((g) => roundRows(g, curves)),
    },
  });
}

/** Return a logarithmic axis whose ticks are all written out. */
function logAxis(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const powers = oneTo(25)
    .map((i) => 10 ** (i - 13))
    .filter((p) => p >= low / 10 && p <= high * 10);
  const steps = Math.log10(high / low) > 3 ? [1] : [1, 2, 5];
  return {
    type: "log",
    tickvals: powers.flatMap((p) => steps.map((s) => Number((s * p).toPrecision(1)))),
    tickformat: "~g",
  };
}

function roundLine(group, values, way, digits) {
  const x = centres(values.length, group.rounds.count);
  const every = Math.max(1, Math.floor(values.length / 6));
  const sizes = values.map((_, i) => (i % every === Math.floor(every / 2) ? 7 : 0)); // a few markers tell lines apart
  const style = way === "down" ? { line: { width: 1.6, dash: "dot" } } : { line: { width: 1.6 } };
  const tail = way ? `, ${way}` : "";
  return line(group, x, values, {
    ...style,
    marker: { size: sizes },
    hovertemplate: `round %{x:.0f}: %{y:,.${digits}f}${tail}<extra>%{fullData.name}</extra>`,
  });
}

function roundRows(group, curves) {
  const lists = curves.map(([, curve]) => curve(group.rounds) ?? []);
  const x = centres(Math.max(...lists.map((l) => l.length)), group.rounds.count);
  return x.map((round, i) => [group.label, Math.round(round), ...lists.map((l) => l[i] ?? null)]);
}

/** Return megabytes by direction and operation, methods side by side. */
function trafficTable() {
  const shown = state.data.groups.filter((group) => Object.keys(group.traffic).length);
  const kinds = [...new Set(shown.flatMap((g) => Object.keys(g.traffic)))].sort();
  if (!kinds.length) return null;
  const all = (group) => Object.values(group.traffic).reduce((a, b) => a + b, 0);
  return table("traffic", {
    caption: "Megabytes in the whole run, as counted, mean over seeds",
    columns: [
      { heading: "direction / operation", text: true },
      ...shown.map((g) => ({ heading: g.label, digits: 3, small: true })),
    ],
    rows: [...kinds.map((kind) => [kind, ...shown.map((g) => g.traffic[kind] ?? null)]), ["in all", ...shown.map(all)]],
  });
}
