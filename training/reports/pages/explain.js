// Draws the attention of a head. All data are in the page, and nothing is fetched.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (name) => document.getElementById(name);
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const floats = (text) => new Float32Array(bytes(text).buffer); // Little-endian, as on all machines with browsers.
const colors = bytes(data.colors);
const [rows, columns] = data.grid || [1, 1];
const numPatches = rows * columns;
const state = { picture: 0, layer: 0, head: 0, query: 0 }; // Head 0: the mean of all heads.

for (const picture of data.pictures) {
  for (const name of ["attention", "rollout"]) if (picture[name]) picture[name] = bytes(picture[name]);
  for (const name of ["largest", "elsewhere"]) if (picture[name]) picture[name] = floats(picture[name]);
}

// The attention weights of the selected token on the patches, and the sum of its weights on all other tokens.
function attention() {
  const picture = data.pictures[state.picture];
  const heads = state.head ? [state.head - 1] : [...Array(data.heads).keys()];
  const weights = new Float32Array(numPatches);
  let elsewhere = 0;
  for (const head of heads) {
    const row = (state.layer * data.heads + head) * data.queries.length + state.query;
    for (let i = 0; i < numPatches; i++)
      weights[i] += (picture.attention[row * numPatches + i] / 255) * picture.largest[row] / heads.length;
    elsewhere += picture.elsewhere[row] / heads.length;
  }
  return { weights, elsewhere };
}

function paint(canvas, values, largest) {
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  for (let i = 0; i < numPatches; i++) {
    const color = largest > 0 ? Math.round(255 * values[i] / largest) : 0;
    image.data.set([...colors.subarray(3 * color, 3 * color + 3), 255], 4 * i);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

const place = (patch) => "row " + (Math.floor(patch / columns) + 1) + ", column " + (patch % columns + 1);
const percent = (part) => (100 * part).toFixed(part < 0.1 ? 1 : 0) + " %";

function queryName() {
  const query = data.queries[state.query];
  return query.name || "patch in " + place(query.patch);
}

function show(name, text) {
  byId(name + "-value").textContent = text;
  byId(name).setAttribute("aria-valuetext", text);
}

function drawAttention() {
  const { weights, elsewhere } = attention();
  const largest = Math.max(...weights);
  const query = data.queries[state.query];
  paint(byId("attention-map"), weights, largest);
  byId("scale-end").textContent = percent(largest);
  show("layer", (state.layer + 1) + " of " + data.layers);
  show("head", state.head ? state.head + " of " + data.heads : "mean of all " + data.heads);
  show("query", queryName());
  byId("said").textContent = "Layer " + (state.layer + 1) + ", " +
    (state.head ? "head " + state.head : "all heads") + ": the " + queryName() + " attends most to the patch in " +
    place(weights.indexOf(largest)) + ", with " + percent(largest) + " of its attention." +
    (data.queries[0].name ? " " + percent(elsewhere) + " goes to tokens that are not patches." : "");
  const mark = byId("mark");
  mark.hidden = query.patch === undefined;
  if (!mark.hidden) {
    mark.style.left = 100 * (query.patch % columns) / columns + "%";
    mark.style.top = 100 * Math.floor(query.patch / columns) / rows + "%";
    mark.style.width = 100 / columns + "%";
    mark.style.height = 100 / rows + "%";
  }
  for (const dot of document.querySelectorAll("circle")) {
    const isCurrent = +dot.dataset.layer === state.layer && (!state.head || +dot.dataset.head === state.head - 1);
    dot.classList.toggle("current", isCurrent);
  }
}

function drawPicture() {
  const picture = data.pictures[state.picture];
  const thumbnail = document.querySelector('[data-picture="' + state.picture + '"] img');
  for (const image of document.querySelectorAll(".stage img")) {
    image.src = thumbnail.src;
    image.alt = picture.name;
    image.className = thumbnail.className;
  }
  byId("picture-name").textContent = picture.name;
  for (const button of document.querySelectorAll("[data-picture]"))
    button.setAttribute("aria-pressed", +button.dataset.picture === state.picture);
  if (picture.rollout) paint(byId("rollout-map"), picture.rollout, 255);
  if (data.queries) drawAttention();
}

// The index of the query patch nearest to a point of the map. The coordinates x and y are from 0 to 1.
function nearestQuery(x, y) {
  let best = 0, least = Infinity;
  data.queries.forEach((query, index) => {
    if (query.patch === undefined) return;
    const distance = Math.hypot(query.patch % columns + 0.5 - x * columns,
      Math.floor(query.patch / columns) + 0.5 - y * rows);
    if (distance < least) [best, least] = [index, distance];
  });
  return best;
}

for (const button of document.querySelectorAll("[data-picture]"))
  button.addEventListener("click", () => { state.picture = +button.dataset.picture; drawPicture(); });

if (data.queries) {
  // Start with the class token, or with a patch in the middle if the model has no class token.
  if (!data.queries[0].name) state.query = nearestQuery(0.5, 0.5);
  state.layer = data.layers - 1; // Start with the last layer, the closest to the output.
  const sliders = { layer: data.layers - 1, head: data.heads, query: data.queries.length - 1 };
  for (const [name, last] of Object.entries(sliders)) {
    const slider = byId(name);
    slider.max = last;
    slider.value = state[name];
    slider.addEventListener("input", () => { state[name] = +slider.value; drawAttention(); });
  }
  byId("attention-stage").addEventListener("click", (event) => {
    const box = byId("attention-map").getBoundingClientRect();
    state.query = nearestQuery((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
    byId("query").value = state.query;
    drawAttention();
  });
  const opacity = byId("opacity");
  const drawOpacity = () => {
    document.documentElement.style.setProperty("--opacity", opacity.value / 100);
    show("opacity", opacity.value + " %");
  };
  opacity.addEventListener("input", drawOpacity);
  drawOpacity();
}
drawPicture();
