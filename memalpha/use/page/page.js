// Calls the API of the server that the page came from. What the server says is set as text, never as markup.
"use strict";
const MOST = "limit=1000"; // the API lists no more at once
const KEPT = ["token", "user", "agent", "session"];
const state = { entries: [], total: 0, operations: [], busy: false };
const at = (id) => document.getElementById(id);
const about = (operation) => operation.after ?? operation.before; // the entry; null if it is forgotten
const isPassage = (entry) => entry?.section === "_archive"; // what was read, line by line

async function call(method, path, body) {
  const headers = body ? { "Content-Type": "application/json" } : {};
  for (const name of KEPT) {
    const value = sessionStorage.getItem(name);
    if (value && name === "token") headers.Authorization = `Bearer ${value}`;
    else if (value) headers[`Memalpha-${name}`] = encodeURIComponent(value);
  }
  const options = { method, headers, body: body && JSON.stringify(body), cache: "no-store", credentials: "omit" };
  const response = await fetch(`v1/${path}`, options).catch(() => {
    throw new Error("The server does not answer");
  });
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  const { what = `The server answered ${response.status}`, expected, fix } = answer;
  const reason = [what, expected && `expected: ${expected}`, fix && `to fix: ${fix}`].filter(Boolean).join(" · ");
  const message = response.status === 401 ? "This server does not know that token" : reason;
  throw Object.assign(new Error(message), { status: response.status });
}

function make(tag, textContent = "", className = "", children = []) {
  const element = Object.assign(document.createElement(tag), { textContent, className, dir: className === "text" ? "auto" : "" });
  element.append(...children.filter(Boolean));
  return element;
}

function button(text, entry, action) {
  const element = Object.assign(make("button", text), { type: "button", onclick: () => action(entry) });
  element.setAttribute("aria-label", `${text}: entry ${entry.id}`);
  return element;
}

function say(text = "", lines = [], bad = false) {
  at("said").className = bad ? "bad" : "";
  at("said").replaceChildren(...[...new Set([text, ...lines])].filter(Boolean).map((line) => make("p", line, "text")));
}

// One piece of work at a time; after a write, failed or not, the memory is shown as it is now and the last answer goes.
async function run(work, writes = false) {
  if (state.busy) return;
  state.busy = true;
  say("Working …");
  if (writes) at("reply").replaceChildren();
  try {
    const told = await work().finally(() => writes && refresh());
    reveal(true);
    say(...(told ?? []));
  } catch (problem) {
    if (problem.status === 401 || at("open").hidden) reveal(false);
    say(problem.status !== 401 || sessionStorage.length ? problem.message : "", [], true); // at first no token was tried
  }
  state.busy = false;
}

function reveal(known) {
  const stays = known && at("enter").hidden && !at("open").hidden;
  at("enter").hidden = known;
  at("open").hidden = !known;
  at("leave").hidden = !known || !sessionStorage.length;
  if (!stays) at(known ? "question" : "token").focus();
}

const moment = (time) => new Date(time).toLocaleString();
const line = (facts) => make("div", facts.filter(Boolean).join(" · "), "soft");

function card(entry, buttons = []) {
  const written = state.operations.find((each) => each.operation === entry.updated);
  const place = isPassage(entry) ? "passage, as it was read" : `entry ${entry.id}, ${entry.section}`;
  const facts = [place, entry.timestamp && `said ${entry.timestamp}`, written && `written ${moment(written.time)}`];
  return make("li", "", "", [make("div", entry.content, "text"), line(facts), ...buttons]);
}

function showMemory() {
  const managed = (entry) => card(entry, [button("History", entry, historyOf), button("Forget", entry, forget)]);
  const sections = [...Map.groupBy(state.entries, (entry) => entry.section)];
  const shown = ([name, found]) => [make("h3", `${name} (${found.length})`), make("ul", "", "cards", found.map(managed))];
  const nothing = make("p", "Nothing is remembered yet. Write a text under “Remember”: what should be kept becomes entries here.");
  at("memory").replaceChildren(...(sections.length ? sections.flatMap(shown) : [nothing]));
  at("memory-title").textContent = `What is remembered (${state.total})`;
  at("more").hidden = state.entries.length >= state.total;
}

function showHistory(operations, title) {
  at("history-title").textContent = title;
  at("all").hidden = operations === state.operations;
  at("history").hidden = !operations.length;
  at("unwritten").hidden = operations.length > 0;
  at("history").replaceChildren(...operations.toReversed().map((each) => {
    const named = each.source && !/[0-9a-f]{64}$/.test(each.source) && `from ${each.source}`; // else a digest
    const passage = isPassage(about(each)) && "passage";
    const read = each.sources && `${each.sources} messages of an import`;
    const facts = [each.operation, each.kind, passage, moment(each.time), each.agent && `by ${each.agent}`, named, read];
    const texts = [each.before && make("del", each.before.content, "text"), each.after && make("ins", each.after.content, "text")];
    return make("li", "", "", [line(facts), ...texts, each.forgotten && line(["forgotten: the content is erased"])]);
  }));
}

async function refresh() {
  const [memory, history] = await Promise.all([call("GET", `memory?${MOST}`), call("GET", `history?${MOST}`)]);
  Object.assign(state, memory, history, { total: memory.total });
  showMemory();
  showHistory(state.operations, `History (${history.total})`);
}

