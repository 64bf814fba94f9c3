#include "front/message.hpp"

#include <algorithm>

#include "front/gzip.hpp"

namespace fused_mlp::front {

ByteBuffer AssemblyPool::take() {
  if (free_.empty()) return {};
  ByteBuffer buffer = std::move(free_.back());
  free_.pop_back();
  return buffer;
}

void AssemblyPool::give_back(ByteBuffer&& buffer) {
  if (free_.size() >= kKept || buffer.capacity() > kMostKeptBytes) return;
  buffer.clear();
  free_.push_back(std::move(buffer));
}

Message& Message::operator=(Message&& other) noexcept {
  release();
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  slab_ = std::move(other.slab_);
  own_ = std::move(other.own_);
  charged_ = std::exchange(other.charged_, 0);
  pool_ = std::exchange(other.pool_, nullptr);
  return *this;
}

void Message::release() {
  slab_.release();
  if (pool_ != nullptr) {
    pool_->discharge(charged_);
    pool_->give_back(std::move(own_));
    own_ = ByteBuffer();
    pool_ = nullptr;
  }
  data_ = nullptr;
  size_ = 0;
  charged_ = 0;
}

void MessageReader::reset() {
  if (charged_ != 0) {
    pool_->discharge(charged_);
    pool_->give_back(std::move(body_));
    charged_ = 0;
  }
  body_.reset(0);
  prefix_have_ = 0;
}

// Memory for a split message is taken as its bytes come, not as its prefix promises.
bool MessageReader::grow(size_t coming, ReadError& error) {
  const size_t needed = body_.size() + coming;
  if (needed <= charged_) return true;
  constexpr size_t kAtOnce = 256u << 10;
  const size_t wanted = std::min(body_size_, std::max(needed * 2, kAtOnce));
  if (!pool_->charge(wanted - charged_)) {
    error = ReadError::no_memory_left;
    return false;
  }
  charged_ = wanted;
  body_.reserve(wanted);
  return true;
}

bool MessageReader::finish(Message&& raw, Message& message, ReadError& error) {
  prefix_have_ = 0;
  if (!compressed_) {
    message = std::move(raw);
    return true;
  }
  ByteBuffer unpacked = pool_->take();
  error = gunzip(raw.data(), raw.size(), most_bytes_, unpacked);
  if (error == ReadError::none && !pool_->charge(unpacked.size())) error = ReadError::no_memory_left;
  if (error != ReadError::none) {
    pool_->give_back(std::move(unpacked));
    return false;
  }
  const size_t charged = unpacked.size();
  message = Message(std::move(unpacked), charged, pool_);
  return true;
}

bool MessageReader::feed(const uint8_t*& data, size_t& size, SlabPool& slabs, Message& message,
                         ReadError& error) {
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
    if (body_size_ > most_bytes_) error = ReadError::too_large;
    if (compressed_ && encoding_ == Encoding::identity) error = ReadError::not_compressed;
    if (error != ReadError::none) return false;
    if (size >= body_size_ && !slabs.crowded()) {  // all of it is here
      Message raw(data, body_size_, slabs.hold());
      data += body_size_;
      size -= body_size_;
      return finish(std::move(raw), message, error);
    }
    body_ = pool_->take();
  }
  const size_t n = std::min(size, body_size_ - body_.size());
  if (!grow(n, error)) return false;
  body_.append(data, n);
  data += n;
  size -= n;
  if (body_.size() < body_size_) return false;
  Message raw(std::move(body_), charged_, pool_);
  body_ = ByteBuffer();
  charged_ = 0;
  return finish(std::move(raw), message, error);
}

}  // namespace fused_mlp::front
