(() => {
  const form = document.getElementById("study"), annotator = document.getElementById("annotator");
  const columns = form.dataset.columns.split(",");
  const cards = [...document.querySelectorAll(".question")];
  const place = "study-" + form.dataset.name;
  const chosen = (card) => columns.map((column) => {
    const box = form.elements[card.dataset.name + "-" + column];
    return box && box.value || "";
  });
  const isWhole = (values) => values.every(Boolean) && new Set(values).size === values.length;
  const quoted = (text) => '"' + text.replace(/"/g, '""') + '"';
  const refresh = () => {
    let count = 0;
    for (const card of cards) {
      const values = chosen(card), given = values.filter(Boolean);
      const whole = isWhole(values);
      count += whole;
      card.classList.toggle("answered", whole);
      card.querySelector(".warning").textContent =
        new Set(given).size < given.length ? "Each prompt belongs to one story only." : "";
    }
    document.getElementById("progress").textContent = count + " of " + cards.length + " answered";
    try {
      localStorage.setItem(place, JSON.stringify({
        annotator: annotator.value, values: cards.map(chosen) }));
    } catch (error) { /* no storage for local files in some browsers */ }
  };
  const table = () => {
    const lines = [["annotator", "question", ...columns].join(",")];
    for (const card of cards) {
      const values = chosen(card);
      if (isWhole(values))
        lines.push([quoted(annotator.value.trim()), card.dataset.name, ...values].join(","));
    }
    return lines.join("\n") + "\n";
  };
  try {
    const kept = JSON.parse(localStorage.getItem(place));
    annotator.value = kept.annotator;
    cards.forEach((card, i) => columns.forEach((column, j) => {
      const box = form.elements[card.dataset.name + "-" + column];
      if (kept.values[i][j]) box.value = kept.values[i][j];
    }));
  } catch (error) { /* nothing kept */ }
  form.addEventListener("input", refresh);
  form.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("next").addEventListener("click", () => {
    const open = cards.find((card) => !isWhole(chosen(card)));
    if (open) open.scrollIntoView({ behavior: "smooth" });
  });
  const named = () => annotator.value.trim() || (annotator.reportValidity(), false);
  document.getElementById("download").addEventListener("click", () => {
    if (!named()) return;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([table()], { type: "text/csv" }));
    link.download = "answers-" + annotator.value.trim().replace(/[^\w.-]+/g, "_") + ".csv";
    link.click();
  });
  document.getElementById("copy").addEventListener("click", () => {
    if (!named()) return;
    const text = document.getElementById("text");
    text.hidden = false;
    text.value = table();
    text.select();
  });
  refresh();
})();
