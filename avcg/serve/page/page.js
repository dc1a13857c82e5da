// The page of the service: a form built from GET /schema, and routes from POST /explain, updated after every change.
"use strict";

const WAIT = 60; // milliseconds from the last change to the request
const SPEAK = 700; // milliseconds until a screen reader announces the answer, so that dragging a slider does not repeat it
const ROUTES = 3;
const POSITIONS = 200; // positions of a slider over numbers without steps
const MAX_SQUARES = 40;
const TOLERANCE = 1e-9; // 0.3 / 0.1 is slightly below 3

const at = (id) => document.getElementById(id);
const state = { about: null, columns: new Map(), row: {}, locked: new Set(), spans: new Map(), barred: new Map(), typicality: null, asked: 0 };

const STATUS = {
  ok: { mark: "✓", tone: "good", title: "Flips the decision, and other models accept it" },
  not_robust: {
    mark: "!", tone: "warn", title: "Flips it today, but may not last",
    words: "Too few of the models held back from training accept it: after the model is retrained, it may no longer be enough.",
  },
  not_found: {
    mark: "✕", tone: "warn", title: "Not enough",
    words: "This is the best answer found, and it does not flip the decision. Unlock something, or widen a range.",
  },
  infeasible: {
    mark: "✕", tone: "warn", title: "No allowed change is enough",
    words: "It is certain that nothing you allow flips the decision; this comes close. Unlock something, or widen a range.",
  },
  immovable: {
    mark: "✕", tone: "warn", title: "Nothing is allowed to change",
    words: "There is no route while everything is locked. Unlock something, or widen a range.",
  },
  already_target: {
    mark: "✓", tone: "plain", title: "Nothing needs to change", words: "This is the wanted decision already.",
  },
};

const UNCHANGED = ["already_target", "immovable"]; // statuses without changes: only the reason is shown

/* ---- Words ---- */

const plainName = (name) => name.replace(/[-_.]+/g, " ").trim() || name;
const title = (name) => plainName(name).replace(/^./, (letter) => letter.toUpperCase());
const percent = (share) => {
  const value = 100 * share;
  return `${value > 0.5 && value < 99.5 ? Math.round(value) : Number(value.toFixed(value > 99 ? 1 : 2))} %`;
};

function figure(value) {
  const grouped = Math.abs(value) >= 10000;
  return value.toLocaleString("en", { maximumSignificantDigits: 6, useGrouping: grouped });
}

function words(column, value) {
  if (value === null || value === undefined) return "unknown";
  if (column && column.kind === "yes or no") return value === true || value === 1 ? "yes" : "no";
  return typeof value === "number" ? figure(value) : String(value);
}

function listed(parts) {
  return parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts[parts.length - 1]}`;
}

// Linked columns are one change. The sentence names the category among them, which reads best.
function facts(option) {
  const groups = new Map();
  for (const [name, { before, after }] of Object.entries(option.changes)) {
    const column = state.columns.get(name);
    const group = groups.get(leader(column)) ?? [];
    group.push({ column, before, after });
    groups.set(leader(column), group);
  }
  return [...groups.values()];
}

function letter(row, option, result) {
  const parts = facts(option).map((group) => {
    const { column, before, after } = group.find((change) => change.column.type === "category") ?? group[0];
    return `your ${plainName(column.name)} were ${words(column, after)} instead of ${words(column, before)}`;
  });
  const sentence = `If ${listed(parts)}, the decision would be ${row.target} instead of ${row.decision}.`;
  const votes = option.agreement === null ? "" : ` This change is ${option.agreement}.`;
  // Later models are mentioned only if other models accept the change, and together with the assumption behind that.
  if (option.status !== "ok" || option.agreement === null) {
    return `${sentence}${votes} This is about today's model; a later one may decide otherwise.`;
  }
  const promise = result.promise ? ` ${result.promise}` : "";
  return `${sentence}${votes}${promise} Assumption: ${result.assumption}`;
}

