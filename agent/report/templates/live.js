// Asks every 2 s whether the record holds more, and takes the page anew; what is open, and the focus, stay.
const focusable = () => [...document.querySelectorAll("main a, main button, main summary, main pre, header a")];
let seen = document.body.dataset.seq;
setInterval(async () => {
  if (document.hidden || document.activeElement.tagName === "INPUT") return;
  try {
    const now = await (await fetch("/seq?of=" + encodeURIComponent(document.body.dataset.of))).text();
    if (now === seen) return;
    const answer = await fetch(location.href);
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = [...document.querySelectorAll("details[open] > summary")].map((one) => one.textContent);
    const at = focusable().indexOf(document.activeElement);
    for (const part of ["header", "main"]) document.querySelector(part).replaceWith(page.querySelector(part));
    for (const one of document.querySelectorAll("summary")) {
      if (open.includes(one.textContent)) one.parentElement.open = true;
    }
    focusable()[at]?.focus({ preventScroll: true });
    seen = now;
  } catch { /* the service has ended: the page stays as it was */ }
}, 2000);
