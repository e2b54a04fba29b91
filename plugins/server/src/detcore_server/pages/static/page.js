// Keeps a page up to date: requests the page again and replaces changed parts, shows times in the
// browser's time zone, and highlights a trial in all charts. Pages also work without this script.
"use strict";

// -- times ------------------------------------------------------------------------------------

const zoned = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit",
  second: "2-digit",
});

const clock = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit", minute: "2-digit", second: "2-digit",
});

function showLocalTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.getAttribute("datetime"));
    if (!Number.isNaN(moment.getTime())) {
      time.setAttribute("title", time.getAttribute("datetime").replace("T", " ").replace("Z", " UTC"));
      time.textContent = (time.matches(".clock") ? clock : zoned).format(moment);
    }
  }
}

// -- replacing changed parts ------------------------------------------------------------------

// State that users change in the browser. Updates keep it.
const OWN = { DETAILS: ["open"], INPUT: ["checked", "value"], TR: [], PRE: [] };

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.dataset.key || node.id || "" : "";
}

// Parts that a script has added. Updates keep them.
function isOwn(node) {
  return node.nodeType === Node.ELEMENT_NODE && "own" in node.dataset;
}

function isSame(one, other) {
  return one.nodeName === other.nodeName && keyOf(one) === keyOf(other);
}

function morph(now, next) {
  if (now.nodeType !== Node.ELEMENT_NODE) {
    if (now.nodeValue !== next.nodeValue) now.nodeValue = next.nodeValue;
    return;
  }
  const own = OWN[now.nodeName] || [];
  for (const { name } of [...now.attributes]) {
    if (!next.hasAttribute(name) && !own.includes(name)) now.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (now.getAttribute(name) !== value && !own.includes(name)) now.setAttribute(name, value);
  }
  morphChildren(now, next);
}

// Removing and inserting a node would lose its focus.
function moveTo(parent, node, place) {
  if (parent.moveBefore) {
    parent.moveBefore(node, place);
    return;
  }
  const focused = node.contains(document.activeElement) ? document.activeElement : null;
  parent.insertBefore(node, place);
  if (focused) focused.focus({ preventScroll: true });
}

function morphChildren(now, next) {
  const keyed = new Map();
  for (const child of now.childNodes) {
    if (keyOf(child)) keyed.set(child.nodeName + keyOf(child), child);
  }
  let place = now.firstChild;
  for (const wanted of [...next.childNodes]) {
    const key = keyOf(wanted);
    while (place && isOwn(place)) place = place.nextSibling;
    let found = key ? keyed.get(wanted.nodeName + key) : place;
    if (!found || !isSame(found, wanted)) {
      now.insertBefore(document.importNode(wanted, true), place);
      continue;
    }
    if (found === place) place = place.nextSibling;
    else moveTo(now, found, place);
    morph(found, wanted);
  }
  while (place) {
    const rest = place.nextSibling;
    if (!isOwn(place)) place.remove();
    place = rest;
  }
}

function putIn(fresh) {
  const isAtEnd = new Map();
  for (const log of document.querySelectorAll("[data-follow]")) {
    isAtEnd.set(log.id, log.scrollHeight - log.scrollTop - log.clientHeight < 30);
  }
  for (const now of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(now.id);
    if (next) morph(now, next);
  }
  for (const log of document.querySelectorAll("[data-follow]")) {
    if (isAtEnd.get(log.id) !== false) log.scrollTop = log.scrollHeight;
  }
}

// -- polling ----------------------------------------------------------------------------------

// Screen readers announce only a new state or a new best value, and not too often.
const SAY_AT_MOST_MS = 15000;

class Updates {
  constructor(every) {
    this.every = every;
    this.isPaused = false;
    this.text = null;
    this.said = this.saying();
    this.saidAt = Date.now();
    this.timer = null;
    const bar = document.getElementById("livebar");
    this.button = document.getElementById("pause");
    this.note = document.getElementById("updated");
    if (bar) bar.hidden = false;
    const still = document.getElementById("still");
    if (still) still.remove();
    if (this.button) this.button.addEventListener("click", () => this.toggle());
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.plan(0);
    });
    this.plan(this.every);
  }

  toggle() {
    this.isPaused = !this.isPaused;
    this.button.setAttribute("aria-pressed", String(this.isPaused));
    this.tell(this.isPaused ? "paused" : "");
    if (!this.isPaused) this.plan(0);
  }

  tell(text) {
    if (this.note) this.note.textContent = text;
  }

  plan(wait) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.update(), wait);
  }

  saying() {
    return [...document.querySelectorAll("[data-say]")].map((one) => one.textContent).join(". ");
  }

  say() {
    const saying = this.saying();
    if (saying !== this.said && Date.now() - this.saidAt >= SAY_AT_MOST_MS) {
      document.getElementById("said").textContent = saying;
      this.said = saying;
      this.saidAt = Date.now();
    }
  }

  async update() {
    if (this.isPaused || document.hidden) return;
    const began = Date.now();
    let isOver = false;
    try {
      const answer = await fetch(location.href, { redirect: "manual", cache: "no-cache" });
      if (answer.type === "opaqueredirect") {
        this.tell("You are logged out. Reload this page to log in again.");
        return;
      }
      if (!answer.ok) throw new Error(String(answer.status));
      const text = await answer.text();
      if (text !== this.text && !this.isPaused) {
        this.text = text;
        const fresh = new DOMParser().parseFromString(text, "text/html");
        showLocalTimes(fresh);
        putIn(fresh);
        document.dispatchEvent(new Event("detcore:changed"));
        this.say();
        isOver = !fresh.body.dataset.liveEvery;
      }
      const at = new Date().toLocaleTimeString();
      this.tell(isOver ? `It is over; updated ${at}` : `updated ${at}`);
    } catch {
      this.tell("The server does not answer. Retrying …");
    }
    // Slow pages are requested less often.
    if (!isOver) this.plan(Math.max(this.every, 4 * (Date.now() - began)));
    else if (this.button) this.button.hidden = true;
  }
}

