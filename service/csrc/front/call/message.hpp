// SPDX-License-Identifier: Apache-2.0
// One gRPC message as it came off the wire (and out of gzip), and the reader that cuts a call's bytes into
// messages wherever the DATA frames happened to split. Loop thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "codec/byte_buffer.hpp"
#include "front/memory/peer_account.hpp"
#include "front/memory/slab.hpp"
#include "front/server/turn.hpp"

namespace fused_mlp::front {

// The buffers that messages in pieces are put together in, charged to peers by their capacity. A few are kept
// for the next message of about their size.
class AssemblyPool {
 public:
  AssemblyPool() { free_.reserve(kKept); }
  ByteBuffer take(size_t wanted);  // may be empty
  void give_back(ByteBuffer&& buffer) noexcept;

 private:
  static constexpr size_t kKept = 16;
  static constexpr size_t kMaxKeptBytes = 256u << 10;
  std::vector<ByteBuffer> free_;
};

// Its bytes do not move until it is released: they are in the slab they were read into, or in a buffer of its
// own when they came in pieces or compressed.
class Message {
 public:
  Message() = default;
  Message(const uint8_t* data, size_t size, SlabRef slab)
      : data_(data), size_(size), slab_(std::move(slab)) {}
  Message(ByteBuffer&& buffer, Charge<PeerAccount>&& charge, AssemblyPool* pool)
      : data_(buffer.data()),
        size_(buffer.size()),
        pool_(pool),
        own_(std::move(buffer)),
        charge_(std::move(charge)) {}
  Message(Message&& other) noexcept { *this = std::move(other); }
  Message& operator=(Message&& other) noexcept {
    release();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    slab_ = std::move(other.slab_);
    if (other.pool_ != nullptr) take_buffer(other);
    return *this;
  }
  ~Message() { release(); }

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  void release() {
    slab_.release();
    if (pool_ != nullptr) give_back_buffer();
    data_ = nullptr;
    size_ = 0;
  }

 private:
  void take_buffer(Message& other) noexcept;
  void give_back_buffer() noexcept;

  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  SlabRef slab_;
  AssemblyPool* pool_ = nullptr;  // null: it has no buffer of its own
  ByteBuffer own_;
  Charge<PeerAccount> charge_;
};

enum class Encoding : uint8_t { identity, gzip, unknown };

enum class ReadError : uint8_t {
  none,
  too_large,       // the prefix announces, or gzip unpacks to, more than the limit
  no_memory_left,  // all calls together hold too much, or those of its address
  bad_prefix,      // the compressed-flag is neither 0 nor 1
  not_compressed,  // the flag is set but no encoding was announced
  bad_gzip,
};

class MessageReader {
 public:
  MessageReader();
  ~MessageReader();

  // `turn`: bounds the time that unpacking takes at once; null: no bound.
  void start(size_t max_bytes, AssemblyPool* pool, PeerAccount* account, Encoding encoding,
             const Turn* turn = nullptr) {
    max_bytes_ = max_bytes;
    pool_ = pool;
    account_ = account;
    encoding_ = encoding;
    turn_ = turn;
  }
  // Takes bytes from the front of [data, data + size) until a message is complete, the turn is over while one
  // is being unpacked, or nothing is left; `size` becomes what was not taken. True: `message` is complete.
  // The bytes lie in the slab that `slabs` now fills; null: elsewhere, and they are copied.
  bool feed(const uint8_t*& data, size_t& size, SlabPool* slabs, Message& message, ReadError& error);
  // Instead of feed(), for a body without prefixes (REST): its pieces as they come; false: an error.
  // `expected`: its whole size; -1: unknown.
  void start_body(int64_t expected) { expected_body_ = expected; }
  bool add_body(const uint8_t* data, size_t size, SlabPool& slabs, ReadError& error);
  // After the last piece. False without an error: the turn is over, call it again.
  bool finish_body(Message& message, ReadError& error);
  // Inside a message: more bytes must come.
  bool mid_message() const { return prefix_have_ != 0; }
  // A message is half unpacked: feed again in the next turn, with or without more bytes.
  bool unpacking() const { return unpacking_ != nullptr; }
  void reset() {
    prefix_have_ = 0;
    if (whole_.data() != nullptr) whole_.release();
    if (body_.capacity() != 0 || charge_.bytes() != 0 || unpacking()) drop();
  }

 private:
  struct Unpacking;

  bool finish(Message&& raw, Message& message, ReadError& error);
  bool unpack(Message& message, ReadError& error);
  bool grow(size_t coming, ReadError& error);
  void drop();

  size_t max_bytes_ = 0;
  AssemblyPool* pool_ = nullptr;
  PeerAccount* account_ = nullptr;
  const Turn* turn_ = nullptr;
  Encoding encoding_ = Encoding::identity;
  uint8_t prefix_[5];
  uint8_t prefix_have_ = 0;
  bool compressed_ = false;
  size_t body_size_ = 0;
  int64_t expected_body_ = -1;
  Message whole_;  // a body that came in one piece
  ByteBuffer body_;
  Charge<PeerAccount> charge_;
  std::unique_ptr<Unpacking> unpacking_;
};

}  // namespace fused_mlp::front
