// Tiles, charts and the live requests, from /activity.

import { post } from "./api.js";
import { chart } from "./charts.js";
import { byId, element, number, percent, seconds } from "./dom.js";

const SPAN = 300;
const STEP = 5;

// Of each STEP seconds of the last SPAN: what happened in them, oldest first.
function steps(now, history) {
  const found = Array.from({ length: SPAN / STEP }, (_, index) => ({
    ago: SPAN - (index + 0.5) * STEP,
    ttft: 0,
    firsts: 0,
    output: 0,
    prompt: 0,
    cached: 0,
  }));
  for (const [second, , firsts, ttft, output, prompt, cached] of history) {
    const index = Math.floor((SPAN - (now - second)) / STEP);
    const step = found[index];
    if (!step) continue;
    step.firsts += firsts;
    step.ttft += ttft;
    step.output += output;
    step.prompt += prompt;
    step.cached += cached;
  }
  return found;
}

function tile(value, text) {
  return element("div", { class: "tile" }, element("b", {}, value), element("span", {}, text));
}

function showTiles(told, past) {
  const { engine } = told;
  const minute = past.slice(-60 / STEP);
  const sum = (name) => minute.reduce((total, step) => total + step[name], 0);
  const tiles = [];
  if (engine) {
    const used = (engine.total_pages - engine.free_pages) / engine.total_pages;
    tiles.push(tile(number(engine.running_requests), "running"));
    tiles.push(tile(number(engine.waiting_requests + engine.compiling_requests), "waiting"));
    tiles.push(tile(percent(used), "of the KV pool in use"));
    tiles.push(tile(percent(engine.hit_rate), "of prompt tokens cached"));
  }
  tiles.push(tile(number(sum("output") / 60), "tokens/s, last minute"));
  tiles.push(tile(sum("firsts") ? seconds(sum("ttft") / sum("firsts")) : "–", "mean TTFT, last minute"));
  byId("tiles").replaceChildren(...tiles);
}

function showCharts(past) {
  const ttft = past.map((step) => [step.ago, step.firsts ? (1000 * step.ttft) / step.firsts : null]);
  const rate = past.map((step) => [step.ago, step.output / STEP]);
  const hits = past.map((step) => [step.ago, step.prompt ? step.cached / step.prompt : null]);
  chart("chart-ttft", "Time to first token", ttft, { span: SPAN, format: number, unit: " ms", top: 10 });
  chart("chart-throughput", "Throughput", rate, { span: SPAN, format: number, unit: " tokens/s", top: 10 });
  chart("chart-hits", "Prompt tokens from the cache", hits, { span: SPAN, format: percent, top: 1 });
}

function row(request) {
  const program = request.program_id ? `${request.program_id}${request.branch ? ` ${request.branch}` : ""} #${request.step}` : "–";
  const end = element("button", { type: "button", title: "End this request" }, "Abort");
  end.addEventListener("click", async () => {
    end.disabled = true;
    await post("/abort", { request_id: request.request_id });
  });
  return element(
    "tr",
    {},
    element("td", { class: "id", title: request.request_id }, request.request_id),
    element("td", {}, request.state),
    element("td", { class: "id", title: program }, program),
    element("td", { class: "number" }, number(request.prompt_tokens)),
    element("td", { class: "number" }, number(request.output_tokens)),
    element("td", { class: "number" }, seconds(request.ttft)),
    element("td", { class: "number" }, seconds(request.seconds)),
    element("td", {}, end),
  );
}

export function showActivity(told) {
  const past = steps(told.now, told.history);
  showTiles(told, past);
  showCharts(past);
  const others = told.other_requests;
  byId("others").textContent = others ? `and ${number(others)} of other keys` : "";
  const rows = told.requests.map(row);
  const none = element("tr", {}, element("td", { class: "none", colspan: "8" }, "None at the moment."));
  byId("requests").replaceChildren(...(rows.length ? rows : [none]));
}
