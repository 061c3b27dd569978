"""Style and script of report.html: light and dark, sortable tables, two encoders side by side."""

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1f; --paper: #fff; --line: #d4d4da; --soft: #f2f3f7; --mark: #0b5a2b;
  --link: #0b4fa8 }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8ec; --paper: #16171b; --line: #3c3d45; --soft: #23242a;
  --mark: #7fd6a0; --link: #8cb8ff } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: var(--ink);
  background: var(--paper) }
h2 { font-size: 1.15rem; margin: 1.8rem 0 .3rem } a { color: var(--link) }
code, pre { font: 13px/1.4 ui-monospace, monospace; overflow-wrap: anywhere } pre { overflow-x: auto }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; display: block; overflow-x: auto }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .7rem; text-align: right; white-space: nowrap }
th { background: var(--soft) }
th:first-child, td:first-child { text-align: left }
th button { all: unset; cursor: pointer; font-weight: bold }
th button:focus-visible { outline: 2px solid var(--link) }
th[aria-sort=ascending] button::after { content: " \\25B2" }
th[aria-sort=descending] button::after { content: " \\25BC" }
td.best { font-weight: bold; color: var(--mark) } td.tie { color: var(--mark) }
td.tie::after { content: " \\2248" } td.best::after { content: " \\2605" }
img { max-width: 100%; vertical-align: top; background: #fff } figure { display: inline-block; margin: 0 1rem 1rem 0 }
#beside > div { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1rem }
select { max-width: 100%; font: inherit }
"""

SCRIPT = """
const number = (cell) => parseFloat(cell.textContent.replace(/,/g, ""));
for (const head of document.querySelectorAll("th button")) head.addEventListener("click", () => {
  const cell = head.parentElement, table = cell.closest("table");
  const place = [...cell.parentElement.children].indexOf(cell);
  const falling = cell.getAttribute("aria-sort") !== "descending";
  for (const other of cell.parentElement.children) other.removeAttribute("aria-sort");
  cell.setAttribute("aria-sort", falling ? "descending" : "ascending");
  const rows = [...table.rows].slice(1), key = (row) => row.children[place];
  const text = rows.every((row) => Number.isNaN(number(key(row))));
  rows.sort((a, b) => {
    if (text) return key(a).textContent.localeCompare(key(b).textContent);
    const [x, y] = [number(key(a)), number(key(b))];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
    return falling ? y - x : x - y;
  });
  if (text && falling) rows.reverse();
  for (const row of rows) row.parentElement.append(row);
});
for (const [side, select] of [...document.querySelectorAll("#beside select")].entries())
  select.addEventListener("change", () => {
    const shown = document.querySelectorAll("#beside > div > div")[side], from = document.getElementById(select.value);
    const figures = from ? [...from.querySelectorAll("figure")] : [];
    shown.replaceChildren(...figures.map((figure) => figure.cloneNode(true)));
  });
"""
