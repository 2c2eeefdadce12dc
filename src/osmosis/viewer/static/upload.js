// Sends a dataset's file in the pieces that the platform asks for, and says how far it is.
(() => {
  "use strict";
  const form = document.getElementById("upload");
  if (!form) return;
  const button = form.querySelector("button");
  const bar = form.querySelector("progress");
  const said = document.getElementById("upload-said");
  button.disabled = false;
  said.textContent = "";

  const tell = (text, bad) => { said.textContent = text; said.className = bad ? "bad" : "muted small"; };

  async function ask(url, fields) {
    const answer = await fetch(url, { method: "POST", body: new URLSearchParams(fields) });
    const body = await answer.json().catch(() => ({ message: `the platform answered ${answer.status}` }));
    if (!answer.ok) throw new Error([body.message, body.hint].filter(Boolean).join(". "));
    return body;
  }

  const put = (url, piece, moved) => new Promise((done, fail) => {
    const sent = new XMLHttpRequest();
    sent.open("PUT", new URL(url, location.href).pathname + new URL(url, location.href).search);
    sent.upload.onprogress = (event) => moved(event.loaded);
    sent.onerror = () => fail(new Error("the connection was lost: upload the file again"));
    sent.onload = () => (sent.status === 200 ? done(sent.getResponseHeader("ETag")) : fail(new Error(`the platform refused a piece (${sent.status}): upload the file again`)));
    sent.send(piece);
  });

  async function upload(file) {
    const csrf = form.elements.csrf.value;
    const dot = file.name.lastIndexOf(".");
    const stem = dot > 0 ? file.name.slice(0, dot) : file.name;
    const plan = await ask(form.dataset.url, { csrf, name: form.elements.name.value.trim() || stem, size: file.size, extension: dot > 0 ? file.name.slice(dot + 1) : "" });
    const fields = { csrf, upload: plan.upload };
    let before = 0;
    bar.hidden = false;
    for (const [index, part] of plan.parts.entries()) {
      const tag = await put(part.url, file.slice(before, before + part.size), (moved) => { bar.value = (100 * (before + moved)) / Math.max(1, file.size); });
      if (plan.parts.length > 1) fields[`etag${index + 1}`] = tag;
      before += part.size;
    }
    bar.value = 100;
    tell("The platform checks the file.");
    location.assign((await ask(`/datasets/${plan.id}/complete`, fields)).url);
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const file = form.elements.file.files[0];
    if (!file) return;
    button.disabled = true;
    tell(`Sending ${file.name}.`);
    try { await upload(file); } catch (error) { tell(error.message, true); button.disabled = false; bar.hidden = true; }
  });
})();
