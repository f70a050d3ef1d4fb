"use strict";
// The clients' numbers after a round that the reader picks, and the map of clients and rounds.
const part = document.getElementById("rounds");
if (part) {
  const data = JSON.parse(part.querySelector("script").textContent);
  const slider = part.querySelector("[type=range]"), colour = part.querySelector("select"), only = part.querySelector("[type=checkbox]");
  const table = document.querySelector("#clients ~ .wide table"), title = table.caption.textContent;
  const rows = [...table.tBodies[0].rows], heads = [...table.tHead.rows[0].cells];
  const charts = [...document.querySelectorAll("#curves ~ .charts .chart")];
  part.hidden = false;

  const shown = (value, percent) => {
    if (value === undefined || value === null) return "n/a";
    const size = value ? Math.floor(Math.log10(Math.abs(value))) : 0;
    return value.toFixed(percent ? 2 : Math.min(Math.max(0, 3 - size), 12));
  };
  // The ends of a chart's horizontal axis: their rounds, and their places in the drawing.
  const axis = (chart) => {
    const line = chart.querySelector(".grid");
    return [...chart.dataset.range.split(" ").map(Number), line.x1.baseVal.value, line.x2.baseVal.value];
  };
  // The scores of the last evaluation until the end of a round.
  const latest = (column, round) => column.values[column.rounds.findLastIndex((known) => known <= round)] ?? [];
  const fill = (heading, texts, values) => {
    const k = heads.findIndex((head) => head.textContent === heading);
    heads[k].setAttribute("aria-sort", "none");
    rows.forEach((row, i) => {
      row.cells[k].textContent = texts[i];
      if (typeof values[i] === "number") row.cells[k].dataset.value = values[i];
      else delete row.cells[k].dataset.value;
    });
  };
  const pick = () => {
    const k = Number(slider.value), round = data.rounds[k];
    const evaluated = (colour ? data.columns[colour.value].rounds : []).findLast((known) => known <= round);
    const source = evaluated === round ? "" : evaluated ? `, scores of round ${evaluated}` : ", not evaluated yet";
    part.querySelector("output").value = round + source;
    slider.setAttribute("aria-valuetext", round + source);
    table.caption.textContent = title.replace("last evaluation", `round ${round}${source}`);
    fill("took part", [...data.took[k]].map((took) => (took === "1" ? "yes" : "no")), []);
    for (const [heading, column] of Object.entries(data.columns)) {
      const values = latest(column, round);
      fill(heading, rows.map((_, i) => shown(values[i], column.percent)), values);
    }
    if (colour) part.querySelector(".map span").style.left = `${(100 * (k + 0.5)) / data.rounds.length}%`;
    for (const chart of charts) {
      const [low, high, left, right] = axis(chart);
      const line = chart.querySelector(".picked") ?? chart.appendChild(document.createElementNS(chart.namespaceURI, "line"));
      const x = left + ((right - left) * (round - low)) / (high - low);
      for (const [name, value] of Object.entries({ class: "picked", x1: x, x2: x, y1: 0, y2: "84%" })) line.setAttribute(name, value);
      line.style.display = x < left || x > right ? "none" : "";
    }
  };
  const move = (k) => {
    slider.value = k;
    slider.dispatchEvent(new Event("input"));
  };
  keep(slider, "round", "value", pick);
  for (const chart of charts) {
    chart.style.cursor = "pointer";
    chart.addEventListener("click", (event) => {
      const [low, high, left, right] = axis(chart), box = chart.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
      const round = low + ((high - low) * (x - left)) / (right - left);
      const far = data.rounds.map((each) => Math.abs(each - round));
      move(far.indexOf(Math.min(...far)));
      part.scrollIntoView();
      slider.focus({ preventScroll: true });
    });
  }

  if (colour) {
    const canvas = part.querySelector("canvas"), [least, ramp, most] = part.querySelectorAll(".scale span");
    Object.assign(canvas, { width: data.rounds.length, height: rows.length });
    canvas.style.height = `${Math.min(32, Math.max(6, rows.length))}rem`;
    const colours = [[68, 1, 84], [33, 145, 140], [253, 231, 37]], grey = [140, 140, 140];
    const mixed = (share) => {
      const k = share < 0.5 ? 0 : 1, weight = 2 * share - k;
      return colours[k].map((from, j) => (1 - weight) * from + weight * colours[k + 1][j]);
    };
    ramp.style.background = `linear-gradient(to right, ${colours.map((each) => `rgb(${each})`)})`;
    const draw = () => {
      const column = data.columns[colour.value], image = new ImageData(canvas.width, canvas.height);
      const known = column.values.flat().filter((value) => value !== null);
      const [low, high] = known.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
      data.rounds.forEach((round, k) => {
        const values = latest(column, round);
        rows.forEach((_, i) => {
          const took = data.took[k][i] === "1", value = values[i] ?? null, place = (i * data.rounds.length + k) * 4;
          if (!took && (only.checked || value === null)) return;
          const share = (column.higher ? value - low : high - value) / (high - low || 1);
          image.data.set([...(value === null ? grey : mixed(share)), 255], place);
        });
      });
      canvas.getContext("2d").putImageData(image, 0, 0);
      const [first, last] = (column.higher ? [low, high] : [high, low]).map((end) => shown(end, column.percent));
      [least.textContent, most.textContent] = [`${colour.value}: ${first}`, last];
    };
    const at = (event) => [
      Math.min(canvas.width - 1, Math.floor((event.offsetX / canvas.clientWidth) * canvas.width)),
      Math.min(canvas.height - 1, Math.floor((event.offsetY / canvas.clientHeight) * canvas.height)),
    ];
    canvas.addEventListener("click", (event) => move(at(event)[0]));
    canvas.addEventListener("mousemove", (event) => {
      const [k, i] = at(event), column = data.columns[colour.value];
      const took = data.took[k][i] === "1" ? "took part" : "did not take part";
      canvas.title = `client ${data.clients[i]}, round ${data.rounds[k]}: ${shown(latest(column, data.rounds[k])[i], column.percent)}, ${took}`;
    });
    keep(colour, "colour", "value", () => { draw(); pick(); });
    keep(only, "only", "checked", draw);
  }
}
