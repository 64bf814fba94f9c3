// SPDX-License-Identifier: Apache-2.0
// One model: both variants side by side, and its arms where several versions have answered.

function drawModel(shown, scrape, served) {
  const hist = Object.fromEntries(VARIANTS.map(v => [v, Object.fromEntries(Object.keys(HISTOGRAMS).map(key => [key, histogram(shown.from, shown.last, model, [v], key)]))]));
  const gauges = scrape.gauges.get(model), none = noneText(shown);
  $("model-name").textContent = model ?? "";
  $("model-shape").textContent = served?.versions.findLast(v => v.version === served.default_version)?.shape ?? "";
  drawNotice(served, gauges, shown);
  drawSpeedup(hist, shown);
  drawArms(shown, served);
  for (const v of VARIANTS) drawVariant(v, hist[v], shown, gauges, served);
  const both = key => VARIANTS.map(v => ({ variant: v, ...hist[v][key] }));
  barChart("latency", "latency histogram of both variants", both("request"), shortTime, none);
  barChart("batches", "rows in a batch, of both variants", both("rows"), b => b === Infinity ? "more" : String(b), none);
  const quiet = "No requests answered since this page was opened.";
  lineChart("quantiles", "p50 and p99 of both variants over the last minutes",
    VARIANTS.flatMap(v => [.5, .99].map(q => ({ variant: v, thin: q > .5, points: overTime(model, v, 10, h => quantile(h, q)) }))),
    { text: shortTime, log: true, emptyText: quiet });
  lineChart("throughput", "requests per second of both variants over the last minutes",
    VARIANTS.map(v => ({ variant: v, points: overTime(model, v, 5, (h, span) => h.count / span) })),
    { text: number, emptyText: quiet });
  drawParts(hist, none);
  drawShadow(shown, gauges, served);
  drawPolicy(served);
}

function noneText(shown) {
  const ever = VARIANTS.reduce((sum, v) => sum + counterOf(shown.last, model, v, "request count"), 0);
  if (ever && !shown.whole) return `No requests ${shown.text}. "since start" shows ${number(ever)}.`;
  return `No traffic yet. Try: fused-mlp predict ${model ?? ""} --example, or fused-mlp ab`;
}

function drawNotice(served, gauges, shown) {
  const lines = [...(gauges?.fallback || []).map(f => `Fused is configured, unfused serves (${f}).`),
    ...(served?.versions || []).filter(v => !["READY", "ON_DEMAND"].includes(v.state) && v.reason).map(v => `Version ${v.version} is ${v.state}: ${v.reason}`)];
  for (const kind of ["fused_wrong", "unfused_wrong", "both_wrong"]) {
    const found = counterOf(history.at(-1), model, "", `mismatches ${kind}`);
    if (found) lines.push(`Since the server started, the shadow found ${number(found)} batch(es) with ${kind.replace("_wrong", "")} further from float64 than rounding explains.`);
  }
  const unserved = counted(shown, model, "", "failed");
  if (unserved) lines.push(`${number(unserved)} request(s) ${shown.text} reached no kernel: the version they asked for could not be loaded, or is not there.`);
  $("notice").hidden = !lines.length;
  $("notice").textContent = lines.join(" ");
}

function drawSpeedup(hist, shown) {
  const [fused, unfused] = VARIANTS.map(v => quantile(hist[v].request, .5)), both = fused > 0 && unfused > 0;
  const same = VARIANTS.map(v => quantile(hist[v].shadowCompute, .5));
  const kernel = same[0] > 0 && same[1] > 0 ? ` Kernels on the same rows: ${time(same[0])} against ${time(same[1])}, ${digits(same[1] / same[0])}\u00d7.` : "";
  $("speedup").textContent = both ? `${digits(unfused / fused)}\u00d7` : kernel ? `${digits(same[1] / same[0])}\u00d7` : "\u2013";
  $("speedup").dataset.value = both ? unfused / fused : "";
  const missing = VARIANTS.filter(v => !(hist[v].request.count > 0));
  const rough = both && Math.min(...VARIANTS.map(v => hist[v].request.count)) < 100;
  $("speedup").classList.toggle("rough", rough);
  $("speedup-text").textContent = (both ? `unfused p50 over fused p50, ${shown.text}.${rough ? " Few requests so far: a rough figure." : ""}` :
    missing.length === 2 ? `No requests answered ${shown.text}.` :
    kernel ? "Kernel time, from the shadow." : `Only ${VARIANTS.find(v => !missing.includes(v))} answered. FUSED_MLP_SPLIT=0.1 sends a tenth of the requests to ${missing[0]}, FUSED_MLP_SHADOW=0.01 compares them in the background, fused-mlp ab sends requests to both.`) + kernel;
}

