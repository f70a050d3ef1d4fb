"use strict";
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
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
  }
}
