// What makes a page hard to read or to use, as lists of what was found. Tests run it in the page.

// Whatever sticks out of the page to the right, or out of its own box, but for what scrolls by itself.
export function cut() {
  return [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility())
    .filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1
      || (e.clientWidth && !e.matches("input, select") && e.scrollWidth > e.clientWidth + 1))
    .filter((e) => !e.closest(".scroll, .u-wrap")).map((e) => e.outerHTML.slice(0, 100));
}

// Whatever takes the focus or is a picture, and has no name.
export function nameless() {
  return [...document.querySelectorAll("button, input, select, a, canvas, [tabindex]")]
    .filter((e) => e.checkVisibility())
    .filter((e) => !(e.labels?.length || e.getAttribute("aria-label") || e.innerText?.trim()))
    .map((e) => e.outerHTML.slice(0, 100));
}

// Texts whose contrast with what is behind them is below that of WCAG 2 AA: 4.5, or 3 for large ones.
export function faint() {
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !element.checkVisibility() || element.disabled || element.tagName === "OPTION") continue;
    const style = getComputedStyle(element);
    const ground = behind(element);
    const contrast = contrastOf(channels(style.color, ground), channels(ground));
    if (contrast < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5)) {
      found.push(`${element.textContent.trim().slice(0, 40)}: ${contrast.toFixed(2)}`);
    }
  }
  return found;
}

const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

// A colour as it looks on another.
function channels(colour, under = "#fff") {
  for (const layer of [under, colour]) {
    canvas.fillStyle = layer;
    canvas.fillRect(0, 0, 1, 1);
  }
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
}

function behind(element) {
  const layers = [];
  for (let at = element; at; at = at.parentElement) layers.unshift(getComputedStyle(at).backgroundColor);
  return layers.reduce((under, layer) => `rgb(${channels(layer, under)})`, "#fff");
}

function contrastOf(a, b) {
  const [dark, light] = [a, b].map(luminance).sort((x, y) => x - y);
  return (light + 0.05) / (dark + 0.05);
}

function luminance(rgb) {
  const linear = rgb.map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return linear.reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
}
