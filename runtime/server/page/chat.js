// The playground: one conversation with the model, streamed.

import { events, post } from "./api.js";
import { byId, element, number, seconds } from "./dom.js";

const messages = [];
let running = null;

function field(id) {
  return byId(id).value.trim();
}

function settings() {
  const body = { temperature: Number(field("temperature")), max_tokens: Number(field("max_tokens")) };
  if (field("top_p") && Number(field("top_p")) !== 1) body.top_p = Number(field("top_p"));
  if (Number(field("top_k"))) body.top_k = Number(field("top_k"));
  if (field("seed")) body.seed = Number(field("seed"));
  if (byId("stop_text").value) body.stop = byId("stop_text").value;
  const text = byId("constraint_text").value;
  switch (field("constraint")) {
    case "json_schema":
      body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(text) } };
      break;
    case "regex":
      body.regex = text;
      break;
    case "choice":
      body.choice = text.split("\n").filter((line) => line);
      break;
  }
  return body;
}

function turn(role, text) {
  const said = element("div", { class: "said" }, text);
  const figures = element("div", { class: "figures" });
  const shown = element("div", { class: `turn ${role}` }, said, figures);
  byId("hint")?.remove();
  byId("turns").append(shown);
  shown.scrollIntoView({ block: "end" });
  return { shown, said, figures };
}

function append(answer, name, text) {
  if (name === "said") {
    answer.said.append(text);
  } else {
    answer.thought ??= answer.shown.insertBefore(element("div", { class: "thought" }), answer.said);
    answer.thought.append(text);
  }
  const turns = byId("turns");
  if (turns.scrollHeight - turns.scrollTop - turns.clientHeight < 120) turns.scrollTop = turns.scrollHeight;
}

function figures(usage, times, reason) {
  const parts = [];
  if (times.first) parts.push(`first token ${seconds((times.first - times.start) / 1000)}`);
  const took = (times.last - times.first) / 1000;
  if (usage && usage.completion_tokens > 1 && took > 0) {
    parts.push(`${number((usage.completion_tokens - 1) / took)} tokens/s`);
  }
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`${number(usage.completion_tokens)} tokens`, `${number(cached)} of ${number(usage.prompt_tokens)} prompt tokens cached`);
  }
  if (reason && reason !== "stop") parts.push(`ended: ${reason}`);
  return parts.join(" · ");
}

async function stream(answer, body, signal) {
  const times = { start: performance.now(), first: 0, last: 0 };
  let usage = null;
  let reason = null;
  for await (const data of events(await post("/v1/chat/completions", body, signal))) {
    if (data === "[DONE]") break;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    usage = chunk.usage ?? usage;
    for (const choice of chunk.choices) {
      reason = choice.finish_reason ?? reason;
      const { content, reasoning_content: thought } = choice.delta;
      if (!content && !thought) continue;
      times.last = performance.now();
      times.first ||= times.last;
      if (thought) append(answer, "thought", thought);
      if (content) append(answer, "said", content);
    }
  }
  answer.figures.textContent = figures(usage, times, reason);
}

async function ask(model, text) {
  turn("user", text);
  messages.push({ role: "user", content: text });
  const answer = turn("assistant", "");
  running = new AbortController();
  byId("stop").disabled = false;
  byId("send").disabled = true;
  try {
    const system = field("system") ? [{ role: "system", content: field("system") }] : [];
    const body = {
      ...settings(),
      model,
      messages: [...system, ...messages],
      stream: true,
      stream_options: { include_usage: true },
    };
    await stream(answer, body, running.signal);
  } catch (error) {
    if (error.name === "AbortError") {
      answer.figures.textContent = "stopped";
    } else {
      answer.shown.classList.add("failed");
      answer.figures.textContent = error.message;
    }
  } finally {
    running = null;
    byId("stop").disabled = true;
    byId("send").disabled = false;
  }
  if (answer.shown.classList.contains("failed") && !answer.said.textContent) {
    messages.pop();
    answer.said.textContent = "No answer.";
  } else {
    messages.push({ role: "assistant", content: answer.said.textContent });
  }
}

export function startChat(model) {
  byId("compose").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = field("text");
    if (!text || running) return;
    byId("text").value = "";
    ask(model(), text);
  });
  byId("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      byId("compose").requestSubmit();
    }
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("clear").addEventListener("click", () => {
    running?.abort();
    messages.length = 0;
    byId("turns").replaceChildren();
  });
  byId("constraint").addEventListener("change", () => {
    byId("constraint_label").hidden = !field("constraint");
  });
}
