// libFuzzer over the byte stream of a connection. The first byte says whether the client's preface is put
// before the input (most inputs would never find it) and how the rest is cut into reads.
#include <algorithm>

#include "fuzz_rig.hpp"

using namespace fused_mlp::front::test;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Rig* rig = new Rig;
  if (size == 0) return 0;
  const uint8_t choice = *data++;
  --size;
  const int fd = rig->connect();
  if (fd < 0) return 0;
  if ((choice & 1) != 0) {
    ::send(fd, kPreface.data(), kPreface.size(), MSG_NOSIGNAL);
    ::send(fd, kSettings.data(), kSettings.size(), MSG_NOSIGNAL);
  }
  const size_t step = (choice & 2) != 0 ? 1u + choice / 4 : size;
  while (size != 0) {
    const size_t n = std::min(size, std::max<size_t>(step, 1));
    if (::send(fd, data, n, MSG_NOSIGNAL) != static_cast<ssize_t>(n)) break;  // closed on us, or full
    data += n;
    size -= n;
    rig->turn();
    if ((choice & 128) == 0) drain(fd);  // else a peer that never reads
  }
  rig->turn();
  ::close(fd);
  rig->check_empty();
  return 0;
}
