// Interactive charts: values at the pointer and the keyboard focus, zoom, axes, smoothing.
"use strict";

const MAX_BACK = 50;
const MARKED_AT_MOST = 8;
const VALUES_SHOWN = 8;
const X_NAMES = { step: "steps", epoch: "epochs", time: "time since the trial started" };
const DASHES = { k4: [8, 4], k5: [8, 4], k6: [8, 4], k7: [8, 4], none: [4, 5] };

function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

function colour(name, className = "") {
  const probe = make("i", { className, hidden: true });
  document.body.append(probe);
  const found = getComputedStyle(probe).getPropertyValue(name).trim();
  probe.remove();
  return found;
}

function format(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-3 && size < 1e6) return String(Number(value.toPrecision(5)));
  return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
}

function formatTime(seconds) {
  if (seconds < 120) return `${format(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 120) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// -- chart state in the URL --------------------------------------------------------------------

class View {
  constructor(query) {
    this.x = query.get("x") in X_NAMES ? query.get("x") : "step";
    this.xAxis = query.get("xaxis") === "log" ? "log" : "linear";
    this.yAxis = ["log", "linear"].includes(query.get("yaxis")) ? query.get("yaxis") : "auto";
    this.smooth = Math.min(0.99, Math.max(0, Number(query.get("smooth")) || 0));
    const range = ["from", "to"].map((name) => Number.parseFloat(query.get(name)));
    this.range = range[0] < range[1] ? range : null;
    this.hidden = new Set((query.get("hide") || "").split(",").filter(Boolean).map(Number));
    this.back = [];
    this.changed = () => {};
  }

  set(name, value) {
    if (name === "x" && value !== this.x) {
      this.range = null;
      this.back = [];
    }
    this[name] = value;
    this.keep();
    this.changed();
  }

  zoom(from, to) {
    if (!(to > from)) return;
    this.back = [...this.back, this.range].slice(-MAX_BACK);
    this.set("range", [from, to]);
  }

  goBack() {
    if (this.range) this.set("range", this.back.pop() || null);
  }

  keep() {
    const url = new URL(location.href);
    const [from, to] = this.range || ["", ""];
    const values = {
      x: this.x === "step" ? "" : this.x, xaxis: this.xAxis === "log" ? "log" : "",
      yaxis: this.yAxis === "auto" ? "" : this.yAxis, smooth: this.smooth || "", from, to,
      hide: [...this.hidden].sort((a, b) => a - b).join(","),
    };
    for (const [name, value] of Object.entries(values)) {
      if (value === "") url.searchParams.delete(name);
      else url.searchParams.set(name, value);
    }
    history.replaceState(history.state, "", url);
  }
}

// -- numbers ----------------------------------------------------------------------------------

// Exponential moving average with bias correction for the first values.
function smoothed(values, weight) {
  let sum = 0;
  let share = 0;
  return values.map((value) => {
    sum = sum * weight + value * (1 - weight);
    share = share * weight + (1 - weight);
    return sum / share;
  });
}

function xOf(trial, view) {
  if (view.x === "time") return trial.seconds;
  if (view.x === "epoch") return trial.steps.map((step) => step / trial.steps_per_epoch);
  return trial.steps;
}

// Ascending and unique: two reports may have the same time.
function inOrder(points) {
  points.sort((one, other) => one.x - other.x);
  return points.filter((point, at) => at + 1 === points.length || points[at + 1].x !== point.x);
}

function pointsOf(trial, view, isLog) {
  const across = xOf(trial, view);
  const values = view.smooth ? smoothed(trial.values, view.smooth) : trial.values;
  const points = across.map((x, at) => ({
    x, y: values[at], raw: trial.values[at], step: trial.steps[at],
  }));
  return inOrder(points.filter(
    ({ x, y, raw }) => (view.xAxis !== "log" || x > 0) && (!isLog || (y > 0 && raw > 0))));
}

// Mean and range of a group of lines at each x value of any line.
function meanOf(members) {
  const across = [...new Set(members.flatMap((points) => points.map(({ x }) => x)))].sort((a, b) => a - b);
  const at = members.map(() => 0);
  return across.map((x) => {
    const values = [];
    members.forEach((points, number) => {
      while (at[number] + 1 < points.length && points[at[number] + 1].x <= x) at[number] += 1;
      const [one, next] = [points[at[number]], points[at[number] + 1]];
      if (one.x > x || (!next && one.x < x)) return; // before its first report, or after its last
      const share = next ? (x - one.x) / (next.x - one.x) : 0;
      values.push(next ? one.y + share * (next.y - one.y) : one.y);
    });
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    return { x, y: mean, raw: mean, low: Math.min(...values), high: Math.max(...values), count: values.length };
  });
}

// -- a chart ----------------------------------------------------------------------------------

class Chart {
  constructor(box, view) {
    this.box = box;
    this.view = view;
    this.isWide = !box.closest(".charts");
    this.isNeeded = false;
    this.told = make("p", { className: "told dim" });
    this.note = make("p", { className: "dim" });
    this.place = make("div", { className: "plot", tabIndex: 0 });
    this.place.setAttribute("role", "application");
    const save = make("button", { type: "button", className: "png" }, "PNG");
    save.setAttribute("aria-label", `PNG of ${this.about.metric} (${this.about.kind})`);
    save.addEventListener("click", () => this.save());
    this.own = make("div", { className: "answers" }, this.place, this.told, this.note, save);
    this.own.dataset.own = "";
    box.append(this.own);
    this.place.addEventListener("keydown", (event) => this.press(event));
    this.place.addEventListener("focus", () => this.focusFirst());
    this.place.addEventListener("dblclick", () => this.view.goBack());
    this.watcher = new IntersectionObserver((seen) => {
      if (!seen.some((one) => one.isIntersecting)) return;
      this.isNeeded = true;
      this.watcher.disconnect();
      this.load();
    }, { rootMargin: "400px" });
    this.watcher.observe(box);
  }

  get about() {
    return JSON.parse(this.box.dataset.chart);
  }

  width() {
    return Math.max(200, Math.floor(this.box.getBoundingClientRect().width));
  }

  // Visible steps, with one more step on each side so that lines reach the edges.
  steps() {
    const { range } = this.view;
    const known = (this.whole || []).filter((trial) => this.hasX(trial) && trial.steps.length);
    if (!range || !known.length) return null;
    let [first, last] = [Infinity, 0];
    for (const trial of known) {
      const across = xOf(trial, this.view);
      const before = across.filter((x) => x < range[0]).length - 1;
      const after = across.findIndex((x) => x > range[1]);
      first = Math.min(first, before < 0 ? 0 : trial.steps[before]);
      // The trial may have reported more since the last request.
      last = Math.max(last, after < 0 ? Infinity : trial.steps[after]);
    }
    return [first, last];
  }

  hasX(trial) {
    return this.view.x !== "epoch" || trial.steps_per_epoch !== null;
  }

  async load() {
    if (!this.isNeeded) return;
    if (this.request) this.request.abort();
    this.request = new AbortController();
    const { kind, metric, trials } = this.about;
    const query = new URLSearchParams({
      kind, metric, trials: trials.map(([id]) => id).join(","), width: this.width(),
    });
    const steps = this.steps();
    if (steps) {
      query.set("first", steps[0]);
      if (steps[1] !== Infinity) query.set("last", steps[1]);
    }
    try {
      const answer = await fetch(`/ui/series?${query}`, {
        redirect: "manual", signal: this.request.signal,
      });
      if (!answer.ok) throw new Error(String(answer.status));
      this.trials = (await answer.json()).trials;
      const isFirst = !this.whole;
      if (!steps) this.whole = this.trials;
      this.draw();
      // The steps of the range in the URL are known only now.
      if (isFirst && this.view.range) this.load();
    } catch (error) {
      if (error.name !== "AbortError") {
        this.note.textContent = "The server did not send the data for this chart.";
      }
    }
  }

  isLog(trials) {
    if (this.view.yAxis !== "auto") return this.view.yAxis === "log";
    const values = trials.flatMap((trial) => trial.values);
    const low = values.reduce((a, b) => Math.min(a, b), Infinity);
    return low > 0 && values.reduce((a, b) => Math.max(a, b), 0) / low > 100;
  }

  draw() {
    const { kind, metric, trials: styles } = this.about;
    const look = new Map(styles.map(([id, name, isBest]) => [id, { name, isBest }]));
    const shown = this.trials.filter((trial) => !this.view.hidden.has(trial.id)
      && look.has(trial.id) && this.hasX(trial));
    const ids = new Set(shown.map((trial) => trial.id));
    // Computed from all steps, so that the axis type stays the same when zooming.
    const isLog = this.isLog(this.whole.filter((trial) => ids.has(trial.id)));
    this.lines = shown
      .map((trial) => ({ trial, label: `trial ${trial.id}`, ...look.get(trial.id), points: pointsOf(trial, this.view, isLog) }))
      .filter((line) => line.points.length);
    this.isGrouped = this.about.groups.length > 0;
    if (this.isGrouped) this.lines = this.grouped();
    this.lines
      // The best line is drawn last, on top of the other lines.
      .sort((one, other) => Number(one.isBest) - Number(other.isBest));
    this.note.textContent = this.noteOf(shown, isLog);
    // New values of the same lines keep the pointer and its text.
    const { x, xAxis, smooth } = this.view;
    const drawn = JSON.stringify([x, xAxis, isLog, smooth > 0, this.width(), colour("--bg"),
      this.lines.map((line) => [line.label, line.name, line.isBest, line.points.length > 1])]);
    if (this.plot && this.lines.length && drawn === this.drawn) {
      this.plot.setData(this.table());
      return;
    }
    this.drawn = drawn;
    if (this.plot) this.plot.destroy();
    this.plot = null;
    this.own.classList.toggle("ready", this.lines.length > 0);
    if (!this.lines.length) return;
    this.place.setAttribute("aria-label", `${metric} (${kind}) of ${this.lines.length} `
      + `${this.isGrouped ? "group" : "trial"}${this.lines.length === 1 ? "" : "s"}. Left and right keys: values. Up and down keys: lines. `
      + "Plus: zoom in. Escape: zoom back.");
    this.plot = new uPlot(this.options(isLog), this.table(), this.place);
    this.at = Math.min(this.at || 0, this.lines.length - 1);
    this.told.textContent = "Point at the chart for values. Drag to zoom.";
  }

  // In grouped charts the line identifies a group instead of a trial.
  grouped() {
    const known = new Map(this.lines.map((line) => [line.trial.id, line]));
    return this.about.groups.map(([label, name, ids], place) => {
      const members = ids.filter((id) => known.has(id)).map((id) => known.get(id).points);
      return { trial: { id: label, saved: [] }, label, name, isBest: place === 0, points: meanOf(members) };
    }).filter((line) => line.points.length);
  }

  noteOf(shown, isLog) {
    if (this.view.x === "epoch" && !shown.length) {
      return "The number of steps per epoch is unknown (set records_per_epoch, "
        + "global_batch_size).";
    }
    if (shown.length && !this.lines.length) {
      return "A logarithmic axis cannot show these values, because none is positive.";
    }
    if (!shown.length) return "All lines are hidden or outside this range.";
    const notes = isLog ? ["The vertical axis is logarithmic."] : [];
    if (this.isGrouped) notes.push("Each line is the mean of a group. The band shows the range of its trials.");
    if (this.lines.some((line) => line.trial.saved.length)) notes.push("◆ a checkpoint was saved");
    return notes.join(" ");
  }

  // uPlot columns: x, and the values of each line. A few lines also have unsmoothed values.
  table() {
    const column = (line, name) => [line.points.map((one) => one.x), line.points.map((one) => one[name])];
    const tables = this.lines.map((line) => column(line, "y"));
    if (this.isFaint()) tables.push(...this.lines.map((line) => column(line, "raw")));
    for (const end of this.isGrouped ? ["low", "high"] : []) tables.push(...this.lines.map((line) => column(line, end)));
    return uPlot.join(tables);
  }

  isFaint() {
    return this.view.smooth > 0 && !this.isGrouped && this.lines.length <= MARKED_AT_MOST;
  }

  series() {
    const points = (line) => ({ show: line.points.length < 2, size: 7 });
    const clear = this.lines.map((line) => ({
      label: line.label, stroke: colour("--c", line.name), spanGaps: true,
      width: line.isBest ? 3 : 1.5, dash: DASHES[line.name], points: points(line),
    }));
    if (this.isGrouped) {
      const ends = { stroke: "transparent", width: 0, spanGaps: true, points: { show: false } };
      return [{}, ...clear, ...this.lines.map(() => ends), ...this.lines.map(() => ends)];
    }
    if (!this.isFaint()) return [{}, ...clear];
    const faint = this.lines.map((line) => ({
      stroke: colour("--c", line.name), spanGaps: true, width: 1, alpha: 0.25, points: { show: false },
    }));
    return [{}, ...clear, ...faint];
  }

  bands() {
    const count = this.lines.length;
    return this.lines.map((line, place) => ({
      series: [1 + place + 2 * count, 1 + place + count], fill: `${colour("--c", line.name)}2b`,
    }));
  }

  options(isLog) {
    const [dim, grid] = [colour("--dim"), colour("--line")];
    const axis = { stroke: dim, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
    axis.font = axis.labelFont = "12px system-ui, sans-serif";
    // Above two decades, grid lines at 2 to 9 would be too dense.
    const filter = (u, ticks) => (ticks[ticks.length - 1] / ticks[0] > 100
      ? ticks.map((one) => (Number.isInteger(Math.round(Math.log10(one) * 1e6) / 1e6) ? one : null)) : ticks);
    const powers = (isOn) => (isOn ? { grid: { ...axis.grid, filter }, ticks: { ...axis.ticks, filter } } : {});
    const width = this.width();
    const text = this.view.x === "time" ? formatTime : format;
    const range = (u, low, high) => {
      if (this.view.range) return this.view.range;
      if (low === null) return [0, 1];
      return low === high ? [low - 1, high + 1] : [low, high];
    };
    return {
      width, height: this.isWide && width > 600 ? 380 : 260,
      legend: { show: false },
      scales: {
        x: { time: false, distr: this.view.xAxis === "log" ? 3 : 1, range },
        y: { distr: isLog ? 3 : 1 },
      },
      series: this.series(),
      ...(this.isGrouped ? { bands: this.bands() } : {}),
      axes: [
        { ...axis, ...powers(this.view.xAxis === "log"), label: X_NAMES[this.view.x], labelSize: 20, space: 70,
          values: (u, ticks) => ticks.map((one) => (one === null ? "" : text(one))) },
        { ...axis, ...powers(isLog), size: 66, values: (u, ticks) => ticks.map((one) => (one === null ? "" : format(one))) },
      ],
      focus: { alpha: 0.2 },
      cursor: {
        focus: { prox: 24 }, drag: { x: true, y: false, setScale: false },
        dataIdx: (u, line, at) => this.nearest(u.data[line], at),
        points: { show: (u, line) => line <= this.lines.length && undefined },
      },
      hooks: {
        setCursor: [(u) => this.tell(u)],
        setSeries: [(u, line) => { if (line) this.at = (line - 1) % this.lines.length; }],
        setSelect: [(u) => this.select(u)],
        draw: [(u) => this.mark(u)],
      },
    };
  }

  nearest(column, at) {
    for (let away = 0; away < column.length; away += 1) {
      if (column[at - away] !== null && column[at - away] !== undefined) return at - away;
      if (column[at + away] !== null && column[at + away] !== undefined) return at + away;
    }
    return at;
  }

  select(u) {
    const { left, width } = u.select;
    if (width < 4) return;
    const ends = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.view.zoom(...ends);
  }

  pointOf(line, x) {
    let best = null;
    for (const point of line.points) {
      if (best === null || Math.abs(point.x - x) < Math.abs(best.x - x)) best = point;
    }
    return best;
  }

  say(line, point) {
    if (this.isGrouped) {
      const x = this.view.x === "time" ? formatTime(point.x) : `${this.view.x} ${format(point.x)}`;
      return `${line.label}: mean ${format(point.y)}, ${format(point.low)} to ${format(point.high)} of ${point.count} at ${x}`;
    }
    const raw = point.raw === point.y ? "" : ` (${format(point.raw)} unsmoothed)`;
    const saved = line.trial.saved.includes(point.step) ? ", checkpoint saved" : "";
    const where = { step: `step ${point.step}`, time: `${formatTime(point.x)}, step ${point.step}`,
      epoch: `epoch ${format(point.x)}, step ${point.step}` }[this.view.x];
    return `${line.label}: ${format(point.y)}${raw} at ${where}${saved}`;
  }

  tell(u) {
    if (u.cursor.idx === null || u.cursor.idx === undefined || u.cursor.left < 0) return;
    const x = u.data[0][u.cursor.idx];
    const found = this.lines.map((line) => ({ line, point: this.pointOf(line, x) }));
    const away = ({ point }) => Math.abs(u.valToPos(point.y, "y") - u.cursor.top);
    found.sort((one, other) => away(one) - away(other));
    const lines = found.slice(0, VALUES_SHOWN).map(({ line, point }) => make(
      "span", { className: line.name }, make("i"), this.say(line, point)));
    const more = found.length - lines.length;
    if (more > 0) lines.push(make("span", {}, `and ${more} more`));
    this.told.replaceChildren(...lines);
  }

  mark(u) {
    if (this.lines.length > MARKED_AT_MOST && !this.lines.some((line) => line.isBest)) return;
    const marked = this.lines.length > MARKED_AT_MOST
      ? this.lines.filter((line) => line.isBest) : this.lines;
    const size = 5 * devicePixelRatio;
    const { ctx, bbox } = u;
    ctx.save();
    ctx.strokeStyle = colour("--bg");
    ctx.lineWidth = devicePixelRatio;
    for (const line of marked) {
      ctx.fillStyle = colour("--c", line.name);
      for (const step of line.trial.saved) {
        const point = line.points.reduce((best, one) =>
          (Math.abs(one.step - step) < Math.abs(best.step - step) ? one : best));
        const [x, y] = [u.valToPos(point.x, "x", true), u.valToPos(point.y, "y", true)];
        if (x < bbox.left - 1 || x > bbox.left + bbox.width + 1) continue;
        ctx.beginPath();
        ctx.moveTo(x, y - size);
        ctx.lineTo(x + size, y);
        ctx.lineTo(x, y + size);
        ctx.lineTo(x - size, y);
        ctx.closePath();
        ctx.fill();
        ctx.stroke();
      }
    }
    ctx.restore();
  }

  // -- by keyboard

  focusFirst() {
    if (this.plot && this.place.matches(":focus-visible")) this.show(0, true);
  }

  // Move to a point of the focused line, and announce it.
  show(move, isFirst = false) {
    const line = this.lines[this.at];
    const inside = line.points.filter((point) => {
      const [low, high] = [this.plot.scales.x.min, this.plot.scales.x.max];
      return point.x >= low && point.x <= high;
    });
    if (!inside.length) return;
    const now = isFirst ? inside.length - 1
      : inside.findIndex((point) => point.x >= (this.x === undefined ? -Infinity : this.x));
    const point = inside[Math.min(inside.length - 1, Math.max(0, (now < 0 ? inside.length - 1 : now) + move))];
    this.x = point.x;
    this.plot.setSeries(this.at + 1, { focus: true });
    this.plot.setCursor({
      left: this.plot.valToPos(point.x, "x"), top: this.plot.valToPos(point.y, "y"),
    });
    document.getElementById("said").textContent = this.say(line, point);
  }

  press(event) {
    if (!this.plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key;
    const count = this.lines.length;
    if (key === "ArrowLeft") this.show(-1);
    else if (key === "ArrowRight") this.show(1);
    else if (key === "Home") this.show(-1e9);
    else if (key === "End") this.show(1e9);
    else if (key === "ArrowUp" || key === "ArrowDown") {
      this.at = (this.at + (key === "ArrowUp" ? 1 : count - 1)) % count;
      this.show(0);
    } else if (key === "+" || key === "=") this.zoomIn();
    else if (key === "-" || key === "Escape" || key === "Backspace") this.view.goBack();
    else return;
    event.preventDefault();
  }

  zoomIn() {
    const { min, max } = this.plot.scales.x;
    const centre = this.x === undefined ? (min + max) / 2 : this.x;
    const quarter = (max - min) / 4;
    const from = Math.min(Math.max(min, centre - quarter), max - 2 * quarter);
    this.view.zoom(from, from + 2 * quarter);
  }

  // PNG image with the title, the chart and the names of the lines.
  save() {
    if (!this.plot) return;
    const { canvas } = this.plot.ctx;
    const { metric, kind } = this.about;
    const size = 13 * devicePixelRatio;
    const named = this.lines.slice(-24).reverse();
    const perRow = Math.max(1, Math.floor(canvas.width / (this.isGrouped ? 24 * size : 9 * size)));
    const picture = make("canvas", {
      width: canvas.width, height: canvas.height + size * (3 + 1.6 * Math.ceil(named.length / perRow)),
    });
    const draw = picture.getContext("2d");
    draw.fillStyle = colour("--bg");
    draw.fillRect(0, 0, picture.width, picture.height);
    draw.drawImage(canvas, 0, 2 * size);
    draw.font = `${size}px system-ui, sans-serif`;
    draw.fillStyle = colour("--fg");
    draw.fillText(`${metric} (${kind})`, size, 1.4 * size);
    named.forEach((line, place) => {
      const x = size + (place % perRow) * (canvas.width / perRow);
      const y = 2 * size + canvas.height + size * (1 + 1.6 * Math.floor(place / perRow));
      draw.fillStyle = colour("--c", line.name);
      draw.fillRect(x, y - 0.45 * size, 1.4 * size, 0.3 * size);
      draw.fillStyle = colour("--fg");
      draw.fillText(line.label, x + 1.8 * size, y, canvas.width / perRow - 2.5 * size);
    });
    savePicture(picture, `${metric}-${kind}.png`);
  }

  light(trial) {
    if (!this.plot) return;
    const at = this.lines.findIndex((line) => `t${line.trial.id}` === trial);
    this.plot.setSeries(at < 0 ? null : at + 1, { focus: true });
  }
}

// -- controls above the charts -----------------------------------------------------------------

function choice(view, label, name, values) {
  const select = make("select", {}, ...values.map(([value, text]) =>
    make("option", { value, selected: view[name] === value }, text)));
  select.addEventListener("change", () => view.set(name, select.value));
  return make("label", {}, label, select);
}

function smoothing(view) {
  const told = make("output", {}, view.smooth || "off");
  const slider = make("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: view.smooth });
  slider.addEventListener("input", () => {
    told.textContent = Number(slider.value) || "off";
    view.set("smooth", Number(slider.value));
  });
  return make("label", {}, make("span", {}, "Smoothing: ", told), slider);
}

function lineChoices(view, trials) {
  const boxes = trials.map(([id, name]) => {
    const box = make("input", { type: "checkbox", checked: !view.hidden.has(id), value: id });
    box.addEventListener("change", () => {
      if (box.checked) view.hidden.delete(id);
      else view.hidden.add(id);
      view.set("hidden", view.hidden);
    });
    return make("li", { className: name }, make("label", {}, box, " ", make("i"), ` trial ${id}`));
  });
  const all = (isShown) => () => {
    view.set("hidden", new Set(isShown ? [] : trials.map(([id]) => id)));
    for (const item of boxes) item.querySelector("input").checked = isShown;
  };
  const buttons = [["Show all", true], ["Hide all", false]].map(([text, isShown]) => {
    const button = make("button", { type: "button" }, text);
    button.addEventListener("click", all(isShown));
    return button;
  });
  return make("details", { className: "lines" }, make("summary", {}, "Choose lines"),
    make("p", { className: "line" }, ...buttons), make("ul", { className: "choices legend-marks" }, ...boxes));
}

function toolbar(view, trials) {
  const back = make("button", { type: "button" }, "Zoom back");
  back.addEventListener("click", () => view.goBack());
  const refresh = () => { back.disabled = !view.range; };
  refresh();
  const bar = make("div", { className: "filter chartbar" },
    choice(view, "Across", "x", [["step", "steps"], ["epoch", "epochs"], ["time", "time"]]),
    choice(view, "Horizontal axis", "xAxis", [["linear", "linear"], ["log", "logarithmic"]]),
    choice(view, "Vertical axis", "yAxis",
      [["auto", "automatic"], ["linear", "linear"], ["log", "logarithmic"]]),
    smoothing(view), back);
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", "Chart settings");
  const parts = [bar];
  if (trials.length > 1) parts.push(lineChoices(view, trials));
  return { bar: make("div", {}, ...parts), refresh };
}

function answerCharts() {
  const view = new View(new URLSearchParams(location.search));
  const charts = new Map();
  let tools = null;

  function find() {
    for (const box of document.querySelectorAll(".chart[data-chart]")) {
      if (!charts.has(box)) charts.set(box, new Chart(box, view));
    }
    for (const [box, chart] of charts) {
      if (box.isConnected) continue;
      chart.watcher.disconnect();
      charts.delete(box);
    }
    if (!tools && charts.size) {
      const first = charts.keys().next().value;
      const { trials } = JSON.parse(first.dataset.chart);
      tools = toolbar(view, [...trials].sort((one, other) => one[0] - other[0]));
      tools.bar.dataset.own = "";
      (first.parentElement.querySelector(":scope > .legend") || first).before(tools.bar);
    }
  }

  view.changed = () => {
    if (tools) tools.refresh();
    for (const chart of charts.values()) {
      if (chart.trials) chart.draw();
      chart.load();
    }
  };
  find();
  document.addEventListener("detcore:changed", () => {
    const known = [...charts.values()];
    find();
    for (const chart of known) chart.load();
  });
  document.addEventListener("detcore:light", (event) => {
    for (const chart of charts.values()) chart.light(event.detail);
  });
  const redraw = () => { for (const chart of charts.values()) if (chart.trials) chart.draw(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let timer = null;
  addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(redraw, 150);
  });
}

answerCharts();
