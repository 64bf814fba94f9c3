// SPDX-License-Identifier: Apache-2.0
// Reads the server every second and draws.

const POLL_MS = 1000, COST_SHARE = 10;  // reading takes at most a tenth of the server's time, however many models it has
let scrape = null, status = null, statusFor = null, clock = 0, failures = 0, polls = 0, seconds = 300;
let model = null, settled = false;

async function poll() {
  const began = performance.now();
  try {
    const found = readScrape(await get(METRICS)), at = performance.now() / 1000;
    if (scrape && scrape.started !== found.started) { history = []; scrape = null; }  // restarted: counters begin at 0
    remember({ at, totals: addUp(history.at(-1)?.totals ?? [], scrape, found) });
    scrape = found;
    choose();
    if (statusFor !== model || polls++ % 5 === 0) await readStatus();
    failures = 0;
  } catch (error) {
    failures += 1;
  }
  const took = performance.now() - began;
  try { draw(); } finally { setTimeout(poll, Math.max(document.hidden ? 5 * POLL_MS : POLL_MS, COST_SHARE * took)); }
}

async function readStatus() {
  status = JSON.parse(await get(`/status.json?model=${encodeURIComponent(model ?? "")}`));
  statusFor = model;
  clock = status.time - performance.now() / 1000;
}

async function get(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.text();
}

// Names no model where it is broken, as in `#%`.
function decoded(text) {
  try { return decodeURIComponent(text); } catch { return ""; }
}

// The model of the address, if it is served; else the busiest, until one was seen at work.
function choose() {
  const named = decoded(location.hash.slice(1)), names = [...scrape.served.keys()].sort();
  if (names.includes(named)) { model = named; return; }
  if (settled && names.includes(model)) return;
  const last = history.at(-1), requests = (from, name) => VARIANTS.reduce((sum, v) => sum + counterOf(last, name, v, "request count") - counterOf(from, name, v, "request count"), 0);
  const busiest = from => names.reduce((best, name) => requests(from, name) > requests(from, best) ? name : best, names[0]);
  const now = history.length > 1 ? busiest(history[0]) : undefined;
  settled = now !== undefined && requests(history[0], now) > 0;
  model = settled ? now : busiest(undefined);
}

function draw() {
  const lost = failures > 1, state = $("state");
  state.textContent = lost ? "no answer from the server" : !status ? "connecting" : status.ready ? "ready" : "not ready";
  state.className = `state ${lost || (status && !status.ready) ? "bad" : status ? "good" : ""}`;
  if (!scrape || !status) return;
  $("about").textContent = `${status.version}, ${status.front} front`;
  const shown = windowOf(seconds, clock + history.at(-1).at - scrape.started);
  $("window-text").textContent = `All figures: ${shown.text}.`;
  drawOverview(shown, scrape);
  drawModel(shown, scrape, status.models.find(m => m.name === model));
}

for (const [value, text] of WINDOWS) {
  const label = html("label"), input = html("input", undefined, { type: "radio", name: "window", value });
  input.checked = value === seconds;
  input.addEventListener("change", () => { seconds = value; draw(); });
  label.append(input, text);
  $("windows").append(label);
}
startOverview(draw);
addEventListener("hashchange", async () => {
  if (!scrape) return;
  choose();
  draw();
  await readStatus().catch(() => {});  // the next poll tries again
  draw();
});
addEventListener("resize", draw);
document.addEventListener("visibilitychange", () => document.hidden || draw());
poll();
