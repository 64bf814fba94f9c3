#include "front/call.hpp"

#include "front/connection.hpp"
#include "front/framing.hpp"
#include "front/loop.hpp"

namespace fused_mlp::front {
namespace {

constexpr size_t kKeptBytes = 16u << 10;  // of a recycled call's output buffer

}  // namespace

uint8_t* Call::add_message(size_t size) { return begin_message(out_, size); }

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
  messages_in_flight_ = held_messages_ = 0;
  half_closed_ = started_ = finished_ = has_message_ = answered_early_ = false;
  arrival_ns_ = deadline_ns_ = waiting_since_ns_ = 0;
  unsent_ = {};
  withheld_bytes_ = parked_bytes_ = 0;
  head_.reset();
  rejection_.reset();
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
