(function () {
  // a link to a folded section opens it
  function unfold() {
    var section = location.hash && document.getElementById(location.hash.slice(1));
    var details = section && section.querySelector('details');
    if (details && details.parentElement === section) details.open = true;
    if (section) section.scrollIntoView();
  }
  window.addEventListener('hashchange', unfold);
  unfold();
})();
