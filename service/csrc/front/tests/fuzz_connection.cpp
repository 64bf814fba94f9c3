// SPDX-License-Identifier: Apache-2.0
// libFuzzer over the byte stream of a connection. The first byte says whether the client's preface is put
// before the input (most inputs would never find it) and how the rest is cut into reads.
#include "fuzz_rig.hpp"

using namespace fused_mlp::front::test;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Rig* rig = new Rig;
  if (size == 0) return 0;
  const uint8_t choice = *data++;
  --size;
  const int fd = rig->connect();
  if (fd < 0) return 0;
  play(*rig, fd, data, size, choice, 1u + choice / 4);
  return 0;
}
