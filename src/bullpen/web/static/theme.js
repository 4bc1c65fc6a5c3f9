// Runs before the page is drawn, so that a chosen theme does not flash.
const chosen = (() => {
  try {
    return localStorage.getItem("bullpen-theme");
  } catch {
    return null;
  }
})();
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;

addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    try {
      localStorage.setItem("bullpen-theme", root.dataset.theme);
    } catch {
      // Without storage the choice lasts as long as the page.
    }
  });
});
