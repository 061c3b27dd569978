// The page at /: images in, their similarity matrix and nearest neighbours out. No library, nothing from elsewhere.
"use strict";

const AT_A_TIME = 16; // images of one request
const LARGEST = 10 * 2 ** 20; // bytes of an image, as serve/limits.py has it
const AT_MOST = 31 * 2 ** 20; // bytes of one request's images, which leaves room for the form around them
const NEIGHBOURS = 5;
const $ = (id) => document.getElementById(id);
let images = []; // {name, url, file}
let turn = 0; // the latest question; answers to earlier ones are dropped

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if ($("key").value) headers.authorization = `Bearer ${$("key").value}`;
  const response = await fetch(path, { ...options, headers });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error.message);
  return answer;
}

async function listModels() {
  const answer = await ask("v1/models");
  $("model").replaceChildren(...answer.data.map((row) => make("option", { value: row.id, textContent: row.id })));
  const indexes = (await ask("v1/indexes")).data;
  for (const option of $("model").options) option.dataset.index = (indexes.find((row) => row.model === option.value) || { id: "" }).id;
}

async function embed(chunk, model) {
  const form = new FormData();
  for (const image of chunk) form.append("images", image.file, image.name);
  const query = new URLSearchParams({ model, normalize: "true", on_error: "skip" });
  return ask(`v1/embed?${query}`, { method: "POST", body: form });
}

async function update() {
  const mine = ++turn;
  $("errors").replaceChildren();
  if (!images.length) return show([], [], "No images yet.");
  $("status").textContent = `Embedding ${images.length} images`;
  try {
    if (!$("model").value) await listModels();
    const good = [], rows = [], bad = [], fit = [];
    for (const image of [...images]) {
      const fault = await faultOf(image.file);
      if (fault) bad.push(`${image.name}: ${fault}`);
      else fit.push(image);
    }
    for (const chunk of portions(fit)) {
      const answer = await embed(chunk, $("model").value);
      answer.index.forEach((place, i) => { good.push(chunk[place]); rows.push(answer.embeddings[i]); });
      bad.push(...answer.errors.map((error) => `${chunk[error.index].name}: ${error.message.replace(/^image \d+: /, "")}`));
    }
    if (mine !== turn) return;
    $("errors").replaceChildren(...bad.map((reason) => make("p", { textContent: reason })));
    show(good, rows, `${good.length} images compared by ${$("model").value}, ${bad.length} left out.`);
    await searchIndex(good, mine);
  } catch (error) {
    if (mine !== turn) return;
    $("errors").replaceChildren(make("p", { textContent: error.message }));
    $("status").textContent = "No answer.";
  }
}

// Why a file cannot be sent; nothing if it can. The browser sends nothing at all if one file of a form cannot be read.
async function faultOf(file) {
  if (file.size > LARGEST) return `larger than ${LARGEST.toLocaleString("en")} bytes`;
  try {
    await file.slice(0, 1).arrayBuffer();
  } catch {
    return "cannot be read: a folder, or a file that was changed or deleted since it was added";
  }
}

function portions(fit) {
  const chunks = [];
  let bytes = Infinity; // of the last chunk
  for (const image of fit) {
    if (bytes + image.file.size > AT_MOST || chunks.at(-1).length === AT_A_TIME) {
      chunks.push([]);
      bytes = 0;
    }
    chunks.at(-1).push(image);
    bytes += image.file.size;
  }
  return chunks;
}

function show(good, rows, status) {
  const cosines = rows.map((a) => rows.map((b) => a.reduce((sum, x, i) => sum + x * b[i], 0)));
  $("matrix").replaceChildren(...(good.length ? [matrix(good, cosines)] : []));
  $("nearest").replaceChildren(...good.map((image, i) => nearest(image, i, good, cosines[i])));
  $("results").hidden = !good.length;
  $("status").textContent = status;
}

function picture(image) {
  const name = make("div", { className: "name", title: image.name, textContent: image.name });
  return make("div", { className: "picture" }, make("img", { src: image.url, alt: "" }), name);
}

function matrix(good, cosines) {
  const head = make("tr", {}, make("td"), ...good.map((image) => make("th", { scope: "col" }, picture(image))));
  const body = good.map((image, i) => make("tr", {}, make("th", { scope: "row" }, picture(image)), ...cosines[i].map(cell)));
  return make("table", {}, make("caption", { textContent: "Cosine of every image with every other" }), make("thead", {}, head), make("tbody", {}, ...body));
}

function cell(cosine) {
  const td = make("td", { className: "number", textContent: cosine.toFixed(3) });
  td.style.backgroundColor = `hsl(210 80% ${100 - 45 * Math.max(0, cosine)}%)`; // light enough for black digits
  return td;
}

function nearest(image, i, good, cosines) {
  const order = cosines.map((_, j) => j).filter((j) => j !== i).sort((a, b) => cosines[b] - cosines[a]).slice(0, NEIGHBOURS);
  return make("li", {}, picture(image), neighbours("among these", order.map((j) => [good[j].name, cosines[j]])));
}

function neighbours(where, found) {
  const pairs = found.map(([name, cosine]) => make("span", { className: "pair", textContent: `${name} (${cosine.toFixed(3)})` }));
  if (!pairs.length) return make("div", { textContent: `${where}: nothing to compare with yet` });
  return make("div", {}, `${where}: `, ...pairs.flatMap((pair, i) => (i ? [", ", pair] : [pair])));
}

async function searchIndex(good, mine) {
  const index = $("model").selectedOptions[0].dataset.index;
  if (!index) return;
  for (const [i, image] of good.entries()) {
    const body = JSON.stringify({ image: await base64(image.file), k: NEIGHBOURS, index });
    const answer = await ask("v1/search", { method: "POST", body, headers: { "content-type": "application/json" } });
    if (mine !== turn) return;
    $("nearest").children[i].append(neighbours(`in ${index}`, answer.neighbours.map((row) => [row.path, row.similarity])));
  }
}

async function base64(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let start = 0; start < bytes.length; start += 32768) text += String.fromCharCode(...bytes.subarray(start, start + 32768));
  return btoa(text);
}

function add(files) {
  images.push(...[...files].map((file) => ({ name: file.name, file, url: URL.createObjectURL(file) })));
  update();
}

$("files").addEventListener("change", (event) => { add(event.target.files); event.target.value = ""; });
$("clear").addEventListener("click", () => { images.forEach((image) => URL.revokeObjectURL(image.url)); images = []; update(); });
$("model").addEventListener("change", update);
$("key").addEventListener("change", () => listModels().then(update, (error) => $("errors").replaceChildren(make("p", { textContent: error.message }))));
$("form").addEventListener("submit", (event) => event.preventDefault());
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => { event.preventDefault(); $("drop").classList.toggle("over", kind === "dragover"); });
}
document.addEventListener("drop", (event) => add(event.dataTransfer.files));
listModels().catch((error) => { $("status").textContent = error.message; });
