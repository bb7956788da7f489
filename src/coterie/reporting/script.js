// A click on a name in a legend hides its line, a double click hides all others.
const prepareLegends = (root) => root.querySelectorAll(".legend").forEach((legend) => {
  const buttons = [...legend.querySelectorAll("button")];
  const lines = [...legend.parentElement.querySelectorAll("[data-line]")];
  const hide = (button, hidden) => {
    button.setAttribute("aria-pressed", hidden);
    lines.filter((line) => line.dataset.line === button.dataset.series)
      .forEach((line) => line.classList.toggle("off", hidden));
  };
  buttons.forEach((button) => {
    button.addEventListener("click", () => hide(button, button.getAttribute("aria-pressed") !== "true"));
    button.addEventListener("dblclick", () => buttons.forEach((other) => hide(other, other !== button)));
  });
});
prepareLegends(document);

// The search field "Find a site" shows up to three clients whose names match.
const make = (tag, text, ...children) => {
  const made = document.createElement(tag);
  made.textContent = text;
  made.append(...children);
  return made;
};
function card(site, methods) {
  const row = (name, score) => make("tr", "", make("td", name), make("td", score));
  const scores = make("table", "", ...methods.map((method, i) => row(method, site.scores[i])));
  scores.className = "numbers";
  let where = "group" in site ? `In group ${site.group}` : "";
  if (where && "confidence" in site) where += ` (membership confidence ${Math.round(100 * site.confidence)} %)`;
  const lines = [where && `${where}.`, ...site.notes].filter(Boolean).map((line) => make("p", line));
  const made = make("div", "", make("h3", site.name), ...lines, scores);
  made.className = "card";
  return made;
}
const field = document.getElementById("site");
if (field) {
  const { methods, sites } = JSON.parse(document.getElementById("sites").textContent);
  const found = document.getElementById("found");
  document.getElementById("site-names").append(...sites.map((site) => new Option(site.name, site.name)));
  field.addEventListener("input", () => {
    const typed = field.value.trim().toLowerCase();
    const fits = sites.filter((site) => typed && site.name.toLowerCase().includes(typed));
    const exact = fits.filter((site) => site.name.toLowerCase() === typed);
    const shown = exact.length ? exact : fits;
    if (!typed) found.replaceChildren();
    else if (!shown.length) found.replaceChildren(make("p", "No client has this name."));
    else if (shown.length > 3) found.replaceChildren(make("p", `${shown.length} names match: keep typing.`));
    else found.replaceChildren(...shown.map((site) => card(site, methods)));
  });
}

// Collapsed sections are printed as well.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  opened.forEach((fold) => (fold.open = true));
});
addEventListener("afterprint", () => opened.forEach((fold) => (fold.open = false)));

// A click on a heading of a sortable table sorts by its column, a second click reverses the order.
const text = (row, i) => row.cells[i].textContent.replace("−", "-");
const number = (row, i) => (i ? parseFloat(text(row, i)) : NaN); // the first column is a name
const compare = (i) => (a, b) => {
  const x = number(a, i), y = number(b, i);
  if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y) || text(a, i).localeCompare(text(b, i), undefined, { numeric: true });
  return x - y;
};
const prepareTables = (root) => root.querySelectorAll("table.sortable").forEach((table) => {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, i) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort(compare(i));
      body.append(...(down ? rows.reverse() : rows));
    });
  });
});
prepareTables(document);
