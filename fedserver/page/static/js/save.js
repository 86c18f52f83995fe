// A figure as a file. The colors of the page's style are written into the copy, so that it looks the same elsewhere.

import { svg } from "./dom.js";

const COPIED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-linecap", "opacity", "fill-opacity", "stroke-opacity", "font-size", "font-weight", "text-anchor", "dominant-baseline"];
const FONT = "Inter, system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
const SCALE = 2;

export async function save(picture, title, kind) {
  const text = new Blob([asText(picture, title)], { type: "image/svg+xml" });
  const blob = kind === "svg" ? text : await painted(text, picture);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function asText(picture, title) {
  const copy = picture.cloneNode(true);
  const originals = [picture, ...picture.querySelectorAll("*")];
  const copies = [copy, ...copy.querySelectorAll("*")];
  originals.forEach((original, index) => {
    const style = getComputedStyle(original);
    for (const property of COPIED) {
      const value = style.getPropertyValue(property);
      if (value) copies[index].setAttribute(property, value);
    }
    for (const attribute of ["class", "tabindex", "style"]) copies[index].removeAttribute(attribute);
    if (style.display === "none") copies[index].setAttribute("display", "none");
  });
  const { width, height } = picture.viewBox.baseVal;
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  copy.setAttribute("font-family", FONT);
  const ground = getComputedStyle(document.body).getPropertyValue("--surface").trim();
  copy.prepend(svg("title", {}, title), svg("rect", { width, height, fill: ground }));
  return new XMLSerializer().serializeToString(copy);
}

async function painted(text, picture) {
  const { width, height } = picture.viewBox.baseVal;
  const image = new Image(width * SCALE, height * SCALE);
  const address = URL.createObjectURL(text);
  try {
    image.src = address;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = width * SCALE;
    canvas.height = height * SCALE;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  } finally {
    URL.revokeObjectURL(address);
  }
}
