// A page that follows something asks for its stream again when the first request fails: a proxy that times out, a
// server that starts anew. A stream that breaks later is opened again by htmx's extension itself.
(() => {
  "use strict";
  const FIRST_MS = 1000;
  const LONGEST_MS = 30000;
  const delays = new WeakMap();

  function onFailure(event) {
    const element = event.target;
    const url = element.getAttribute?.("hx-sse:connect");
    if (!url || element._htmx?.sse || delays.get(element)?.waiting) return;
    const delay = { ms: Math.min(2 * (delays.get(element)?.ms ?? FIRST_MS / 2), LONGEST_MS), waiting: true };
    delays.set(element, delay);
    setTimeout(() => {
      delay.waiting = false;
      if (element.isConnected && !element._htmx?.sse) htmx.ajax("GET", url, { source: element });
    }, delay.ms);
  }

  document.addEventListener("htmx:error", onFailure);
  document.addEventListener("htmx:response:error", onFailure);
})();
