// Applies the stored theme before anything is drawn, so that a dark page does not flash white.
"use strict";
try {
  const chosen = localStorage.getItem("avcg-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage may be forbidden; the theme is then that of the system.
}
