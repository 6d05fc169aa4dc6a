"use strict";
// The page of `fairseq-mm serve`: a form for each system that the server has loaded.

const find = (selector, parent = document) => parent.querySelector(selector);
const page = { token: "", limits: {}, systems: [] };

// Kind of a system -> its button, and the functions of its form.
const KINDS = {
  captions: { button: "Write captions", set: setUpCaptions },
  albums: { button: "Tell the story", set: setUpAlbum },
  prompts: { button: "Write the story", set: setUpPrompt },
  summaries: { button: "Summarize", set: setUpSummary },
  search: { button: "Search", set: setUpSearch },
};

// Options that the page offers, where a system has them.
const OPTIONS = {
  count: "Number of images",
  beam: "Width of the beam",
  nbest: "Number of texts",
  sampling: "Sample words",
  sampling_topk: "Sample from the K most probable",
  temperature: "Temperature",
  seed: "Seed",
  min_len: "Least number of tokens",
  max_len_b: "Largest number of tokens",
  max_words_per_sentence: "Largest number of words per sentence",
  no_repeat_ngram_size: "Length of sequences that may not repeat",
  repetition_penalty: "Penalty of repeated words",
};

function element(name, text = "", attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function copyOf(template) {
  return find(`#${template}`).content.cloneNode(true);
}

function say(text) {
  find("#status").textContent = text;
}

// ---- Requests

class Problem extends Error {}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (page.token) headers.Authorization = `Bearer ${page.token}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server cannot be reached.");
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  const problem = new Problem(sentence(answer.error || `The server answers ${response.status}.`));
  problem.status = response.status;
  throw problem;
}

// Makes a sentence of a message: `a.jpg: is empty` becomes "a.jpg is empty."
function sentence(text) {
  const [, name] = text.match(/^([^:\n]+): (?:is|has|cannot|must) /) || [];
  const joined = name ? `${name} ${text.slice(name.length + 2)}` : text;
  // the name of a file keeps its first letter
  const isFile = name ? /\.\w+$/.test(name) : /^\S+[.:]/.test(text);
  const shown = isFile ? joined : joined.charAt(0).toUpperCase() + joined.slice(1);
  return /[.!?]$/.test(shown) ? shown : `${shown}.`;
}

function sendForm(system, fields, options = {}) {
  const form = new FormData();
  form.append("system", system.name);
  for (const [name, value] of fields) form.append(name, value);
  form.append("options", JSON.stringify(options));
  return request(system.path, { method: "POST", body: form }).then((answer) => answer.json());
}

// Reads the server-sent events of an answer; `show` gets each text so far.
async function sendForEvents(system, body, show, signal) {
  const answer = await request(system.path, {
    method: "POST",
    body: JSON.stringify({ ...body, system: system.name }),
    headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
    signal,
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Problem("The server has ended before the text was complete.");
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const [, name, data] = event.match(/^event: (.*)\ndata: (.*)$/);
      const content = JSON.parse(data);
      if (name === "record") return content;
      if (name === "error") throw new Problem(sentence(content.error));
      show(content.text);
    }
  }
}

function checkSize(...files) {
  const bytes = files.reduce((sum, file) => sum + (file ? file.size : 0), 0);
  // a form has some bytes around its files
  if (bytes + 4096 > page.limits.upload_bytes) {
    const most = (page.limits.upload_bytes / 2 ** 20).toFixed();
    const names = files.filter(Boolean).map((file) => file.name);
    const are = names.length > 1 ? "are together" : "is";
    const limit = `the ${most} MiB that the server accepts`;
    throw new Problem(`${names.join(", ")} ${are} larger than ${limit}.`);
  }
}

// ---- Forms

function addOptions(section, system) {
  const fields = find(".fields", section);
  if (system.presets.length) {
    const label = element("label", "Preset");
    const select = element("select", "", { name: "preset" });
    select.append(element("option", "default", { value: "" }));
    for (const name of system.presets) select.append(element("option", name, { value: name }));
    label.append(select);
    fields.append(label);
  }
  for (const [name, text] of Object.entries(OPTIONS)) {
    if (!(name in system.options)) continue;
    const value = system.options[name];
    const label = element("label", typeof value === "boolean" ? "" : text);
    if (typeof value === "boolean") {
      label.className = "check";
      const box = element("input", "", { type: "checkbox", name });
      box.checked = box.defaultChecked = value;
      label.append(box, text);
    } else {
      const attributes = { type: "number", step: "any", name, placeholder: value };
      label.append(element("input", "", attributes));
    }
    fields.append(label);
  }
}

function readOptions(section) {
  const options = {};
  for (const field of section.querySelectorAll(".fields [name]")) {
    if (field.type === "checkbox") {
      if (field.checked !== field.defaultChecked) options[field.name] = field.checked;
    } else if (field.value !== "") {
      options[field.name] = field.type === "number" ? Number(field.value) : field.value;
    }
  }
  // as on the command line
  if ("sampling_topk" in options && !("sampling" in options)) options.sampling = true;
  return options;
}

function addAbout(section, system) {
  const rows = {
    Checkpoint: system.files?.join(", "),
    "SHA-256": system.checkpoint && [].concat(system.checkpoint).join(", "),
    [system.kind === "search" ? "Index" : "Training"]: system.about,
    Vocabulary: system.vocabulary && `${system.vocabulary} symbols`,
    Extractor: system.extractor,
    Defaults: Object.entries(system.options).map(([key, value]) => `${key} ${value}`).join(", "),
  };
  for (const [name, value] of Object.entries(rows)) {
    if (value) find("dl", section).append(element("dt", name), element("dd", value));
  }
}

function addSystem(system) {
  const section = copyOf("system").firstElementChild;
  const id = `system-${page.systems.indexOf(system)}`;
  section.id = id;
  section.classList.add(system.kind);
  find("h2", section).textContent = system.name;
  find("h2", section).id = `${id}-name`;
  section.setAttribute("aria-labelledby", `${id}-name`);
  find(".purpose", section).textContent = system.purpose;
  find(".inputs", section).append(copyOf(system.kind));
  find("button[type=submit]", section).textContent = KINDS[system.kind].button;
  addOptions(section, system);
  addAbout(section, system);
  KINDS[system.kind].set(section, system);
  find("#main").append(section);
  const link = element("a", system.name, { href: `#${id}` });
  find("#systems").append(link);
}

