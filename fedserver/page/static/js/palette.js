// A color and a dash pattern for each cluster. The colors are apart for people with any kind of color blindness, and
// no figure says anything by color only: the name of the cluster stands beside it.

const COLORS = 8;
const DASHES = ["", "6 3", "2 3"];
const ONE = ["global", "common"]; // the model of all devices

export const isOne = (cluster) => !cluster || ONE.includes(cluster);

// A cluster keeps its color as long as it exists: by its number, as in "c3".
export function place(cluster) {
  const digits = /(\d{1,6})\D*$/.exec(cluster);
  if (digits) return Number(digits[1]);
  let sum = 0;
  for (const letter of cluster) sum = (31 * sum + letter.codePointAt(0)) % 9973;
  return sum;
}

export const tone = (cluster) => (isOne(cluster) ? "tone-none" : `tone-${place(cluster) % COLORS}`);

export const dash = (cluster) => (isOne(cluster) ? "" : DASHES[Math.floor(place(cluster) / COLORS) % DASHES.length]);

// c2 before c10, and other names after them. One collator for all: to make it takes longer than to compare.
export const order = new Intl.Collator("en", { numeric: true }).compare;
