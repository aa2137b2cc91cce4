"use strict";
// Shows the exact numbers where the pointer is. Without this script the page tells the same.
(() => {
  const report = JSON.parse(document.getElementById("report").textContent);
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const tip = document.getElementById("tip");
  const number = (value) => value.toLocaleString("en-US", { maximumFractionDigits: 2 });
  const scaled = (value, step, units) => {
    let unit = 0;
    while (value >= step && unit < units.length - 1) { value /= step; unit += 1; }
    return `${number(value)} ${units[unit]}`;
  };
  const dollars = (value) => value === 0 ? "$0" : value < 0.01
    ? `$${value.toPrecision(2)}` : `$${number(value)}`;
  const formats = {
    count: number,
    bytes: (value) => scaled(value, 1000, ["B", "kB", "MB", "GB", "TB"]),
    ms: (value) => value < 10000 ? `${number(value)} ms` : `${number(value / 1000)} s`,
    dollars,
  };
  const moment = (ms) => new Date(ms).toISOString().slice(0, 19).replace("T", " ");

  const hide = (chart) => {
    tip.hidden = true;
    chart.querySelector(".cursor").hidden = true;
  };

  const show = (chart, slot) => {
    const { start_ms, width_ms, slots, curves } = charts[chart.dataset.chart];
    const at = Math.max(0, Math.min(slots - 1, slot));
    const area = chart.querySelector(".area");
    const box = area.getBoundingClientRect();
    const x = box.width * (at + 0.5) / slots;
    const cursor = chart.querySelector(".cursor");
    cursor.hidden = false;
    cursor.style.left = `${x}px`;
    tip.replaceChildren();
    const time = document.createElement("b");
    time.textContent = `${moment(start_ms + at * width_ms)} UTC`;
    tip.append(time);
    for (const [name, look, values] of curves) {
      const line = document.createElement("div");
      line.className = look;
      const value = values[at];
      const told = value === null ? "–" : formats[chart.dataset.unit](value);
      line.textContent = curves.length > 1 ? `${name}: ${told}` : told;
      tip.append(line);
    }
    tip.hidden = false;
    const size = tip.getBoundingClientRect();
    const wide = document.documentElement.clientWidth;
    const left = Math.max(8, Math.min(wide - size.width - 8, box.left + x - size.width / 2));
    const above = box.top - size.height - 8;
    tip.style.left = `${left + window.scrollX}px`;
    tip.style.top = `${(above > 0 ? above : box.bottom + 8) + window.scrollY}px`;
    chart.dataset.slot = at;
  };

  for (const chart of document.querySelectorAll(".chart")) {
    const area = chart.querySelector(".area");
    const { slots } = charts[chart.dataset.chart];
    const point = (event) => {
      const box = area.getBoundingClientRect();
      show(chart, Math.floor((event.clientX - box.left) / box.width * slots));
    };
    area.addEventListener("pointermove", point);
    area.addEventListener("pointerdown", point);
    area.addEventListener("pointerleave", () => hide(chart));
    area.addEventListener("blur", () => hide(chart));
    area.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      show(chart, Number(chart.dataset.slot ?? -1) + step);
    });
  }
  document.documentElement.dataset.ready = String(report.format);
})();
