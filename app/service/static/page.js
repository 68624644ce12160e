"use strict";
// Follows new commits, draws the plan, and saves pictures and tables. The page is whole without it.

const $ = (query, root = document) => root.querySelector(query);
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// new commits ----------------------------------------------------------------------------------

function follow() {
  if (location.pathname === "/login") return;
  const source = new EventSource("/api/v1/events/stream");
  source.addEventListener("state", event => {
    const state = JSON.parse(event.data);
    const text = state.leading ? "Leads." : "Waits; another instance leads.";
    $("#doing").textContent = state.doing ? `${text} ${state.doing} …` : text;
    if (state.tick !== null && String(state.tick) !== document.body.dataset.tick) renew();
  });
  source.addEventListener("commit", renew);
}

let renewing = false;
async function renew() {
  // a form that is being filled in, and an answer that is being read, stay
  const writing = document.activeElement && document.activeElement.matches("input, select");
  if (renewing || writing || (location.pathname === "/what-if" && location.search)) return;
  renewing = true;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (!answer.ok) return;
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = [...document.querySelectorAll("details")].map(one => one.open);
    for (const query of ["main", "#status", "footer"]) $(query).replaceWith(next.querySelector(query));
    document.querySelectorAll("details").forEach((one, k) => { one.open = Boolean(open[k]); });
    document.body.dataset.tick = next.body.dataset.tick;
    document.title = next.title;
    begin();
  } catch { /* the service is away for a moment: the stream comes back by itself */ } finally { renewing = false; }
}

