// SPDX-License-Identifier: Apache-2.0
// Blocks that nghttp2 frees and asks for again.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "front/memory/session_memory.hpp"

using namespace fused_mlp::front;

namespace {

constexpr size_t kMaxKept = 4096;

}  // namespace

TEST_CASE("a freed block serves the next request of its size") {
  SessionMemory memory(kMaxKept);
  void* first = memory.allocate(100);
  memory.release(first);
  CHECK(memory.kept_bytes() >= 100);
  void* other = memory.allocate(300);
  CHECK(other != first);
  CHECK(memory.allocate(97) == first);
  CHECK_EQ(memory.kept_bytes(), 0u);
  memory.release(first);
  memory.release(other);
  memory.release(nullptr);
}

TEST_CASE("no more than the limit is kept and no large block") {
  SessionMemory memory(kMaxKept);
  std::vector<void*> blocks;
  for (size_t i = 0; i < 1000; ++i) blocks.push_back(memory.allocate(i % 900));
  for (void* block : blocks) memory.release(block);
  CHECK(memory.kept_bytes() > kMaxKept / 2);
  CHECK(memory.kept_bytes() <= kMaxKept);
  const size_t before = memory.kept_bytes();
  memory.release(memory.allocate(64u << 10));
  CHECK_EQ(memory.kept_bytes(), before);
}

TEST_CASE("every size is aligned and has room for what was asked") {
  SessionMemory memory(1u << 20);
  for (int round = 0; round < 2; ++round) {  // the second from what was freed
    std::vector<void*> blocks;
    for (size_t size = 0; size < 1500; ++size) {
      blocks.push_back(memory.allocate(size));
      CHECK_EQ(reinterpret_cast<uintptr_t>(blocks.back()) % alignof(std::max_align_t), 0u);
      std::memset(blocks.back(), 0xff, size);
    }
    for (void* block : blocks) memory.release(block);
  }
}

TEST_CASE("zeroed and resized blocks hold what they must") {
  SessionMemory memory(kMaxKept);
  void* dirty = memory.allocate(64);
  std::memset(dirty, 0xff, 64);
  memory.release(dirty);
  auto* bytes = static_cast<uint8_t*>(memory.allocate_zeros(8, 8));
  for (int i = 0; i < 64; ++i) CHECK_EQ(bytes[i], 0);
  for (int i = 0; i < 64; ++i) bytes[i] = static_cast<uint8_t>(i);
  for (const size_t size : {65u, 500u, 5000u, 50000u}) {
    bytes = static_cast<uint8_t*>(memory.resize(bytes, size));
    for (int i = 0; i < 64; ++i) CHECK_EQ(bytes[i], i);
    std::memset(bytes + 64, 0xff, size - 64);
  }
  memory.release(bytes);
  memory.release(memory.resize(nullptr, 10));
  const volatile size_t most = SIZE_MAX;  // volatile: compilers warn of a constant like that
  CHECK(memory.allocate(most) == nullptr);
  CHECK(memory.allocate_zeros(most / 2, 3) == nullptr);
}
