// Puts changed sections in place, counts times on, and says when the page is out of date.
"use strict";

const TOKEN = "coda-host-token";
const connection = document.getElementById("connection");
let lastNews = Date.now();
// Twice the time after which the server shows that it is there, in milliseconds.
const MOST_SILENCE = 20000;

function headers() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: "Bearer " + token } : {};
}

// ---- Changed sections ---------------------------------------------------------------------------------------------

// Changes `old` into `fresh` and keeps every element that is in both, with its focus, its scroll position and what was
// typed into it.
function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  if (old.hasAttribute("data-keep")) return;
  for (const name of old.getAttributeNames()) {
    // What the user has opened stays open.
    if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  }
  for (const name of fresh.getAttributeNames()) {
    if (old.getAttribute(name) !== fresh.getAttribute(name)) old.setAttribute(name, fresh.getAttribute(name));
  }
  const next = [...fresh.childNodes];
  const keyed = new Map();
  for (const child of old.children) if (child.dataset.key) keyed.set(child.dataset.key, child);
  next.forEach((child, place) => {
    const key = child.dataset && child.dataset.key;
    const known = key && keyed.get(key);
    const here = old.childNodes[place];
    if (known && known !== here) old.insertBefore(known, here || null);
    const now = old.childNodes[place];
    if (!now) old.append(child);
    else if (key && now.dataset && now.dataset.key !== key) old.insertBefore(child, now);
    else morph(now, child);
  });
  while (old.childNodes.length > next.length) old.lastChild.remove();
}

function show(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  const fresh = template.content.firstElementChild;
  if (!fresh) return;
  const old = document.getElementById(fresh.id);
  if (old) morph(old, fresh);
  else document.getElementById("content").append(fresh);
}

// Puts sections in the server's order. Only what is out of place moves, since it loses the focus.
function arrange(ids) {
  let last = null;
  for (const section of ids.map((id) => document.getElementById(id)).filter(Boolean)) {
    if (last && last.nextElementSibling !== section) last.after(section);
    last = section;
  }
}

// ---- Times --------------------------------------------------------------------------------------------------------

function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return s + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + (s % 60) + " s";
  if (s < 172800) return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
  return Math.floor(s / 86400) + " days";
}

// Where the clock of this browser differs from the server's, times are those of the server.
let offset = 0;

function tick() {
  const now = Date.now() + offset;
  for (const time of document.querySelectorAll("time[data-ago], time[data-since]")) {
    const seconds = (now - Date.parse(time.dateTime)) / 1000;
    const text = "since" in time.dataset ? duration(seconds) : seconds < 2 ? "just now" : duration(seconds) + " ago";
    if (time.textContent !== text) time.textContent = text;
  }
  if (attempt && Date.now() - lastNews > MOST_SILENCE) attempt.abort(new Error("no news for " + MOST_SILENCE / 1000 + " s"));
}

// ---- The stream ---------------------------------------------------------------------------------------------------

function stale(why) {
  document.body.classList.add("stale");
  const text = "Out of date: " + why + ". Connecting again.";
  if (connection.textContent !== text) connection.textContent = text;
}

function fresh() {
  lastNews = Date.now();
  document.body.classList.remove("stale");
  if (connection.textContent !== "Live") connection.textContent = "Live";
}

// How many events have come.
let events = 0;

function take(block) {
  events += 1;
  let kind = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) kind = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
  }
  const card = document.getElementById("sign-in-card");
  if (card && !card.classList.contains("to-change")) card.hidden = true;
  if (kind === "section") show(data.join("\n"));
  else if (kind === "order") arrange(data.join("").split(" "));
  else if (kind === "gone") document.getElementById(data.join(""))?.remove();
  fresh();
}

// The attempt that goes on. A connection that is silent for too long is given up: the network between may have changed, and
// then neither end hears of it.
let attempt = null;

