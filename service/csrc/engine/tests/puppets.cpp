// SPDX-License-Identifier: Apache-2.0
#include "puppets.hpp"

#include <doctest/doctest.h>

namespace fused_mlp::test {

Ref<Probe> Rig::send(Lane& lane, float value, std::uint32_t rows) {
  Ref<Probe> probe = ticket(value, rows);
  CHECK_EQ(submit(lane, probe), Status::ok);
  return probe;
}

}  // namespace fused_mlp::test
