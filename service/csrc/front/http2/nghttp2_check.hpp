// SPDX-License-Identifier: Apache-2.0
// Whether the nghttp2 that is linked bounds the CONTINUATION frames of one header block
// (CVE-2024-28182: 1.61, and older versions with the fix of their distribution, whose number does not tell).
// Run by CMake at build time and by the server when it starts, because the library may be another one by
// then.
#pragma once

namespace fused_mlp::front {

bool nghttp2_bounds_continuations();

}  // namespace fused_mlp::front
