
// The live page: sections come as events and are put in place. What a reader opened, hid, sorted or
// scrolled stays as it is.
const shown = new Map(); // by section: its HTML as it last came
const link = document.getElementById("link");
const build = document.body.dataset.build;
const FIRST_WAIT = 1000, LONGEST_WAIT = 10000; // milliseconds between attempts to connect
const SILENCE = 45000; // without any event, after which the connection is taken for lost
let wait = FIRST_WAIT, lastEvent = Date.now(), ahead = 0, source;

const quoted = (value) => CSS.escape(value);
function keep(section) {
  return {
    folds: [...section.querySelectorAll("details")].map((fold) => [fold.dataset.keep, fold.open]),
    hidden: [...section.querySelectorAll(".legend button[aria-pressed=true]")].map((button) => button.dataset.series),
    scrolled: [...section.querySelectorAll(".scroll, .names")].filter((box) => box.scrollTop || box.scrollLeft)
      .map((box) => [box.dataset.keep, box.scrollTop, box.scrollLeft]),
    sorted: [...section.querySelectorAll("th[aria-sort]")].map((head) => [head.cellIndex, head.getAttribute("aria-sort")]),
  };
}
function restore(section, kept) {
  const find = (name) => section.querySelector(`[data-keep="${quoted(name)}"]`);
  kept.folds.forEach(([name, open]) => { const fold = find(name); if (fold) fold.open = open; });
  kept.hidden.forEach((name) => section.querySelector(`button[data-series="${quoted(name)}"]`)?.click());
  kept.sorted.forEach(([column, direction]) => {
    const button = section.querySelectorAll("th button")[column];
    button?.click();
    if (direction === "descending") button?.click();
  });
  kept.scrolled.forEach(([name, top, left]) => find(name)?.scrollTo(left, top));
}
function put(name, html) {
  const section = document.getElementById(name);
  if (!section || shown.get(name) === html) return;
  shown.set(name, html);
  const kept = keep(section);
  section.innerHTML = html;
  prepareLegends(section);
  prepareTables(section);
  restore(section, kept);
}

// How long ago something was, by the clock of the server.
function age(seconds) {
  if (seconds < 3) return "just now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}
function tick() {
  document.querySelectorAll("time[data-since]").forEach((time) => {
    const said = age(Date.now() / 1000 + ahead - Number(time.dataset.since));
    if (time.textContent !== said) time.textContent = said;
  });
  if (source && Date.now() - lastEvent > SILENCE) lost("The connection is silent: trying again.");
}

function showStatus(sentence) {
  link.textContent = sentence;
  link.hidden = !sentence;
}
function lost(sentence) {
  source?.close();
  source = undefined;
  showStatus(sentence);
  setTimeout(connect, wait);
  wait = Math.min(LONGEST_WAIT, 1.5 * wait);
}
function connect() {
  const run = new URLSearchParams(location.search).get("run");
  const opened = new EventSource("events" + (run === null ? "" : `?${new URLSearchParams({ run })}`));
  source = opened;
  lastEvent = Date.now();
  opened.addEventListener("board", (event) => {
    const board = JSON.parse(event.data);
    if (board.build !== build) return location.reload(); // the server has another version now
    lastEvent = Date.now();
    ahead = board.now - lastEvent / 1000;
    wait = FIRST_WAIT;
    showStatus("");
    if (board.title) document.title = board.title;
    for (const [name, html] of Object.entries(board.sections)) put(name, html);
    tick();
  });
  opened.addEventListener("error", () => {
    if (source === opened) lost("The server does not answer: what you see is as it was. Trying again.");
  });
}
addEventListener("pagehide", () => source?.close());
setInterval(tick, 1000);
tick();
connect();
