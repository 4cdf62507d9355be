// Keys, on every page: j and k go from stop to stop, arrows from page to page, u up, / to the search, ? shows them all.
"use strict";

const typing = (element) => element.closest("input, select, textarea, dialog[open]") !== null;

function visible(element) {
  return element.offsetParent !== null;
}

function go(element) {
  if (!element) return;
  element.focus({ preventScroll: true });
  element.scrollIntoView({ block: element.matches("section") ? "start" : "nearest" });
}

function step(direction) {
  const stops = [...document.querySelectorAll("[data-stop]")].filter(visible);
  const here = document.activeElement.closest("[data-stop]");
  const place = stops.indexOf(here);
  if (place >= 0) return go(stops[place + direction]);
  const middle = window.scrollY + 8;
  const tops = stops.map((stop) => stop.getBoundingClientRect().top + window.scrollY);
  const next = tops.findIndex((top) => top > middle);
  go(direction > 0 ? stops[next < 0 ? stops.length - 1 : next] : stops[(next < 0 ? stops.length : next) - 1]);
}

function follow(rel) {
  const link = document.querySelector(`a[rel="${rel}"]`);
  if (link) link.click();
}

const keys = document.getElementById("keys");
const ACTIONS = {
  j: () => step(1),
  k: () => step(-1),
  ArrowRight: () => follow("next"),
  ArrowLeft: () => follow("prev"),
  u: () => follow("up"),
  "/": () => go(document.querySelector("input[type=search]")),
  "?": () => keys.showModal(),
};

document.getElementById("keys-button").addEventListener("click", ACTIONS["?"]);
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
  const sideways = event.key.startsWith("Arrow");
  if (sideways && event.target.closest(".scroll, pre, .text")) return; // scrolls what has the focus
  const action = ACTIONS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

// A link inside the page moves the focus too, so that j and k go on from there.
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  const target = link && document.getElementById(decodeURIComponent(link.hash.slice(1)));
  if (target) target.focus({ preventScroll: true });
});
