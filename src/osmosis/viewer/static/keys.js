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
    found = words ? ranges(words, `.${field.dataset.find}:not([hidden])`) : [];
    at = -1;
    if ("highlights" in CSS) {
      CSS.highlights.delete("found-now");
      CSS.highlights.set("found", new Highlight(...found));
    }
    document.getElementById("find-count").textContent = words ? `${found.length} in ${count} message${count === 1 ? "" : "s"}` : "";
  }

  // Where the words stand. Enter in the field goes from one to the next, with Shift back.
  let found = [];
  let at = -1;

  function ranges(words, selector) {
    const places = [];
    for (const element of document.querySelectorAll(selector)) {
      const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
      while (walker.nextNode()) {
        const text = walker.currentNode.data.toLowerCase();
        for (let from = text.indexOf(words); from >= 0 && places.length < 2000; from = text.indexOf(words, from + words.length)) {
          const range = new Range();
          range.setStart(walker.currentNode, from);
          range.setEnd(walker.currentNode, from + words.length);
          if (range.getClientRects().length) places.push(range);
        }
      }
    }
    return places;
  }

  function step(event) {
    if (event.key !== "Enter" || !found.length) return;
    event.preventDefault();
    at = (at + (event.shiftKey ? found.length - 1 : 1) + (at < 0 && event.shiftKey ? 1 : 0)) % found.length;
    if ("highlights" in CSS) CSS.highlights.set("found-now", new Highlight(found[at]));
    found[at].startContainer.parentElement.scrollIntoView({ block: "center" });
    document.getElementById("find-count").textContent = `${at + 1} of ${found.length}`;
  }

  // The outline marks the message that is read.
  function follow(outline) {
    const links = new Map([...outline.querySelectorAll("a")].map((link) => [link.hash.slice(1), link]));
    const visible = new Set();
    const observer = new IntersectionObserver((entries) => {
      for (const entry of entries) visible[entry.isIntersecting ? "add" : "delete"](entry.target.id);
      const first = [...links.keys()].find((id) => visible.has(id));
      for (const [id, link] of links) id === first ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
      const link = links.get(first), list = outline.querySelector("ol");
      if (link) list.scrollTop = Math.max(0, link.offsetTop - list.offsetTop - list.clientHeight / 2);
    });
    for (const turn of document.querySelectorAll(".turn")) observer.observe(turn);
  }

  // A link to a message unfolds it.
  function unfoldTarget() {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const part = target && target.querySelector(":scope > .fold");
    if (part) part.open = true;
  }

  // On a phone the navigation scrolls: it starts where the page is.
  const current = document.querySelector(".top nav [aria-current]");
  if (current) current.parentElement.scrollLeft = current.offsetLeft - current.parentElement.offsetLeft - 24;

  for (const tool of document.querySelectorAll("[data-script]")) tool.hidden = false;
  for (const button of document.querySelectorAll("[data-fold]")) button.addEventListener("click", () => fold(button.dataset.fold === "open"));
  for (const field of document.querySelectorAll("[data-find]")) field.addEventListener("input", () => find(field));
  for (const field of document.querySelectorAll("[data-find]")) field.addEventListener("keydown", step);
  for (const outline of document.querySelectorAll(".outline")) follow(outline);
  window.addEventListener("hashchange", unfoldTarget);
  unfoldTarget();
  document.addEventListener("keydown", onKey);
  document.addEventListener("click", onClick);
})();