/* ---- Making elements ---- */

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "on") for (const [event, action] of Object.entries(value)) element.addEventListener(event, action);
    else if (name in element && !name.includes("-")) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const unseen = (text) => make("span", { className: "hidden" }, text); // for screen readers only

const lockIcon = () => at("lock-icon").content.cloneNode(true);

/* ---- Talking to the service ---- */

class Refused extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

async function call(path, body, signal) {
  const headers = {};
  const token = secret();
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body) headers["Content-Type"] = "application/json";
  const options = { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal, cache: "no-store" };
  const response = await fetch(path, options);
  const result = await response.json().catch(() => ({ reason: `The service answered with status ${response.status}.` }));
  if (!response.ok) throw new Refused(response.status, result.reason);
  return result;
}

function secret(value) {
  if (value !== undefined) state.token = value;
  try {
    if (value !== undefined) sessionStorage.setItem("avcg-token", value);
    return state.token ?? sessionStorage.getItem("avcg-token");
  } catch {
    return state.token; // storage may be forbidden; the token is then kept until the page is closed
  }
}

function complain(error) {
  const reason = error instanceof Refused ? error.message : "The service cannot be reached. Is it still running?";
  at("problem").textContent = reason;
  at("problem").hidden = false;
}

async function enter() {
  try {
    const about = await call("schema");
    at("problem").hidden = true;
    at("entrance").hidden = true;
    at("work").hidden = false;
    begin(about);
  } catch (error) {
    if (!(error instanceof Refused) || error.status !== 401) return complain(error);
    at("entrance").hidden = false;
    if (secret()) complain(error);
    at("token").focus();
  }
}

/* ---- The form ---- */

const leader = (column) => column.follows || column.name;
const family = (column) => state.about.columns.filter((other) => leader(other) === leader(column));
const movable = (column) =>
  column.change !== "none" && (column.type === "number" ? true : column.moves.some((reached) => reached.length > 0));

function begin(about) {
  state.about = about;
  state.columns = new Map(about.columns.map((column) => [column.name, column]));
  const groups = { movable: about.columns.filter(movable), fixed: about.columns.filter((column) => !movable(column)) };
  for (const [name, group] of Object.entries(groups)) {
    at(name).replaceChildren(...group.map(feature));
    at(`${name}-group`).hidden = group.length === 0;
  }
  const names = about.examples.map((_, index) => new Option(`Example ${index + 1}`, String(index)));
  at("example").replaceChildren(...names, new Option("My own values", "own"));
  at("chooser").hidden = about.examples.length === 0;
  const classes = about.classes.map((label, index) => new Option(String(label), String(index)));
  at("target").replaceChildren(new Option("any other", ""), ...classes);
  const units = new Set(about.columns.filter(movable).map(leader)).size;
  const cap = Math.min(units, about.max_changes ?? units, 8);
  const counts = Array.from({ length: cap }, (_, index) => new Option(String(index + 1)));
  at("most").replaceChildren(new Option("no limit", ""), ...counts);
  at("typicality").value = String(about.typicality);
  typicalityShows();
  fill(about.examples[0] ?? Object.fromEntries(about.columns.map((column) => [column.name, column.typical])));
  ask();
}

function typicalityShows() {
  const value = Number(at("typicality").value);
  at("typicality").setAttribute("aria-valuetext", value === 0 ? "Nearest" : value === 1 ? "Most typical" : `${Math.round(100 * value)} % of the way from nearest to most typical`);
}

// A feature of several columns is one choice on the page, and columns of 0 and 1 in a request.
function held(column, row) {
  if (!column.columns || row[column.columns[0]] === undefined) return row[column.name];
  const flags = column.columns.map((name) => Boolean(row[name]));
  return column.categories[column.thermometer ? flags.filter(Boolean).length : flags.indexOf(true)] ?? null;
}

