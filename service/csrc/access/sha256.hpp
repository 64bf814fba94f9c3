// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4), for the digests of keys. Our own, because the engine is also built without OpenSSL.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace fused_mlp {

using Digest = std::array<std::uint8_t, 32>;

Digest sha256(std::string_view text) noexcept;

// The time it takes depends on the sizes only.
bool same_bytes(std::string_view a, std::string_view b) noexcept;

}  // namespace fused_mlp
