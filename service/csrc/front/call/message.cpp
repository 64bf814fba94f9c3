// SPDX-License-Identifier: Apache-2.0
#include "front/call/message.hpp"

#include <algorithm>
#include <utility>

#include "front/call/gzip.hpp"

namespace fused_mlp::front {

// A large buffer is not spent on a small message: it would be charged for all of it.
ByteBuffer AssemblyPool::take(size_t wanted) {
  if (free_.empty() || free_.back().capacity() / 4 > wanted) return {};
  ByteBuffer buffer = std::move(free_.back());
  free_.pop_back();
  return buffer;
}

void AssemblyPool::give_back(ByteBuffer&& buffer) noexcept {
  if (free_.size() >= kKept || buffer.capacity() > kMaxKeptBytes) return;
  buffer.clear();
  free_.push_back(std::move(buffer));
}

void Message::take_buffer(Message& other) noexcept {
  own_ = std::move(other.own_);
  charge_ = std::move(other.charge_);
  pool_ = std::exchange(other.pool_, nullptr);
}

void Message::give_back_buffer() noexcept {
  charge_.release();
  pool_->give_back(std::move(own_));
  own_ = ByteBuffer();
  pool_ = nullptr;
}

struct MessageReader::Unpacking {
  Unpacking(Message&& packed, size_t max_bytes, AssemblyPool* pool, PeerAccount& account)
      : raw(std::move(packed)),
        gzip(raw.data(), raw.size(), max_bytes),
        max_bytes(max_bytes),
        pool(pool),
        account(account) {}
  Unpacking(const Unpacking&) = delete;
  Unpacking& operator=(const Unpacking&) = delete;

  ReadError step() {
    if (!state_charge.resize(account, sizeof *this + Gunzip::kStateBytes) ||
        !make_room(out, gzip.next_bytes(out), 0, max_bytes + 1, charge, account)) {
      return ReadError::no_memory_left;
    }
    const Gunzip::State state = gzip.step(out);
    if (state == Gunzip::State::too_large) return ReadError::too_large;
    if (state == Gunzip::State::broken) return ReadError::bad_gzip;
    done = state == Gunzip::State::done;
    return ReadError::none;
  }
  Message take() {
    out.shrink();
    charge.resize(account, out.capacity());
    return Message(std::move(out), std::move(charge), pool);
  }

  const Message raw;
  Gunzip gzip;
  const size_t max_bytes;
  AssemblyPool* const pool;
  PeerAccount& account;
  ByteBuffer out;
  Charge<PeerAccount> charge, state_charge;
  bool done = false;
};

MessageReader::MessageReader() = default;
MessageReader::~MessageReader() = default;

void MessageReader::drop() {
  if (body_.capacity() != 0) pool_->give_back(std::move(body_));
  body_ = ByteBuffer();
  charge_.release();
  unpacking_.reset();
}

// Memory for a split message is taken as its bytes come, not as its prefix promises.
bool MessageReader::grow(size_t coming, ReadError& error) {
  constexpr size_t kAtFirst = 1u << 10;
  if (make_room(body_, coming, kAtFirst, body_size_, charge_, *account_)) return true;
  error = ReadError::no_memory_left;
  return false;
}

bool MessageReader::finish(Message&& raw, Message& message, ReadError& error) {
  prefix_have_ = 0;
  if (!compressed_) {
    message = std::move(raw);
    return true;
  }
  unpacking_ = std::make_unique<Unpacking>(std::move(raw), max_bytes_, pool_, *account_);
  return unpack(message, error);
}

// At least one step. False without an error: the turn is over.
bool MessageReader::unpack(Message& message, ReadError& error) {
  do {
    error = unpacking_->step();
    if (error != ReadError::none) {
      unpacking_.reset();
      return false;
    }
    if (unpacking_->done) {
      message = unpacking_->take();
      unpacking_.reset();
      return true;
    }
  } while (turn_ == nullptr || !turn_->over());
  return false;
}

bool MessageReader::feed(const uint8_t*& data, size_t& size, SlabPool* slabs, Message& message,
                         ReadError& error) {
  if (unpacking()) return unpack(message, error);
  if (prefix_have_ < sizeof prefix_) {
    const size_t n = std::min(size, sizeof prefix_ - prefix_have_);
    std::memcpy(prefix_ + prefix_have_, data, n);
    prefix_have_ += static_cast<uint8_t>(n);
    data += n;
    size -= n;
    if (prefix_have_ < sizeof prefix_) return false;
    body_size_ = size_t{prefix_[1]} << 24 | size_t{prefix_[2]} << 16 | size_t{prefix_[3]} << 8 | prefix_[4];
    compressed_ = prefix_[0] == 1;
    if (prefix_[0] > 1) error = ReadError::bad_prefix;
    if (body_size_ > max_bytes_) error = ReadError::too_large;
    if (compressed_ && encoding_ == Encoding::identity) error = ReadError::not_compressed;
    if (error != ReadError::none) return false;
    if (size >= body_size_ && slabs != nullptr && !slabs->crowded()) {  // all of it is here
      Message raw(data, body_size_, slabs->hold());
      data += body_size_;
      size -= body_size_;
      return finish(std::move(raw), message, error);
    }
    body_ = pool_->take(body_size_);
    if (!charge_.resize(*account_, body_.capacity())) {
      error = ReadError::no_memory_left;
      return false;
    }
  }
  const size_t n = std::min(size, body_size_ - body_.size());
  if (!grow(n, error)) return false;
  body_.append(data, n);
  data += n;
  size -= n;
  if (body_.size() < body_size_) return false;
  Message raw(std::move(body_), std::move(charge_), pool_);
  body_ = ByteBuffer();
  return finish(std::move(raw), message, error);
}

bool MessageReader::add_body(const uint8_t* data, size_t size, SlabPool& slabs, ReadError& error) {
  if (size == 0) return true;
  body_size_ = expected_body_ >= 0 ? static_cast<size_t>(expected_body_) : max_bytes_;
  if (body_.size() + size > std::min(body_size_, max_bytes_) || whole_.data() != nullptr) {
    error = ReadError::too_large;
    return false;
  }
  if (size == body_size_ && !slabs.crowded()) {
    whole_ = Message(data, size, slabs.hold());
    return true;
  }
  if (!grow(size, error)) return false;
  body_.append(data, size);
  return true;
}

bool MessageReader::finish_body(Message& message, ReadError& error) {
  if (unpacking()) return unpack(message, error);
  Message raw =
      whole_.data() != nullptr ? std::move(whole_) : Message(std::move(body_), std::move(charge_), pool_);
  body_ = ByteBuffer();
  compressed_ = encoding_ != Encoding::identity;
  return finish(std::move(raw), message, error);
}

}  // namespace fused_mlp::front
