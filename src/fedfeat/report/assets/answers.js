// The summary: one short answer to each question, about the best method and the run in detail.

/** Return the five answers as cards. */
function answerCards() {
  const [best] = learned();
  if (!best) return [];
  return [learnedCard(best), forgottenCard(best), clientsCard(), correctionCard(best), costCard(best)].filter(Boolean);
}

const named = (group) => (state.data.groups.length > 1 ? ` (${short(group.name, 60)})` : "");

function card(section, question, answer, more) {
  const kept = (card[section] ??= make(
    "a",
    { class: "card", href: `#${section}` },
    make("span", { class: "question" }),
    make("strong", {}),
    make("span", { class: "more" }),
  ));
  [question, answer, more].forEach((text, i) => setText(kept.children[i], text));
  return kept;
}

function learnedCard(best) {
  const { mean, std } = best.now.accuracy;
  const average = sum(mean) / mean.length;
  const deviation = std ? ` \u00b1 ${number(last(std))}` : "";
  return card(
    "learning",
    "Did it learn?",
    `${number(last(mean))}${deviation} %`,
    `accuracy after ${count(mean.length, "task")}, ${number(average)} % on average on the way${named(best)}`,
  );
}

function forgottenCard(best) {
  const { mean } = best.now.forgetting;
  if (!mean.length) return null;
  const average = sum(mean) / mean.length;
  const most = mean.indexOf(Math.max(...mean));
  return card(
    "forgetting",
    "What did it forget?",
    `${number(average)} points`,
    `below the best, on average over old tasks; most on task ${most + 1}: ${number(mean[most])}`,
  );
}

function clientsCard() {
  const range = clientRange(chosen(detail()?.clients ?? {}) ?? []);
  if (!range) return null;
  const { weakest, strongest } = range;
  return card(
    "clients",
    "On which clients?",
    `${number(weakest.value, 0)} to ${number(strongest.value, 0)} %`,
    `on their own mix of classes: weakest client ${weakest.client}, strongest client ${strongest.client} (${runName(detail())})`,
  );
}

function correctionCard(best) {
  const group = "own" in best.predictions ? best : learned().find((g) => "own" in g.predictions);
  if (!group) return null;
  const now = chosen(group.predictions, state.prediction === "none" ? "own" : state.prediction);
  const change = (key) => last(now[key].mean) - last(group.plain[key].mean);
  const sides =
    last(now.tail.mean) === null
      ? "nothing to correct in the first task"
      : `earlier classes ${signed(change("tail"))}, newest classes ${signed(change("head"))}`;
  return card(
    "correction",
    "Did the correction help?",
    `${signed(change("accuracy"))} points`,
    `${sides}${named(group)}`,
  );
}

function costCard(best) {
  const { megabytes_up: up, megabytes_down: down, images_per_second: speed, seconds } = best.costs;
  if (up[0] === null) return null;
  const trained = speed[0]
    ? `${number(speed[0], 0)} images/s, ${number(seconds[0], 0)} s in rounds`
    : "no rounds of training";
  return card(
    "cost",
    "What did it cost?",
    `${number(up[0] + down[0], up[0] + down[0] < 1 ? 1 : 0)} MB`,
    `${number(up[0])} up, ${number(down[0])} down; ${trained}${named(best)}`,
  );
}

/** Return the comparison of methods as a table. */
function comparisonTable() {
  const { data } = state;
  const switched = data.choices.length > 1;
  const measured = data.columns.filter((c) => switched || c.key !== "gain");
  const over = data.groups.some((g) => g.seeds.length > 1) ? "Mean \u00b1 standard deviation over seeds." : "";
  const columns = [
    { heading: "method", text: true },
    { heading: "seeds", text: true, meaning: "that finished" },
    ...measured.map((c) => ({ ...c, plain: c.key in data.groups[0].costs, better: data.ranked ? c.better : null })),
  ];
  const seeds = (g) =>
    [g.seeds.join(", "), g.unfinished ? `${g.unfinished} unfinished` : ""].filter(Boolean).join("; ");
  const value = (group, key) =>
    (chosen(group.measures) ?? {})[key] ?? (group.costs[key]?.[0] === null ? null : group.costs[key]) ?? null;
  return table("comparison", {
    caption:
      [switched ? `Prediction: ${predictionName()}.` : "", over].filter(Boolean).join(" ") ||
      "One seed, so no deviation.",
    columns,
    rows: data.groups.map((group) => [group.label, seeds(group), ...measured.map((c) => value(group, c.key))]),
  });
}

/** Return what the columns mean. */
function columnKey() {
  if (columnKey.node) return columnKey.node;
  const items = state.data.columns.map((c) => make("li", {}, make("b", {}, c.heading), `: ${c.meaning}.`));
  columnKey.node = make("details", {}, make("summary", {}, "What the columns mean"), make("ul", {}, ...items));
  return columnKey.node;
}
