// What a page does beyond links and forms: pointing, keys, theme, PNG, news. It runs nothing that
// it is sent: text from the server is only ever set as text, and pages are parsed, not evaluated.

const tip = document.querySelector("[data-tip]");
let pointed = null;

// What is said of a number stands in the wide drawing alone.
function saidOf(mark) {
  const key = CSS.escape(mark.dataset.key);
  const wide = mark.closest("[data-chart]").querySelector(`.wide [data-key="${key}"]`);
  return (mark.dataset.said ?? wide?.dataset.said) ?? mark.dataset.key;
}

function show(mark, x, y) {
  if (pointed) pointed.classList.remove("pointed");
  pointed = mark;
  tip.hidden = !mark;
  if (!mark) return;
  mark.classList.add("pointed");
  tip.replaceChildren(...saidOf(mark).split("; ").map((line) => {
    const row = document.createElement("span");
    row.textContent = line;
    return row;
  }));
  const note = mark.closest(".panel")?.querySelector(".note");
  if (note) {
    const row = document.createElement("span");
    row.className = "how";
    row.textContent = note.textContent;
    tip.append(row);
  }
  const box = mark.getBoundingClientRect();
  const left = (x ?? box.left + box.width / 2) + 14;
  const top = (y ?? box.bottom) + 14;
  tip.style.left = `${Math.max(8, Math.min(left, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${Math.max(8, Math.min(top, innerHeight - tip.offsetHeight - 8))}px`;
}

const visible = (chart) => [...chart.querySelectorAll(".drawing")].find((one) => one.offsetParent);

function marksOf(chart) {
  return [...(visible(chart) ?? chart).querySelectorAll(".mark")];
}

document.addEventListener("pointermove", (event) => {
  const mark = event.target.closest?.("[data-key]");
  if (mark) show(mark, event.clientX, event.clientY);
  else if (pointed && !document.activeElement?.matches("[data-chart]")) show(null);
});
document.addEventListener("pointerdown", (event) => {
  if (!event.target.closest?.("[data-key]")) show(null);
});
document.addEventListener("focusout", () => show(null));
document.addEventListener("scroll", () => show(null), { passive: true });

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") return show(null);
  const chart = event.target.closest?.("[data-chart]");
  if (!chart) return;
  const marks = marksOf(chart);
  const at = marks.indexOf(pointed);
  const next = {
    ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1,
    Home: 0, End: marks.length - 1,
  }[event.key];
  if (next === undefined || !marks.length) return;
  event.preventDefault();
  show(marks[Math.max(0, Math.min(next, marks.length - 1))]);
});

// The theme: as the system has it, until the button says otherwise.
const root = document.documentElement;
const isDark = () => root.dataset.theme
  ? root.dataset.theme === "dark"
  : matchMedia("(prefers-color-scheme: dark)").matches;
const themeButton = document.querySelector("[data-theme-switch]");
function nameTheme() {
  themeButton.textContent = isDark() ? "Light" : "Dark";
  themeButton.setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
}
themeButton.hidden = false;
nameTheme();
themeButton.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
  nameTheme();
});

// A drawing as a picture: the styles that the sheet gives are written into a copy of it.
const DRAWN = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray",
  "stroke-linecap", "stroke-opacity", "font-family", "font-size", "font-weight", "opacity"];

function withStyles(original) {
  const copy = original.cloneNode(true);
  const from = [original, ...original.querySelectorAll("*")];
  const to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((element, at) => {
    const style = getComputedStyle(element);
    for (const name of DRAWN) to[at].setAttribute(name, style.getPropertyValue(name));
    to[at].removeAttribute("class");
  });
  return copy;
}

