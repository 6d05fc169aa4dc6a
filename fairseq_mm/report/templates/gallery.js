(function () {
  var gallery = document.querySelector('.gallery');
  var items = Array.prototype.slice.call(gallery.children);
  var order = document.getElementById('order'), words = document.getElementById('words');
  var shown = document.getElementById('shown');
  function score(item, name) {
    var text = item.getAttribute('data-scores');
    var value = text ? JSON.parse(text)[name] : undefined;
    return typeof value === 'number' ? value : NaN;
  }
  function sort() {
    var choice = JSON.parse(order.value), sorted = items.slice();
    if (choice) sorted = items.map(function (item, place) {
      return [score(item, choice[0]), place, item];
    }).sort(function (a, b) {
      if (isNaN(a[0]) || isNaN(b[0])) return isNaN(a[0]) - isNaN(b[0]) || a[1] - b[1];
      return (choice[1] ? b[0] - a[0] : a[0] - b[0]) || a[1] - b[1];
    }).map(function (entry) { return entry[2]; });
    sorted.forEach(function (item) { gallery.appendChild(item); });
  }
  function filter() {
    var wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean), count = 0;
    items.forEach(function (item) {
      var text = item.textContent.toLowerCase();
      item.hidden = !wanted.every(function (word) { return text.indexOf(word) >= 0; });
      count += !item.hidden;
    });
    shown.textContent = count + ' of ' + items.length + ' items';
  }
  order.addEventListener('change', sort);
  words.addEventListener('input', filter);
  document.querySelector('.bar').hidden = false;
  sort(); filter();
})();