const historyOf = (entry) => run(async () => {
  const found = await call("GET", `history?${MOST}&entry=${encodeURIComponent(entry.id)}`);
  showHistory(found.operations, `History of entry ${entry.id}`);
  at("history").focus();
});

// What was said: the turn, what stands around it, and what is newer.
function turn(passage) {
  const { before, after, newer, source } = passage;
  const named = source && !/[0-9a-f]{64}$/.test(source) && `from ${source}`; // else a digest
  const shown = card(passage.entry);
  const around = (text) => (text ? [make("div", text, "text soft")] : []);
  const later = newer ? [make("div", `newer: ${newer.content}`, "text")] : [];
  shown.firstChild.replaceWith(...around(before), make("div", passage.text, "text"), ...around(after), ...later);
  if (named) shown.append(line([named]));
  return shown;
}

async function ask() {
  const { answer, known, by_reader, passages } = await call("POST", "ask", { question: at("question").value });
  await refresh();
  const told = !known ? "I do not know." : by_reader ? answer : "";
  const nearest = passages.length ? "What comes nearest" : "Nothing was found in the memory";
  const title = make("h3", known ? "What was said" : nearest);
  const text = told ? [make("div", told, "text")] : [];
  at("reply").replaceChildren(...text, title, make("ol", "", "cards", passages.map(turn)));
}

// The operations of the newest step (one piece of text read) that is in effect, newest first. Passages come and go with the undo
// of what the model wrote; where it wrote nothing they are undone themselves.
function lastStep(operations) {
  const isWritten = (each) => each.kind === "apply" && about(each) && !isPassage(about(each));
  const wrote = new Set(operations.filter(isWritten).map((each) => each.prompt_hash));
  const stands = (step) => step.some((each) => isWritten(each) || !wrote.has(each.prompt_hash));
  const undone = new Set();
  let step = [];
  for (const each of operations.toReversed()) {
    if (undone.has(each.operation) || !about(each)) continue;
    if (each.kind === "undo") undone.add(each.undoes);
    if (each.kind !== "apply") continue;
    if (step.length && (!each.prompt_hash || each.prompt_hash !== step[0].prompt_hash)) {
      if (stands(step)) break;
      step = [];
    }
    if (each.after || !isPassage(each.before)) step.push(each);
  }
  return stands(step) ? step : [];
}

async function undo() {
  const step = lastStep((await call("GET", `history?${MOST}`)).operations);
  const written = step.filter((each) => !isPassage(about(each)));
  for (const { operation } of written.length ? written : step) await call("POST", "undo", { operation });
  const lines = step.flatMap(({ before, after }) => [after && `− ${after.content}`, before && `+ ${before.content}`]);
  return step.length ? [`The last step is undone. Changes: ${step.length}.`, lines] : ["There is no step to undo."];
}

function forget(entry) {
  const reach = "with its history and the passages that say it, also in the store's files? This cannot be undone.";
  if (!confirm(`Erase entry ${entry.id} for good, ${reach}\n\n${entry.content}`)) return;
  run(async () => {
    const before = await call("GET", `history?${MOST}`);
    const { operations, said_by, scrubbed } = await call("POST", "forget", { entry: entry.id });
    const after = await call("GET", `history?${MOST}`);
    const erased = new Set(after.operations.filter((each) => each.forgotten).map((each) => each.operation));
    const gone = before.operations.flatMap(({ operation, after: was }) => (was && erased.has(operation) ? `− ${was.content}` : []));
    const left = said_by.map((each) => card(each, [button("Forget", each, forget)]));
    if (left.length) at("reply").replaceChildren(make("h3", "This still has words of it"), make("ul", "", "cards", left));
    const bytes = scrubbed ? "" : " Its bytes are still in files that are in use: the server erases them as soon as it can.";
    return [`Entry ${entry.id} is forgotten. Records that lost their content: ${operations}.${bytes}`, gone];
  }, true);
}

async function remember() {
  const [text, time, source] = ["text", "day", "source"].map((id) => at(id).value);
  const added = await call("POST", "add", { text, time: time || null, source });
  at("text").value = "";
  const changes = added.results.filter((each) => ["applied", "renewed"].includes(each.code)).length;
  const results = added.results.map((each) => `${each.ok ? "✓" : "✗"} ${each.message}`);
  return [`Read. Changes: ${changes}.`, [...results, `Lines kept as they were said: ${added.lines}.`]];
}

async function more() {
  state.entries.push(...(await call("GET", `memory?${MOST}&offset=${state.entries.length}`)).entries);
  showMemory();
}

async function enter() {
  for (const name of KEPT) sessionStorage.setItem(name, at(name).value.trim());
  await refresh();
  at("token").value = "";
}

async function leave() {
  sessionStorage.clear();
  location.reload();
}

document.addEventListener("submit", (event) => event.preventDefault());
const forms = [["enter", enter], ["ask", ask], ["add", remember, true]];
const buttons = [["undo", undo, true], ["more", more], ["all", refresh], ["leave", leave]];
for (const [id, work, writes] of forms) at(id).onsubmit = () => run(work, writes);
for (const [id, work, writes] of buttons) at(id).onclick = () => run(work, writes);
run(refresh);
