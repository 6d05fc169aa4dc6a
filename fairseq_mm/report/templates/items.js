(function () {
  var gallery = document.querySelector('.bar + .gallery'), cards = Array.from(gallery.children);
  var order = document.getElementById('order'), words = document.getElementById('words');
  var direction = document.getElementById('direction'), falling = false;
  var numbers = new Map(cards.map(function (card) {
    return [card, JSON.parse(card.dataset.numbers)];
  }));
  function filter() {
    var wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean), count = 0;
    cards.forEach(function (card) {
      var text = wanted.length ? card.textContent.toLowerCase() : '';
      card.hidden = !wanted.every(function (word) { return text.indexOf(word) >= 0; });
      count += !card.hidden;
    });
    document.getElementById('shown').textContent = count + ' of ' + cards.length + ' items';
  }
  function sort() {
    var index = Number(order.value), sorted = cards.slice();
    direction.disabled = index < 0;
    direction.textContent = falling ? 'highest first' : 'lowest first';
    if (index >= 0) sorted.sort(function (a, b) {
      var x = numbers.get(a)[index], y = numbers.get(b)[index];
      // items without a number come last
      if (x === null || y === null) return (x === null) - (y === null);
      return falling ? y - x : x - y;
    });
    gallery.replaceChildren.apply(gallery, sorted);
  }
  order.addEventListener('change', sort);
  direction.addEventListener('click', function () { falling = !falling; sort(); });
  words.addEventListener('input', filter);
  document.querySelector('.bar').hidden = false;
  filter();
})();
