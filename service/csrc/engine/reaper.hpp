// SPDX-License-Identifier: Apache-2.0
// Frees lanes. The last reference of an unloaded one is often dropped by an event loop, which must not unmap
// its weights (milliseconds for a large model) or wait for the GIL: another thread does.
#pragma once

namespace fused_mlp {

struct Lane;

// The deleter of lanes: on an event loop it hands them over, on any other thread it frees them at once.
struct FreeLane {
  void operator()(Lane* lane) const noexcept;
};

}  // namespace fused_mlp
