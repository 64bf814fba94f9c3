// SPDX-License-Identifier: Apache-2.0
// What the server said: /metrics as counters of each model and variant, and the totals that they add up to.

const VARIANTS = ["fused", "unfused"];
const HISTOGRAMS = {
  request: "fused_mlp_request_duration_seconds", queue: "fused_mlp_queue_duration_seconds",
  compute: "fused_mlp_compute_duration_seconds", rows: "fused_mlp_batch_rows",
  shadowCompute: "fused_mlp_shadow_compute_seconds",
};
// From a series to the name of the counter that it is part of.
const COUNTERS = {
  fused_mlp_requests_total: l => l.code === "OK" ? "ok" : "failed",
  fused_mlp_refused_total: () => "refused",
  fused_mlp_shadow_batches_total: l => `batches ${l.outcome}`,
  fused_mlp_shadow_rows_total: () => "rows compared",
  fused_mlp_shadow_mismatches_total: l => `mismatches ${l.verdict}`,
};
for (const [key, name] of Object.entries(HISTOGRAMS)) {
  COUNTERS[`${name}_bucket`] = l => bucket(key, l.le);
  COUNTERS[`${name}_sum`] = () => `${key} sum`;
  COUNTERS[`${name}_count`] = () => `${key} count`;
}

// All that the page reads: of queues and kernels it shows means.
const METRICS = `/metrics?${[
  ...Object.keys(COUNTERS).filter(name => !/_(queue|compute)_duration_seconds_bucket$/.test(name)),
  "fused_mlp_model_info", "fused_mlp_queue_rows", "fused_mlp_shadow_max_abs_difference", "fused_mlp_shadow_max_rel_difference",
  "fused_mlp_variant_fallback", "process_start_time_seconds",
].map(name => `name[]=${name}`).join("&")}`;

// Counters are kept in arrays of numbers; these are their places. Buckets also have their bounds listed.
const PLACES = new Map(), BOUNDS = {};
function place(counter) {
  let found = PLACES.get(counter);
  if (found === undefined) PLACES.set(counter, found = PLACES.size);
  return found;
}
function bucket(key, le) {
  const counter = `${key} le ${le}`;
  if (!PLACES.has(counter)) {
    const bounds = BOUNDS[key] ??= [];
    bounds.push({ bound: le === "+Inf" ? Infinity : Number(le), place: place(counter) });
    bounds.sort((a, b) => a.bound - b.bound);
  }
  return counter;
}

function* samples(text) {
  for (const line of text.split("\n")) {
    const match = /^(fused_mlp_\w+|process_start_time_seconds)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, key, value] of (match[2] || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g))
      labels[key] = value.replace(/\\(.)/g, (_, c) => c === "n" ? "\n" : c);
    yield [match[1], labels, Number(match[3])];
  }
}

// One scrape. `lanes`: the counters of each model, version and variant ("" for what both variants share). `gauges` and
// `served`: by model. A lane without traffic has no series.
function readScrape(text) {
  const found = { started: 0, lanes: new Map(), gauges: new Map(), served: new Map() };
  const under = (map, key, make) => map.get(key) ?? map.set(key, make()).get(key);
  const gauges = model => under(found.gauges, model, () => ({ queued: {}, largest: {}, fallback: [] }));
  for (const [name, l, value] of samples(text)) {
    const counter = COUNTERS[name]?.(l);
    if (counter !== undefined) {
      const key = JSON.stringify([l.model, l.version, l.variant || ""]);
      const lane = under(found.lanes, key, () => ({ model: l.model, version: l.version, variant: l.variant || "", counters: [] }));
      const at = place(counter);
      lane.counters[at] = (lane.counters[at] || 0) + value;
    } else if (name === "process_start_time_seconds") {
      found.started = value;
    } else if (name === "fused_mlp_model_info") {
      under(found.served, l.model, () => []).push({ version: Number(l.version), state: l.state, answers: value === 1 });
    } else if (name === "fused_mlp_queue_rows") {
      const queued = gauges(l.model).queued;
      queued[l.variant] = (queued[l.variant] || 0) + value;
    } else if (name.startsWith("fused_mlp_shadow_max_")) {
      const largest = gauges(l.model).largest, kind = name.includes("_abs_") ? "absolute" : "relative";
      largest[kind] = Math.max(largest[kind] || 0, value);
    } else if (name === "fused_mlp_variant_fallback" && value) {
      gauges(l.model).fallback.push(`version ${l.version}: ${l.reason.replace("_", " ")}`);
    }
  }
  return found;
}

// The totals of `before` and what was counted since. A counter that went down began again at 0: its version was loaded
// again. What versions counted that are gone stays in the totals. Lanes that counted nothing share their arrays.
function addUp(before, last, scrape) {
  const totals = new Map(before);
  for (const [key, lane] of scrape.lanes) {
    const old = last?.lanes.get(key)?.counters, more = [];
    let grown = false;
    lane.counters.forEach((value, at) => {
      const was = old?.[at] || 0, growth = value < was ? value : value - was;
      more[at] = growth;
      grown ||= growth > 0;
    });
    if (!grown) continue;
    for (const arm of lane.variant ? [lane.variant, `${lane.version}/${lane.variant}`] : [""]) {
      const name = laneName(lane.model, arm), sum = new Float64Array(PLACES.size);
      sum.set(totals.get(name) || []);
      more.forEach((growth, at) => { sum[at] += growth; });
      totals.set(name, sum);
    }
  }
  return totals;
}
// `variant`: of all versions together, or an arm, such as 3/fused.
function laneName(model, variant) { return `${variant}/${model}`; }
