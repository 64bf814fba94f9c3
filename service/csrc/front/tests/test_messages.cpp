// Messages cut out of a byte stream, wherever it happened to be split.
#include <zlib.h>

#include <string>
#include <vector>

#include "check.hpp"
#include "front/framing.hpp"
#include "front/message.hpp"

using namespace fused_mlp;
using namespace fused_mlp::front;

namespace {

constexpr size_t kLimit = 1000;

struct Rig {
  SlabPool slabs;
  AssemblyPool pool{64u << 10};
  MessageReader reader;
  std::vector<std::string> messages;
  ReadError error = ReadError::none;

  explicit Rig(Encoding encoding = Encoding::identity, size_t limit = kLimit) {
    reader.start(limit, &pool, encoding);
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
      if (reader.feed(data, size, slabs, message, error)) {
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

std::string gzipped(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace

TEST(messages_come_out_whole_wherever_they_were_split) {
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

TEST(messages_come_out_whole_byte_by_byte) {
  Rig rig;
  for (const char byte : framed("hello") + framed("") + framed("world")) rig.read({&byte, 1});
  CHECK(rig.messages == (std::vector<std::string>{"hello", "", "world"}));
  CHECK_EQ(rig.pool.used(), 0u);
}

TEST(a_message_at_the_limit_passes_and_one_byte_more_does_not) {
  Rig at;
  at.read(framed(std::string(kLimit, 'x')));
  CHECK_EQ(at.messages.size(), 1u);
  Rig above;
  above.read(framed(std::string(kLimit + 1, 'x')));
  CHECK(above.error == ReadError::too_large);
}

TEST(memory_is_taken_as_bytes_come_not_as_the_prefix_promises) {
  Rig rig(Encoding::identity, 1u << 30);
  rig.read(std::string("\0\x3f\xff\xff\xff", 5) + "a few bytes");
  CHECK(rig.error == ReadError::no_memory_left);  // even the first step is more than this pool has
  rig.reader.reset();
  CHECK_EQ(rig.pool.used(), 0u);
}

TEST(an_abandoned_message_gives_its_memory_back) {
  Rig rig;
  rig.read(framed(std::string(900, 'x')).substr(0, 500));
  CHECK(rig.pool.used() > 0);
  CHECK(rig.reader.mid_message());
  rig.reader.reset();
  CHECK_EQ(rig.pool.used(), 0u);
}

TEST(gzip_is_unpacked) {
  Rig rig(Encoding::gzip);
  rig.read(framed(gzipped(std::string(500, 'z')), 1) + framed("plain"));
  CHECK(rig.messages == (std::vector<std::string>{std::string(500, 'z'), "plain"}));
  CHECK_EQ(rig.pool.used(), 0u);
}

TEST(a_bomb_is_stopped_at_the_limit) {
  Rig rig(Encoding::gzip);
  rig.read(framed(gzipped(std::string(100'000, '\0')), 1));
  CHECK(rig.error == ReadError::too_large);
  CHECK_EQ(rig.pool.used(), 0u);
}

TEST(broken_gzip_is_refused) {
  const std::string good = gzipped("some text to pack");
  for (const std::string& bad :
       {std::string("not gzip"), good.substr(0, good.size() - 4), good + "tail", std::string()}) {
    Rig rig(Encoding::gzip);
    rig.read(framed(bad, 1));
    CHECK(rig.error == ReadError::bad_gzip);
  }
}

TEST(a_compressed_flag_without_an_encoding_is_refused) {
  Rig rig;
  rig.read(framed("x", 1));
  CHECK(rig.error == ReadError::not_compressed);
}

TEST(a_flag_that_is_neither_is_refused) {
  Rig rig(Encoding::gzip);
  rig.read(framed("x", 2));
  CHECK(rig.error == ReadError::bad_prefix);
}

TEST(what_held_messages_cost_is_bounded) {
  SlabPool slabs;
  std::vector<SlabRef> held;
  while (!slabs.crowded()) {
    slabs.place();
    slabs.commit(Slab::kBytes - 1);
    held.push_back(slabs.hold());
    CHECK(held.size() < 1000);
  }
  Rig rig;
  MessageReader reader;
  reader.start(kLimit, &rig.pool, Encoding::identity);
  const std::string bytes = framed("copied");
  std::copy(bytes.begin(), bytes.end(), slabs.place());
  const uint8_t* data = slabs.place();
  size_t size = bytes.size();
  Message message;
  CHECK(reader.feed(data, size, slabs, message, rig.error));
  CHECK(rig.pool.used() > 0);
  message.release();
  CHECK_EQ(rig.pool.used(), 0u);
}

TEST(held_messages_are_not_written_over) {
  SlabPool slabs;
  std::vector<Message> held;
  for (int i = 0; i < 200; ++i) {  // more than one slab holds
    uint8_t* place = slabs.place();
    CHECK(slabs.room() >= SlabPool::kLeastRead);
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