function written(column, value) {
  if (!column.columns) return { [column.name]: value };
  const position = column.categories.indexOf(value);
  const flag = (index) => (column.thermometer ? (position < 0 ? null : Number(index < position)) : Number(index === position));
  return Object.fromEntries(column.columns.map((name, index) => [name, flag(index)]));
}

function fill(row) {
  state.row = Object.fromEntries(state.about.columns.map((column) => [column.name, held(column, row)]));
  for (const column of state.about.columns) column.show(state.row[column.name]);
}

function changed(column, value) {
  state.row[column.name] = value;
  at("example").value = "own";
  later();
}

function feature(column) {
  const id = `f${state.about.columns.indexOf(column)}`;
  const notes = { up: "only up", down: "only down" };
  const note = column.follows ? `changes with ${plainName(column.follows)}` : notes[column.change];
  const legend = make("legend", {}, title(column.name), note ? make("span", { className: "note small" }, ` · ${note}`) : null);
  const box = make("fieldset", { className: "feature", "data-column": column.name }, legend);
  box.append(movable(column) && !column.follows ? lock(column) : make("span", {}));
  box.append(...(column.type === "number" ? number(column, id) : choice(column, id)));
  if (movable(column) && !column.follows) box.append(column.type === "number" ? span(column) : values(column, id));
  column.box = box;
  return box;
}

function lock(column) {
  const label = make("span", {}, "Lock");
  const toggle = () => hold(column, !state.locked.has(column.name));
  const button = make("button", { type: "button", className: "lock", "aria-pressed": "false", on: { click: toggle } });
  button.append(lockIcon(), label, unseen(` ${plainName(column.name)}`));
  column.lockShows = (locked) => {
    button.setAttribute("aria-pressed", String(locked));
    label.textContent = locked ? "Locked" : "Lock";
    for (const member of family(column)) member.box.classList.toggle("is-locked", locked);
  };
  return button;
}

function hold(column, locked) {
  const first = state.columns.get(leader(column));
  if (locked) state.locked.add(first.name);
  else state.locked.delete(first.name);
  first.lockShows(locked);
  later();
}

// Number of decimals of the multiples of a step: 2 for 0.25, 7 for 1e-7.
function decimals(step) {
  const [, digits, power] = /^\d*\.?(\d*)(?:e([+-]\d+))?$/.exec(String(step));
  return Math.max(0, digits.length - Number(power ?? 0));
}

// A slider counts steps from its low end. Both ends must be multiples of the step: otherwise it does not stay at its end.
function grid(low, high, step) {
  const multiple = (count) => Number((count * step).toFixed(decimals(step)));
  const min = multiple(Math.ceil(low / step - TOLERANCE));
  const max = Math.max(min, multiple(Math.floor(high / step + TOLERANCE)));
  return { min, max, step, value: (position) => position, position: (value) => value };
}

// For numbers without steps, sliders have a fixed number of positions, so that both ends can be reached exactly.
function scale(low, high, step) {
  if (step !== null) return grid(low, high, step);
  const digits = Math.max(0, 3 - Math.ceil(Math.log10(high - low || 1)));
  return {
    min: 0,
    max: POSITIONS,
    step: 1,
    value: (position) => {
      if (position <= 0) return low;
      return position >= POSITIONS ? high : Number((low + (position / POSITIONS) * (high - low)).toFixed(digits));
    },
    position: (value) => (high > low ? Math.round(((value - low) / (high - low)) * POSITIONS) : 0),
  };
}

function slide(measure, label) {
  return make("input", { type: "range", min: measure.min, max: measure.max, step: measure.step, "aria-label": label });
}

