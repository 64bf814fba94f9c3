// SPDX-License-Identifier: Apache-2.0
#include "codec/ranking.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <functional>

#include "engine/status.hpp"

namespace fused_mlp {
namespace {

constexpr const char* kScoreExpected = "min_score: expected a number";

// Larger for a better candidate: the score in bits that compare like it, NaN below all, then the position.
uint64_t key_of(float score, uint32_t position) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 and 0 are equal
  const uint32_t ordered = std::isnan(score) ? 0 : (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | static_cast<uint32_t>(~position);
}

}  // namespace

std::string Ranking::check() const {
  if (limited && top_k < 1) return "top_k: expected at least 1, got " + std::to_string(top_k);
  if (bounded && std::isnan(min_score)) return std::string(kScoreExpected) + ", got NaN";
  if (!ids.empty() && !wanted()) return "ids: expected top_k or min_score beside it";
  return {};
}

std::string Ranking::read_min_score(std::string_view text) {
  bounded = true;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), min_score);
  const bool number = error == std::errc() && end == text.data() + text.size();
  return number ? std::string() : kScoreExpected + (", got " + quote_name(text));
}

// Keeps twice as many as are wanted at most: whenever it is full, the worse half goes, and what is worse than
// the rest is passed over from then on.
void append_best(const Ranking& ranking, const float* scores, size_t count, size_t stride,
                 std::vector<int64_t>& positions) {
  const size_t wanted = ranking.most(count);
  if (wanted == 0) return;
  std::vector<uint64_t> best;
  best.reserve(std::min(2 * wanted, count));
  const auto least = static_cast<float>(ranking.min_score);
  uint64_t worst = 0;
  for (size_t i = 0; i < count; ++i) {
    const float score = scores[i * stride];
    if (ranking.bounded && !(score >= least)) continue;
    const uint64_t key = key_of(score, static_cast<uint32_t>(i));
    if (key <= worst) continue;
    if (best.size() == 2 * wanted) {
      std::nth_element(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(wanted) - 1, best.end(),
                       std::greater<>());
      best.resize(wanted);
      worst = best.back();
      if (key <= worst) continue;
    }
    best.push_back(key);
  }
  const size_t kept = std::min(wanted, best.size());
  const auto end = best.begin() + static_cast<std::ptrdiff_t>(kept);
  if (end != best.end()) std::nth_element(best.begin(), end, best.end(), std::greater<>());
  std::sort(best.begin(), end, std::greater<>());
  for (size_t i = 0; i < kept; ++i)
    positions.push_back(static_cast<uint32_t>(~static_cast<uint32_t>(best[i])));
}

}  // namespace fused_mlp
