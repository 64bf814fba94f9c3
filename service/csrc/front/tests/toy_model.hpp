// SPDX-License-Identifier: Apache-2.0
// An engine that serves one small model computed in a few lines, for tests that need no real kernel.
#pragma once

#include <memory>

#include "engine/engine.hpp"
#include "engine/route/router.hpp"

namespace fused_mlp::front::test {

// "digits", version 1: 64 inputs, 10 outputs; output j is the sum of the inputs whose index is j modulo 10.
// Both variants compute the same; the unfused one is left to a worker, as a kernel in Python would be. A row
// whose first value is 666 makes its batch fail.
struct ToyService {
  explicit ToyService(unsigned workers, uint32_t queue_rows = 8192, uint32_t max_request_rows = 4096,
                      std::shared_ptr<Clock> clock = nullptr);
  Engine engine;
  Router router;
};

// "ranker" takes named inputs in as many words: a bag of ids, a word, a time that is read twice, floats.
// Aborts if an id of a record is outside its table.
void check_record(const float* record);

}  // namespace fused_mlp::front::test
