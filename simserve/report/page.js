// Draws every chart of the page, one after the other, from the specifications embedded beside this script.
"use strict";
(() => {
  const { config, specs } = JSON.parse(document.getElementById("chart-data").textContent);

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
  const COUNTS = [[10000, 1, ""], [1e6, 1e-3, "k"], [1e9, 1e-6, "M"], [Infinity, 1e-9, "G"]];
  const format = (units, zero) => (datum) => {
    const value = number(datum);
    return Number.isNaN(value) ? "–" : value === 0 ? zero : scaled(value, units);
  };
  const clock = (scale, unit) => (datum) => (datum ? `${significant(number(datum) / scale, 3)}${unit}` : "0");
  const expressionFunctions = {
    duration: format(SECONDS, "0"), compact: format(COUNTS, "0"),
    minutes: clock(60, " min"), hours: clock(3600, " h"),
  };

  const refuse = () => Promise.reject(new Error("this page loads nothing"));
  const loader = { load: refuse, sanitize: refuse, http: refuse, file: refuse };

  const draw = async (box) => {
    try {
      await vegaEmbed(box, specs[box.dataset.chart], {
        mode: "vega-lite", renderer: "svg", actions: false, ast: true, config, loader, expressionFunctions,
        tooltip: { theme: "page" },
      });
      box.dataset.drawn = "yes";
    } catch (error) {
      box.textContent = "This chart could not be drawn; the text below says what it shows.";
      console.error(error);
    }
  };

  const drawAll = async () => {
    for (const box of document.querySelectorAll("[data-chart]")) {
      await draw(box);
      await new Promise((resume) => setTimeout(resume));
    }
    document.documentElement.dataset.charts = "drawn";
  };

  drawAll();
})();
