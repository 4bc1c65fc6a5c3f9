// One event stream for this page, closed while the tab is hidden. The stream brings the live part as HTML.
import { patch } from "./patch.js";

const live = document.getElementById("live");
const button = document.getElementById("live-state");
const root = document.body.dataset.root;
let source = null;
let isPaused = false;
let again = 0;

function show(word, state) {
  button.querySelector(".word").textContent = word;
  button.dataset.state = state;
  button.setAttribute("aria-label", `${word}. Press to ${isPaused ? "continue" : "pause"} live updates`);
}

function open() {
  clearTimeout(again);
  if (source || isPaused || document.hidden) return;
  const view = location.pathname.slice(root.length) + location.search;
  source = new EventSource(`${root}/events?view=${encodeURIComponent(view)}`);
  source.addEventListener("open", () => show("Live", "live"));
  source.addEventListener("live", (event) => {
    show("Live", "live");
    update(JSON.parse(event.data));
  });
  source.addEventListener("problem", () => show("No answer from the store", "trouble"));
  source.addEventListener("error", () => {
    show("Reconnecting", "trouble");
    if (source && source.readyState === EventSource.CLOSED) {
      close();
      again = setTimeout(open, 5000);
    }
  });
}

function close() {
  if (source) source.close();
  source = null;
}

function update(html) {
  const selection = getSelection();
  const isSelecting = !selection.isCollapsed && live.contains(selection.anchorNode);
  if (isSelecting) return; // a new page would end the selection
  const next = live.cloneNode(false);
  next.append(...new DOMParser().parseFromString(html, "text/html").body.childNodes);
  patch(live, next);
}

if (live && button) {
  button.hidden = false;
  show("Connecting", "trouble");
  button.addEventListener("click", () => {
    isPaused = !isPaused;
    if (isPaused) {
      close();
      show("Paused", "paused");
    } else {
      open();
    }
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      clearTimeout(again);
      close();
      if (!isPaused) show("Paused", "paused");
    } else {
      open();
    }
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
}