function number(column, id) {
  const measure = scale(column.seen_low, column.seen_high, column.step);
  const name = plainName(column.name);
  const field = make("input", { type: "number", id, step: "any", inputMode: "decimal" });
  const slider = slide(measure, `${name}, by slider`);
  const complaint = make("p", { className: "complaint", id: `${id}-complaint`, hidden: true }, "Enter a number.");
  const unknown = make("input", { type: "checkbox", id: `${id}-gap` });
  const point = (value) => {
    slider.value = measure.position(value ?? column.seen_low);
    slider.setAttribute("aria-valuetext", value === null ? "unknown" : figure(measure.value(Number(slider.value))));
  };
  const check = (bad) => {
    complaint.hidden = !bad;
    field.setAttribute("aria-invalid", String(bad));
    if (bad) field.setAttribute("aria-describedby", complaint.id);
    else field.removeAttribute("aria-describedby");
  };
  column.show = (value) => {
    unknown.checked = value === null;
    field.value = value ?? "";
    check(false);
    point(value);
  };
  field.addEventListener("input", () => {
    const empty = field.value === "" || !Number.isFinite(field.valueAsNumber);
    const bad = empty && !column.missing;
    check(bad);
    unknown.checked = empty && !bad;
    if (!empty) point(field.valueAsNumber);
    changed(column, empty ? (bad ? undefined : null) : field.valueAsNumber);
  });
  slider.addEventListener("input", () => {
    const value = measure.value(Number(slider.value));
    column.show(value);
    changed(column, value);
  });
  unknown.addEventListener("change", () => {
    const value = unknown.checked ? null : column.typical;
    column.show(value);
    changed(column, value);
  });
  const label = make("label", { htmlFor: id, className: "hidden" }, `${title(column.name)}, value`);
  const parts = [label, make("div", { className: "value" }, slider, field), complaint];
  if (column.missing) parts.push(make("label", { className: "unknown" }, unknown, "unknown"));
  return parts;
}

function choice(column, id) {
  const options = column.categories.map((value, index) => new Option(words(column, value), String(index)));
  if (column.missing) options.push(new Option("unknown", ""));
  const field = make("select", { id }, ...options);
  column.show = (value) => {
    const index = column.categories.indexOf(value);
    field.value = index < 0 ? "" : String(index);
  };
  field.addEventListener("change", () => changed(column, field.value === "" ? null : column.categories[Number(field.value)]));
  const label = make("label", { htmlFor: id, className: "hidden" }, `${title(column.name)}, value`);
  return [label, make("div", { className: "value choice" }, field)];
}

function span(column) {
  const measure = scale(column.low, column.high, column.step);
  const name = plainName(column.name);
  const lower = slide(measure, `${name}: not below`);
  const upper = slide(measure, `${name}: not above`);
  const shown = make("output", {});
  const filled = make("div", { className: "fill" });
  const two = make("div", { className: "two" }, filled, lower, upper);
  const box = make("div", { className: "span" }, make("span", {}, "May become"), two, shown);
  const draw = () => {
    const [low, high] = [Number(lower.value), Number(upper.value)];
    const width = measure.max - measure.min || 1;
    filled.style.left = `${(100 * (low - measure.min)) / width}%`;
    filled.style.right = `${(100 * (measure.max - high)) / width}%`;
    shown.textContent = `${figure(measure.value(low))} to ${figure(measure.value(high))}`;
    lower.setAttribute("aria-valuetext", figure(measure.value(low)));
    upper.setAttribute("aria-valuetext", figure(measure.value(high)));
    const narrowed = low > measure.min || high < measure.max;
    box.classList.toggle("narrowed", narrowed);
    // If both thumbs meet at the top, the lower one must be on top, since it is the one that can move.
    lower.style.zIndex = low > (measure.min + measure.max) / 2 ? "1" : "0";
    if (narrowed) state.spans.set(column.name, [measure.value(low), measure.value(high)]);
    else state.spans.delete(column.name);
  };
  const moved = (thumb, bound) => () => {
    thumb.value = bound(Number(thumb.value));
    draw();
    later();
  };
  lower.addEventListener("input", moved(lower, (value) => Math.min(value, Number(upper.value))));
  upper.addEventListener("input", moved(upper, (value) => Math.max(value, Number(lower.value))));
  column.widen = () => {
    lower.value = measure.min;
    upper.value = measure.max;
    draw();
  };
  column.widen();
  return box;
}

