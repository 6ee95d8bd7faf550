// The page's frame: what is asked when, which view is shown, the key and the theme.

import { showActivity } from "./activity.js";
import { apiKey, get, setApiKey } from "./api.js";
import { startChat } from "./chat.js";
import { byId } from "./dom.js";
import { showTree } from "./tree.js";

const EVERY = 1500;
const SLOWLY = 5000;
const THEMES = ["", "dark", "light"];

let model = "";

function say(text, kind) {
  const state = byId("state");
  state.textContent = text;
  state.className = `state ${kind}`;
}

async function look() {
  if (document.hidden) return EVERY;
  try {
    const told = await get("/activity");
    model = told.model;
    byId("model").textContent = model;
    document.title = `${model} · ramet`;
    say(told.draining ? "shutting down" : told.engine ? "ready" : "engine busy", told.draining ? "bad" : "good");
    showActivity(told);
    // The engine draws it up between two steps: only where somebody sees it.
    if (byId("tree").clientWidth) showTree(await get("/cache_tree"));
    return EVERY;
  } catch (error) {
    if (error.status === 401) say("needs an API key", "bad");
    else say(error.status ? error.message : "no connection", "bad");
    return SLOWLY;
  }
}

let next = null;
let round = 0;

// Looks now, and then again and again; what was to come before gives way.
async function again() {
  const mine = ++round;
  clearTimeout(next);
  const wait = await look();
  if (mine === round) next = setTimeout(again, wait);
}

function show(view) {
  document.body.dataset.view = view;
  for (const button of document.querySelectorAll("[data-show]")) {
    button.setAttribute("aria-pressed", String(button.dataset.show === view));
  }
  again();
}

function wear(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

function startKey() {
  const dialog = byId("key-dialog");
  byId("key").addEventListener("click", () => {
    byId("key-text").value = apiKey();
    dialog.returnValue = "";
    dialog.showModal();
  });
  dialog.addEventListener("close", () => {
    if (!dialog.returnValue) return;
    setApiKey(dialog.returnValue === "save" ? byId("key-text").value.trim() : "");
    byId("key-text").value = "";
    again();
  });
}

function startTheme() {
  let theme = localStorage.getItem("ramet-theme") ?? "";
  wear(theme);
  byId("theme").addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    localStorage.setItem("ramet-theme", theme);
    wear(theme);
  });
}

for (const button of document.querySelectorAll("[data-show]")) {
  button.addEventListener("click", () => show(button.dataset.show));
}
document.addEventListener("visibilitychange", () => document.hidden || again());
startTheme();
startKey();
startChat(() => model);
again();
