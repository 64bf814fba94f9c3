// One gRPC message as it came off the wire (and out of gzip), and the reader that cuts a call's bytes into
// messages wherever the DATA frames happened to split. Loop thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/byte_buffer.hpp"
#include "front/slab.hpp"

namespace fused_mlp::front {

// The account of request bytes that wait for the rest of their message, over all calls of a loop, and a pool
// of the buffers they wait in.
class AssemblyPool {
 public:
  explicit AssemblyPool(size_t most_bytes) : most_bytes_(most_bytes) {}
  bool charge(size_t n) {
    if (n > most_bytes_ - used_) return false;
    used_ += n;
    return true;
  }
  void discharge(size_t n) { used_ -= n; }
  ByteBuffer take();
  void give_back(ByteBuffer&& buffer);
  size_t used() const { return used_; }

 private:
  static constexpr size_t kKept = 16;
  static constexpr size_t kMostKeptBytes = 4u << 20;
  size_t most_bytes_;
  size_t used_ = 0;
  std::vector<ByteBuffer> free_;
};

// Its bytes do not move until it is released: they are in the slab they were read into, or in a buffer of its
// own when they came in pieces or compressed.
class Message {
 public:
  Message() = default;
  Message(const uint8_t* data, size_t size, SlabRef slab)
      : data_(data), size_(size), slab_(std::move(slab)) {}
  Message(ByteBuffer&& buffer, size_t charged, AssemblyPool* pool)
      : data_(buffer.data()), size_(buffer.size()), own_(std::move(buffer)), charged_(charged), pool_(pool) {}
  Message(Message&& other) noexcept { *this = std::move(other); }
  Message& operator=(Message&& other) noexcept;
  ~Message() { release(); }

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  void release();

 private:
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  SlabRef slab_;
  ByteBuffer own_;
  size_t charged_ = 0;
  AssemblyPool* pool_ = nullptr;
};

enum class Encoding : uint8_t { identity, gzip, unknown };

enum class ReadError : uint8_t {
  none,
  too_large,       // the prefix announces, or gzip unpacks to, more than the limit
  no_memory_left,  // all calls together hold too much
  bad_prefix,      // the compressed-flag is neither 0 nor 1
  not_compressed,  // the flag is set but no encoding was announced
  bad_gzip,
};

class MessageReader {
 public:
  void start(size_t most_bytes, AssemblyPool* pool, Encoding encoding) {
    most_bytes_ = most_bytes;
    pool_ = pool;
    encoding_ = encoding;
  }
  // Takes bytes from the front of [data, data + size) until a message is complete or nothing is left; `size`
  // becomes what was not taken. True: `message` is complete. The bytes lie in the slab that `slabs` now
  // fills.
  bool feed(const uint8_t*& data, size_t& size, SlabPool& slabs, Message& message, ReadError& error);
  // Inside a message: more bytes must come.
  bool mid_message() const { return prefix_have_ != 0; }
  void reset();

 private:
  bool finish(Message&& raw, Message& message, ReadError& error);
  bool grow(size_t coming, ReadError& error);

  size_t most_bytes_ = 0;
  AssemblyPool* pool_ = nullptr;
  Encoding encoding_ = Encoding::identity;
  uint8_t prefix_[5];
  uint8_t prefix_have_ = 0;
  bool compressed_ = false;
  size_t body_size_ = 0;
  ByteBuffer body_;
  size_t charged_ = 0;
};

}  // namespace fused_mlp::front
