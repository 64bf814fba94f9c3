// SPDX-License-Identifier: Apache-2.0
// Frees lanes and routes. The last reference of unloaded ones is often dropped by an event loop, which must
// not unmap weights (milliseconds for a large model), free a vocabulary or wait for the GIL, which frees what
// Python made: another thread does.
#pragma once

namespace fused_mlp {

struct Reaped {
  virtual ~Reaped() = default;
  Reaped* next_freed = nullptr;  // for the reaper
};

// The deleter of the above: an event loop hands over, any other thread frees at once.
struct FreeLater {
  void operator()(Reaped* object) const noexcept;
};

// Until all that was handed over is freed, but not for long. A thread that waits for the GIL while Python
// ends would end the process.
void wait_for_reaper();

}  // namespace fused_mlp