async function follow(url) {
  attempt = new AbortController();
  lastNews = Date.now();
  const answer = await fetch(url, {
    headers: { Accept: "text/event-stream", ...headers() },
    cache: "no-store",
    signal: attempt.signal,
  });
  if (answer.status === 401) return askForToken();
  if (!answer.ok || !answer.body) throw new Error("the server answered " + answer.status);
  const date = Date.parse(answer.headers.get("date"));
  if (date && Math.abs(date - Date.now()) > 2000) offset = date - Date.now();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the server ended the connection");
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      take(text.slice(0, end));
      text = text.slice(end + 2);
    }
    tick();
  }
}

// A browser opens six connections to a server at most, so a tab that no one sees gives its connection back.
const HIDDEN_LIMIT = 5000;

function seen() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resume) => {
    document.addEventListener("visibilitychange", function look() {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      resume();
    });
  });
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return;
  setTimeout(() => document.hidden && attempt?.abort(new Error("this tab was in the background")), HIDDEN_LIMIT);
});

async function live() {
  // Attempts in a row that brought nothing.
  let silent = 0;
  for (let pause = 500; ; pause = Math.min(pause * 2, 8000)) {
    const before = events;
    await seen();
    try {
      await follow(document.body.dataset.events);
      return;
    } catch (error) {
      if (document.body.classList.contains("stale") === false) pause = 500;
      silent = events > before || document.hidden ? 0 : silent + 1;
      stale(error.message);
    }
    if (document.hidden) continue;
    // A proxy may hold the stream back for ever and pass pages on.
    if (silent >= 2 && !sessionStorage.getItem(TOKEN)) await poll();
    await new Promise((resume) => setTimeout(resume, pause));
  }
}

// A page without a stream is asked for again while it can change.
async function poll() {
  try {
    const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(MOST_SILENCE) });
    if (!answer.ok) throw new Error("the server answered " + answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const section of page.querySelectorAll("main > section")) {
      const old = document.getElementById(section.id);
      if (old) morph(old, document.adoptNode(section));
    }
    fresh();
  } catch (error) {
    stale(error.message);
  }
}

// ---- What the user does -------------------------------------------------------------------------------------------

function askForToken() {
  const card = document.getElementById("sign-in-card");
  if (!card) return location.reload();
  card.hidden = false;
  card.classList.add("asked");
  connection.textContent = sessionStorage.getItem(TOKEN) ? "This is not the token" : "The token is needed";
  card.querySelector("input").focus();
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.id === "sign-in") {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, form.querySelector("input").value);
    const card = document.getElementById("sign-in-card");
    // Where only changes need it, the page is live already.
    if (!card.classList.contains("to-change")) return live();
    card.classList.remove("asked");
    return;
  }
  const action = form.dataset.send;
  if (!action) return;
  event.preventDefault();
  const result = form.querySelector("[role=status]") || connection;
  const body = {};
  for (const field of new FormData(form)) {
    const number = form.elements[field[0]].type === "number";
    if (field[1] !== "") body[field[0]] = number ? Number(field[1]) : field[1];
  }
  const button = form.querySelector("button");
  button.disabled = true;
  result.textContent = "Sending";
  try {
    const answer = await fetch(action, {
      method: form.dataset.method || "POST",
      headers: { "Content-Type": "application/json", ...headers() },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(MOST_SILENCE),
    });
    const said = await answer.json().catch(() => ({}));
    result.textContent = answer.ok ? form.dataset.done || "Done" : said.detail || said.error || "The server answered " + answer.status;
    if (answer.status === 401) askForToken();
  } catch (error) {
    result.textContent = "Not sent: " + error.message;
  }
  button.disabled = false;
});

// An example fills the text field that it names.
document.addEventListener("change", (event) => {
  const target = event.target.dataset.fills;
  if (!target) return;
  const option = event.target.selectedOptions[0];
  if (option.dataset.text) document.getElementById(target).value = option.dataset.text;
});

document.body.classList.add("scripted");
tick();
setInterval(tick, 1000);
if (document.body.dataset.events) live();
else if (document.querySelector("[data-poll]")) setInterval(() => document.querySelector("[data-poll]") && poll(), 1500);