// -- highlighting a trial ---------------------------------------------------------------------

function trialOf(target) {
  const group = target instanceof Element ? target.closest("g.t, tr[data-key], .side th") : null;
  if (!group) return null;
  if (group.matches("g.t")) {
    return [...group.classList].find((name) => /^t\d+$/.test(name)) || null;
  }
  return group.closest("#trials") ? `t${group.dataset.key}` : null;
}

function light(event) {
  const trial = trialOf(event.target);
  for (const one of document.querySelectorAll(".lit")) one.classList.remove("lit");
  document.body.classList.toggle("lighting", trial !== null);
  document.dispatchEvent(new CustomEvent("detcore:light", { detail: trial }));
  if (trial === null) return;
  for (const one of document.querySelectorAll(`g.${trial}`)) one.classList.add("lit");
  const row = document.querySelector(`#trials tr[data-key="${trial.slice(1)}"]`);
  if (row) row.classList.add("lit");
}

// -- copying the chart state from the URL to forms and links ------------------------------------

const CHART_STATE = ["x", "xaxis", "yaxis", "smooth", "from", "to", "hide"];

function withChartState(query) {
  const now = new URLSearchParams(location.search);
  for (const name of CHART_STATE) {
    query.delete(name);
    if (now.get(name)) query.set(name, now.get(name));
  }
  return query;
}

document.addEventListener("click", (event) => {
  const link = event.target instanceof Element ? event.target.closest("a.sort") : null;
  if (link) link.search = withChartState(new URLSearchParams(link.search));
});
document.addEventListener("submit", (event) => {
  if (!event.target.matches("form.filter[data-keep]")) return;
  event.preventDefault();
  const query = withChartState(new URLSearchParams(new FormData(event.target)));
  // Showing all columns is the default, so it is omitted from the URL.
  const boxes = [...event.target.querySelectorAll("[name=column]")];
  if (boxes.every((box) => box.checked)) query.delete("column");
  for (const name of ["where", "group"]) if (!query.get(name)) query.delete(name);
  location.search = query;
});

// -- tables as PNG images ---------------------------------------------------------------------

function savePicture(canvas, name) {
  canvas.toBlob((blob) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name.replace(/[^\w.-]+/g, "_");
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
}

const LARGEST_SIDE = 16000; // of a canvas, in pixels

// Draws the visible words at their positions in the browser. Form fields are omitted.
function drawTable(table) {
  const frame = table.getBoundingClientRect();
  const size = Math.min(devicePixelRatio, LARGEST_SIDE / frame.width, LARGEST_SIDE / frame.height);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.ceil(frame.width * size), Math.ceil(frame.height * size)];
  const draw = canvas.getContext("2d");
  draw.setTransform(size, 0, 0, size, -frame.left * size, -frame.top * size);
  const fill = (colour, box) => {
    draw.fillStyle = colour;
    draw.fillRect(box.left, box.top, box.width, box.height);
  };
  fill(getComputedStyle(document.body).backgroundColor, frame);
  for (const cell of table.querySelectorAll("th, td")) {
    const [box, style] = [cell.getBoundingClientRect(), getComputedStyle(cell)];
    fill(style.backgroundColor, box);
    fill(style.borderBottomColor, { left: box.left, top: box.bottom - 1, width: box.width, height: 1 });
    const mark = getComputedStyle(cell, "::before");
    if (mark.content === "none") continue;
    draw.fillStyle = mark.backgroundColor;
    draw.beginPath();
    const radius = parseFloat(mark.width) / 2;
    const line = (cell.firstElementChild || cell).getBoundingClientRect();
    draw.arc(box.left + parseFloat(style.paddingLeft) + radius, line.top + line.height / 2, radius, 0, 7);
    draw.fill();
  }
  draw.textBaseline = "middle";
  const texts = document.createTreeWalker(table, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) drawText(draw, texts.currentNode);
  return canvas;
}

function drawText(draw, text) {
  const [range, style] = [document.createRange(), getComputedStyle(text.parentElement)];
  draw.fillStyle = style.color;
  draw.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  for (const word of text.data.matchAll(/\S+/g)) {
    range.setStart(text, word.index);
    range.setEnd(text, word.index + word[0].length);
    const box = range.getBoundingClientRect();
    draw.fillText(word[0], box.left, box.top + box.height / 2);
  }
}

document.addEventListener("click", (event) => {
  const button = event.target instanceof Element ? event.target.closest("[data-picture]") : null;
  const box = button && document.getElementById(button.dataset.picture);
  if (!box) return;
  const { scrollTop } = box;
  box.scrollTop = 0; // otherwise the sticky header covers rows
  savePicture(drawTable(box.querySelector("table")), `${document.title}.png`);
  box.scrollTop = scrollTop;
});

// -- log-in -----------------------------------------------------------------------------------

// Links on other sites send no cookie, so users who are logged in would see the form.
async function goOnIfLoggedIn(field) {
  const answer = await fetch(field.value, { redirect: "manual" });
  if (answer.ok) location.replace(field.value);
}

showLocalTimes(document);
for (const log of document.querySelectorAll("[data-follow]")) log.scrollTop = log.scrollHeight;
for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, light);
const next = document.querySelector("input[data-next]");
if (next) goOnIfLoggedIn(next).catch(() => {});
const every = Number(document.body.dataset.liveEvery);
if (every) {
  // Users who prefer reduced motion get fewer updates.
  const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  new Updates(1000 * (isCalm ? 5 * every : every));
}
