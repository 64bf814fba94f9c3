// SPDX-License-Identifier: Apache-2.0
// Arms: a version and a variant of it. How requests and their metadata name one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fused_mlp {

// As fused_mlp.v1.Variant; `unspecified`: the server chooses.
enum class Variant : std::uint8_t { unspecified, fused, unfused };
const char* variant_name(Variant variant) noexcept;  // "fused", "unfused", ""
// Variant::unspecified for any other name.
Variant variant_of(std::string_view name) noexcept;

// The arm that a request names; the policy decides the rest. `label` is a view of the request:
// `latest`, `previous` or a label of the policy.
struct ArmName {
  std::int64_t version = 0;
  Variant variant = Variant::unspecified;
  std::string_view label = {};

  bool names_version() const noexcept { return version != 0 || !label.empty(); }
  // Takes from `other` the parts that this one leaves open.
  void complete(const ArmName& other) noexcept;
};

constexpr std::string_view kArmExpected =
    "a version or a label, a variant, or both, as in 3/fused, stable or unfused";

// A whole number from 1.
bool parse_version(std::string_view text, std::int64_t& version) noexcept;
// `3`, `3/fused`, `stable`, `stable/unfused`, `unfused`. Labels: a to z, then also 0 to 9, `_`, `-` and `.`;
// at most 64.
bool parse_arm(std::string_view text, ArmName& arm) noexcept;

// The arm that the metadata of a call names: x-fused-mlp-arm, and x-fused-mlp-variant, which is older.
class ArmMetadata {
 public:
  void read_arm(std::string_view text);
  void read_variant(std::string_view text);
  void reset() noexcept;
  ArmName name() const noexcept;  // a view of this
  // An error that may be sent to the caller; empty: none.
  const std::string& problem() const noexcept { return problem_; }

 private:
  std::string text_;  // of an arm that can be read
  Variant variant_ = Variant::unspecified;
  std::string problem_;
};

}  // namespace fused_mlp
