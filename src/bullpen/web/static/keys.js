// Keys: g and a letter go to a page, j and k move through the rows, / searches, p pauses the live updates.
const root = document.body.dataset.root;
const pages = { o: "/", q: "/queues", t: "/tasks", f: "/failures", w: "/workers", n: "/functions", s: "/schedules", e: "/waits", l: "/limits", y: "/system" };
let isGoing = false;

document.querySelector("header nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

function move(step) {
  const rows = [...document.querySelectorAll("a[data-row], tbody th a")];
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement);
  rows[at === -1 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + step, 0), rows.length - 1)].focus();
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  const goes = isGoing;
  isGoing = event.key === "g" && !goes;
  if (goes && pages[event.key]) location.href = root + pages[event.key];
  else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "p") document.getElementById("live-state")?.click();
  else if (event.key === "/") {
    const search = document.getElementById("search");
    if (!search) return;
    event.preventDefault();
    search.focus();
  }
});
