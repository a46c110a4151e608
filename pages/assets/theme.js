// Before the page is drawn: the chosen theme, so that nothing flashes.
const chosen = localStorage.getItem("theme");
if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
