// SPDX-License-Identifier: Apache-2.0
#include "engine/route/share.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace fused_mlp {

namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F,
                        kPrime3 = 0x165667B19E3779F9, kPrime4 = 0x85EBCA77C2B2AE63,
                        kPrime5 = 0x27D4EB2F165667C5;

template <class T>
T read(const char* bytes) noexcept {  // little-endian, as convert.cpp asserts
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

std::uint64_t round(std::uint64_t lane, std::uint64_t input) noexcept {
  return std::rotl(lane + input * kPrime2, 31) * kPrime1;
}

// Hashes the whole 32-byte stripes and advances `p` past them.
std::uint64_t hash_stripes(const char*& p, const char* end) noexcept {
  std::uint64_t lanes[] = {kPrime1 + kPrime2, kPrime2, 0, std::uint64_t{0} - kPrime1};
  for (; end - p >= 32; p += 32) {
    for (int i = 0; i < 4; ++i) lanes[i] = round(lanes[i], read<std::uint64_t>(p + 8 * i));
  }
  std::uint64_t hash =
      std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
  for (const std::uint64_t lane : lanes) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  return hash;
}

}  // namespace

std::uint64_t hash_key(std::string_view key) noexcept {
  const char* p = key.data();
  const char* const end = p + key.size();
  std::uint64_t hash = key.size() >= 32 ? hash_stripes(p, end) : kPrime5;
  hash += key.size();
  for (; end - p >= 8; p += 8) {
    hash = std::rotl(hash ^ round(0, read<std::uint64_t>(p)), 27) * kPrime1 + kPrime4;
  }
  if (end - p >= 4) {
    hash = std::rotl(hash ^ read<std::uint32_t>(p) * kPrime1, 23) * kPrime2 + kPrime3;
    p += 4;
  }
  for (; p != end; ++p) hash = std::rotl(hash ^ static_cast<unsigned char>(*p) * kPrime5, 11) * kPrime1;
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

Share::Share(double fraction) {
  if (!(fraction >= 0 && fraction <= 1)) {
    throw std::invalid_argument("share: expected a number from 0 to 1, got " + std::to_string(fraction));
  }
  bits_ = fraction == 1 ? kAll : static_cast<std::uint64_t>(std::ldexp(fraction, 64));
}

double Share::fraction() const noexcept {
  return bits_ == kAll ? 1.0 : std::ldexp(static_cast<double>(bits_), -64);
}

}  // namespace fused_mlp
