// Every way a request can end, and the one table from there to gRPC codes. Both fronts answer from it.
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
  variant_not_loaded,
  override_not_allowed,
  overloaded,
  deadline_expired,
  cancelled,
  shutting_down,
  kernel_error,
};
inline constexpr int kStatusCount = static_cast<int>(Status::kernel_error) + 1;

// The numbers of google.rpc.Code, of which there are 17.
inline constexpr int kGrpcCodeCount = 17;
int grpc_code(Status status) noexcept;

// "overloaded", "kernel_error": for logs.
const char* status_name(Status status) noexcept;

// Why a request was not run, as counted on its lane. Closed: each is a metric label.
enum class Refusal : std::uint8_t {
  invalid_input,  // counted by the front
  queue_full,     // this and the rest by the engine
  deadline,
  cancelled,
  draining,
};
inline constexpr int kRefusalCount = static_cast<int>(Refusal::draining) + 1;
const char* refusal_name(Refusal refusal) noexcept;

// A name a client made up, fit to be sent back: cut to 64 bytes (never inside a UTF-8 sequence), quoted,
// control characters replaced.
std::string quote_name(std::string_view name);

}  // namespace fused_mlp