function drawArms(shown, served) {
  const rows = (served?.versions || []).flatMap(v => VARIANTS.map(variant => `${v.version}/${variant}`))
    .map(arm => ({ arm, hist: histogram(shown.from, shown.last, model, [arm], "request"), failed: counted(shown, model, arm, "failed") }))
    .filter(r => r.hist.count > 0);
  $("arms-card").hidden = new Set(rows.map(r => r.arm.split("/")[0])).size < 2;
  const total = rows.reduce((sum, r) => sum + r.hist.count, 0);
  $("arms").replaceChildren(...[["arm", "share", "req/s", "p50", "p99", "failed"], ...rows.map(r => [r.arm, percent(r.hist.count / total),
    number(r.hist.count / shown.span), time(quantile(r.hist, .5)), time(quantile(r.hist, .99)), number(r.failed)])].map((cells, i) => {
    const tr = html("tr", undefined, i ? { "data-arm": cells[0] } : {});
    tr.append(...cells.map((cell, j) => html(i && j ? "td" : "th", cell, { scope: i ? "row" : "col" })));
    return tr;
  }));
}

function drawVariant(variant, hist, shown, gauges, served) {
  const card = document.querySelector(`.variant[data-variant=${variant}]`), list = card.querySelector("dl");
  const kernel = served?.versions.flatMap(v => v.kernels).findLast(k => k.variant === variant);
  card.querySelector("[data-role=kernel]").textContent = kernel ? `${kernel.backend} on ${kernel.device} ${kernel.isa}, ${kernel.threads} thread${kernel.threads === 1 ? "" : "s"}` : "not loaded";
  const failed = counted(shown, model, variant, "failed"), refused = counted(shown, model, variant, "refused");
  const queued = gauges?.queued[variant] ?? 0;
  const items = [
    ["p50", time(quantile(hist.request, .5)), quantile(hist.request, .5)],
    ["p99", time(quantile(hist.request, .99)), quantile(hist.request, .99)],
    ["requests", number(hist.request.count), hist.request.count],
    ["req/s", number(hist.request.count / shown.span), hist.request.count / shown.span],
    ["rows/batch", number(hist.rows.sum / hist.rows.count), hist.rows.sum / hist.rows.count],
    ["queued now", `${number(queued)} rows`, queued],
    ["failed", number(failed), failed],
    ["refused", number(refused), refused],
  ];
  list.replaceChildren(...items.map(([name, text, value], i) => {
    const item = html("div", undefined, i > 3 ? { class: "minor" } : {});
    item.append(html("dt", name), html("dd", text, { "data-key": name, "data-value": value }));
    return item;
  }));
}

function drawParts(hist, none) {
  const parts = VARIANTS.map(v => [hist[v].queue.sum / hist[v].queue.count, hist[v].compute.sum / hist[v].compute.count]);
  const most = Math.max(...parts.map(([a, b]) => (a || 0) + (b || 0)));
  const area = frame("parts", "mean queue and kernel time of both variants", most > 0 ? "" : none);
  if (!area) return;
  const { root, width } = area;
  parts.forEach(([queue, compute], i) => {
    const y = 8 + i * 56, scale = width / most, v = VARIANTS[i];
    root.append(svg("text", { x: 0, y: y + 10, class: "ink" }, Number.isFinite(queue) ? `${v}: ${time(queue)} queue, ${time(compute)} kernel` : `${v}: no requests answered`));
    if (!Number.isFinite(queue)) return;
    root.append(svg("rect", { class: `bar wait ${v}`, x: 0, y: y + 18, width: Math.max(1, queue * scale), height: 18, rx: 2 }),
      svg("rect", { class: `bar ${v}`, x: queue * scale, y: y + 18, width: Math.max(1, compute * scale - 1), height: 18, rx: 2 }));
  });
}

