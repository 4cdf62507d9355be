// The list of rollouts: filters and sorting over the index that the page holds. What is chosen stands in the address.
"use strict";

const decimals = (value) => (value === null ? "–" : value.toFixed(3));
const COLUMNS = [
  // name, index in a row, how it reads
  ["instance", 2, String], ["where", 1, String], ["reward", 3, decimals], ["accuracy", 4, decimals], ["calls", 5, String],
  ["failed", 6, String], ["inserts", 7, String], ["updates", 8, String], ["deletes", 9, String],
  ["wrong", 10, (value, row) => `${value} of ${row[11]}`], ["cut off", 12, String], ["entries", 14, String],
  ["masked", 13, (value) => (value ? "masked" : "")],
];
const FLAGS = { failed: 6, updates: 8, deletes: 9, wrong: 10, cut: 12, masked: 13 };

const rows = JSON.parse(document.getElementById("index").textContent);
const form = document.getElementById("filters");
const table = document.getElementById("rollouts");
const state = { sort: null, down: true };

function matching() {
  const where = form.elements.where.value;
  const text = form.elements.text.value.trim().toLowerCase();
  const flags = Object.keys(FLAGS).filter((name) => form.elements[name].checked);
  const found = rows.filter(
    (row) => (!where || row[1] === where) && row[2].toLowerCase().includes(text) && flags.every((name) => row[FLAGS[name]] > 0),
  );
  if (state.sort === null) return found;
  const order = (a, b) => (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b);
  return found.sort((a, b) => {
    const [x, y] = [a[state.sort], b[state.sort]];
    if (x === null || y === null) return Number(x === null) - Number(y === null); // what is not known comes last
    return (state.down ? -1 : 1) * order(x, y);
  });
}

function line(row) {
  const element = document.createElement("tr");
  for (const [name, index, reads] of COLUMNS) {
    const cell = document.createElement(name === "instance" ? "th" : "td");
    const holder = name === "instance" ? document.createElement("a") : cell;
    holder.textContent = reads(row[index], row);
    if (holder !== cell) {
      holder.href = `rollouts/${row[0]}`;
      holder.dataset.stop = "";
      cell.append(holder);
    }
    element.append(cell);
  }
  return element;
}

function show() {
  const found = matching();
  table.tBodies[0].replaceChildren(...found.map(line));
  table.hidden = false;
  document.getElementById("count").textContent = `${found.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rollouts`;
  for (const head of table.tHead.rows[0].cells) {
    const chosen = Number(head.dataset.index) === state.sort;
    head.setAttribute("aria-sort", chosen ? (state.down ? "descending" : "ascending") : "none");
  }
}

function remember() {
  const chosen = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value) chosen.set(name, value === "on" ? "1" : value);
  if (state.sort !== null) chosen.set("sort", `${state.down ? "-" : ""}${state.sort}`);
  history.replaceState(null, "", chosen.size ? `#${chosen}` : location.pathname.split("/").pop());
}

function recall() {
  const chosen = new URLSearchParams(location.hash.slice(1));
  form.elements.where.value = chosen.get("where") ?? "";
  form.elements.text.value = chosen.get("text") ?? "";
  for (const name of Object.keys(FLAGS)) form.elements[name].checked = chosen.has(name);
  const sort = chosen.get("sort");
  state.sort = sort === null ? null : Math.abs(Number(sort));
  state.down = sort === null || sort.startsWith("-");
  show();
}

function changed() {
  show();
  remember();
}

for (const [name, index] of COLUMNS) {
  const head = document.createElement("th");
  head.dataset.index = String(index);
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = name;
  button.addEventListener("click", () => {
    state.down = state.sort === index ? !state.down : index > 2;
    state.sort = index;
    changed();
  });
  head.append(button);
  table.tHead.rows[0].append(head);
}
for (const where of new Set(rows.map((row) => row[1]))) form.elements.where.append(new Option(where, where));
form.addEventListener("input", changed);
form.addEventListener("submit", (event) => event.preventDefault());
window.addEventListener("hashchange", recall);
recall();
