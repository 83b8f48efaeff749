// Before the page is drawn, so that a chosen scheme does not flash.
(() => {
  "use strict";
  const theme = localStorage.getItem("ems-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