function values(column, id) {
  const tick = (_, index) => make("input", { type: "checkbox", id: `${id}-${index}`, checked: true });
  const boxes = column.categories.map(tick);
  const labels = boxes.map((box, index) => make("label", {}, box, words(column, column.categories[index])));
  const summary = make("summary", {}, "May become any value");
  const draw = () => {
    const kept = column.categories.filter((_, index) => boxes[index].checked);
    const all = kept.length === column.categories.length;
    summary.textContent = all ? "May become any value" : `May become ${kept.length} of ${boxes.length} values`;
    if (all) state.barred.delete(column.name);
    else state.barred.set(column.name, kept);
  };
  for (const box of boxes) {
    box.addEventListener("change", () => {
      draw();
      later();
    });
  }
  column.widen = () => {
    for (const box of boxes) box.checked = true;
    draw();
  };
  const name = `${plainName(column.name)} may become`;
  const group = make("div", { className: "choices", role: "group", "aria-label": name }, ...labels);
  return make("details", {}, summary, group);
}

/* ---- Asking ---- */

let timer = 0;
let underWay = null;

function later() {
  at("unlock").hidden = state.locked.size + state.spans.size + state.barred.size === 0;
  clearTimeout(timer);
  timer = setTimeout(ask, WAIT);
}

// The promise is about single answers. They are asked for first, and further routes after them.
function request() {
  const { about } = state;
  const row = Object.assign({}, ...about.columns.map((column) => written(column, state.row[column.name])));
  const body = { rows: [row], n: 1 };
  if (at("target").value !== "") body.target = about.classes[Number(at("target").value)];
  if (at("most").value !== "") body.max_changes = Number(at("most").value);
  if (at("effort").value !== "standard") body.effort = at("effort").value;
  if (state.typicality !== null) body.typicality = state.typicality;
  const none = [...state.barred].filter(([, kept]) => kept.length === 0).map(([name]) => name);
  const locked = new Set([...state.locked, ...none]);
  const free = about.columns.filter((column) => movable(column) && !column.follows && !locked.has(column.name));
  if (locked.size) body.vary = free.map((column) => column.name);
  const ranges = [...state.spans, ...state.barred].filter(([name]) => !locked.has(name));
  if (ranges.length) body.ranges = Object.fromEntries(ranges);
  return body;
}

async function ask() {
  if (Object.values(state.row).some((value) => value === undefined)) return; // an invalid field shows its own message
  const order = ++state.asked;
  underWay?.abort();
  underWay = new AbortController();
  at("routes").setAttribute("aria-busy", "true");
  try {
    const body = request();
    const first = await call("explain", body, underWay.signal);
    const n = Math.min(ROUTES, state.about.limits.answers);
    const asksForMore = order === state.asked && n > 1 && !UNCHANGED.includes(first.rows[0].options[0].status);
    const more = asksForMore ? await call("explain", { ...body, n }, underWay.signal) : null;
    if (order !== state.asked) return; // a newer request was sent meanwhile
    at("problem").hidden = true;
    show(first, more);
  } catch (error) {
    if (order !== state.asked || error.name === "AbortError") return;
    if (error.status === 401) return enter();
    complain(error);
  } finally {
    if (order === state.asked) at("routes").removeAttribute("aria-busy");
  }
}

/* ---- The answer ---- */

