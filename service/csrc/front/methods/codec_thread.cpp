// SPDX-License-Identifier: Apache-2.0
#include "front/methods/codec_thread.hpp"

#include <pthread.h>

#include <exception>
#include <utility>

#include "engine/run/background.hpp"
#include "front/methods/prediction.hpp"

namespace fused_mlp::front {

CodecThread::~CodecThread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void CodecThread::push(uint64_t address, uint64_t connection, Prediction& prediction) {
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "mlp-codec");
  }
  {
    const std::lock_guard lock(mutex_);
    waiting_.push(address, connection, &prediction);
  }
  changed_.notify_one();
}

void CodecThread::run() {
  step_back();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    Prediction* const prediction = waiting_.take(1).front();
    lock.unlock();
    prediction->work_elsewhere();
    lock.lock();
  }
}

// ---- The steps of a Prediction on that thread, and their ends on the loop ----

// Charges the memory of decoding before it exists, too.
void Prediction::decode_later(size_t bytes) {
  if (!decoding_memory_.resize(call_->accounts().requests, bytes)) return refuse_for_memory();
  work_later(Elsewhere::decode);
}

void Prediction::work_later(Elsewhere what) {
  elsewhere_ = what;  // first: the other thread reads it
  try {
    owner_.codec_thread.push(call_->address(), call_->peer(), *this);
  } catch (const std::exception&) {
    elsewhere_ = Elsewhere::no;
    throw;
  }
}

void Prediction::work_elsewhere() noexcept {
  !results_.empty() ? encode_elsewhere() : decode_elsewhere();
  Loop& loop = owner_.loop;
  loop.post(this);  // it may be gone by the next line
  loop.flush();
}

void Prediction::decode_elsewhere() noexcept {
  try {
    error_ = elsewhere_ == Elsewhere::pack ? input_.pack(*entry_, rows_)
                                           : codec_->decode(message_.data(), message_.size(), input_);
  } catch (const std::exception&) {
    status_ = Status::kernel_error;
  }
}

void Prediction::on_decoded() {
  elsewhere_ = Elsewhere::no;
  decoding_memory_.release();
  if (status_ != Status::ok) return fail(status_, kOutOfMemory);
  if (!call_->open()) return fail(Status::cancelled, {});
  try {
    if (!take_decoded(std::exchange(error_, {}))) return;
  } catch (const std::exception&) {
    return fail(Status::kernel_error, kOutOfMemory);
  }
  proceed();
}

void Prediction::keep_results(const Outcome& outcome) noexcept {
  try {
    results_.append(outcome.y, size_t{outcome.rows} * entry_->out_features * sizeof(float));
  } catch (const std::exception&) {
    run_out_of_memory();
  }
}

// On the loop. False: there is nothing left to encode.
bool Prediction::encode_later() noexcept {
  try {
    if (call_->open()) return owner_.codec_thread.push(call_->address(), call_->peer(), *this), true;
  } catch (const std::exception&) {
    run_out_of_memory();
  }
  results_.reset(0);
  return false;
}

void Prediction::encode_elsewhere() noexcept {
  Outcome outcome;
  outcome.rows = ticket_->rows();
  outcome.y = reinterpret_cast<const float*>(results_.data());
  encode(outcome);
  results_.reset(0);
}

}  // namespace fused_mlp::front
