// Draws every chart of the page, one after the other, from the specifications embedded beside this script.
"use strict";
(() => {
  const { config, specs, tables = {}, controls = {} } = JSON.parse(document.getElementById("chart-data").textContent);

  const significant = (value, digits) => {
    const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
    return Number(value.toFixed(Math.min(decimals, 12))).toLocaleString("en", { maximumFractionDigits: 12 });
  };
  const number = (value) => (value === null || value === undefined || value === "" ? NaN : Number(value));
  const scaled = (value, units) => {
    const [limit, scale, unit] = units.find(([limit]) => Math.abs(value) < limit);
    return `${significant(value * scale, 3)}${unit}`;
  };
  const SECONDS = [[1e-3, 1e6, " µs"], [1, 1e3, " ms"], [600, 1, " s"], [7200, 1 / 60, " min"], [Infinity, 1 / 3600, " h"]];
  const COUNTS = [[10000, 1, ""], [1e6, 1e-3, "k"], [1e9, 1e-6, "M"], [1e12, 1e-9, "G"], [1e15, 1e-12, "T"], [Infinity, 1e-15, "P"]];
  const format = (units, zero) => (datum) => {
    const value = number(datum);
    return Number.isNaN(value) ? "–" : value === 0 ? zero : scaled(value, units);
  };
  const clock = (scale, unit) => (datum) => (datum ? `${significant(number(datum) / scale, 3)}${unit}` : "0");
  const expressionFunctions = {
    duration: format(SECONDS, "0"), compact: format(COUNTS, "0"),
    minutes: clock(60, " min"), hours: clock(3600, " h"),
    portion: (datum) => (Number.isNaN(number(datum)) ? "–" : number(datum) === 0 ? "0 %" : `${significant(100 * datum, 3)} %`),
  };

  const refuse = () => Promise.reject(new Error("this page loads nothing"));
  const loader = { load: refuse, sanitize: refuse, http: refuse, file: refuse };

  // Tables come in columns; a chart that names one gets its rows.
  const rowsOf = (columns) => {
    const names = Object.keys(columns);
    return (columns[names[0]] || []).map((_, i) => Object.fromEntries(names.map((name) => [name, columns[name][i]])));
  };
  const datasets = Object.fromEntries(Object.entries(tables).map(([name, columns]) => [name, rowsOf(columns)]));

  // A chart with places such as "$y.field": filled with what the controls of its section say.
  const filled = (value, chosen) => {
    if (Array.isArray(value)) return value.map((part) => filled(part, chosen));
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, filled(part, chosen)]));
    if (typeof value !== "string" || value[0] !== "$") return value;
    const dot = value.indexOf(".");
    const option = chosen[value.slice(1, dot)];
    return option === undefined ? value : option[value.slice(dot + 1)];
  };
  const specOf = (box) => {
    const spec = specs[box.dataset.chart];
    const section = box.closest("section");
    const options = controls[section.id];
    if (!options) return tables && spec.data && spec.data.name ? { ...spec, datasets: { ...spec.datasets, ...datasets } } : spec;
    const chosen = {};
    for (const select of section.querySelectorAll("[data-control]"))
      chosen[select.dataset.control] = options[select.dataset.control][select.value];
    return { ...filled(spec, chosen), datasets: { ...spec.datasets, ...datasets } };
  };

  // A click on a mark of a study goes where the link of its row in the table goes, or shows the row's command.
  const open = (event, item) => {
    const row = item && item.datum && item.datum.id !== undefined && document.getElementById(`point-${item.datum.id}`);
    if (!row) return;
    const link = row.querySelector("a[data-report]");
    if (link && (event.ctrlKey || event.metaKey)) window.open(link.href, "_blank", "noopener");
    else if (link) location.assign(link.href);
    else show(row);
  };
  const panel = document.getElementById("command");
  const show = (row) => {
    if (!panel) return;
    panel.querySelector("[data-title]").textContent = row.dataset.title;
    panel.querySelector("code").textContent = row.querySelector("code").textContent;
    panel.querySelector("[data-copied]").textContent = "";
    panel.showModal();
  };
  const copy = async () => {
    const code = panel.querySelector("code");
    const told = panel.querySelector("[data-copied]");
    try {
      await navigator.clipboard.writeText(code.textContent);
      told.textContent = "Copied.";
    } catch {
      getSelection().selectAllChildren(code);
      told.textContent = document.execCommand("copy") ? "Copied." : "Selected: press Ctrl+C.";
    }
  };
  if (panel) {
    panel.querySelector("[data-copy]").addEventListener("click", copy);
    panel.querySelector("[data-close]").addEventListener("click", () => panel.close());
  }

  const views = new Map();
  const draw = async (box) => {
    try {
      if (views.has(box)) views.get(box).finalize();
      const drawn = await vegaEmbed(box, specOf(box), {
        mode: "vega-lite", renderer: "svg", actions: false, ast: true, config, loader, expressionFunctions,
        tooltip: { theme: "page" },
      });
      views.set(box, drawn);
      drawn.view.addEventListener("click", open);
      box.dataset.drawn = "yes";
    } catch (error) {
      box.textContent = "This chart could not be drawn; the text below says what it shows.";
      console.error(error);
    }
  };

  const drawEach = async (boxes) => {
    for (const box of boxes) delete box.dataset.drawn;
    for (const box of boxes) {
      await draw(box);
      await new Promise((resume) => setTimeout(resume));
    }
  };

  // One after the other, also when a reader chooses faster than charts are drawn: the last choice is drawn last.
  let work = drawEach(document.querySelectorAll("[data-chart]")).then(() => {
    document.documentElement.dataset.charts = "drawn";
  });
  for (const select of document.querySelectorAll("[data-control]"))
    select.addEventListener("change", () => {
      work = work.then(() => drawEach(select.closest("section").querySelectorAll("[data-chart]")));
    });
})();
