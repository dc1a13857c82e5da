// Before anything is drawn, so that a page read at night does not flash: the choice made last, if one was made.
"use strict";
try {
  const chosen = localStorage.getItem("avcg-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage may be forbidden; the system's choice stands.
}
