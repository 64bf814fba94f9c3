// The exceptions of the module. Refused carries the status, so that callers map data and never parse text.
#pragma once

#include <cstdint>
#include <string>

#include "engine/status.hpp"

namespace fused_mlp {

// Raises Refused(text) with .status and .retry_after_ms, or its subclass InvalidInput.
[[noreturn]] void raise_refused(Status status, const std::string& text, std::uint32_t retry_after_ms = 0);

}  // namespace fused_mlp