// Runs the work of a form once at a time, and shows its problem as a sentence.
function onSubmit(section, work) {
  const form = find("form", section);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = find("button[type=submit]", form);
    if (button.disabled) return;
    button.disabled = true;
    find(".problem", form).textContent = "";
    try {
      await work();
    } catch (error) {
      showProblem(section, error);
    }
    button.disabled = false;
  });
}

function showProblem(section, error) {
  if (!(error instanceof Problem)) throw error;
  find("form > .problem", section).textContent = error.message;
}

// Files that are dropped on a form are given to `take`.
function onDrop(section, take) {
  const zone = find(".drop", section);
  const isFiles = (event) => [...event.dataTransfer.types].includes("Files");
  for (const name of ["dragenter", "dragover"]) {
    zone.addEventListener(name, (event) => {
      if (!isFiles(event)) return;
      event.preventDefault();
      zone.classList.add("over");
    });
  }
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    zone.classList.remove("over");
    if (!isFiles(event)) return;
    event.preventDefault();
    take([...event.dataTransfer.files]);
  });
}

function pictureOf(file, alt) {
  const picture = element("img", "", { alt });
  picture.src = URL.createObjectURL(file);
  picture.addEventListener("error", () => picture.remove());
  return picture;
}

function addResult(section) {
  const result = element("li");
  find(".results", section).prepend(result);
  return result;
}

function showTexts(result, record) {
  const texts = record.hypotheses || [record];
  const list = element(texts.length > 1 ? "ol" : "div");
  for (const { hypothesis, score } of texts) {
    const item = element(texts.length > 1 ? "li" : "div");
    item.append(element("p", hypothesis, { class: "text" }));
    item.append(element("span", `score ${score}`, { class: "score" }));
    list.append(item);
  }
  result.append(list);
}

// ---- Captions of images

function setUpCaptions(section, system) {
  const input = find("input[name=image]", section);
  const take = (files) => {
    // in the order of choosing, below the images that were chosen before
    const results = files.map(() => element("li"));
    find(".results", section).append(...results);
    files.forEach((file, place) => captionImage(results[place], section, system, file));
    results[0]?.scrollIntoView({ block: "nearest" });
  };
  input.addEventListener("change", () => {
    take([...input.files]);
    // so that the same image can be chosen again with other options
    input.value = "";
  });
  onDrop(section, take);
  find("button[type=submit]", section).hidden = true;
  find("form", section).addEventListener("submit", (event) => event.preventDefault());
}

