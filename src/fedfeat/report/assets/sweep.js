// What did the settings change? Accuracy at the end against each setting that was varied.

/** Return a chart for each setting that has several values: a line per combination of method and the other settings. */
function sweepFigures() {
  const { varied } = state.data;
  const points = groups()
    .map((group) => ({ ...group, result: chosen(group.measures)?.final_accuracy }))
    .filter((group) => group.result);
  return Object.keys(varied).map((key) => {
    const here = points.filter((group) => varied[key][group.index] !== null);
    const values = [...new Set(here.map((group) => varied[key][group.index]))].sort(inOrder);
    return values.length > 1 ? figure(`sweep-${key}`, "half", sweepSpec(key, values, here)) : null;
  });
}

function sweepSpec(key, values, points) {
  const lines = sweepLines(key, points);
  const several = lines.some((l) => l.ends.some((end) => end[1] !== null));
  const pooled = lines.some((l) => l.pooled);
  const axis = percentAxis(
    lines.flatMap((l) => l.ends.map((end) => end[0])),
    "accuracy after the last task (%)",
  );
  const place = valueAxis(key, values);
  const ends = lines.map((l) => ({
    x: place.named(last(l.values)),
    y: last(l.ends)[0],
    text: inChart(l.name),
    colour: look(l.index).colour,
  }));
  const labels = endLabels(ends, axis.range, true);
  return {
    title: `Accuracy against ${key}`,
    caption:
      `Final accuracy on all classes${pooled ? ", mean over all other settings; whiskers are one standard deviation over these" : several ? "; whiskers are one standard deviation over seeds" : ""}.` +
      (state.data.choices.length > 1 ? ` Prediction: ${predictionName()}.` : ""),
    summary: lines
      .map((l) => `${l.name}: ${l.values.map((v, i) => `${number(l.ends[i][0])} % at ${v}`).join(", ")}`)
      .join("; "),
    height: 340,
    traces: lines.map((l) => sweepTrace(l, place)),
    layout: {
      xaxis: place.axis,
      yaxis: axis,
      annotations: labels,
      showlegend: !labels.length && lines.length > 1,
      margin: { r: roomFor(labels) },
    },
    numbers: {
      columns: [
        { heading: "method and other settings", text: true },
        ...values.map((v) => ({ heading: `${key} = ${v}`, unit: "%", digits: 2 })),
      ],
      rows: lines.map((l) => [l.name, ...values.map((v) => l.ends[l.values.indexOf(v)] ?? null)]),
    },
  };
}

/** Return lines as {name, index, values, ends}: one per combination, or one per method where these are many. */
function sweepLines(key, points) {
  const { varied, groups: all } = state.data;
  const methods = new Set(all.map((group) => group.method)).size > 1;
  const others = Object.keys(varied).filter((other) => other !== key);
  const nameOf = (group, keys) => {
    const told = keys.filter((k) => varied[k][group.index] !== null).map((k) => `${lastPart(k)}=${varied[k][group.index]}`);
    return [...(methods || !told.length ? [group.method] : []), ...told].join(", ");
  };
  const lines = grouped(points, (group) => nameOf(group, others));
  const pooled = lines.size > LABELLED;
  const kept = pooled ? grouped(points, (group) => nameOf(group, [])) : lines;
  return [...kept].map(([name, members]) => {
    const byValue = grouped(members, (group) => varied[key][group.index]);
    const values = [...byValue.keys()].sort(inOrder);
    // A line looks like the best of its points does everywhere else.
    const index = Math.min(...members.map((group) => group.index));
    const ends = values.map((value) => (pooled ? spreadOf : (list) => list[0].result)(byValue.get(value)));
    return { name, index, values, ends, pooled };
  });
}

/** Return mean and sample deviation of the results of some groups. */
function spreadOf(list) {
  const results = list.map((group) => group.result[0]);
  const mean = sum(results) / results.length;
  const squares = results.reduce((a, b) => a + (b - mean) ** 2, 0);
  return [mean, results.length > 1 ? Math.sqrt(squares / (results.length - 1)) : null];
}

const lastPart = (key) => last(key.split("."));

/** Return an axis with a tick at each value, and where a value lies: numbers to scale, anything else in even steps. */
function valueAxis(key, values) {
  const title = { text: key };
  const numbers = values.every((v) => typeof v === "number");
  if (!numbers) {
    const ticktext = values.map((v) => inChart(String(v), 24));
    const tickvals = values.map((_, i) => i);
    return {
      axis: { title, tickvals, ticktext, range: [-0.25, values.length - 0.75] },
      at: (v) => values.indexOf(v),
      named: (v) => values.indexOf(v),
      numbers,
    };
  }
  const [low, high] = [values[0], last(values)];
  const log = low > 0 && high / low >= 8; // such values were chosen by factors
  const scaled = (v) => (log ? Math.log10(v) : v);
  const margin = (scaled(high) - scaled(low)) * 0.06;
  return {
    axis: {
      title,
      type: log ? "log" : "linear",
      tickvals: values,
      ticktext: values.map(String),
      range: [scaled(low) - margin, scaled(high) + margin],
    },
    at: (v) => v,
    named: scaled, // the library wants a note's place on a logarithmic axis as a logarithm
    numbers,
  };
}

function sweepTrace({ name, index, values, ends }, { at, numbers }) {
  const errors = ends.map((end) => end[1] ?? 0);
  const spread = ends.map((end) => (end[1] === null ? "" : ` \u00b1 ${number(end[1])}`));
  return line({ index, name }, values.map(at), ends.map((end) => end[0]), {
    text: values.map((v, i) => `${inChart(String(v))}: ${number(ends[i][0])}${spread[i]} %`),
    mode: numbers ? "lines+markers" : "markers", // between names there is nothing
    hovertemplate: "%{text}<extra>%{fullData.name}</extra>",
    error_y: errors.some(Boolean)
      ? { type: "data", array: errors, color: look(index).colour, thickness: 1, width: 4 }
      : undefined,
  });
}
