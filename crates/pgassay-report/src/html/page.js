"use strict";
(() => {
  const holder = document.getElementById("flame-data");
  if (!holder) return;
  const data = JSON.parse(holder.textContent);
  const byId = (id) => document.getElementById(id);
  const view = byId("flame-view"), info = byId("flame-info"), search = byId("flame-search"), pair = byId("flame-pair");
  const chooseCondition = byId("flame-condition"), chooseVariant = byId("flame-variant");
  const modes = [...document.querySelectorAll("#flame-controls [data-mode]")];
  const ROW = 20, PIXELS_MIN = 0.6;
  const MESSAGES = /^exec_(simple_query|(parse|bind|execute|describe_statement|describe_portal)_message)$/;
  const MESSAGE = data.frames.push(["exec_simple_query, exec_…_message (self)", data.objects.indexOf("postgres")]) - 1;
  let mode = "d", tree, zoom = 0, at = 0, boxes = new Map();

  // Microseconds, or instructions (parts is 1), which have many digits.
  const figure = (v) => {
    const a = Math.abs(v);
    if (data.conditions[tree.condition].parts === 1) return a.toFixed(a < 1000 ? 1 : 0).replace(/\B(?=(\d{3})+$)/g, ",");
    return a.toFixed(a < 100 ? 2 : a < 1000 ? 1 : 0);
  };
  // An observed server has one variant without a name, and its unit may be per second.
  const unit = () => " " + data.conditions[tree.condition].unit, under = (name) => name ? " with " + name : "";
  const signed = (v) => (figure(v).replace(/[0.]/g, "") === "" ? "" : v > 0 ? "+" : "−") + figure(v);
  const percent = (part, all) => (all > 0 ? (part / all * 100).toFixed(1) : "0.0") + "%";
  const names = () => [data.variants[0], data.variants[tree.variant]];

  // The tree of a condition with the costs of the baseline (a) and a variant (b). Node 0
  // holds all roots; every node follows its caller, so one backward pass sums the subtrees.
  // If the checkbox is set, the functions that handle one protocol message are merged: their
  // callees become those of their caller, and their self cost is one node. The same statement runs
  // under exec_simple_query, under exec_execute_message, or directly under PostgresMain if the
  // compiler inlined the latter, and these call paths should match in a difference.
  function plant(condition, variant) {
    const from = data.conditions[condition], sources = from.parents.length;
    const t = { condition, variant, parent: [-1], frame: [-1], children: [[]], resolvable: from.resolvable[variant] || 0,
      selfA: [0], selfB: [0], hasB: variant > 0 };
    const place = [0], index = new Map();
    const node = (parent, frame) => {
      const key = parent + ":" + frame, known = index.get(key);
      if (known !== undefined) return known;
      const i = t.parent.length;
      index.set(key, i);
      t.parent.push(parent); t.frame.push(frame); t.children.push([]); t.selfA.push(0); t.selfB.push(0);
      t.children[parent].push(i);
      return i;
    };
    for (let source = 0; source < sources; source++) {
      const parent = place[from.parents[source] + 1], own = from.frames[source];
      const message = pair.checked && MESSAGES.test(data.frames[own][0]);
      const i = node(parent, message ? MESSAGE : own);
      place.push(message ? parent : i);
      t.selfA[i] += from.self[0][source] / from.parts;
      t.selfB[i] += from.self[variant][source] / from.parts;
    }
    const count = t.count = t.parent.length;
    for (const sum of ["a", "b", "rise", "fall"]) t[sum] = new Float64Array(count);
    for (let i = count - 1; i >= 0; i--) {
      const d = t.selfB[i] - t.selfA[i];
      t.a[i] += t.selfA[i]; t.b[i] += t.selfB[i];
      if (d > 0) t.rise[i] += d; else t.fall[i] -= d;
      if (i) for (const sum of [t.a, t.b, t.rise, t.fall]) sum[t.parent[i]] += sum[i];
    }
    for (const list of t.children) list.sort((x, y) => Math.max(t.a[y], t.b[y]) - Math.max(t.a[x], t.b[x]));
    return t;
  }

  const label = (i) => i ? data.frames[tree.frame[i]][0] : data.conditions[tree.condition].title;
  const object = (i) => i ? data.objects[data.frames[tree.frame[i]][1]] : "";
  const width = (i) => mode === "a" ? tree.a[i] : mode === "b" ? tree.b[i] : tree.rise[i] + tree.fall[i];
  // A and B share a scale, so that a shorter bar is a cheaper one.
  const scale = (i) => mode === "d" ? width(i) : Math.max(tree.a[i], tree.b[i]);

  function describe(i) {
    const t = tree, [a, b] = names(), own = t.selfB[i] - t.selfA[i];
    const where = object(i) && object(i) !== "postgres" ? " in " + object(i) : "";
    const head = label(i) + where + ": ";
    if (mode === "a") return head + figure(t.a[i]) + unit() + under(a) + ", " + percent(t.a[i], t.a[0]) + " of total; self " + figure(t.selfA[i]);
    if (mode === "b") return head + figure(t.b[i]) + unit() + under(b) + ", " + percent(t.b[i], t.b[0]) + " of total; self " + figure(t.selfB[i]);
    return head + signed(t.b[i] - t.a[i]) + unit() + " (" + figure(t.a[i]) + " with " + a + ", " + figure(t.b[i]) + " with " + b + "); callees included +" +
      figure(t.rise[i]) + " and −" + figure(t.fall[i]) + "; self " + signed(own) + "; " + percent(width(i), width(0)) + " of total change";
  }

  function background(i) {
    const net = tree.b[i] - tree.a[i], gross = tree.rise[i] + tree.fall[i];
    const side = net > 0 ? "up" : "down";
    if (Math.abs(net) < tree.resolvable) return "var(--noise-pale)";
    const share = (gross > 0 ? Math.abs(net) / gross * 100 : 0).toFixed(1) + "%";
    const strong = "color-mix(in srgb, var(--" + side + ") 62%, var(--card))";
    return "linear-gradient(90deg," + strong + " " + share + ",var(--" + side + "-pale) " + share + ")";
  }

  function box(i, left, share, depth, above) {
    const element = document.createElement("div"), pixels = share * view.clientWidth;
    element.style.left = left * 100 + "%";
    element.style.width = share * 100 + "%";
    element.style.top = depth * ROW + "px";
    element.dataset.node = i;
    const name = label(i), from = object(i);
    if (name.startsWith("(below") || name === "[no stack]" || i === 0) element.classList.add("rest");
    else if (from === "[kernel]") element.classList.add("kernel");
    else if (from !== "postgres") element.classList.add("library");
    else if (depth % 2) element.classList.add("odd");
    if (above) element.classList.add("above");
    if (mode === "d" && i) {
      element.style.background = background(i);
      element.classList.toggle("pale", Math.abs(tree.b[i] - tree.a[i]) < tree.resolvable);
    }
    if (pixels > 26) element.textContent = name; else element.classList.add("tiny");
    if (matches(i)) element.classList.add("hit");
    view.append(element);
    boxes.set(i, element);
  }

  const wanted = () => search.value.trim().toLowerCase();
  const matches = (i) => i > 0 && wanted() !== "" && label(i).toLowerCase().includes(wanted());

  function draw() {
    view.replaceChildren();
    boxes = new Map();
    const line = [];
    for (let i = zoom; i >= 0; i = tree.parent[i]) line.unshift(i);
    const whole = scale(zoom);
    let deepest = line.length;
    line.slice(0, -1).forEach((i, depth) => box(i, 0, 1, depth, true));
    const pile = [[zoom, 0, line.length - 1]];
    while (pile.length) {
      const [i, left, depth] = pile.pop(), share = whole > 0 ? width(i) / whole : 0;
      if (share * view.clientWidth < PIXELS_MIN) continue;
      box(i, left, share, depth, false);
      deepest = Math.max(deepest, depth + 1);
      let next = left;
      for (const child of tree.children[i]) {
        pile.push([child, next, depth + 1]);
        next += whole > 0 ? width(child) / whole : 0;
      }
    }
    view.style.height = deepest * ROW + "px";
    if (!boxes.has(at)) at = zoom;
    boxes.get(at)?.classList.add("at");
    info.textContent = found() || describe(at);
  }

  // The total cost of all matches; a match below another match is not counted again.
  function found() {
    if (wanted() === "") return "";
    let count = 0, a = 0, b = 0;
    const inside = new Uint8Array(tree.count);
    for (let i = 1; i < tree.count; i++) {
      const hit = matches(i), outer = inside[tree.parent[i]];
      if (hit) count++;
      if (hit && !outer) { a += tree.a[i]; b += tree.b[i]; }
      inside[i] = hit || outer ? 1 : 0;
    }
    const [nameA, nameB] = names();
    if (!count) return "No function name contains \"" + search.value.trim() + "\".";
    return "\"" + search.value.trim() + "\": " + figure(a) + unit() + under(nameA) +
      (tree.hasB ? ", " + figure(b) + under(nameB) + " (" + signed(b - a) + ")" : "") + ", callees included.";
  }

  function point(i) {
    boxes.get(at)?.classList.remove("at");
    at = i;
    boxes.get(at)?.classList.add("at");
    info.textContent = describe(at);
  }

  function show() {
    tree = plant(Number(chooseCondition.value), Number(chooseVariant.value));
    const [a, b] = names();
    modes.forEach((button) => {
      button.setAttribute("aria-pressed", String(button.dataset.mode === mode));
      button.textContent = { a: a ? "A: " + a : "All", b: "B: " + b, d: "Δ: B − A" }[button.dataset.mode];
      button.hidden = !tree.hasB && button.dataset.mode !== "a";
    });
    zoom = at = 0;
    draw();
  }

  const option = (select, value, text) => select.append(new Option(text, value));
  pair.parentElement.hidden = !data.frames.slice(0, -1).some(([name]) => MESSAGES.test(name));
  data.conditions.forEach((it, i) => { if (it.parents.length) option(chooseCondition, i, it.title); });
  data.variants.forEach((name, i) => { if (i) option(chooseVariant, i, name); });
  if (data.variants.length < 2) { option(chooseVariant, 0, data.variants[0]); mode = "a"; }
  chooseCondition.value = data.start[0];
  if (data.variants.length > 1) chooseVariant.value = data.start[1];
  byId("flame-controls").hidden = false;

  chooseCondition.addEventListener("change", show);
  chooseVariant.addEventListener("change", show);
  modes.forEach((button) => button.addEventListener("click", () => {
    const [keptZoom, keptAt] = [zoom, at];
    mode = button.dataset.mode;
    show();
    zoom = scale(keptZoom) > 0 ? keptZoom : 0;
    at = keptAt;
    draw();
  }));
  pair.addEventListener("change", show);
  search.addEventListener("input", draw);
  const reset = () => { zoom = at = 0; search.value = ""; draw(); };
  byId("flame-reset").addEventListener("click", reset);
  const nodeOf = (event) => event.target.dataset?.node;
  view.addEventListener("pointerover", (event) => { const node = nodeOf(event); if (node !== undefined) point(Number(node)); });
  view.addEventListener("click", (event) => {
    const node = nodeOf(event);
    if (node !== undefined) { zoom = at = Number(node); draw(); }
  });
  view.addEventListener("keydown", (event) => {
    const siblings = at ? tree.children[tree.parent[at]].filter((i) => boxes.has(i)) : [0], place = siblings.indexOf(at);
    const next = { ArrowUp: tree.parent[at], ArrowDown: tree.children[at].find((i) => boxes.has(i)), ArrowLeft: siblings[place - 1], ArrowRight: siblings[place + 1] }[event.key];
    if (event.key === "Escape") reset();
    else if (event.key === "Enter") { zoom = at; draw(); }
    else if (event.key.startsWith("Arrow")) { if (next !== undefined && next >= 0 && boxes.has(next)) point(next); }
    else return;
    event.preventDefault();
  });
  let pending = 0;
  addEventListener("resize", () => { cancelAnimationFrame(pending); pending = requestAnimationFrame(draw); });
  document.querySelectorAll(".to-flame").forEach((link) => link.addEventListener("click", () => {
    chooseCondition.value = link.dataset.condition;
    chooseVariant.value = link.dataset.variant;
    mode = data.variants.length > 1 ? "d" : "a";
    show();
  }));
  show();
})();