async function savePng(panel) {
  const drawing = visible(panel.querySelector("[data-chart]")).querySelector("svg");
  const { width, height } = drawing.viewBox.baseVal;
  const copy = withStyles(drawing);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  const text = new XMLSerializer().serializeToString(copy);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const margin = 24;
  const head = 34;
  const canvas = document.createElement("canvas");
  canvas.width = 2 * (width + 2 * margin);
  canvas.height = 2 * (height + 2 * margin + head);
  const pen = canvas.getContext("2d");
  const page = getComputedStyle(document.body);
  pen.scale(2, 2);
  pen.fillStyle = page.backgroundColor;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.fillStyle = page.color;
  pen.font = `600 17px ${page.fontFamily}`;
  pen.fillText(panel.querySelector("h2").textContent, margin, margin + 12);
  pen.drawImage(image, margin, margin + head, width, height);
  const link = document.createElement("a");
  link.href = canvas.toDataURL("image/png");
  link.download = `pointillist-${panel.id}.png`;
  link.click();
}

function ready() {
  for (const button of document.querySelectorAll("[data-png]")) button.hidden = false;
  const controls = document.querySelector("[data-controls]");
  if (controls) controls.classList.add("live");
}
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-png]");
  if (button) savePng(button.closest(".panel"));
});
document.addEventListener("change", (event) => {
  const form = event.target.closest?.("[data-controls]");
  // A year that is being typed is a date of long ago at first.
  if (form && event.target.checkValidity()) form.requestSubmit();
});
document.addEventListener("formdata", (event) => {
  for (const [name, value] of [...event.formData]) if (!value) event.formData.delete(name);
});
ready();

// News: the page asks for itself every few seconds; unless it changed, a tag is all that comes.
const main = document.querySelector("main");
const status = document.querySelector("[data-status]");
const EVERY_MS = 5000;
let seen = null;

function redraw(text) {
  const parsed = new DOMParser().parseFromString(text, "text/html");
  const open = [...main.querySelectorAll("details[open]")].map((one) => one.closest(".panel").id);
  const focused = document.activeElement.closest?.(".panel")?.id;
  main.replaceChildren(...parsed.querySelector("main").childNodes);
  for (const id of open) main.querySelector(`#${CSS.escape(id)} details`)?.setAttribute("open", "");
  if (focused) main.querySelector(`#${CSS.escape(focused)} [data-chart]`)?.focus();
  status.textContent = parsed.querySelector("[data-status]").textContent;
  ready();
}

// What is wrong with the server, or that it takes its time, stands above the page.
const strip = document.querySelector("[data-strip]");
const SLOW_MS = 600;
const WAIT_MS = 30000;
const LEFT_MS = 60000;
let leftAt = null;
let asking = false;

function say(text, busy = false) {
  strip.classList.toggle("busy", busy);
  if (strip.textContent !== text) strip.textContent = text;
}

function refusal(answer) {
  if (answer.status === 401 || answer.status === 403) return "This token opens the page no more";
  return `The server answers with an error (${answer.status})`;
}

function old(why) {
  root.classList.add("away");
  say(`${why}: these numbers are old. The page asks again every few seconds.`);
}

// Whoever chose something else waits for the next page: that it comes is said where it is slow.
function leaves() {
  leftAt = Date.now();
  setTimeout(() => { if (leftAt !== null) say("Loading…", true); }, SLOW_MS);
}
function stays() {
  leftAt = null;
  if (strip.classList.contains("busy")) say("");
}

async function news() {
  if (leftAt !== null && Date.now() - leftAt > LEFT_MS) stays();
  const busy = pointed || leftAt !== null || document.activeElement.matches("select, input");
  if (document.hidden || busy || asking) return;
  asking = true;
  try {
    const signal = AbortSignal.timeout(WAIT_MS);
    const answer = await fetch(location.href, { cache: "no-cache", signal });
    if (!answer.ok) return old(refusal(answer));
    const tag = answer.headers.get("etag");
    const text = await answer.text();
    if (seen !== null && tag !== seen) redraw(text);
    seen = tag;
    root.classList.remove("away");
    say("");
  } catch {
    old("The server does not answer");
  } finally {
    asking = false;
  }
}
if ("live" in main.dataset) {
  news();
  setInterval(news, EVERY_MS);
  document.addEventListener("submit", leaves);
  document.addEventListener("click", (event) => {
    const plain = !(event.ctrlKey || event.metaKey || event.shiftKey || event.altKey);
    if (plain && event.target.closest?.(".top a")) leaves();
  });
  addEventListener("pageshow", stays);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") stays(); });
}