// The single answer is the first route. Further routes are those answers that differ from it.
function show(first, more) {
  const row = first.rows[0];
  const others = (more?.rows[0].options ?? []).filter((option) => !option.repeated && !same(option, row.options[0]));
  const answers = [row.options[0], ...others.slice(0, ROUTES - 1)];
  at("decision").textContent = String(row.decision);
  const before = row.probability_before;
  const sentence = `The model now gives ${row.target} a probability of ${percent(before)}.`;
  at("before").textContent = before === null ? "" : sentence;
  at("before-bar").style.width = `${100 * (before ?? 0)}%`;
  const focus = document.activeElement?.dataset?.action;
  at("routes").replaceChildren(...answers.map((option, index) => route(row, option, index, index ? more : first)));
  // Redrawing removes the focused button: put the focus on the new one, or else on the answer.
  if (focus && document.activeElement === document.body) {
    (document.querySelector(`[data-action="${CSS.escape(focus)}"]`) ?? at("answer")).focus();
  }
  const fewer = answers.length < Math.min(ROUTES, state.about.limits.answers) && answers[0].status === "ok";
  const differs = answers.length > 1 && more.promise !== first.promise;
  const promise = UNCHANGED.includes(answers[0].status) ? "" : first.promise;
  at("promise").textContent = differs ? `Route 1: ${promise}` : promise;
  const further = differs ? `${answers.length > 2 ? "Routes 2 and 3" : "Route 2"}: ${more.promise}` : "";
  at("aside").textContent = fewer ? "No other route was found." : further;
  const summary = spoken(row, answers);
  const ways = `${answers.length} ${answers.length > 1 ? "routes" : "route"} to ${row.target}`;
  at("jump").textContent = `${answers[0].status === "ok" ? ways : STATUS[answers[0].status].title} ↓`;
  clearTimeout(show.speaking);
  show.speaking = setTimeout(() => { at("spoken").textContent = summary; }, SPEAK);
}

const same = (option, other) => JSON.stringify(option.row) === JSON.stringify(other.row);

function spoken(row, answers) {
  const sentences = answers.map((option, index) => {
    const moves = Object.entries(option.changes).map(([name, { before, after }]) => {
      const column = state.columns.get(name);
      return `${plainName(name)} from ${words(column, before)} to ${words(column, after)}`;
    });
    const head = answers.length > 1 ? `Route ${index + 1}: ` : "";
    return `${head}${STATUS[option.status].title}${moves.length ? `: ${listed(moves)}` : ""}.`;
  });
  return `The decision now is ${row.decision}. ${sentences.join(" ")}`;
}

function route(row, option, index, result) {
  const status = STATUS[option.status];
  const only = UNCHANGED.includes(option.status);
  const sure = option.status === "ok" && !option.n_models ? "Flips today's decision" : status.title;
  const box = make("li", { className: `card route ${status.tone}`, "data-status": option.status });
  const pill = make("span", { className: "pill" }, make("span", { "aria-hidden": "true" }, `${status.mark} `), sure);
  box.append(make("div", { className: "head" }, make("h3", {}, only ? "The answer" : `Route ${index + 1}`), pill));
  if (status.words) box.append(make("p", { className: "small" }, status.words));
  if (only) return box;
  box.append(make("ul", { className: "changes" }, ...facts(option).map((group) => change(index, group))));
  box.append(...certainty(option, result));
  const letterBox = make("p", { className: "letter", hidden: true });
  const copy = action("Copy as a sentence", `copy-${index}`, () => copied(copy, letterBox, letter(row, option, result)));
  const probabilities = `${percent(row.probability_before ?? 0)} → ${percent(option.probability ?? 0)}`;
  const distance = option.distance === null ? "unknown" : option.distance.toFixed(2);
  const figures = make("p", { className: "small figures" },
    make("span", {}, `Probability of ${row.target} `, make("b", {}, probabilities)),
    make("span", {}, "Distance ", make("b", {}, distance)));
  box.append(make("div", { className: "foot" }, figures, ["not_found", "infeasible"].includes(option.status) ? null : copy), letterBox);
  return box;
}

