// The reader's choices: correction, run in detail, and the way to each part of the page.

/** Show the one switch: which correction all charts and tables use. */
function showSwitch() {
  const { choices } = state.data;
  const field = byId("prediction");
  field.hidden = choices.length < 2;
  // What the reader wants may come later, with the second task of a run that goes on; so it is kept.
  const now = choices.some((c) => c.key === state.prediction) ? state.prediction : last(choices)?.key;
  const fresh = JSON.stringify(choices);
  if (field.dataset.fresh !== fresh) {
    field.dataset.fresh = fresh;
    const radio = ({ key, label }) =>
      make(
        "label",
        {},
        make("input", {
          type: "radio",
          name: "prediction",
          value: key,
          onchange: () => {
            state.prediction = key;
            render();
          },
        }),
        make("span", {}, label),
      );
    field.replaceChildren(field.firstElementChild, ...choices.map(radio));
  }
  for (const input of field.querySelectorAll("input")) input.checked = input.value === now;
}

/** Show the choice of the run in detail. */
function showDetailChoice() {
  const { details } = state.data;
  byId("detail").hidden = details.length < 2;
  const select = byId("detail").querySelector("select");
  select.onchange = () => {
    state.folder = select.value;
    render();
  };
  fillSelect(
    select,
    details.map((run) => [run.folder, runName(run)]),
    detail()?.folder ?? "",
  );
}

/** Fill a list of choices; an unchanged one is left alone, since it may be open. */
function fillSelect(select, options, value) {
  const fresh = JSON.stringify(options);
  if (select.dataset.fresh !== fresh) {
    select.dataset.fresh = fresh;
    select.replaceChildren(...options.map(([key, label]) => make("option", { value: key }, label)));
  }
  if (select.value !== value) select.value = value;
}

function showContents() {
  const sections = [...document.querySelectorAll("main > section")].filter((s) => !s.hidden);
  const fresh = sections.map((s) => s.querySelector("h2").textContent).join();
  if (showContents.fresh === fresh) return;
  showContents.fresh = fresh;
  byId("contents").replaceChildren(
    make(
      "ul",
      {},
      ...sections.map((s) => make("li", {}, make("a", { href: `#${s.id}` }, s.querySelector("h2").textContent))),
    ),
  );
}
