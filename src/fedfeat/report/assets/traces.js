// What charts are made of: the common look, axes, lines, bands, heat maps.

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';

function merged(base, changes) {
  const whole = { ...base };
  for (const [key, value] of Object.entries(changes)) {
    const plain = value && typeof value === "object" && !Array.isArray(value);
    whole[key] = plain ? merged(base[key] ?? {}, value) : value;
  }
  return whole;
}

/** The look that all charts share. */
function baseLayout() {
  const [ink, muted, rule, page] = ["ink", "muted", "grid", "page"].map(colour);
  const axis = {
    gridcolor: rule,
    linecolor: rule,
    zeroline: false,
    automargin: true,
    fixedrange: matchMedia("(pointer: coarse)").matches,
    tickfont: { color: muted, size: 12 },
    title: { font: { color: muted, size: 12 }, standoff: 10 },
  };
  return {
    font: { family: FONT, size: 13, color: ink },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 48, r: 16, t: 12, b: 44 },
    showlegend: false,
    hovermode: "closest",
    dragmode: false,
    hoverlabel: { bgcolor: page, bordercolor: rule, font: { color: ink, size: 13 }, align: "left", namelength: -1 },
    xaxis: { ...axis, showgrid: false },
    yaxis: { ...axis, showline: false },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: muted, activecolor: ink },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 } },
  };
}

/** Return a name for a chart: cut when long, and never read as markup. */
const inChart = (text, length = 64) => short(text, length).replace(/&/g, "&amp;").replace(/</g, "&lt;");

/** Return an axis of tasks, with every tick where there is room. */
const taskAxis = (many, title) => ({
  title: { text: title },
  tickmode: many <= 12 ? "linear" : "auto",
  tick0: 1,
  dtick: 1,
});

/** Return an axis from 0 to 100 percent, cut at the bottom only where everything is high. */
function percentAxis(values, title) {
  const low = Math.min(...values.filter((v) => v !== null));
  const bottom = low > 60 ? Math.floor(low / 10) * 10 : 0;
  const step = bottom < 50 ? 20 : bottom < 80 ? 10 : 5;
  const tickvals = oneTo(21)
    .map((i) => 100 - (i - 1) * step)
    .filter((v) => v >= bottom);
  return { title: { text: title }, tickvals, range: [bottom - (100 - bottom) / 50, 100 + (100 - bottom) / 50] };
}

/** Return a line with markers, as a method has it in every chart. */
function line(group, x, y, more = {}) {
  const { colour: ink, symbol, dash } = look(group.index);
  return merged(
    {
      type: "scatter",
      mode: "lines+markers",
      name: inChart(group.name),
      x,
      y,
      line: { color: ink, width: 2, dash },
      marker: { color: ink, symbol, size: 8, line: { color: colour("page"), width: 1 } },
    },
    more,
  );
}

/** Return a band of one deviation around a mean: two invisible lines and what lies between. */
function band(group, x, { mean, std }) {
  if (!std) return [];
  const { name } = look(group.index);
  const edge = { type: "scatter", mode: "lines", x, line: { width: 0 }, hoverinfo: "skip", showlegend: false };
  const fill = { fill: "tonexty", fillcolor: faded(name, 0.14) };
  return [
    { ...edge, y: mean.map((m, i) => m - std[i]) },
    { ...edge, ...fill, y: mean.map((m, i) => m + std[i]) },
  ];
}

/** Return a heat map; rows are drawn from the top. */
function heatmap({ x, y, z, hover, zmin = 0, zmax = 100, gap = 2, bar = null }) {
  return {
    type: "heatmap",
    x,
    y,
    z,
    zmin,
    zmax,
    xgap: gap,
    ygap: gap,
    colorscale: scale(),
    hoverongaps: false,
    hovertemplate: `${hover}<extra></extra>`,
    showscale: bar !== null,
    colorbar: { thickness: 10, outlinewidth: 0, len: 0.9, tickfont: { color: colour("muted"), size: 11 }, ...bar },
  };
}

/** Return the numbers in the cells of a heat map, black or white, whichever reads better on the colour of the cell. */
function cellNumbers({ x, y, z, zmin, zmax }, words = (value) => number(value, 0)) {
  const ink = readable();
  const cells = z.flatMap((row, i) => row.map((value, j) => ({ x: x[j], y: y[i], value, text: words(value, i, j) })));
  const shown = cells.filter((cell) => cell.value !== null && cell.text);
  return {
    type: "scatter",
    mode: "text",
    x: shown.map((cell) => cell.x),
    y: shown.map((cell) => cell.y),
    text: shown.map((cell) => cell.text),
    textfont: { size: 12, color: shown.map((cell) => ink((cell.value - zmin) / (zmax - zmin))) },
    hoverinfo: "skip",
  };
}

/** Return a vertical line across a chart, such as the beginning of a task. */
const upright = (x, more = {}) =>
  merged(
    {
      type: "line",
      xref: "x",
      yref: "paper",
      x0: x,
      x1: x,
      y0: 0,
      y1: 1,
      line: { color: colour("grid"), width: 1 },
      layer: "below",
    },
    more,
  );
