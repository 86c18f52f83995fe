// Light or dark, as the system has it unless a person chooses.

const NAMES = ["automatic", "light", "dark"];
const KEY = "shoal-theme";

export function theme(button, changed) {
  let chosen = stored();
  const apply = () => {
    const root = document.documentElement;
    if (chosen === "automatic") root.removeAttribute("data-theme");
    else root.setAttribute("data-theme", chosen);
    button.textContent = `Theme: ${chosen}`;
  };
  button.addEventListener("click", () => {
    chosen = NAMES[(NAMES.indexOf(chosen) + 1) % NAMES.length];
    try {
      localStorage.setItem(KEY, chosen);
    } catch {
      // A browser that stores nothing still shows the theme until the page is closed.
    }
    apply();
    changed();
  });
  apply();
}

function stored() {
  try {
    const found = localStorage.getItem(KEY);
    return NAMES.includes(found) ? found : "automatic";
  } catch {
    return "automatic";
  }
}