async function captionImage(result, section, system, file) {
  result.setAttribute("aria-busy", "true");
  result.append(pictureOf(file, file.name), element("span", file.name, { class: "name" }));
  const waiting = element("p", "Waiting …", { class: "quiet" });
  result.append(waiting);
  try {
    checkSize(file);
    const record = await sendForm(system, [["image", file]], readOptions(section));
    showTexts(result, record);
    say(`Caption of ${file.name}: ${record.hypothesis}`);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    result.append(element("p", error.message, { class: "problem", role: "alert" }));
  }
  waiting.remove();
  result.removeAttribute("aria-busy");
}

// ---- Stories of five images

function setUpAlbum(section, system) {
  const count = 5;
  const input = find("input[name=images]", section);
  const slots = find(".slots", section);
  let files = [];
  let dragged = null;

  function show(focus) {
    slots.replaceChildren();
    files.forEach((file, place) => {
      const slot = copyOf("slot").firstElementChild;
      const title = `${file.name}, image ${place + 1}`;
      find("img", slot).replaceWith(pictureOf(file, title));
      find(".name", slot).textContent = `${place + 1}. ${file.name}`;
      addTools(slot, title, place);
      slots.append(slot);
    });
    if (focus) find(`li:nth-child(${focus.place + 1}) ${focus.button}`, slots)?.focus();
  }

  function addTools(slot, title, place) {
    const tools = { ".earlier": place - 1, ".later": place + 1, ".remove": null };
    const names = { ".earlier": "earlier", ".later": "later", ".remove": "away" };
    for (const [selector, target] of Object.entries(tools)) {
      const button = find(selector, slot);
      button.setAttribute("aria-label", `Move ${title} ${names[selector]}`);
      button.disabled = target !== null && (target < 0 || target >= files.length);
      button.addEventListener("click", () => {
        if (target === null) files.splice(place, 1);
        else move(place, target);
        // the button may be disabled at its new place
        const isEnd = target === 0 || target === files.length - 1;
        const other = selector === ".earlier" ? ".later" : ".earlier";
        const next = target === null ? Math.min(place, files.length - 1) : target;
        show({ place: next, button: isEnd && target !== null ? other : selector });
        say(target === null ? `Removed ${title}.` : `Moved to place ${target + 1}.`);
      });
    }
    slot.addEventListener("dragstart", () => { dragged = place; });
    slot.addEventListener("dragend", () => { dragged = null; });
    slot.addEventListener("dragover", (event) => { if (dragged !== null) event.preventDefault(); });
    slot.addEventListener("drop", (event) => {
      if (dragged === null) return;
      event.preventDefault();
      event.stopPropagation();
      move(dragged, place);
      show();
    });
  }

  function move(from, to) {
    files.splice(to, 0, ...files.splice(from, 1));
  }

  function take(added) {
    files = [...files, ...added];
    const left = files.splice(count);
    show();
    const number = left.length === 1 ? "1 was" : `${left.length} were`;
    const problem = `A story has ${count} images; ${number} left out.`;
    find("form > .problem", section).textContent = left.length ? problem : "";
  }

  input.addEventListener("change", () => {
    take([...input.files]);
    input.value = "";
  });
  onDrop(section, take);
  onSubmit(section, async () => {
    if (files.length !== count) {
      throw new Problem(`A story has ${count} images, but there are ${files.length}.`);
    }
    checkSize(...files);
    const shown = [...files];
    say("Waiting for the story …");
    const fields = shown.map((file) => ["images", file]);
    const record = await sendForm(system, fields, readOptions(section));
    const result = addResult(section);
    const strip = element("ol", "", { class: "strip" });
    shown.forEach((file, place) => {
      const item = element("li");
      item.append(pictureOf(file, file.name), element("p", record.sentences[place]));
      strip.append(item);
    });
    result.append(strip, element("span", `score ${record.score}`, { class: "score" }));
    say(`Story: ${record.sentences.join(" ")}`);
  });
}

// ---- Stories of prompts

