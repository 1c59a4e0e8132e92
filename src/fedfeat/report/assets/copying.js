// Tables for elsewhere: Markdown, CSV and LaTeX, in the order shown; and the clipboard.

const FORMATS = { Markdown: asMarkdown, CSV: asCsv, LaTeX: asLatex };

/** Return a cell as it is shown: text, a number, or a mean with its deviation. */
function cellText(value, column) {
  if (value === null || value === undefined) return NOTHING;
  if (Array.isArray(value)) {
    const [mean, deviation] = value;
    const exact = deviation === null || column.plain;
    return exact
      ? number(mean, column.digits)
      : `${number(mean, column.digits)} \u00b1 ${number(deviation, column.digits)}`;
  }
  if (column.small && value > 0 && value < 0.5 / 10 ** column.digits)
    return `< ${number(1 / 10 ** column.digits, column.digits)}`;
  return typeof value === "number" ? number(value, column.digits ?? 0) : String(value);
}

const heading = (column) => (column.unit ? `${column.heading} (${column.unit})` : column.heading);

/** Return a table as Markdown. */
function asMarkdown({ columns, rows }) {
  const clean = (text) => text.replace(/\s+/g, " ").replace(/[\\|]/g, "\\$&").replace(/</g, "&lt;");
  const joined = (cells) => `| ${cells.map(clean).join(" | ")} |`;
  const rule = `|${columns.map((c) => (c.text ? "---" : "---:")).join("|")}|`;
  return (
    [joined(columns.map(heading)), rule, ...rows.map((r) => joined(r.map((v, i) => cellText(v, columns[i]))))].join(
      "\n",
    ) + "\n"
  );
}

/** Return a table as CSV with full precision; a column with deviations becomes two. */
function asCsv({ columns, rows }) {
  const spread = columns.map((_, i) => rows.some((row) => Array.isArray(row[i]) && row[i][1] !== null));
  const quote = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  const cells = (value, i) => {
    const pair = Array.isArray(value) ? value : [value, null];
    return spread[i] ? pair : pair.slice(0, 1);
  };
  const heads = columns.flatMap((c, i) =>
    spread[i] ? [`${heading(c)} mean`, `${heading(c)} deviation`] : [heading(c)],
  );
  return (
    [heads, ...rows.map((row) => row.flatMap(cells))].map((cellsOfRow) => cellsOfRow.map(quote).join(",")).join("\n") +
    "\n"
  );
}

/** Return a table as LaTeX with booktabs rules. */
function asLatex({ columns, rows }) {
  const special = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" };
  const escape = (text) => text.replace(/[\\~^&%$#_{}]/g, (c) => special[c] ?? `\\${c}`);
  const cell = (value, column) => {
    const text = cellText(value, column)
      .replace(/,(?=\d{3})/g, "{,}")
      .replace(MINUS, "-");
    if (value === null || value === undefined || column.text)
      return escape(cellText(value, column)).replace(NOTHING, "--");
    return Array.isArray(value) || typeof value === "number" ? `$${text.replace("\u00b1", "\\pm")}$` : escape(text);
  };
  const joined = (cells) => `${cells.join(" & ")} \\\\`;
  return [
    `\\begin{tabular}{${columns.map((c) => (c.text ? "l" : "r")).join("")}}`,
    "\\toprule",
    joined(columns.map((c) => escape(heading(c)))),
    "\\midrule",
    ...rows.map((row) => joined(row.map((value, i) => cell(value, columns[i])))),
    "\\bottomrule",
    "\\end{tabular}",
    "",
  ].join("\n");
}

/** Put text on the clipboard; where the browser forbids the modern way, the old one is tried. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make("textarea", { class: "offstage", "aria-hidden": "true" });
    area.value = text;
    const before = document.activeElement;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    before?.focus();
    return done;
  }
}

/** Return buttons that copy a table; "shown" gives it as it is shown at that moment. */
function copyButtons(shown) {
  const copy = async (name) => {
    const done = await copyText(FORMATS[name](shown()));
    say(done ? `Copied as ${name}` : "The browser did not allow copying");
  };
  const buttons = Object.keys(FORMATS).map((name) =>
    make("button", { type: "button", onclick: () => copy(name) }, name),
  );
  return make(
    "div",
    { class: "copy", role: "group", "aria-label": "Copy the table" },
    make("span", {}, "Copy as"),
    ...buttons,
  );
}
