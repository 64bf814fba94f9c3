// SPDX-License-Identifier: Apache-2.0
// The module's exception, and texts that peers chose. Refused carries the status, so that callers map data
// and never parse text.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/status.hpp"

namespace fused_mlp {

// As a str; bytes that are not UTF-8 are replaced, because decoding must not raise for what a peer sent.
inline nanobind::object text_of(std::string_view text) {
  return nanobind::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

// Raises Refused(text) with .status, .retry_after_ms, .lane: where to count it, or None, and .version: the
// one to load, or 0.
[[noreturn]] void raise_refused(Status status, const std::string& text, std::uint32_t retry_after_ms = 0,
                                nanobind::object lane = nanobind::none(), std::int64_t version = 0);

}  // namespace fused_mlp
