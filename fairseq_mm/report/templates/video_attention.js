document.querySelectorAll(".watch .map").forEach((map) => {
  const canvas = document.createElement("canvas");
  const box = map.closest(".watch"), seen = box.nextElementSibling;
  const words = [...box.querySelectorAll(".words div")].map((word) => word.textContent);
  let pixels = null;
  map.addEventListener("mousemove", (event) => {
    if (!pixels) {
      canvas.width = map.naturalWidth; canvas.height = map.naturalHeight;
      const context = canvas.getContext("2d");
      context.drawImage(map, 0, 0);
      pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
    }
    const at = map.getBoundingClientRect();
    const x = Math.min(canvas.width - 1, Math.max(0, Math.floor(
      (event.clientX - at.left) / at.width * canvas.width)));
    const y = Math.min(canvas.height - 1, Math.max(0, Math.floor(
      (event.clientY - at.top) / at.height * canvas.height)));
    const least = Number(map.dataset.least), strongest = Number(map.dataset.strongest);
    const opacity = pixels[4 * (y * canvas.width + x) + 3] / 255;
    const share = least + opacity * (strongest - least);
    const step = Number(map.dataset.step);
    const where = step ? (x * step).toFixed(1) + " s" : "row " + x;
    seen.textContent = words[y] + ", " + where + ": " + share.toPrecision(3) + " %";
  });
});
