// SPDX-License-Identifier: Apache-2.0
// Numbers in words and units.

function words(s) { return s < 90 ? `${Math.round(s)} s` : s < 5400 ? `${+(s / 60).toFixed(1)} min` : s < 129600 ? `${+(s / 3600).toFixed(1)} h` : `${+(s / 86400).toFixed(1)} days`; }
function digits(x) { return x >= 99.5 ? Math.round(x).toLocaleString("en") : x >= 9.95 ? x.toFixed(1) : x.toFixed(2); }
function time(s) {
  if (!Number.isFinite(s)) return "\u2013";
  if (s < 999.5e-6) return `${digits(s * 1e6)} \u00b5s`;
  return s < 0.9995 ? `${digits(s * 1e3)} ms` : `${digits(s)} s`;
}
function shortTime(s) { return s === Infinity ? "more" : s < 1e-3 ? `${+(s * 1e6).toPrecision(3)}\u00b5s` : s < 1 ? `${+(s * 1e3).toPrecision(3)}ms` : `${s}s`; }
function number(x) { return !Number.isFinite(x) ? "\u2013" : x >= 1000 ? Math.round(x).toLocaleString("en") : x >= 100 ? x.toFixed(0) : +x.toPrecision(3) + ""; }
function small(x) { return x !== 0 && x < 1e-3 ? x.toExponential(1) : +x.toPrecision(2) + ""; }
function percent(x) { return `${+(100 * x).toPrecision(3)} %`; }
