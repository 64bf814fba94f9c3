// SPDX-License-Identifier: Apache-2.0
#include "engine/route/arm.hpp"

#include <algorithm>
#include <charconv>

#include "engine/status.hpp"

namespace fused_mlp {

namespace {

constexpr std::size_t kLongestLabel = 64;

bool is_label(std::string_view text) noexcept {
  const auto letter = [](char c) { return c >= 'a' && c <= 'z'; };
  return !text.empty() && text.size() <= kLongestLabel && letter(text[0]) &&
         variant_of(text) == Variant::unspecified && std::all_of(text.begin(), text.end(), [&](char c) {
           return letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
         });
}

}  // namespace

const char* variant_name(Variant variant) noexcept {
  return variant == Variant::fused ? "fused" : variant == Variant::unfused ? "unfused" : "";
}

Variant variant_of(std::string_view name) noexcept {
  return name == "fused" ? Variant::fused : name == "unfused" ? Variant::unfused : Variant::unspecified;
}

void ArmName::complete(const ArmName& other) noexcept {
  if (!names_version()) {
    version = other.version;
    label = other.label;
  }
  if (variant == Variant::unspecified) variant = other.variant;
}

bool parse_version(std::string_view text, std::int64_t& version) noexcept {
  if (text.empty() || text.size() > 19 || text[0] == '-') return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  return error == std::errc() && end == text.data() + text.size() && version != 0;
}

bool parse_arm(std::string_view text, ArmName& arm) noexcept {
  arm = {};
  std::string_view version = text;
  const std::size_t slash = text.find('/');
  if (slash != std::string_view::npos) {
    version = text.substr(0, slash);
    arm.variant = variant_of(text.substr(slash + 1));
    if (arm.variant == Variant::unspecified) return false;
  } else {
    arm.variant = variant_of(text);
    if (arm.variant != Variant::unspecified) return true;
  }
  if (parse_version(version, arm.version)) return true;
  arm.version = 0;
  arm.label = version;
  return is_label(version);
}

void ArmMetadata::read_arm(std::string_view text) {
  ArmName name;
  if (parse_arm(text, name)) {
    text_ = text;
  } else {
    problem_ = "x-fused-mlp-arm: expected " + std::string(kArmExpected) + ", got " + quote_name(text);
  }
}

void ArmMetadata::read_variant(std::string_view text) {
  variant_ = variant_of(text);
  if (variant_ == Variant::unspecified) {
    problem_ = "x-fused-mlp-variant: expected fused or unfused, got " + quote_name(text);
  }
}

void ArmMetadata::reset() noexcept {
  variant_ = Variant::unspecified;
  text_.clear();
  problem_.clear();
}

ArmName ArmMetadata::name() const noexcept {
  ArmName name;
  if (!text_.empty()) parse_arm(text_, name);
  name.complete({0, variant_, {}});
  return name;
}

}  // namespace fused_mlp
