// The list of rollouts: filters, sorting and pages over the index that the page holds. What is chosen stands in the address.
"use strict";

const COLUMNS = [
  // name, index in a row, how it reads, whether large comes first
  ["instance", 2, String], ["where", 1, String], ["reward", 3, decimals], ["accuracy", 4, decimals], ["calls", 5, String],
  ["failed", 6, String], ["inserts", 7, String], ["updates", 8, String], ["deletes", 9, String], ["wrong", 10, wrong],
  ["cut off", 12, String], ["entries", 14, String], ["masked", 13, (value) => (value ? "masked" : "")],
];
const FLAGS = { failed: 6, updates: 8, deletes: 9, wrong: 10, cut: 12, masked: 13 };
const SIZE = 50;

const rows = JSON.parse(document.getElementById("index").textContent);
const form = document.getElementById("filters");
const table = document.getElementById("rollouts");
const state = { page: 0, sort: null, down: true };

function decimals(value) {
  return value === null ? "–" : value.toFixed(3);
}

function wrong(value, row) {
  return `${value} of ${row[11]}`;
}

function matching() {
  const where = form.elements.where.value;
  const text = form.elements.text.value.trim().toLowerCase();
  const flags = Object.keys(FLAGS).filter((name) => form.elements[name].checked);
  const found = rows.filter(
    (row) => (!where || row[1] === where) && row[2].toLowerCase().includes(text) && flags.every((name) => row[FLAGS[name]] > 0),
  );
  if (state.sort === null) return found;
  const order = (a, b) => (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b);
  const known = (value) => value !== null;
  return found.sort((a, b) => {
    const [x, y] = [a[state.sort], b[state.sort]];
    if (!known(x) || !known(y)) return Number(known(y)) - Number(known(x)); // what is not known comes last
    return (state.down ? -1 : 1) * order(x, y);
  });
}

function cell(row, [name, index, reads]) {
  const element = document.createElement(name === "instance" ? "th" : "td");
  const shown = reads(row[index], row);
  if (name === "instance") {
    element.scope = "row";
    const link = document.createElement("a");
    link.href = `rollouts/${row[0]}`;
    link.textContent = shown;
    link.dataset.stop = "";
    element.append(link);
  } else {
    element.textContent = shown;
  }
  return element;
}

function show() {
  const found = matching();
  const pages = Math.max(1, Math.ceil(found.length / SIZE));
  state.page = Math.min(state.page, pages - 1);
  const first = state.page * SIZE;
  const body = found.slice(first, first + SIZE).map((row) => {
    const line = document.createElement("tr");
    line.append(...COLUMNS.map((column) => cell(row, column)));
    return line;
  });
  table.tBodies[0].replaceChildren(...body);
  table.hidden = false;
  document.getElementById("count").textContent = `${found.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rollouts`;
  document.getElementById("pages").hidden = pages < 2;
  document.getElementById("page").textContent = `page ${state.page + 1} of ${pages}`;
  document.getElementById("back").disabled = state.page === 0;
  document.getElementById("on").disabled = state.page === pages - 1;
  for (const head of table.tHead.rows[0].cells) {
    const index = Number(head.dataset.index);
    head.setAttribute("aria-sort", index === state.sort ? (state.down ? "descending" : "ascending") : "none");
  }
}

function remember() {
  const chosen = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value) chosen.set(name, value === "on" ? "1" : value);
  if (state.sort !== null) chosen.set("sort", `${state.down ? "-" : ""}${state.sort}`);
  if (state.page) chosen.set("page", String(state.page + 1));
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
  state.page = Math.max(0, Number(chosen.get("page") ?? 1) - 1);
}

function changed() {
  state.page = 0;
  show();
  remember();
}

function turn(pages) {
  state.page += pages;
  show();
  remember();
  table.scrollIntoView({ block: "start" });
}

function sortBy(index) {
  state.down = state.sort === index ? !state.down : index > 2;
  state.sort = index;
  changed();
}

for (const [name, index] of COLUMNS) {
  const head = document.createElement("th");
  head.scope = "col";
  head.dataset.index = String(index);
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = name;
  button.addEventListener("click", () => sortBy(index));
  head.append(button);
  table.tHead.rows[0].append(head);
}
for (const where of new Set(rows.map((row) => row[1]))) form.elements.where.append(new Option(where, where));
form.addEventListener("input", changed);
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", () => setTimeout(() => { state.sort = null; changed(); }));
document.getElementById("back").addEventListener("click", () => turn(-1));
document.getElementById("on").addEventListener("click", () => turn(1));
window.addEventListener("hashchange", () => { recall(); show(); });
recall();
show();
