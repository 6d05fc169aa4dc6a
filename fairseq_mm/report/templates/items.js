(function () {
  var gallery = document.querySelector('.gallery'), more = document.getElementById('more');
  function children(part) { return Array.prototype.slice.call(part.children); }
  var cards = more ? children(gallery).slice(0, -1).concat(children(more.content))
    : children(gallery);
  var PAGE = more ? children(gallery).length - 1 : cards.length;
  var items = cards.map(function (card) {
    return { card: card, text: null, numbers: null, faults: card.dataset.faults.split(' ') };
  });
  var order = document.getElementById('order'), words = document.getElementById('words');
  var direction = document.getElementById('direction'), fault = document.getElementById('fault');
  var shown = document.getElementById('shown'), falling = false, timer = 0;
  var turners = Array.prototype.slice.call(document.querySelectorAll('[data-turn]'));
  var sorted = items, fitting = items, first = 0;
  function number(item, index) {
    if (!item.numbers) item.numbers = JSON.parse(item.card.dataset.numbers);
    return item.numbers[index];
  }
  function count(value) { return value.toLocaleString('en'); }
  // only a page of the cards is in the document: with thousands, every step of scrolling is slow
  function show(start) {
    first = start;
    var cards = fitting.slice(first, first + PAGE).map(function (item) { return item.card; });
    gallery.replaceChildren.apply(gallery, cards);
    var last = first + cards.length;
    shown.textContent = (cards.length ? count(first + 1) + '–' + count(last) + ' of ' : '')
      + count(fitting.length) + (fitting.length === 1 ? ' item' : ' items')
      + (fitting.length < items.length ? ' (' + count(items.length) + ' in all)' : '');
    turners.forEach(function (button) {
      var back = button.dataset.turn < 0;
      button.disabled = back ? first === 0 : last >= fitting.length;
      button.hidden = fitting.length <= PAGE;
    });
  }
  function filter() {
    var wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    fitting = sorted.filter(function (item) {
      if (fault && fault.value && item.faults.indexOf(fault.value) < 0) return false;
      if (wanted.length && item.text === null) {
        item.text = '';
        item.card.querySelectorAll('.hypothesis, .below').forEach(function (part) {
          item.text += ' ' + part.textContent.toLowerCase();
        });
      }
      return wanted.every(function (word) { return item.text.indexOf(word) >= 0; });
    });
    show(0);
  }
  function sort() {
    var index = Number(order.value);
    direction.disabled = index < 0;
    direction.textContent = falling ? 'highest first' : 'lowest first';
    sorted = items.slice();
    if (index >= 0) sorted.sort(function (a, b) {
      var x = number(a, index), y = number(b, index);
      // items without a number come last
      if (x === null || y === null) return (x === null) - (y === null);
      return falling ? y - x : x - y;
    });
    filter();
  }
  order.addEventListener('change', sort);
  direction.addEventListener('click', function () { falling = !falling; sort(); });
  words.addEventListener('input', function () { clearTimeout(timer); timer = setTimeout(filter, 80); });
  if (fault) fault.addEventListener('change', filter);
  turners.forEach(function (button) {
    button.addEventListener('click', function () {
      show(first + PAGE * button.dataset.turn);
      gallery.previousElementSibling.scrollIntoView();
    });
  });
  document.querySelector('.bar').hidden = false;
  filter();
})();
