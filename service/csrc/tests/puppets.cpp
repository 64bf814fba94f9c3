#include "tests/puppets.hpp"

#include "tests/check.hpp"

namespace fused_mlp::test {

Ref<Probe> Rig::send(Lane& lane, float value, std::uint32_t rows) {
  Ref<Probe> probe = ticket(value, rows);
  CHECK_EQ(submit(lane, probe), Status::ok);
  return probe;
}

}  // namespace fused_mlp::test

int main(int argc, char** argv) { return check::run(argc, argv); }
