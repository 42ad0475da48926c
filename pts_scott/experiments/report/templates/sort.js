// Makes the head of every table sort its rows: within blocks, or whole blocks by their name.
function sortKey(cell) {
  if (!cell) return "";
  const value = cell.dataset.value;
  if (value === undefined) return cell.textContent.trim().toLowerCase();
  return value === "inf" ? Infinity : Number(value);
}
function compare(a, b, sign) {
  const last = (key) => (key === "" || Number.isNaN(key) ? 1 : 0);
  if (last(a) || last(b)) return last(a) - last(b);
  if (typeof a === "number" && typeof b === "number") return sign * (a < b ? -1 : a > b ? 1 : 0);
  return sign * String(a).localeCompare(String(b), "en", { numeric: true });
}
function sortRows(body, column, sign) {
  const head = body.querySelector("th[rowspan]");
  if (head) head.remove();
  const place = column - (head ? 1 : 0);
  const rows = [...body.rows];
  rows.sort((a, b) => compare(sortKey(a.cells[place]), sortKey(b.cells[place]), sign));
  body.append(...rows);
  if (head) rows[0].prepend(head);
}
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      table.classList.add("sorted");
      const bodies = [...table.tBodies];
      const name = (body) => sortKey(body.querySelector("th"));
      if (bodies.length > 1 && column === 0) {
        table.append(...bodies.sort((a, b) => compare(name(a), name(b), sign)));
      } else {
        for (const body of bodies) sortRows(body, column, sign);
      }
    });
  });
}
