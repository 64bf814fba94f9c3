// SPDX-License-Identifier: Apache-2.0
// The table of models: those with requests in the window, or all; sorted, searched, ten at a time.

const PER_PAGE = 10;
const COLUMNS = [
  { key: "name", title: "model", text: r => r.name, down: false },
  { key: "rate", title: "req/s", text: r => number(r.rate), down: true },
  { key: "p50", title: "p50", text: r => time(r.p50), down: true },
  { key: "p99", title: "p99", text: r => time(r.p99), down: true },
  { key: "failed", title: "errors", text: r => number(r.failed), down: true },
  { key: "queued", title: "queued now", text: r => `${number(r.queued)}`, down: true },
  { key: "variant", title: "variant", text: r => r.variant, down: false },
];
const byName = new Intl.Collator("en", { numeric: true }).compare;
const view = { sort: "rate", down: true, page: 0, all: false, search: "", order: [] };

// `place`: among the names, which the server has sorted.
function overviewRow(name, place, shown, scrape) {
  const counting = [...VARIANTS, ""];  // "": what reached no kernel
  if (counting.every(v => !shown.last.totals.has(laneName(name, v))))  // as most of ten thousand
    return { name, place, failed: 0, count: 0, rate: 0, p50: NaN, p99: NaN, queued: 0, variant: variantText([0, 0], scrape.served.get(name)) };
  const hist = histogram(shown.from, shown.last, name, VARIANTS, "request"), gauges = scrape.gauges.get(name);
  const each = VARIANTS.map(v => histogram(shown.from, shown.last, name, [v], "request").count);
  const failed = counting.reduce((sum, v) => sum + counted(shown, name, v, "failed"), 0);
  return {
    name, place, failed, count: hist.count, rate: hist.count / shown.span, p50: quantile(hist, .5), p99: quantile(hist, .99),
    queued: VARIANTS.reduce((sum, v) => sum + (gauges?.queued[v] || 0), 0), variant: variantText(each, scrape.served.get(name)),
  };
}

// Which variants answered; without an answer, the state, unless it is the usual one.
function variantText(counts, versions) {
  const total = counts[0] + counts[1];
  if (total) return counts[0] && counts[1] ? `fused ${percent(Math.round(100 * counts[0] / total) / 100).replace(" ", "\u00a0")}` : VARIANTS[counts[0] ? 0 : 1];
  const best = versions?.findLast(v => v.answers) ?? versions?.[0];
  return !best || best.state === "READY" ? "" : best.state.toLowerCase().replace("_", " ");
}

function compareRows(a, b) {
  const x = a[view.sort], y = b[view.sort];
  const order = typeof x === "string" ? byName(x, y) : (Number.isFinite(x) ? x : -1) - (Number.isFinite(y) ? y : -1);
  return (view.down ? -order : order) || a.place - b.place;
}

function drawOverview(shown, scrape) {
  const names = [...scrape.served.keys()], table = $("overview");
  $("overview-card").hidden = names.length < 2;
  if (names.length < 2) return;
  const wanted = view.search.trim().toLowerCase();
  let rows = names.map((name, place) => ({ name, place }));
  if (wanted) rows = rows.filter(r => r.name.toLowerCase().includes(wanted));
  rows = rows.map(r => overviewRow(r.name, r.place, shown, scrape));
  if (!view.all && !wanted) rows = rows.filter(r => r.count || r.failed || r.queued);
  rows.sort(compareRows);
  // Rows keep their places under the pointer and the focus.
  const held = table.tBodies[0].matches(":hover") || table.tBodies[0].contains(document.activeElement);
  if (held && view.order.length === rows.length) {
    const places = new Map(view.order.map((name, i) => [name, i]));
    if (rows.every(r => places.has(r.name))) rows.sort((a, b) => places.get(a.name) - places.get(b.name));
  }
  view.order = rows.map(r => r.name);
  const pages = Math.max(1, Math.ceil(rows.length / PER_PAGE));
  view.page = Math.min(view.page, pages - 1);
  fillRows(table.tBodies[0], rows.slice(view.page * PER_PAGE, (view.page + 1) * PER_PAGE));
  const first = rows.length ? view.page * PER_PAGE + 1 : 0, last = Math.min(rows.length, (view.page + 1) * PER_PAGE);
  const of = wanted ? `matching, of ${number(names.length)} models` : view.all ? "models" : `with requests ${shown.text}, of ${number(names.length)} models`;
  $("overview-count").textContent = rows.length ? `${first}\u2013${last} of ${number(rows.length)} ${of}` : `none ${of}`;
  $("overview-before").disabled = view.page === 0;
  $("overview-next").disabled = view.page >= pages - 1;
  $("overview-pages").hidden = pages < 2;
  const unknown = counted(shown, "", "", "failed");
  $("overview-unknown").textContent = unknown ? `${number(unknown)} request(s) ${shown.text} named no model that is served here.` : "";
  for (const head of table.tHead.rows[0].cells) {
    if (head.dataset.key === view.sort) head.setAttribute("aria-sort", view.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
}

// Rows are used again, so that a focused link stays focused.
function fillRows(body, rows) {
  while (body.rows.length > rows.length) body.rows[body.rows.length - 1].remove();
  while (body.rows.length < rows.length) {
    const tr = html("tr");
    COLUMNS.forEach((column, i) => { const td = html("td", undefined, { "data-title": column.title }); if (!i) td.append(html("a")); tr.append(td); });
    body.append(tr);
  }
  rows.forEach((r, i) => {
    const tr = body.rows[i], link = tr.cells[0].firstChild;
    tr.dataset.model = r.name;
    tr.classList.toggle("chosen", r.name === model);
    link.textContent = r.name;
    link.href = `#${encodeURIComponent(r.name)}`;
    COLUMNS.slice(1).forEach((column, n) => {
      const cell = tr.cells[n + 1];
      cell.textContent = column.text(r);
      cell.dataset.value = r[column.key];
      cell.classList.toggle("bad", column.key === "failed" && r.failed > 0);
    });
  });
}

function startOverview(redraw) {
  const table = $("overview"), head = html("tr");
  for (const column of COLUMNS) {
    const th = html("th", undefined, { "data-key": column.key, scope: "col" }), button = html("button", column.title, { type: "button" });
    button.addEventListener("click", () => {
      view.down = view.sort === column.key ? !view.down : column.down;
      view.sort = column.key;
      view.page = 0;
      redraw();
    });
    th.append(button);
    head.append(th);
  }
  table.tHead.append(head);
  const turn = by => () => { view.page += by; redraw(); };
  $("overview-before").addEventListener("click", turn(-1));
  $("overview-next").addEventListener("click", turn(1));
  $("overview-search").addEventListener("input", event => { view.search = event.target.value; view.page = 0; redraw(); });
  $("overview-all").addEventListener("change", event => { view.all = event.target.checked; view.page = 0; redraw(); });
}
