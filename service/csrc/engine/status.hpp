// SPDX-License-Identifier: Apache-2.0
// How a request can end, and the table that maps each status to a gRPC code. Both fronts use it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fused_mlp {

enum class Status : std::uint8_t {
  ok,
  invalid_input,
  model_not_found,
  version_not_found,
  not_ready,
  not_loaded,  // a front has it loaded, and asks again
  variant_not_loaded,
  override_not_allowed,
  overloaded,
  deadline_expired,
  cancelled,
  shutting_down,
  kernel_error,
  deadline_too_near,  // refused at once: it would expire in the queue
  unauthenticated,    // this and the following: by the rules for its caller
  not_allowed,
};
inline constexpr int kStatusCount = static_cast<int>(Status::not_allowed) + 1;

// The numbers of google.rpc.Code, of which there are 17.
inline constexpr int kGrpcCodeCount = 17;
int grpc_code(Status status) noexcept;

// "overloaded", "kernel_error": for logs.
const char* status_name(Status status) noexcept;

// Why a request did not run, as counted on its lane. A closed set: each is a value of a metric label.
enum class Refusal : std::uint8_t {
  invalid_input,  // counted by the fronts
  queue_full,     // this and the following: counted by the engine
  deadline,
  cancelled,
  draining,
};
inline constexpr int kRefusalCount = static_cast<int>(Refusal::draining) + 1;
const char* refusal_name(Refusal refusal) noexcept;
// Why the engine did not run a ticket that ended, or was refused, with that status.
Refusal refusal_of(Status status) noexcept;

// At most `most` bytes of a text, never a part of a UTF-8 sequence.
std::string_view cut_text(std::string_view text, std::size_t most) noexcept;
// Makes a name from a request safe to send back: quoted, cut to 64 bytes (never inside a UTF-8 sequence),
// control characters replaced by '?'.
std::string quote_name(std::string_view name);

}  // namespace fused_mlp
