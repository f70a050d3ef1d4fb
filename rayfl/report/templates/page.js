"use strict";
// What a reader has typed or hidden stays when the page of a run loads itself again.
const kept = (() => { try { return sessionStorage; } catch { return {}; } })();
const keep = (input, what, property, apply) => {
  const name = `${location.pathname} ${what}`;
  if (kept[name] !== undefined) input[property] = JSON.parse(kept[name]);
  input.addEventListener("input", () => { kept[name] = JSON.stringify(input[property]); apply(); });
  apply();
};
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const key = (row, k) => {
    const cell = row.cells[k], value = cell.dataset.value;
    if (value !== undefined) return Number(value);
    const text = cell.textContent.trim(), number = Number(text);
    return text !== "" && !Number.isNaN(number) ? number : text;
  };
  const order = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b
      : typeof a === typeof b ? a.localeCompare(b) : typeof a === "number" ? -1 : 1;
  [...table.tHead.rows[0].cells].forEach((head, k, all) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of all) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [key(row, k), row]);
      rows.sort((a, b) => (up ? 1 : -1) * order(a[0], b[0]));
      body.append(...rows.map((pair) => pair[1]));
    });
  });
  if (table.classList.contains("search")) {
    const label = document.createElement("label"), input = document.createElement("input");
    input.type = "search";
    label.append("Search: ", input);
    table.parentElement.before(label);
    keep(input, `${table.caption.textContent} search`, "value", () => {
      const wanted = input.value.toLowerCase();
      for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
  }
  const heads = [...table.tHead.rows[0].cells];
  if (heads.length > 6) {
    const columns = document.createElement("details"), summary = document.createElement("summary");
    summary.textContent = "Columns";
    columns.append(summary);
    table.parentElement.before(columns);
    heads.forEach((head, k) => {
      const label = document.createElement("label"), input = document.createElement("input");
      Object.assign(input, { type: "checkbox", checked: true });
      label.append(input, " ", head.textContent);
      columns.append(label);
      keep(input, `${table.caption.textContent} column ${head.textContent}`, "checked", () => {
        for (const row of table.rows) row.cells[k].hidden = !input.checked;
      });
    });
  }
}
