(function () {
  var gallery = document.querySelector('.gallery');
  var items = Array.prototype.slice.call(gallery.children).map(function (card, place) {
    return { card: card, place: place, text: null, numbers: null,
      faults: card.dataset.faults.split(' ') };
  });
  var order = document.getElementById('order'), words = document.getElementById('words');
  var direction = document.getElementById('direction'), fault = document.getElementById('fault');
  var shown = document.getElementById('shown'), falling = false, timer = 0;
  function number(item, index) {
    if (!item.numbers) item.numbers = JSON.parse(item.card.dataset.numbers);
    return item.numbers[index];
  }
  function sort() {
    var index = Number(order.value);
    direction.disabled = index < 0;
    direction.textContent = falling ? 'highest first' : 'lowest first';
    var sorted = items.slice();
    if (index >= 0) sorted.sort(function (a, b) {
      var x = number(a, index), y = number(b, index);
      // items without a number come last
      if (x === null || y === null) return (x === null) - (y === null) || a.place - b.place;
      return (falling ? y - x : x - y) || a.place - b.place;
    });
    var all = document.createDocumentFragment();
    sorted.forEach(function (item) { all.appendChild(item.card); });
    gallery.appendChild(all);
  }
  function filter() {
    var wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean), count = 0;
    items.forEach(function (item) {
      if (wanted.length && item.text === null) item.text = item.card.textContent.toLowerCase();
      var fits = wanted.every(function (word) { return item.text.indexOf(word) >= 0; });
      if (fault && fault.value) fits = fits && item.faults.indexOf(fault.value) >= 0;
      if (item.card.hidden === fits) item.card.hidden = !fits;
      count += fits;
    });
    shown.textContent = count.toLocaleString('en') + ' of '
      + items.length.toLocaleString('en') + ' items';
  }
  order.addEventListener('change', sort);
  direction.addEventListener('click', function () { falling = !falling; sort(); });
  words.addEventListener('input', function () { clearTimeout(timer); timer = setTimeout(filter, 80); });
  if (fault) fault.addEventListener('change', filter);
  document.querySelector('.bar').hidden = false;
  filter();
})();
