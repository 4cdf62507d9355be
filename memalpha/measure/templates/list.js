// The list of rollouts: filters and sorting over the index that the page holds. What is chosen stands in the address.
"use strict";

const decimals = (value) => (value === null ? "–" : value.toFixed(3).replace(/^(-?)0\./, "$1."));
const percent = (value) => (value === null ? "–" : (100 * value).toFixed(1));
const COLUMNS = [
  // name, index in a row, how it reads
  ["instance", 2, String], ["where", 1, String], ["reward", 3, decimals], ["accuracy, %", 4, percent], ["calls", 5, String],
  ["failed calls", 6, String], ["inserts", 7, String], ["updates", 8, String], ["deletes", 9, String],
  ["wrong answers", 10, (value, row) => `${value} of ${row[11]}`], ["completions cut off", 12, String], ["entries at the end", 14, String],
  ["masked", 13, (value) => (value ? "masked" : "")],
];
const FLAGS = { failed: 6, updates: 8, deletes: 9, wrong: 10, cut: 12, masked: 13 };

const rows = JSON.parse(document.getElementById("index").textContent);
const form = document.getElementById("filters");
const table = document.getElementById("rollouts");
let sort = null; // index of a column
let down = true;

function matching() {
  const { where, text } = Object.fromEntries(new FormData(form));
  const flags = Object.keys(FLAGS).filter((name) => form.elements[name].checked);
  const wanted = rows.filter(
    (row) => (!where || row[1] === where) && row[2].toLowerCase().includes(text.trim().toLowerCase()) && flags.every((name) => row[FLAGS[name]] > 0),
  );
  if (sort === null) return wanted;
  const order = (a, b) => (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b);
  return wanted.sort(({ [sort]: a }, { [sort]: b }) =>
    a === null || b === null ? Number(a === null) - Number(b === null) : (down ? -1 : 1) * order(a, b), // what is not known comes last
  );
}

function line(row) {
  const element = document.createElement("tr");
  for (const [name, index, reads] of COLUMNS) {
    const cell = element.appendChild(document.createElement(name === "instance" ? "th" : "td"));
    const holder = name === "instance" ? cell.appendChild(document.createElement("a")) : cell;
    holder.textContent = reads(row[index], row);
    if (holder !== cell) Object.assign(holder, { href: `rollouts/${row[0]}` }).dataset.stop = "";
  }
  return element;
}

function show() {
  const wanted = matching();
  table.tBodies[0].replaceChildren(...wanted.map(line));
  const told = document.getElementById("count");
  const counted = `${wanted.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rollouts`;
  told.textContent = !rows.length ? told.dataset.empty : wanted.length ? counted : `${counted}: none has all that is chosen`;
  document.getElementById("found").hidden = !wanted.length;
  form.hidden = !rows.length;
  for (const head of table.tHead.rows[0].cells) {
    head.ariaSort = Number(head.dataset.index) !== sort ? "none" : down ? "descending" : "ascending";
  }
}

function changed() {
  show();
  const chosen = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
  if (sort !== null) chosen.set("sort", `${down ? "-" : ""}${sort}`);
  history.replaceState(null, "", chosen.size ? `#${chosen}` : location.pathname.split("/").pop());
}

function recall() {
  const chosen = new URLSearchParams(location.hash.slice(1));
  for (const name of ["where", "text"]) form.elements[name].value = chosen.get(name) ?? "";
  for (const name of Object.keys(FLAGS)) form.elements[name].checked = chosen.has(name);
  sort = chosen.has("sort") ? Math.abs(Number(chosen.get("sort"))) : null;
  down = (chosen.get("sort") ?? "-").startsWith("-");
  show();
}

for (const [name, index] of COLUMNS) {
  const head = table.tHead.rows[0].appendChild(document.createElement("th"));
  head.dataset.index = String(index);
  const button = head.appendChild(document.createElement("button"));
  Object.assign(button, { type: "button", textContent: name });
  button.addEventListener("click", () => {
    down = sort === index ? !down : index > 2;
    sort = index;
    changed();
  });
}
for (const where of new Set(rows.map((row) => row[1]))) form.elements.where.append(new Option(where, where));
form.addEventListener("input", changed);
form.addEventListener("submit", (event) => event.preventDefault());
window.addEventListener("hashchange", recall);
recall();
