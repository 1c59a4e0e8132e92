// Tables that sort by a click or a key, and copy as they are shown.

const tables = new Map(); // by key: what lasts from one update to the next

/** Return a table; "spec" is {caption, columns, rows}. A column is {heading, unit, digits, meaning, text, better}. */
function table(key, spec) {
  let kept = tables.get(key);
  if (!kept) {
    kept = { key, sort: null, node: make("div", { class: "table" }) };
    tables.set(key, kept);
    kept.body = make("div", { class: "scroll", tabindex: "0", role: "region" });
    kept.node.append(
      kept.body,
      copyButtons(() => ({ ...kept.spec, rows: sorted(kept) })),
    );
  }
  const fresh = JSON.stringify([spec, kept.sort]);
  if (kept.fresh !== fresh) {
    kept.fresh = fresh;
    kept.spec = spec;
    kept.body.setAttribute("aria-label", spec.caption);
    show(kept);
  }
  return kept.node;
}

/** Draw the table again, keeping the focus on the heading that was pressed. */
function show(kept) {
  const focused = [...kept.body.querySelectorAll("th button")].indexOf(document.activeElement);
  const { caption, columns } = kept.spec;
  const head = make("tr", {}, ...columns.map((column, i) => headCell(kept, column, i)));
  const best = columns.map((column, i) => bestOf(kept.spec.rows, column, i));
  const lines = sorted(kept).map((row) =>
    make("tr", {}, ...row.map((value, i) => bodyCell(value, columns[i], i, best[i]))),
  );
  const whole = make(
    "table",
    {},
    make("caption", {}, make("span", {}, caption)),
    make("thead", {}, head),
    make("tbody", {}, ...lines),
  );
  kept.body.replaceChildren(whole);
  if (focused >= 0) kept.body.querySelectorAll("th button")[focused].focus();
}

function headCell(kept, column, index) {
  const { sort } = kept;
  const mine = sort && sort.index === index;
  const press = () => {
    // Numbers begin with the largest, words with the first letter; the second press turns it over.
    kept.sort = mine ? { index, down: !sort.down } : { index, down: !column.text };
    kept.fresh = null;
    table(kept.key, kept.spec);
    say(`Sorted by ${column.heading}, ${kept.sort.down ? "descending" : "ascending"}`);
  };
  const order = mine ? (sort.down ? "descending" : "ascending") : null;
  const arrow = make(
    "span",
    { class: "arrow", "aria-hidden": "true" },
    mine ? (sort.down ? "\u25BC" : "\u25B2") : "\u25BD",
  );
  const button = make(
    "button",
    { type: "button", title: column.meaning, onclick: press },
    column.heading,
    column.unit ? make("span", { class: "unit" }, ` (${column.unit})`) : null,
    arrow,
  );
  return make("th", { scope: "col", "aria-sort": order, class: column.text ? "text" : null }, button);
}

function bodyCell(value, column, index, best) {
  const marks = [column.text ? "text" : null, best !== null && rank(value) === best ? "best" : null].filter(Boolean);
  const text = cellText(value, column);
  const kind = marks.join(" ") || null;
  if (index > 0) return make("td", { class: kind }, text);
  // A long name may break after a plus sign rather than anywhere.
  const parts = text.split(/(?<=\+)/).flatMap((part, i) => (i ? [make("wbr"), part] : [part]));
  return make("th", { scope: "row", class: kind }, ...parts);
}

/** Return what a cell is sorted by. */
const rank = (value) => (Array.isArray(value) ? value[0] : value);

/** Return the best value of a column that has one; a column where all are equal has none. */
function bestOf(rows, column, index) {
  const values = rows.map((row) => rank(row[index])).filter((v) => typeof v === "number");
  if (!column.better || values.length < 2 || new Set(values).size < 2) return null;
  return column.better === "more" ? Math.max(...values) : Math.min(...values);
}

/** Return the rows in the order the reader asked for; empty cells come last either way. */
function sorted({ spec, sort }) {
  if (!sort || sort.index >= spec.columns.length) return spec.rows;
  const empty = (value) => value === null || value === undefined;
  return [...spec.rows].sort((one, other) => {
    const [a, b] = [rank(one[sort.index]), rank(other[sort.index])];
    if (empty(a) || empty(b)) return empty(a) - empty(b);
    return sort.down ? -inOrder(a, b) : inOrder(a, b);
  });
}