function setUpPrompt(section, system) {
  const field = find("textarea[name=prompt]", section);
  const stop = find(".stop", section);
  if (!system.reads_prompt) field.closest("label").remove();
  onSubmit(section, async () => {
    const result = addResult(section);
    result.setAttribute("aria-busy", "true");
    const text = element("p", "", { class: "text" });
    if (system.reads_prompt) result.append(element("p", field.value, { class: "quiet" }));
    result.append(text);
    const controller = new AbortController();
    stop.hidden = false;
    stop.onclick = () => controller.abort();
    say("Writing …");
    const body = { options: readOptions(section) };
    if (system.reads_prompt) body.prompt = field.value;
    const show = (soFar) => { text.textContent = soFar; };
    try {
      const record = await sendForEvents(system, body, show, controller.signal);
      text.remove();
      showTexts(result, record);
      if (record.unknown_words?.length) {
        const words = `Words that the model does not know: ${record.unknown_words.join(", ")}`;
        result.append(element("p", words, { class: "quiet" }));
      }
      say("The story is complete.");
    } catch (error) {
      if (error.name === "AbortError") say("Stopped.");
      else {
        if (!text.textContent) result.remove();
        throw error;
      }
    } finally {
      stop.hidden = true;
      result.removeAttribute("aria-busy");
    }
  });
}

// ---- Summaries of videos

function setUpSummary(section, system) {
  const video = find("input[name=video]", section);
  const text = find("textarea[name=transcript]", section);
  const file = find("input[name=transcript_file]", section);
  if (!system.reads_video) find(".video", section).remove();
  onDrop(section, (files) => {
    for (const dropped of files) {
      const transfer = new DataTransfer();
      transfer.items.add(dropped);
      const target = /\.(srt|vtt|txt)$/i.test(dropped.name) ? file : video;
      target.files = transfer.files;
    }
  });
  onSubmit(section, async () => {
    checkSize(video.files[0], file.files[0]);
    const fields = [];
    if (system.reads_video && video.files.length) fields.push(["video", video.files[0]]);
    if (file.files.length) fields.push(["transcript", file.files[0]]);
    else if (text.value.trim()) fields.push(["transcript", text.value]);
    say("Waiting for the summary …");
    const record = await sendForm(system, fields, readOptions(section));
    const result = addResult(section);
    result.append(element("p", String(record.id), { class: "name" }));
    showTexts(result, record);
    const facts = [`${record.transcript_tokens} tokens of transcript`];
    if (record.transcript_tokens_cut) facts.push(`${record.transcript_tokens_cut} cut off`);
    if (record.frames) facts.push(`${record.frames} frames`);
    result.append(element("p", facts.join(", "), { class: "quiet" }));
    say(`Summary: ${record.hypothesis}`);
  });
}

// ---- Search

function setUpSearch(section, system) {
  const text = find("input[name=query]", section);
  const image = find("input[name=image]", section);
  onDrop(section, ([file]) => {
    const transfer = new DataTransfer();
    transfer.items.add(file);
    image.files = transfer.files;
    text.value = "";
  });
  // one of the two
  text.addEventListener("input", () => { image.value = ""; });
  image.addEventListener("change", () => { text.value = ""; });
  onSubmit(section, async () => {
    checkSize(image.files[0]);
    const fields = image.files.length ? [["image", image.files[0]]] : [["query", text.value]];
    const options = { ...readOptions(section), thumbnails: true };
    say("Searching …");
    const record = await sendForm(system, fields, options);
    const result = addResult(section);
    result.append(element("h3", record.query));
    if (record.unknown_words.length) {
      const words = `Words that the model does not know: ${record.unknown_words.join(", ")}`;
      result.append(element("p", words, { class: "quiet" }));
    }
    const list = element("ol", "", { class: "strip" });
    for (const { id, score, thumbnail } of record.images) {
      const item = element("li");
      const picture = element("img", "", { alt: id });
      picture.src = thumbnail;
      item.append(picture, element("p", id, { class: "name" }));
      item.append(element("span", score.toFixed(4), { class: "score" }));
      list.append(item);
    }
    result.append(list);
    say(`Found ${record.images.length} images for ${record.query}.`);
  });
}

// ---- Start

async function start() {
  const form = find("#token-form");
  try {
    const about = await (await request("/api/systems")).json();
    Object.assign(page, { limits: about.limits, systems: about.systems });
    form.hidden = true;
    find("#version").textContent = `Version ${about.version}.`;
    find("#systems").hidden = page.systems.length < 2;
    page.systems.forEach(addSystem);
    say("");
    // from here on, the page shows what screen readers read
    find("#status").className = "heard";
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    const isAsked = error.status === 401;
    form.hidden = !isAsked;
    if (isAsked && page.token) find(".problem", form).textContent = error.message;
    say(isAsked ? "" : error.message);
    if (isAsked) find("#token").focus();
  }
}

find("#token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  page.token = find("#token").value.trim();
  start();
});
// a file that is dropped beside a form would be opened in place of the page
for (const name of ["dragover", "drop"]) {
  window.addEventListener(name, (event) => event.preventDefault());
}
start();
