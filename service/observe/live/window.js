// SPDX-License-Identifier: Apache-2.0
// What was counted in a window of time. Every figure of the page comes from here, so all are of the same window.

const KEPT_S = 15 * 60, FINE_S = 60, COARSE_S = 5;  // all scrapes of a minute, then one of each 5 s
const WINDOWS = [[60, "1 min"], [300, "5 min"], [900, "15 min"], [Infinity, "since start"]];
let history = [];  // { at, totals }, the oldest first

function remember(snapshot) {
  history.push(snapshot);
  let kept = -Infinity;
  history = history.filter(({ at }, i) => {
    const age = snapshot.at - at;
    if (age > KEPT_S) return false;
    if (age > FINE_S && at - kept < COARSE_S && i) return false;
    kept = at;
    return true;
  });
}

// `from` is undefined where nothing is to be subtracted: since the server started, or since before it started.
function windowOf(seconds, uptime) {
  const last = history.at(-1);
  if (seconds === Infinity) return { from: undefined, last, span: uptime, text: "since the server started", whole: true };
  if (uptime <= seconds) return { from: undefined, last, span: uptime, text: `in the last ${words(uptime)}, since the server started`, whole: true };
  const from = history.find(s => last.at - s.at <= seconds), span = last.at - from.at;
  const short = span < seconds - 2 * COARSE_S;
  return { from, last, span, text: `in the last ${words(Math.max(span, 1))}${short ? ", since this page was opened" : ""}`, whole: false };
}

function counterOf(snapshot, model, variant, counter) {
  return snapshot?.totals.get(laneName(model, variant))?.[PLACES.get(counter)] || 0;
}
function counted(shown, model, variant, counter) {
  return counterOf(shown.last, model, variant, counter) - counterOf(shown.from, model, variant, counter);
}

// The histogram of some variants together, as counts by bucket.
function histogram(from, to, model, variants, key) {
  const bounds = BOUNDS[key] || [], found = { bounds: bounds.map(b => b.bound), counts: bounds.map(() => 0), sum: 0, count: 0 };
  for (const variant of variants) {
    const name = laneName(model, variant), now = to?.totals.get(name), then = from?.totals.get(name);
    if (!now || now === then) continue;
    const grown = at => at === undefined ? 0 : (now[at] || 0) - (then?.[at] || 0);
    let before = 0;
    bounds.forEach((b, i) => {
      const cumulative = grown(b.place);
      found.counts[i] += cumulative - before;
      before = cumulative;
    });
    found.sum += grown(PLACES.get(`${key} sum`));
    found.count += grown(PLACES.get(`${key} count`));
  }
  return found;
}

// Like Prometheus' histogram_quantile: linear inside a bucket.
function quantile(hist, share) {
  if (!(hist.count > 0)) return NaN;
  const rank = share * hist.count;
  let before = 0;
  for (let i = 0; i < hist.counts.length; i++) {
    if (before + hist.counts[i] >= rank && hist.counts[i] > 0) {
      const low = i ? hist.bounds[i - 1] : 0;
      return hist.bounds[i] === Infinity ? low : low + (hist.bounds[i] - low) * (rank - before) / hist.counts[i];
    }
    before += hist.counts[i];
  }
  return NaN;
}

// For each scrape, `measure` of the requests in the `width` seconds before it. At most 240 points.
function overTime(model, variant, width, measure) {
  const points = [], step = Math.max(1, Math.floor(history.length / 240));
  for (let i = history.length - 1, from = i; i > 0; i -= step) {
    while (from > 0 && history[i].at - history[from].at < width) from--;
    if (from === i) break;
    const span = history[i].at - history[from].at;
    points.unshift([history[i].at, measure(histogram(history[from], history[i], model, [variant], "request"), span)]);
  }
  return points;
}