function row(table, name, value, key) {
  const tr = html("tr");
  tr.append(html("th", name, { scope: "row" }), html("td", value, key ? { "data-key": key } : {}));
  table.append(tr);
}

function drawShadow(shown, gauges, served) {
  const table = $("shadow"), share = served?.policy.shadow ?? 0, n = counter => number(counted(shown, model, "", counter));
  table.replaceChildren();
  if (!share && !counterOf(shown.last, model, "", "batches compared")) {
    const cell = html("td", "Off. FUSED_MLP_SHADOW=0.01 runs one batch in a hundred again on the other variant after the response was sent, and compares the outputs.");
    const tr = html("tr"); tr.append(cell); table.append(tr);
    return;
  }
  const tolerance = served?.versions.map(v => v.shadow_tolerance).find(t => t != null), largest = gauges?.largest || {};
  row(table, "share of batches", percent(share));
  row(table, "compared", `${n("batches compared")} batches, ${n("rows compared")} rows`, "shadow-compared");
  row(table, "skipped, failed", `${n("batches skipped")} (busy or paused), ${n("batches failed")}`);
  row(table, "mismatches by verdict", `${n("mismatches fused_wrong")} fused, ${n("mismatches unfused_wrong")} unfused, ${n("mismatches both_wrong")} both`);
  row(table, "differ: explained", `${n("mismatches within_bound")} by rounding, ${n("mismatches int8_cost")} by int8, ${n("mismatches unfused_not_finite")} by overflow of unfused; ${n("mismatches not_judged")} not judged`);
  row(table, "largest difference since the start", `${small(largest.absolute || 0)} absolute, ${small(largest.relative || 0)} relative${tolerance != null ? `; tolerance ${small(tolerance)}` : ""}`, "shadow-largest");
}

// What the weights are kept in, and what fewer bits cost.
function keptIn(v) {
  const error = v.precision_error;
  return (v.precision && v.precision !== "float32" ? v.precision : v.dtype) + (error ? `, error ${percent(error.largest)} at most, ${percent(error.mean)} on average` : "");
}

function drawPolicy(served) {
  const table = $("policy");
  table.replaceChildren();
  if (!served) return;
  const p = served.policy, other = p.variant === "fused" ? "unfused" : "fused", arms = Object.entries(p.arms);
  const answers = p.version === "latest" ? p.variant : `${p.version}/${p.variant}`;
  row(table, "answers", p.split ? `${answers}, and ${other} for ${percent(p.split)} of requests` :
    arms.length ? `${answers}, and ${arms.map(([arm, share]) => `${arm} for ${percent(share)} of requests`).join(", ")}` : `${answers}, all requests`, "policy-answers");
  if (p.canary) row(table, "canary", `to ${p.canary.to}: ${p.canary.steps.join(", ")} %, ${number(p.canary.interval_s)} s each`);
  for (const [label, version] of Object.entries(p.labels)) row(table, label, `version ${version}`);
  row(table, "request may choose", p.allow_override ? "yes" : "no");
  row(table, "on mismatch", p.on_mismatch === "log" ? "log it" : "serve unfused");
  if (p.precision !== "float32") row(table, "precision", p.precision);
  for (const v of served.versions) {
    row(table, `version ${v.version}`, v.shape ? `${v.shape}, ${keptIn(v)}` : v.state);
    if (v.state === "READY" && v.reason) row(table, "", v.reason);
    for (const i of v.inputs ?? []) row(table, i.name, [i.kind, ...i.tables.map(number), i.shape.length ? `(${i.shape.join(" × ")})` : ""].join(" ").trim());
    if (!v.inputs?.length && v.input_shape?.length > 1) row(table, "input", `rows of shape ${v.input_shape.join(" × ")}`);
    if (v.outputs?.length > 1) row(table, "outputs", v.outputs.map(o => `${o.name} (${o.width})`).join(", "));
    for (const k of v.kernels) row(table, k.variant, k.strategy);
  }
}