// pictures and tables ---------------------------------------------------------------------------

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function savePicture(svg, name) {
  const copy = svg.cloneNode(true), box = svg.viewBox.baseVal;
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", box.width);
  copy.setAttribute("height", box.height);
  const from = svg.querySelectorAll("*"), to = copy.querySelectorAll("*");
  from.forEach((one, k) => {
    const style = getComputedStyle(one);
    for (const key of ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-family"])
      to[k].setAttribute(key, style.getPropertyValue(key));
  });
  const image = new Image();
  image.onload = () => {
    const canvas = document.createElement("canvas");
    canvas.width = 2 * box.width;
    canvas.height = 2 * box.height;
    const pen = canvas.getContext("2d");
    pen.fillStyle = colour("--ground");
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob(blob => save(blob, name + ".png"));
  };
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(new XMLSerializer().serializeToString(copy));
}

function saveTables(section, name) {
  const cell = text => {
    const plain = text.replace(/\s+/g, " ").trim();
    return '"' + (/^[=+\-@|%−]/.test(plain) ? "'" + plain : plain).replace(/"/g, '""') + '"';
  };
  const rows = [...section.querySelectorAll("tr")].map(row => [...row.cells].map(one => cell(one.textContent)).join(","));
  save(new Blob([rows.join("\n") + "\n"], { type: "text/csv" }), name + ".csv");
}

// the plan --------------------------------------------------------------------------------------

const FILL = ["--training", "--batch", "--quant", "--realtime", "--down"];

class Grid {
  constructor(canvas, plan) {
    this.canvas = canvas;
    this.plan = plan;
    this.pen = canvas.getContext("2d");
    this.offsets = [];
    let rows = 0;
    const byNode = plan.by === "node";
    for (const pool of plan.pools) {
      this.offsets.push(rows);
      rows += byNode ? plan.nodes.filter(node => plan.pools[node[0]] === pool).length : pool.gpus;
    }
    this.rows = rows;
    this.boxes = byNode ? this.nodeBoxes() : this.blockBoxes();
    this.reset();
    this.listen();
    this.draw();
  }
  blockBoxes() {
    const { blocks, kinds, tasks } = this.plan;
    return blocks.map(([task, pool, first, gpus, start, steps]) => ({
      x: start, w: steps, y: this.offsets[pool] + first, h: gpus, kind: kinds[task],
      text: tasks[task],
      told: `${tasks[task]} · ${this.plan.pools[pool].pool} ${gpus === 1 ? first : first + "–" + (first + gpus - 1)}`,
    }));
  }
  nodeBoxes() {
    const out = [], seen = this.plan.pools.map(() => 0);
    for (const [pool, node, gpus, stretches] of this.plan.nodes) {
      const y = this.offsets[pool] + seen[pool]++;
      let x = 0;
      for (const [steps, ...used] of stretches) {
        let top = 0;
        const parts = used.map((count, kind) => count ? `${count} ${this.plan.kind_names[kind].replace("_", " ")}` : "").filter(Boolean);
        const told = `${this.plan.pools[pool].pool} node ${node} · ${parts.join(", ") || "free"}`;
        used.forEach((count, kind) => {
          if (count) out.push({ x, w: steps, y: y + top / gpus, h: count / gpus, kind, text: "", told });
          top += count;
        });
        x += steps;
      }
    }
    return out;
  }
  reset() { this.view = { x: 0, y: 0, w: this.plan.steps, h: this.rows }; }
  zoom(factor, cx = .5, cy = .5) {
    const v = this.view;
    const w = Math.min(this.plan.steps, Math.max(1, v.w * factor)), h = Math.min(this.rows, Math.max(4, v.h * factor));
    this.view = { x: v.x + (v.w - w) * cx, y: v.y + (v.h - h) * cy, w, h };
    this.pan(0, 0);
  }
  pan(dx, dy) {
    const v = this.view;
    v.x = Math.min(Math.max(0, v.x + dx), this.plan.steps - v.w);
    v.y = Math.min(Math.max(0, v.y + dy), this.rows - v.h);
    if (!this.wanted) this.wanted = requestAnimationFrame(() => { this.wanted = 0; this.draw(); });
  }
  listen() {
    const { canvas } = this;
    let held = null;
    canvas.addEventListener("pointerdown", event => { held = event; if (event.pointerType === "mouse") canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", () => { held = null; });
    canvas.addEventListener("pointercancel", () => { held = null; });
    canvas.addEventListener("pointermove", event => {
      const box = canvas.getBoundingClientRect();
      if (held) {
        this.pan((held.clientX - event.clientX) / (box.width - this.left) * this.view.w, (held.clientY - event.clientY) / box.height * this.view.h);
        held = event;
      }
      this.tell((event.clientX - box.left - this.left) / (box.width - this.left), (event.clientY - box.top) / (box.height - this.foot));
    });
    canvas.addEventListener("wheel", event => {
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return; // the page scrolls
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      this.zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, (event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
    }, { passive: false });
    canvas.addEventListener("keydown", event => {
      const v = this.view, moves = { ArrowLeft: [-v.w / 8, 0], ArrowRight: [v.w / 8, 0], ArrowUp: [0, -v.h / 8], ArrowDown: [0, v.h / 8] };
      if (moves[event.key]) this.pan(...moves[event.key]);
      else if (event.key === "+" || event.key === "=") this.zoom(1 / 1.4);
      else if (event.key === "-") this.zoom(1.4);
      else if (event.key === "0") { this.reset(); this.pan(0, 0); }
      else return;
      event.preventDefault();
    });
    if (window.ResizeObserver) new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }
  hour(step) {
    const at = new Date(Date.parse(this.plan.start) + step * this.plan.step_minutes * 60000);
    return at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZone: this.canvas.dataset.zone });
  }
  tell(fx, fy) {
    const x = this.view.x + fx * this.view.w, y = this.view.y + fy * this.view.h;
    const box = this.boxes.find(one => x >= one.x && x < one.x + one.w && y >= one.y && y < one.y + one.h);
    $("#hover").textContent = box ? `${box.told} · ${this.hour(box.x)} to ${this.hour(box.x + box.w)}` : `free · ${this.hour(Math.max(0, Math.floor(x)))}`;
  }
  draw() {
    const { canvas, pen, view } = this, scale = devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width) return;
    canvas.width = width * scale;
    canvas.height = height * scale;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    this.left = 56;
    this.foot = 22;
    const sx = (width - this.left) / view.w, sy = (height - this.foot) / view.h;
    pen.fillStyle = colour("--ground");
    pen.fillRect(0, 0, width, height);
    pen.fillStyle = colour("--free");
    pen.fillRect(this.left, 0, width - this.left, height - this.foot);
    const fills = FILL.map(colour), gap = sy > 4 ? 1 : 0;
    pen.save();
    pen.beginPath();
    pen.rect(this.left, 0, width - this.left, height - this.foot);
    pen.clip();
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (const box of this.boxes) {
      const x = this.left + (box.x - view.x) * sx, y = (box.y - view.y) * sy, w = box.w * sx, h = box.h * sy;
      if (x + w < this.left || x > width || y + h < 0 || y > height) continue;
      pen.fillStyle = fills[box.kind];
      pen.fillRect(x, y, Math.max(1, w - 1), Math.max(.5, h - gap));
      if (box.text && h >= 12 && w > 44) {
        const at = Math.max(x, this.left) + 5, room = x + w - at - 6;
        let text = box.text;
        while (text.length > 2 && pen.measureText(text).width > room) text = text.slice(0, -2) + "…";
        if (text.length > 2) { pen.fillStyle = "#fff"; pen.fillText(text, at, y + Math.min(h, height) / 2); }
      }
    }
    pen.restore();
    pen.fillStyle = colour("--soft");
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const every = [1, 2, 3, 4, 6, 12, 24].find(n => n * sx > 52) || 24;
    pen.textAlign = "center";
    for (let step = Math.ceil(view.x); step <= view.x + view.w; step += 1)
      if (step % every === 0) pen.fillText(this.hour(step), Math.min(width - 18, Math.max(this.left + 18, this.left + (step - view.x) * sx)), height - this.foot / 2);
    pen.textAlign = "left";
    this.plan.pools.forEach((pool, k) => {
      const first = (this.offsets[k] - view.y) * sy, last = ((this.offsets[k + 1] ?? this.rows) - view.y) * sy;
      const y = Math.min(Math.max(first, 0) + 10, last - 6);
      if (last > 0 && first < height - this.foot) pen.fillText(pool.pool.length > 8 ? pool.pool.slice(0, 7) + "…" : pool.pool, 4, y);
      if (k && first > 0) { pen.fillStyle = colour("--ink"); pen.fillRect(0, first - .5, width, 1); pen.fillStyle = colour("--soft"); }
    });
  }
}

let grid = null;
async function drawPlan() {
  const canvas = $("#grid");
  if (!canvas) return;
  const answer = await fetch("/api/v1/plan");
  if (!answer.ok) { $("#hover").textContent = (await answer.json()).detail; return; }
  grid = new Grid(canvas, await answer.json());
  canvas.dataset.drawn = grid.boxes.length;
}

async function changeModel(button) {
  const { model, version } = button.dataset;
  if (!confirm(version ? `Let ${version} answer for ${model}?` : `Let the champion of ${model} before this one answer again?`)) return;
  const answer = await fetch(`/api/v1/models/${encodeURIComponent(model)}/champion`, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ version: version || null }),
  });
  const told = await answer.json();
  $("#model-answer").textContent = answer.ok ? "Done; the next tick uses it." : told.detail;
}

document.addEventListener("click", event => {
  const button = event.target.closest("button");
  if (!button) return;
  const data = button.dataset;
  if (data.plan && grid) {
    if (data.plan === "in") grid.zoom(1 / 1.4);
    else if (data.plan === "out") grid.zoom(1.4);
    else { grid.reset(); grid.pan(0, 0); }
  } else if (data.png) $(data.png).toBlob(blob => save(blob, data.name + ".png"));
  else if ("svg" in data) savePicture($("svg", button.closest("figure")), data.name);
  else if (data.csv) saveTables($(data.csv).parentElement, "what-if");
  else if (data.model) changeModel(button);
});

function begin() { drawPlan(); }
begin();
follow();
