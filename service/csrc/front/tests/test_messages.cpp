// SPDX-License-Identifier: Apache-2.0
// Messages cut out of a byte stream, wherever it happened to be split.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "front/call/message.hpp"
#include "front/grpc/framing.hpp"
#include "front/tests/gzipped.hpp"

using namespace fused_mlp;
using namespace fused_mlp::front;

namespace {

constexpr size_t kLimit = 1000;

struct Rig {
  Budget budget{128u << 10};  // of which one address has half
  Account account{budget, 1};
  SlabPool slabs{account};
  PeerShare share;
  PeerAccount peer{account, share};
  AssemblyPool pool;
  MessageReader reader;
  std::vector<std::string> messages;
  ReadError error = ReadError::none;

  explicit Rig(Encoding encoding = Encoding::identity, size_t limit = kLimit) {
    reader.start(limit, &pool, &peer, encoding);
  }
  // One read of the socket.
  void read(std::string_view bytes) {
    uint8_t* place = slabs.place();
    std::copy(bytes.begin(), bytes.end(), place);
    slabs.commit(bytes.size());
    const uint8_t* data = place;
    size_t size = bytes.size();
    while (size != 0 && error == ReadError::none) {
      Message message;
      if (reader.feed(data, size, &slabs, message, error)) {
        messages.emplace_back(reinterpret_cast<const char*>(message.data()), message.size());
      }
    }
  }
};

std::string framed(std::string_view body, char flag = 0) {
  ByteBuffer out;
  std::copy(body.begin(), body.end(), begin_message(out, body.size()));
  std::string text(reinterpret_cast<const char*>(out.data()), out.size());
  text[0] = flag;
  return text;
}

}  // namespace

TEST_CASE("messages come out whole wherever they were split") {
  const std::vector<std::string> sent = {"", "x", std::string(300, 'a'), std::string(7, 'b')};
  std::string stream;
  for (const auto& body : sent) stream += framed(body);
  for (size_t first = 0; first <= stream.size(); ++first) {
    for (size_t second = first; second <= stream.size(); second += 13) {
      Rig rig;
      rig.read(std::string_view(stream).substr(0, first));
      rig.read(std::string_view(stream).substr(first, second - first));
      rig.read(std::string_view(stream).substr(second));
      CHECK(rig.messages == sent);
      CHECK(!rig.reader.mid_message());
    }
  }
}

TEST_CASE("messages come out whole byte by byte") {
  Rig rig;
  for (const char byte : framed("hello") + framed("") + framed("world")) rig.read({&byte, 1});
  CHECK(rig.messages == (std::vector<std::string>{"hello", "", "world"}));
  CHECK_EQ(rig.account.used(), 0u);
}

TEST_CASE("a message at the limit passes and one byte more does not") {
  Rig at;
  at.read(framed(std::string(kLimit, 'x')));
  CHECK_EQ(at.messages.size(), 1u);
  Rig above;
  above.read(framed(std::string(kLimit + 1, 'x')));
  CHECK(above.error == ReadError::too_large);
}

TEST_CASE("memory is taken as bytes come not as the prefix promises") {
  Rig rig(Encoding::identity, 1u << 30);
  rig.read(std::string("\0\x3f\xff\xff\xff", 5) + "a few bytes");
  CHECK_EQ(rig.account.used(), 1u << 10);
  while (rig.error == ReadError::none) rig.read(std::string(1000, 'x'));
  CHECK(rig.error == ReadError::no_memory_left);
  CHECK(rig.account.used() <= rig.budget.limit() / 2);
  rig.reader.reset();
  CHECK_EQ(rig.account.used(), 0u);
}

TEST_CASE("an abandoned message gives its memory back") {
  Rig rig;
  rig.read(framed(std::string(900, 'x')).substr(0, 500));
  CHECK(rig.account.used() > 0);
  CHECK(rig.reader.mid_message());
  rig.reader.reset();
  CHECK_EQ(rig.account.used(), 0u);
}

TEST_CASE("gzip is unpacked") {
  Rig rig(Encoding::gzip);
  rig.read(framed(gzipped(std::string(500, 'z')), 1) + framed("plain"));
  CHECK(rig.messages == (std::vector<std::string>{std::string(500, 'z'), "plain"}));
  CHECK_EQ(rig.account.used(), 0u);
}

TEST_CASE("a bomb is stopped at the limit") {
  Rig rig(Encoding::gzip);
  rig.read(framed(gzipped(std::string(100'000, '\0')), 1));
  CHECK(rig.error == ReadError::too_large);
  CHECK_EQ(rig.account.used(), 0u);
}

TEST_CASE("broken gzip is refused") {
  const std::string good = gzipped("some text to pack");
  for (const std::string& bad :
       {std::string("not gzip"), good.substr(0, good.size() - 4), good + "tail", std::string()}) {
    Rig rig(Encoding::gzip);
    rig.read(framed(bad, 1));
    CHECK(rig.error == ReadError::bad_gzip);
  }
}

TEST_CASE("a compressed flag without an encoding is refused") {
  Rig rig;
  rig.read(framed("x", 1));
  CHECK(rig.error == ReadError::not_compressed);
}

TEST_CASE("a flag that is neither is refused") {
  Rig rig(Encoding::gzip);
  rig.read(framed("x", 2));
  CHECK(rig.error == ReadError::bad_prefix);
}

TEST_CASE("what held messages cost is bounded") {
  Budget budget{1u << 30};
  Account account{budget, 1};
  SlabPool slabs{account};
  std::vector<SlabRef> held;
  while (!slabs.crowded()) {
    slabs.place();
    slabs.commit(Slab::kBytes - 1);
    held.push_back(slabs.hold());
    CHECK(held.size() < 1000);
  }
  Rig rig;
  MessageReader reader;
  reader.start(kLimit, &rig.pool, &rig.peer, Encoding::identity);
  const std::string bytes = framed("copied");
  std::copy(bytes.begin(), bytes.end(), slabs.place());
  const uint8_t* data = slabs.place();
  size_t size = bytes.size();
  Message message;
  CHECK(reader.feed(data, size, &slabs, message, rig.error));
  CHECK(rig.account.used() > 0);
  message.release();
  CHECK_EQ(rig.account.used(), 0u);
}

TEST_CASE("held messages are not written over") {
  Budget budget{1u << 30};
  Account account{budget, 1};
  SlabPool slabs{account};
  std::vector<Message> held;
  for (int i = 0; i < 200; ++i) {  // more than one slab holds
    uint8_t* place = slabs.place();
    CHECK(slabs.room() >= SlabPool::kMinRead);
    std::fill_n(place, 5000, static_cast<uint8_t>(i));
    slabs.commit(5000);
    held.emplace_back(place, 5000, slabs.hold());
  }
  for (int i = 0; i < 200; ++i) {
    for (size_t k = 0; k < held[static_cast<size_t>(i)].size(); ++k) {
      CHECK_EQ(held[static_cast<size_t>(i)].data()[k], static_cast<uint8_t>(i));
    }
  }
}