function change(index, group) {
  const first = state.columns.get(leader(group[0].column));
  const names = group.map(({ column }) => make("div", {}, title(column.name)));
  const keep = action("Lock", `keep-${index}-${first.name}`, () => hold(first, true));
  keep.title = "Look for routes that leave this as it is";
  keep.append(unseen(` ${plainName(first.name)}`));
  const moves = make("div", {}, ...group.map(move));
  return make("li", { "data-column": first.name }, make("div", { className: "name" }, ...names), moves, keep);
}

// A button of a route. Its name lets the focus return to it after the route is redrawn.
function action(words, name, click) {
  return make("button", { type: "button", className: "quiet", "data-action": name, on: { click } }, words);
}

function move({ column, before, after }) {
  const both = typeof before === "number" && typeof after === "number" && column.type === "number";
  const step = both ? Number((after - before).toPrecision(6)) : 0;
  const delta = both ? make("span", { className: "delta" }, `${step > 0 ? "+" : "−"}${figure(Math.abs(step))}`) : null;
  const arrow = make("span", { "aria-hidden": "true" }, " → ");
  const becomes = make("span", { className: "after" }, words(column, after));
  return make("div", { className: "move" }, words(column, before), arrow, unseen(" becomes "), becomes, delta);
}

function certainty(option, result) {
  if (option.agreement === null) return [make("p", { className: "small" }, result.assumption)];
  const count = option.n_models > MAX_SQUARES ? 0 : option.n_models;
  const squares = Array.from({ length: count }, (_, index) => make("i", { className: index < option.agreeing ? "yes" : "" }));
  const sure = make("div", { className: "sure" },
    make("div", { className: "votes", "aria-hidden": "true" }, ...squares),
    make("p", { className: "small" }, `${option.agreement[0].toUpperCase()}${option.agreement.slice(1)}.`));
  const distance = "Distance is the cost of the changes: by default, 1 for a standard deviation of a number and 1 for a category.";
  const rests = make("details", {},
    make("summary", {}, "How sure is that?"),
    ...(result.promise ? [make("p", {}, result.promise)] : []),
    make("p", {}, result.assumption),
    make("p", {}, `This answer alone: ${option.proof}`),
    make("p", {}, distance));
  return [sure, rests];
}

async function copied(button, box, sentence) {
  box.textContent = sentence;
  box.hidden = false;
  try {
    await navigator.clipboard.writeText(sentence);
    button.textContent = "Copied";
    at("spoken").textContent = `Copied: ${sentence}`;
  } catch {
    // If the clipboard is not allowed, the sentence is selected for copying by keyboard.
    getSelection().selectAllChildren(box);
    button.textContent = "Press Ctrl+C";
    at("spoken").textContent = `Ready to copy: ${sentence}`;
  }
}

/* ---- Theme, token and controls that are always there ---- */

const wantsDark = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : wantsDark.matches;
}

const drawTheme = () => at("theme").setAttribute("aria-pressed", String(isDark()));

at("theme").addEventListener("click", () => {
  const chosen = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = chosen;
  try {
    localStorage.setItem("avcg-theme", chosen);
  } catch {
    // Storage may be forbidden; the choice is then kept until the page is closed.
  }
  drawTheme();
});
wantsDark.addEventListener("change", drawTheme);
drawTheme();

at("entrance").addEventListener("submit", (event) => {
  event.preventDefault();
  secret(at("token").value.trim());
  enter();
});
at("person").addEventListener("submit", (event) => event.preventDefault());
at("example").addEventListener("change", () => {
  if (at("example").value !== "own") fill(state.about.examples[Number(at("example").value)]);
  later();
});
at("target").addEventListener("change", later);
at("most").addEventListener("change", later);
at("effort").addEventListener("change", later);
at("typicality").addEventListener("input", () => {
  state.typicality = Number(at("typicality").value);
  typicalityShows();
  later();
});
at("unlock").addEventListener("click", () => {
  for (const column of state.about.columns) {
    if (state.locked.delete(column.name)) column.lockShows(false);
    column.widen?.();
  }
  later();
  at("answer").focus({ preventScroll: true });
});

enter();
