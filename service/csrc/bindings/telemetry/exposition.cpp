// SPDX-License-Identifier: Apache-2.0
// Histograms as text for Prometheus. Thousands of models are megabytes of it, written without the GIL:
// Python's other threads answer probes meanwhile.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <charconv>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/register.hpp"
#include "engine/telemetry/histogram.hpp"
#include "engine/telemetry/trace_context.hpp"

namespace nb = nanobind;

namespace fused_mlp {

namespace {

struct Series {
  std::string_view labels;  // of a Python string that the caller holds
  const HistogramSnapshot* histogram;
};

void append(std::string& text, std::int64_t value) {
  char digits[24];
  text.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

// value / 10^decimals, exactly.
void append_decimal(std::string& text, std::int64_t value, int decimals) {
  std::int64_t unit = 1;
  for (int i = 0; i < decimals; ++i) unit *= 10;
  append(text, value / unit);
  if (decimals == 0) return;
  const std::string rest = std::to_string(unit + value % unit);  // with its leading zeros
  text.append(".").append(rest, 1);
}

// The latest of the buckets `first` to `last`, which are shown as one.
void append_exemplar(std::string& text, const HistogramSnapshot& histogram, std::size_t first,
                     std::size_t last, int decimals) {
  const Exemplar* found = nullptr;
  for (std::size_t i = first; i <= last && i < histogram.exemplars.size(); ++i) {
    const Exemplar& each = histogram.exemplars[i];
    if ((each.trace_high | each.trace_low) == 0) continue;
    if (found == nullptr || each.unix_ms > found->unix_ms) found = &each;
  }
  if (found == nullptr) return;
  text.append(" # {trace_id=\"").append(trace_hex({found->trace_high, found->trace_low}));
  text.append("\",span_id=\"").append(span_hex(found->span)).append("\"} ");
  append_decimal(text, found->value, decimals);
  text.push_back(' ');
  append_decimal(text, found->unix_ms, 3);
}

void append_series(std::string& text, const std::string& name, const Series& series,
                   const std::vector<std::pair<std::size_t, std::string>>& buckets, int decimals,
                   const std::vector<std::string>& parts, bool exemplars) {
  for (const std::string& part : parts) {
    if (part == "_bucket") {
      std::int64_t below = 0;
      std::size_t place = 0, first = 0;
      for (const auto& [number, bound] : buckets) {
        for (; place <= number; ++place) below += static_cast<std::int64_t>(series.histogram->buckets[place]);
        text.append(name).append("_bucket{le=\"").append(bound).append("\",");
        text.append(series.labels).append("} ");
        append(text, below);
        if (exemplars) append_exemplar(text, *series.histogram, first, number, decimals);
        first = number + 1;
        text.push_back('\n');
      }
      continue;
    }
    text.append(name).append(part).append("{").append(series.labels).append("} ");
    if (part == "_sum") {
      append_decimal(text, series.histogram->sum, decimals);
    } else {
      append(text, static_cast<std::int64_t>(series.histogram->count));
    }
    text.push_back('\n');
  }
}

nb::bytes histogram_text(const std::string& name, const nb::list& series,
                         const std::vector<std::pair<std::size_t, std::string>>& buckets, int decimals,
                         const std::vector<std::string>& parts, bool exemplars) {
  std::vector<Series> all;
  for (const nb::handle each : series) {
    const auto pair = nb::cast<nb::tuple>(each);
    Py_ssize_t size = 0;
    const char* const labels = PyUnicode_AsUTF8AndSize(pair[0].ptr(), &size);
    if (labels == nullptr) throw nb::python_error();
    const auto* const histogram = nb::cast<const HistogramSnapshot*>(pair[1]);
    for (const auto& [number, bound] : buckets) {
      if (number >= histogram->buckets.size()) throw nb::index_error("buckets: no such bucket");
    }
    all.push_back({{labels, static_cast<std::size_t>(size)}, histogram});
  }
  std::string text;
  {
    const nb::gil_scoped_release unlocked;
    for (const Series& each : all) append_series(text, name, each, buckets, decimals, parts, exemplars);
  }
  return nb::bytes(text.data(), text.size());
}

}  // namespace

void register_exposition(nb::module_& m) {
  m.def("histogram_text", &histogram_text, nb::arg("name"), nb::arg("series"), nb::arg("buckets"),
        nb::arg("decimals"), nb::arg("parts"), nb::arg("exemplars") = false,
        "Histograms as lines for Prometheus.");
}

}  // namespace fused_mlp
