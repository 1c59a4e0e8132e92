// A page that is served asks its server once a second whether there is something new. Runs know nothing of it.

const EVERY = 1000;

/** Show how far the unfinished runs are. */
function showProgress() {
  const running = state.data.progress ?? [];
  const box = byId("progress");
  box.hidden = !running.length;
  setChildren(
    box,
    running.map((run) => progressLine(run)),
  );
}

function progressLine({ name, folder, done, all, text }) {
  progressLine.known ??= new Map();
  if (!progressLine.known.has(folder)) {
    const bar = make("progress", { "aria-label": name });
    progressLine.known.set(folder, make("div", {}, make("span", {}), bar, make("span", { class: "more" })));
  }
  const node = progressLine.known.get(folder);
  const [label, bar, more] = node.children;
  setText(label, name);
  bar.max = all || 1;
  bar.value = done;
  setText(more, text);
  return node;
}

function showLive(text, lost = false) {
  byId("live").hidden = false;
  byId("live").classList.toggle("lost", lost);
  setText(byId("live"), text);
}

/** Ask for newer data and show it; a server that is gone leaves the page as it is. */
async function poll(version) {
  try {
    const answer = await fetch("data.json", {
      headers: version ? { "If-None-Match": version } : {},
      cache: "no-store",
    });
    if (answer.status === 200) {
      state.data = await answer.json();
      version = answer.headers.get("ETag");
      render();
    }
    showProgress();
    showLive(state.data.live);
  } catch {
    showLive("Connection lost: the page keeps what it has", true);
  }
  setTimeout(poll, EVERY, version);
}

if (document.body.dataset.live === "true") poll(null);
