// Keys, on every page: j and k go from stop to stop, arrows from page to page, u up, / to the search.
"use strict";

function go(element) {
  if (!element) return;
  element.focus({ preventScroll: true });
  element.scrollIntoView({ block: element.matches("section") ? "start" : "nearest" });
}

function step(direction) {
  const stops = [...document.querySelectorAll("[data-stop]")];
  const place = stops.indexOf(document.activeElement.closest("[data-stop]"));
  if (place >= 0) return go(stops[place + direction]);
  const next = stops.findIndex((stop) => stop.getBoundingClientRect().top > 8);
  go(direction > 0 ? stops[next < 0 ? stops.length - 1 : next] : stops[(next < 0 ? stops.length : next) - 1]);
}

const follow = (rel) => document.querySelector(`a[rel="${rel}"]`)?.click();
const ACTIONS = {
  j: () => step(1),
  k: () => step(-1),
  ArrowRight: () => follow("next"),
  ArrowLeft: () => follow("prev"),
  u: () => follow("up"),
  "/": () => go(document.querySelector("input[type=search]")),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  if (event.key.startsWith("Arrow") && event.target.closest(".scroll, pre, .text")) return; // scrolls what has the focus
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
