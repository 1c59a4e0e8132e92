// Light and dark: the system decides until the reader does; paper is always light.

const THEMES = { auto: "\u25D0 system", light: "\u25CB light", dark: "\u25CF dark" };
const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
const stored = {
  // A page opened from disk may have no storage; then a choice lasts as long as the page.
  get: () => {
    try {
      return localStorage.getItem("fedfeat-theme");
    } catch {
      return null;
    }
  },
  set: (value) => {
    try {
      localStorage.setItem("fedfeat-theme", value);
    } catch {
      /* not kept */
    }
  },
};
let theme = stored.get() in THEMES ? stored.get() : "auto";

/** Put the theme into effect; style.css and the charts follow. */
function applyTheme() {
  const dark = !state.printing && (theme === "dark" || (theme === "auto" && systemDark.matches));
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  setText(byId("theme"), THEMES[theme]);
  byId("theme").setAttribute("aria-label", `Theme: ${theme === "auto" ? "system" : theme}`);
}

/** Connect the button and the system's preference. */
function startTheme(redraw) {
  byId("theme").addEventListener("click", () => {
    const names = Object.keys(THEMES);
    theme = names[(names.indexOf(theme) + 1) % names.length];
    stored.set(theme);
    applyTheme();
    redraw();
  });
  systemDark.addEventListener("change", () => {
    applyTheme();
    redraw();
  });
}

/** Return a colour of the style sheet. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Return a colour of the style sheet as red, green and blue, from 0 to 255. */
const channels = (name) => [1, 3, 5].map((i) => parseInt(colour(name).slice(i, i + 2), 16));

/** Return a colour of the style sheet with some transparency. */
const faded = (name, alpha) => `rgba(${channels(name).join(",")},${alpha})`;

const SERIES = 8;
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star"];
const GLYPHS = ["\u25CF", "\u25A0", "\u25C6", "\u25B2", "\u25BC", "\u271A", "\u2716", "\u2605"];
const DASHES = ["solid", "dash", "dot", "dashdot"];

/** Return how the n-th method looks in every chart: colour, marker and dash, so that colour is never all. */
function look(index) {
  const lap = Math.floor(index / SERIES);
  const shape = (index + 3 * lap) % SYMBOLS.length;
  const name = `series-${index % SERIES}`;
  return {
    name,
    colour: colour(name),
    symbol: SYMBOLS[shape],
    glyph: GLYPHS[shape],
    dash: DASHES[lap % DASHES.length],
  };
}

/** Return a function from a place on the scale of heat maps, 0 to 1, to the text colour with more contrast there. */
function readable() {
  const stops = [0, 1, 2, 3, 4].map((i) => channels(`scale-${i}`));
  const linear = (value) => (value <= 10 ? value / 3295 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  return (share) => {
    const place = 4 * Math.min(1, Math.max(0, share));
    const below = Math.min(3, Math.floor(place));
    const mixed = stops[below].map((value, i) => linear(value + (place - below) * (stops[below + 1][i] - value)));
    const luminance = 0.2126 * mixed[0] + 0.7152 * mixed[1] + 0.0722 * mixed[2];
    return luminance > 0.179 ? "#000000" : "#ffffff"; // where black and white contrast alike
  };
}

/** Return a scale from little to much, the same in all heat maps. */
const scale = () => [0, 1, 2, 3, 4].map((i) => [i / 4, colour(`scale-${i}`)]);
