// SPDX-License-Identifier: Apache-2.0
#include "engine/status.hpp"

#include <array>
#include <cstddef>

namespace fused_mlp {

namespace {

struct Row {
  const char* name;
  int code;                             // google.rpc.Code
  Refusal refusal = Refusal::draining;  // as the engine counts a ticket that it did not run
};

// In the order of Status.
constexpr std::array<Row, kStatusCount> kStatuses = {{
    {"ok", 0},
    {"invalid_input", 3},                         // INVALID_ARGUMENT
    {"model_not_found", 5},                       // NOT_FOUND
    {"version_not_found", 5},                     // NOT_FOUND
    {"not_ready", 14},                            // UNAVAILABLE
    {"not_loaded", 14},                           // UNAVAILABLE
    {"variant_not_loaded", 9},                    // FAILED_PRECONDITION
    {"override_not_allowed", 7},                  // PERMISSION_DENIED
    {"overloaded", 8, Refusal::queue_full},       // RESOURCE_EXHAUSTED
    {"deadline_expired", 4, Refusal::deadline},   // DEADLINE_EXCEEDED
    {"cancelled", 1, Refusal::cancelled},         // CANCELLED
    {"shutting_down", 14},                        // UNAVAILABLE
    {"kernel_error", 13},                         // INTERNAL
    {"deadline_too_near", 4, Refusal::deadline},  // DEADLINE_EXCEEDED
    {"unauthenticated", 16},                      // UNAUTHENTICATED
    {"not_allowed", 7},                           // PERMISSION_DENIED
}};

constexpr std::array<const char*, kRefusalCount> kRefusals = {"invalid_input", "queue_full", "deadline",
                                                              "cancelled", "draining"};

constexpr std::size_t kMaxNameBytes = 64;

}  // namespace

int grpc_code(Status status) noexcept { return kStatuses[static_cast<std::size_t>(status)].code; }
const char* status_name(Status status) noexcept { return kStatuses[static_cast<std::size_t>(status)].name; }
const char* refusal_name(Refusal refusal) noexcept { return kRefusals[static_cast<std::size_t>(refusal)]; }

Refusal refusal_of(Status status) noexcept { return kStatuses[static_cast<std::size_t>(status)].refusal; }

std::string_view cut_text(std::string_view text, std::size_t most) noexcept {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;  // continuation bytes
  return {text.data(), most};
}

std::string quote_name(std::string_view name) {
  const bool cut = name.size() > kMaxNameBytes;
  name = cut_text(name, kMaxNameBytes);
  std::string text = "'";
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    text += (byte < 0x20 || byte == 0x7F) ? '?' : c;
  }
  return text + (cut ? "...'" : "'");
}

}  // namespace fused_mlp
