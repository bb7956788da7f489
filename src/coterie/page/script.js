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
