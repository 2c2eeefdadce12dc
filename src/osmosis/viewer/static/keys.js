// Keys of the viewer. Every key does what a link or field on the page does: nothing needs this file.
// A link or field names its key in data-key. In a table, j and k walk the lines; on a rollout, n and p its messages.
(() => {
  "use strict";
  const typing = (element) => element.isContentEditable || /^(input|textarea|select)$/i.test(element.tagName);

  function walk(elements, forward) {
    const all = [...elements];
    if (!all.length) return false;
    const at = all.findIndex((one) => one === document.activeElement || one.contains(document.activeElement));
    const next = all[at < 0 ? (forward ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + (forward ? 1 : -1)))];
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
    return true;
  }

  function onKey(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const key = event.key;
    if (key === "?") {
      const keys = document.getElementById("keys");
      if (keys && !keys.open) keys.showModal();
    } else if (key === "n" || key === "p") {
      if (!walk(document.querySelectorAll(".turn"), key === "n")) return;
    } else {
      const named = document.querySelector(`[data-key="${CSS.escape(key)}"]`);
      if (named && typing(named)) named.focus();
      else if (named) named.click();
      else if (key === "j" || key === "k") { if (!walk(document.querySelectorAll("[data-line]"), key === "j")) return; }
      else return;
    }
    event.preventDefault();
  }

  // A menu closes when something else is clicked.
  function onClick(event) {
    for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  }

  // Folding and finding in a conversation; what they need is hidden where no scripts run.
  function fold(open) {
    for (const turn of document.querySelectorAll(".turn > .fold")) turn.open = open;
  }

  function find(field) {
    const words = field.value.trim().toLowerCase();
    let count = 0;
    for (const turn of document.querySelectorAll(`.${field.dataset.find}`)) {
      const matches = !words || turn.textContent.toLowerCase().includes(words);
      turn.hidden = !matches;
      if (words && matches) {
        count += 1;
        for (const part of turn.querySelectorAll("details")) if (part.textContent.toLowerCase().includes(words)) part.open = true;
      }
    }
    document.getElementById("find-count").textContent = words ? `${count} message${count === 1 ? "" : "s"}` : "";
  }

  // A link to a message unfolds it.
  function unfoldTarget() {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const part = target && target.querySelector(":scope > .fold");
    if (part) part.open = true;
  }

  for (const tool of document.querySelectorAll("[data-script]")) tool.hidden = false;
  for (const button of document.querySelectorAll("[data-fold]")) button.addEventListener("click", () => fold(button.dataset.fold === "open"));
  for (const field of document.querySelectorAll("[data-find]")) field.addEventListener("input", () => find(field));
  window.addEventListener("hashchange", unfoldTarget);
  unfoldTarget();
  document.addEventListener("keydown", onKey);
  document.addEventListener("click", onClick);
})();
