// Adds a search field above each long table. The field hides the rows that do not contain all of its words.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table")) {
    const rows = [...table.tBodies[0].rows].map((row) => [row, row.textContent.toLowerCase()]);
    if (rows.length < 40) continue;
    const field = document.createElement("input");
    const count = document.createElement("span");
    field.type = "search";
    field.placeholder = "Search the table";
    field.setAttribute("aria-label", "Search this table");
    const search = () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const [row, text] of rows) {
        row.hidden = !words.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      count.textContent = `${shown} of ${rows.length} rows`;
    };
    field.addEventListener("input", search);
    const bar = document.createElement("div");
    bar.className = "table-search";
    bar.append(field, count);
    (table.closest(".table-wrapper") ?? table).before(bar);
    search();
  }
});
