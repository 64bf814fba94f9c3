// SPDX-License-Identifier: Apache-2.0
// The array between operations. Each thread keeps its own, so that later calls allocate nothing. One that is
// large is freed when no call has used it for a second or two, also if its thread never calls again.
#pragma once

#include <cstddef>

#include "model/float_buffer.hpp"

namespace fused_mlp {

struct LargeScratch;

// At least so many floats for the calling thread, which has one of these at a time.
class Scratch {
 public:
  explicit Scratch(std::size_t floats);
  ~Scratch() {
    if (large_ != nullptr) give_back();
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  float* data() const { return data_; }

 private:
  void give_back();

  float* data_ = nullptr;
  LargeScratch* large_ = nullptr;
};

// Frees the large arrays that no call has used since the last trim; returns the bytes of the others. A thread
// does so every second, as long as there are any.
std::size_t trim_scratch();

}  // namespace fused_mlp
