// What did it cost? Speed and bytes over rounds, and bytes by operation.

/** Return speed and communication over the rounds, and bytes by operation beside them where there is room. */
function costFigures() {
  const shown = begun();
  const traffic = trafficTable();
  const beside = state.data.groups.length <= 2;
  const speed = roundFigure("speed", shown, [["", (r) => r.images_per_second]], {
    title: "Training speed",
    caption: "Images per second through local training, requests and averaging.",
    unit: "images/s",
    digits: 0,
    axis: "images/s",
  });
  const ways = [
    ["up", (r) => r.up],
    ["down", (r) => r.down],
  ];
  const bytes = roundFigure("bytes", shown, ways, {
    title: "Communication per round",
    caption: "Megabytes of all clients together. Solid: to the server; dotted: to the clients.",
    unit: "MB",
    digits: 3,
    axis: "MB",
  });
  const heading = { title: "Over the rounds", caption: `Speed and bytes of each round, ${ROUNDS}` };
  const charts = grid("cost", beside ? "narrow" : "half", heading, [speed, bytes, beside ? traffic : null]);
  return [charts, beside ? null : traffic];
}

/** Return megabytes by direction and operation, methods side by side. */
function trafficTable() {
  const shown = state.data.groups.filter((group) => Object.keys(group.traffic).length);
  const kinds = [...new Set(shown.flatMap((g) => Object.keys(g.traffic)))].sort();
  if (!kinds.length) return null;
  const all = (group) => sum(Object.values(group.traffic));
  return table("traffic", {
    caption: "Megabytes in the whole run, as counted, mean over seeds",
    columns: [
      { heading: "direction / operation", text: true },
      ...shown.map((g) => ({ heading: g.label, digits: 3, small: true })),
    ],
    rows: [...kinds.map((kind) => [kind, ...shown.map((g) => g.traffic[kind] ?? null)]), ["in all", ...shown.map(all)]],
  });
}
