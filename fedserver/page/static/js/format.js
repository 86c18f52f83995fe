// Numbers, times and sizes as people read them. What is unknown is a dash.

export const DASH = "\u2013";
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

// 0.9134 -> "91.3 %"
export const percent = (share) => (known(share) ? `${(100 * share).toFixed(1)}\u00a0%` : DASH);

// 0.173 -> "+17.3 points"
export function points(difference) {
  if (!known(difference)) return DASH;
  const value = 100 * difference;
  const sign = value < -0.05 ? "\u2212" : value >= 0.05 ? "+" : "\u00b1";
  return `${sign}${Math.abs(value).toFixed(1)}\u00a0points`;
}

export function decimal(value, digits = 3) {
  if (!known(value)) return DASH;
  return Math.abs(value) >= 1000 ? value.toExponential(2) : value.toFixed(digits);
}

export const count = (value) => (known(value) ? value.toLocaleString("en-US") : DASH);

export function many(number, one, several = `${one}s`) {
  return `${count(number)}\u00a0${number === 1 ? one : several}`;
}

export function bytes(size) {
  if (!known(size)) return DASH;
  const units = ["B", "kB", "MB", "GB", "TB"];
  const step = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log10(Math.max(size, 1)) / 3)));
  return `${(size / 1000 ** step).toFixed(step ? 1 : 0)}\u00a0${units[step]}`;
}

// 75 -> "1 min 15 s"
export function duration(seconds) {
  if (!known(seconds)) return DASH;
  if (seconds < 10 && !Number.isInteger(seconds)) return `${seconds.toFixed(1)}\u00a0s`;
  const whole = Math.round(Math.max(0, seconds));
  if (whole < 60) return `${whole}\u00a0s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}\u00a0min ${whole % 60}\u00a0s`;
  if (whole < 48 * 3600) return `${Math.floor(whole / 3600)}\u00a0h ${Math.floor((whole % 3600) / 60)}\u00a0min`;
  return `${Math.floor(whole / 86400)}\u00a0days`;
}

export const ago = (at) => (known(at) ? `${duration(Math.max(0, Math.round(Date.now() / 1000 - at)))} ago` : "never");

export function clock(at) {
  if (!known(at)) return DASH;
  const date = new Date(1000 * at);
  const time = date.toLocaleTimeString("en-GB");
  return Date.now() - date < 20 * 3600e3 ? time : `${date.toLocaleDateString("en-CA")} ${time}`;
}

// "a, b and 3 more"
export function some(names, most = 6) {
  if (names.length <= most) return names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : names.join("");
  return `${names.slice(0, most).join(", ")} and ${many(names.length - most, "more", "more")}`;
}
