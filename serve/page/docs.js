// Sends the example requests of the documentation and shows the answers.
"use strict";

async function send(form) {
  const key = document.getElementById("key").value;
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const options = { method: form.dataset.method, headers };
  if (form.elements.body) {
    options.body = form.elements.body.value;
    headers["content-type"] = "application/json";
  } else if (form.elements.files) {
    options.body = new FormData();
    const sample = Uint8Array.from(atob(form.dataset.sample), (c) => c.charCodeAt(0));
    const files = form.elements.files.files.length ? [...form.elements.files.files] : [new File([sample], "sample.png", { type: "image/png" })];
    for (const file of files) options.body.append("images", file, file.name);
  }
  const response = await fetch(form.dataset.path, options);
  return `${response.status} ${response.statusText}\n${short(await response.text())}`;
}

// Embeddings have hundreds of numbers; the first ones show the shape.
function short(text) {
  const cut = (value) => (Array.isArray(value) && value.length > 6 ? [...value.slice(0, 4).map(cut), `... ${value.length} in all`] : value);
  try {
    return JSON.stringify(JSON.parse(text, (_, value) => cut(value)), null, 1);
  } catch {
    return text.slice(0, 2000);
  }
}

for (const form of document.forms) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const out = form.querySelector("pre");
    out.hidden = false;
    out.textContent = "...";
    out.textContent = await send(form).catch((error) => error.message);
  });
}
