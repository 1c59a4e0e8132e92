// Generated images, settings and versions.

/** Return the images that a method generated in the run in detail. */
function pictureFigures() {
  const run = detail();
  return (run?.pictures ?? []).map(({ task, file, source }) => {
    if (!source)
      return sentence(`Images of task ${task} are left out to keep the page small; they are in ${file}.`, "note");
    pictureFigures.known ??= new Map();
    if (!pictureFigures.known.has(source)) {
      const caption = `Images made after task ${task} (${runName(run)}), one row per class in order of arrival, the newest on the right.`;
      pictureFigures.known.set(
        source,
        make("figure", { class: "picture" }, make("img", { src: source, alt: caption }), make("figcaption", {}, caption)),
      );
    }
    return pictureFigures.known.get(source);
  });
}

function settingTables() {
  const { shared, apart, notes, versions } = state.data.setting;
  const labels = state.data.groups.map((g) => g.label);
  const folded = (key, title, columns, rows) => {
    if (!rows.length) return null;
    const node = (settingTables[key] ??= make("details", {}, make("summary", {}, title)));
    setChildren(node, [node.firstChild, table(key, { caption: title, columns, rows })]);
    return node;
  };
  const textColumn = (name) => ({ heading: name, text: true });
  return [
    ...notes.map((text) => sentence(text, "note")),
    Object.keys(versions).length
      ? table("versions", {
          caption: "Versions and hardware",
          columns: [textColumn("what"), textColumn("value")],
          rows: Object.entries(versions),
        })
      : null,
    folded("shared", "Settings of every run", [textColumn("setting"), textColumn("value")], Object.entries(shared)),
    folded(
      "apart",
      "Settings that not all methods share",
      ["setting", ...labels].map(textColumn),
      Object.entries(apart).map(([k, v]) => [k, ...v]),
    ),
  ];
}
