// Charts over all rounds of all tasks: losses, speed, bytes.

const LOG_FROM = 50; // a loss that spans more than this factor gets a logarithmic axis
const ROUNDS = "mean over clients and seeds. Upright lines are the beginnings of tasks. Drag to zoom, double-click to come back.";

/** Return the methods that have finished a round. */
const begun = () => groups().filter((group) => group.rounds.count);

/** Return a chart over all rounds; "curves" are pairs of a direction, or nothing, and what is drawn of a method. */
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
        ...(wide ? logAxis(values) : { range: [0, 1.08 * Math.max(...values) || 1] }),
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
  const tail = way ? `, ${way}` : "";
  // Markers would look like events; dashes tell methods apart, and with two directions these.
  const dash = way ? (way === "down" ? "dot" : "solid") : DASHES[(group.index + Math.floor(group.index / SERIES)) % DASHES.length];
  return line(group, x, values, {
    mode: "lines",
    line: { width: 1.6, dash },
    hovertemplate: `round %{x:.0f}: %{y:,.${digits}f}${tail}<extra>%{fullData.name}</extra>`,
  });
}

function roundRows(group, curves) {
  const lists = curves.map(([, curve]) => curve(group.rounds) ?? []);
  const x = centres(Math.max(...lists.map((l) => l.length)), group.rounds.count);
  return x.map((round, i) => [group.label, Math.round(round), ...lists.map((l) => l[i] ?? null)]);
}
