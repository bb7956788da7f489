// Draws each figure when it is first visible, in the page's colours, and again when these change.
const figures = JSON.parse(document.getElementById("figures").textContent);
const night = matchMedia("(prefers-color-scheme: dark)");
const PRINTED = 680; // pixels that fit on a sheet
let printing = false;

function draw(place) {
  const { data, layout } = structuredClone(figures[place.id]);
  const dark = night.matches && !printing;
  const ink = dark ? "#e6e8eb" : "#1f2328", line = dark ? "#3a414a" : "#e1e5ea";
  const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, automargin: true, ticks: "", title: { standoff: 10 } };
  const narrow = place.clientWidth < 500;
  layout.template = { layout: {
    font: { color: ink, family: "system-ui, sans-serif", size: narrow ? 11 : 13 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", xaxis: axis, yaxis: axis,
    margin: { l: 50, r: 12, t: 12, b: 40 }, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    hoverlabel: { bgcolor: dark ? "#2a3037" : "#ffffff", font: { color: ink } },
  } };
  if (printing) layout.width = PRINTED;
  else layout.autosize = true;
  Plotly.react(place, data, layout, { responsive: true, displaylogo: false, displayModeBar: false });
}

const visible = (root) => [...root.querySelectorAll(".plot")].filter((place) => !place.closest("details:not([open])"));
const redraw = () => visible(document).forEach(draw);

redraw();
document.querySelectorAll("details").forEach((d) => d.addEventListener("toggle", () => d.open && visible(d).forEach(draw)));
night.addEventListener("change", redraw);
addEventListener("beforeprint", () => { printing = true; redraw(); });
addEventListener("afterprint", () => { printing = false; redraw(); });

// A click on a head of a sortable table sorts by its column, a second one the other way round.
const text = (row, i) => row.cells[i].textContent.replace("−", "-");
const number = (row, i) => (i ? parseFloat(text(row, i)) : NaN); // the first column is a name
const compare = (i) => (a, b) => {
  const x = number(a, i), y = number(b, i);
  if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y) || text(a, i).localeCompare(text(b, i), undefined, { numeric: true });
  return x - y;
};
document.querySelectorAll("table.sortable").forEach((table) => {
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
