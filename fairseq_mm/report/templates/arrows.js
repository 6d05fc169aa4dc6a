document.querySelectorAll('.arrows svg').forEach(function (svg) {
  var note = svg.closest('figure').querySelector('span');
  function of(event) {
    var cell = event.target.getAttribute('data-cell');
    return cell === null ? null : svg.querySelector('g[data-from="' + cell + '"]');
  }
  function mark(name, group) {
    svg.querySelectorAll('g.' + name).forEach(function (g) { g.classList.remove(name); });
    if (group) group.classList.add(name);
    svg.classList.toggle('trying', svg.querySelector('g.tried') !== null);
    var shown = svg.querySelector('g.tried') || svg.querySelector('g.chosen');
    note.textContent = shown.getAttribute('data-note');
  }
  svg.addEventListener('pointerover', function (event) { mark('tried', of(event)); });
  svg.addEventListener('pointerleave', function () { mark('tried', null); });
  svg.addEventListener('click', function (event) {
    var group = of(event);
    if (group) { mark('chosen', group); mark('tried', null); }
  });
});
