// What the page shows: the data, and the reader's choices.

const state = {
  data: JSON.parse(unpacked("data")),
  prediction: "own", // position of the switch: none, variant or own
  folder: null, // of the run in detail
  task: null, // whose energies are shown; null is the last one
  hidden: new Set(), // labels of methods that the reader took out of the charts
  printing: false,
};
const INSTEAD = { none: ["none"], variant: ["variant", "own", "none"], own: ["own", "none"] };

/** Return an entry by prediction: that of the switch, or what stands in for it where a method lacks it. */
function chosen(byPrediction, prediction = state.prediction) {
  const key = INSTEAD[prediction].find((k) => k in byPrediction);
  return key === undefined ? null : byPrediction[key];
}

/** Return the methods with their place, which decides how they look; hidden ones are left out. */
const groups = () =>
  state.data.groups.map((group, index) => ({ ...group, index })).filter((group) => !state.hidden.has(group.label));

/** Return the methods that have finished at least one task, each with its chosen prediction as "now". */
const learned = () =>
  groups()
    .map((group) => ({ ...group, now: chosen(group.predictions), plain: group.predictions.none }))
    .filter((group) => group.now && group.now.accuracy.mean.length);

/** Return the run in detail, or null where there is none. */
const detail = () => state.data.details.find((d) => d.folder === state.folder) ?? state.data.details[0] ?? null;

/** Return the scenario of a run, or null. */
const scenarioOf = (run) => (run && run.scenario !== null ? state.data.scenarios[run.scenario] : null);

/** Name a run by method and seed, and by folder where that is not enough. */
function runName(run) {
  const name = (r) => `${state.data.groups[r.group].name}${r.seed === null ? "" : `, seed ${r.seed}`}`;
  const alike = state.data.details.filter((other) => name(other) === name(run)).length > 1;
  return alike ? `${name(run)} (${run.folder})` : name(run);
}

/** Name a method and the prediction shown of it. */
const withPrediction = (group) =>
  state.data.choices.length > 1 ? `${group.name} (${predictionName(group)})` : group.name;

/** Return what the switch's position is called, for a method or for all. */
function predictionName(group = null) {
  if (state.prediction === "none") return "no correction";
  if (group && !("own" in group.predictions)) return "no correction";
  if (group) return state.prediction in group.predictions ? group[state.prediction] : group.own;
  return state.data.choices.find((c) => c.key === state.prediction)?.label ?? "no correction";
}
