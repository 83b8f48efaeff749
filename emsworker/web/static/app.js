// Refreshing, keys, selection and colours. Without this script every page and every action still works.
(() => {
  "use strict";
  const byId = (id) => document.getElementById(id);
  const root = document.documentElement;

  // -- refreshing: not while the window is in the back, while somebody types, or while rows are selected ---------------
  const every = byId("every");
  const dot = byId("dot");
  const kept = localStorage.getItem("ems-every");
  if (kept !== null && [...every.options].some((one) => one.value === kept)) every.value = kept;
  let blurred = !document.hasFocus();
  let waited = 0;
  const fields = "input:not([type=checkbox]):not([type=hidden]), textarea, select";
  const typing = () => document.activeElement !== null && document.activeElement.matches(fields);
  const changed = () =>
    [...document.querySelectorAll("#live input:not([type=hidden]):not([type=checkbox])")].some((one) => one.value !== one.defaultValue);
  const selected = () => document.querySelectorAll("#live input[name=place]:checked").length;
  const paused = () => {
    if (every.value === "0") return "off";
    if (document.hidden || blurred) return "paused: the window is in the back";
    if (typing() || changed()) return "paused: somebody types";
    if (selected() > 0) return "paused: rows are selected";
    if (document.querySelector("dialog[open]")) return "paused: a dialog is open";
    return "";
  };
  const refresh = () => {
    waited = 0;
    byId("live")?.dispatchEvent(new CustomEvent("ems-refresh"));
  };
  const show = () => {
    const why = paused();
    dot.className = why ? "dot still" : "dot";
    dot.parentElement.title = why ? `Refreshing is ${why}` : `Refreshes every ${every.value} s`;
    return why;
  };
  every.addEventListener("change", () => { localStorage.setItem("ems-every", every.value); every.blur(); waited = 0; show(); });
  window.addEventListener("blur", () => { blurred = true; show(); });
  window.addEventListener("focus", () => { blurred = false; show(); });
  document.addEventListener("visibilitychange", show);
  setInterval(() => { if (!show() && ++waited >= Number(every.value)) refresh(); }, 1000);
  document.addEventListener("htmx:after:swap", () => { root.dataset.refreshed = String(Number(root.dataset.refreshed || 0) + 1); labelCells(); count(); });

  // -- tables: on a small screen each cell shows the title of its column (app.css), and stays a cell for readers --------
  const roles = { TABLE: "table", THEAD: "rowgroup", TBODY: "rowgroup", TR: "row", TD: "cell" };
  function labelCells() {
    for (const table of document.querySelectorAll("main table")) {
      const titles = [...(table.tHead?.rows[0]?.cells ?? [])].map((one) => one.textContent.trim());
      if (titles.length === 0) continue;
      for (const one of [table, ...table.querySelectorAll("thead, tbody, tr, td, th")]) {
        const role = roles[one.tagName] || (one.scope === "col" ? "columnheader" : "rowheader");
        one.setAttribute("role", role);
        if ((role === "cell" || role === "rowheader") && titles[one.cellIndex]) one.dataset.label = titles[one.cellIndex];
      }
      table.classList.add("labelled");
    }
  }

  // -- filters: folded where they would fill the screen ------------------------------------------------------------------
  if (matchMedia("(max-width: 800px)").matches) for (const one of document.querySelectorAll(".filters")) one.open = false;

  // -- selection --------------------------------------------------------------------------------------------------------
  function count() {
    const number = selected();
    for (const button of document.querySelectorAll("[data-needs]")) {
      button.disabled = number === 0;
      const place = button.querySelector(".n");
      if (place) place.textContent = number ? `(${number})` : "";
    }
    const all = byId("every-row");
    if (all) {
      const rows = document.querySelectorAll("#live input[name=place]").length;
      all.checked = rows > 0 && number === rows;
      all.indeterminate = number > 0 && number < rows;
    }
  }
  document.addEventListener("change", (event) => {
    if (event.target.id === "every-row")
      for (const one of document.querySelectorAll("#live input[name=place]")) one.checked = event.target.checked;
    count();
    show();
  });
  document.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.confirm;
    if (question && !window.confirm(question)) event.preventDefault();
  });

  // -- colours ----------------------------------------------------------------------------------------------------------
  const button = byId("theme");
  const themes = ["system", "light", "dark"];
  const name = () => root.dataset.theme || "system";
  const label = () => { button.setAttribute("aria-label", `Colours: ${name() === "system" ? "as the system" : name()}`); };
  const turn = () => {
    const next = themes[(themes.indexOf(name()) + 1) % themes.length];
    if (next === "system") { delete root.dataset.theme; localStorage.removeItem("ems-theme"); }
    else { root.dataset.theme = next; localStorage.setItem("ems-theme", next); }
    label();
  };
  button.addEventListener("click", turn);
  label();

  // -- keys -------------------------------------------------------------------------------------------------------------
  const keys = byId("keys");
  byId("help").addEventListener("click", () => keys.showModal());
  let going = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
    if (event.key === "Escape" && typing()) { document.activeElement.blur(); return; }
    if (typing()) return;
    if (Date.now() - going < 1500) {
      going = 0;
      const link = document.querySelector(`a[data-go="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    if (event.key === "g") going = Date.now();
    else if (event.key === "/") { event.preventDefault(); byId("jump").focus(); }
    else if (event.key === "r") refresh();
    else if (event.key === "t") turn();
    else if (event.key === "?") keys.showModal();
  });
  labelCells();
  count();
  show();
})();
