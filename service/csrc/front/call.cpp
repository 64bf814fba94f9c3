#include "front/call.hpp"

#include "front/connection.hpp"
#include "front/loop.hpp"

namespace fused_mlp::front {
namespace {

constexpr size_t kPrefixBytes = 5;
constexpr size_t kKeptBytes = 16u << 10;  // of a recycled call's output buffer

void write_prefix(uint8_t* at, size_t size) {
  at[0] = 0;  // not compressed
  at[1] = static_cast<uint8_t>(size >> 24);
  at[2] = static_cast<uint8_t>(size >> 16);
  at[3] = static_cast<uint8_t>(size >> 8);
  at[4] = static_cast<uint8_t>(size);
}

}  // namespace

uint8_t* Call::add_message(size_t size) {
  uint8_t* place = out_.extend(kPrefixBytes + size);
  write_prefix(place, size);
  return place + kPrefixBytes;
}

void Call::add_framed(Buffer& framed) {
  if (out_.empty()) {
    out_.swap(framed);
  } else {
    out_.append(framed.data(), framed.size());
  }
}

void Call::flush() {
  if (open()) connection_->answer(*this);
}

void Call::finish(int code, std::string_view text, const Metadata& trailers) {
  if (!open()) return;
  finished_ = true;
  code_ = code;
  if (!text.empty()) text_ = text;
  if (!trailers.empty()) {
    trailers_ = trailers;
    has_trailers_ = true;
  }
  connection_->answer(*this);
}

void Call::message_done() {
  --messages_in_flight_;
  if (withheld_bytes_ != 0 && connection_ != nullptr) connection_->let_in(*this);
}

void Call::unpin() {
  if (--pins_ == 0 && connection_ == nullptr) loop_->calls().give_back(this);
}

std::string Call::peer() const { return connection_ != nullptr ? connection_->peer() : std::string(); }

void Call::reset() {
  previous_ = next_ = nullptr;
  messages_in_flight_ = 0;
  half_closed_ = started_ = finished_ = has_message_ = false;
  arrival_ns_ = deadline_ns_ = waiting_since_ns_ = unsent_since_ns_ = 0;
  withheld_bytes_ = 0;
  head_.reset();
  reader_.reset();
  message_.release();
  out_.reset(kKeptBytes);
  code_ = kOk;
  text_.clear();
  if (has_trailers_) trailers_.clear();
  has_trailers_ = false;
  attachment = nullptr;
  number = 0;
}

CallPool::~CallPool() {
  for (Call* call : free_) delete call;
}

Call* CallPool::take() {
  if (free_.empty()) return new Call(loop_);
  Call* call = free_.back();
  free_.pop_back();
  return call;
}

void CallPool::give_back(Call* call) {
  call->reset();  // before a delete too: it returns what the call holds of the loop's memory
  if (free_.size() < kKept) {
    free_.push_back(call);
  } else {
    delete call;
  }
}

}  // namespace fused_mlp::front
