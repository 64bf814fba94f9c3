// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernel.hpp"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>

namespace fused_mlp::cuda {

namespace {

// A small forward takes 5 to 30 us; to sleep and wake up costs about as much. Where all cores are busy, a
// thread that spins keeps another one from working.
constexpr std::chrono::microseconds kSpin{50}, kSpinAmongBusy{5};

// A large batch runs in parts: at least one per stream, about equal, of whole blocks of the largest tile.
constexpr std::size_t kRowsTogether = 128;

std::size_t part_rows(std::size_t rows, std::size_t streams, std::size_t most) {
  const std::size_t count = std::max(streams, (rows + most - 1) / most);
  const std::size_t even = (rows + count - 1) / count;
  return std::min((even + kRowsTogether - 1) / kRowsTogether * kRowsTogether, most);
}

// For the lifetime of the process, as kernel_api.h wants it. There are few labels.
const char* interned(const std::string& text) {
  static std::mutex mutex;
  static auto* const texts = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return texts->insert(text).first->c_str();
}

// Calls the kernel for a caller in C.
template <class Call>
int guarded(Call call, char* error, std::size_t error_size) noexcept {
  const auto fail = [&](int code, const char* text) {
    if (error_size > 0) std::snprintf(error, error_size, "%s", text);
    return code;
  };
  try {
    call();
    return 0;
  } catch (const DriverError& failure) {
    return fail(failure.code(), failure.what());
  } catch (const std::exception& failure) {
    return fail(-1, failure.what());
  }
}

CudaKernel& kernel_of(void* ctx) { return *static_cast<CudaKernel*>(ctx); }
LaunchContext& batch_of(void* batch) { return *static_cast<LaunchContext*>(batch); }

int run_batch(void* ctx, const float* x, std::size_t rows, float* y, unsigned busy, char* error,
              std::size_t error_size) {
  return guarded([&] { kernel_of(ctx).run(x, rows, y, busy); }, error, error_size);
}

void* begin_batch(void* ctx, std::size_t rows, float** x) {
  LaunchContext* const batch = kernel_of(ctx).begin(rows);
  if (batch != nullptr) *x = batch->begin(rows);
  return batch;
}

int start_batch(void* ctx, void* batch, char* error, std::size_t error_size) {
  return guarded([&] { kernel_of(ctx).start(batch_of(batch)); }, error, error_size);
}

int finish_batch(void* ctx, void* batch, unsigned busy, const float** y, char* error,
                 std::size_t error_size) {
  return guarded([&] { *y = kernel_of(ctx).finish(batch_of(batch), busy); }, error, error_size);
}

void end_batch(void* ctx, void* batch) { kernel_of(ctx).end(batch_of(batch)); }

const char* strategy_of(void* ctx, std::size_t) { return kernel_of(ctx).label(); }

constexpr fused_mlp_steps kSteps = {begin_batch, start_batch, finish_batch, end_batch};

// Memory that a device that hangs may still use. It is never freed.
struct Kept {
  std::shared_ptr<Device> device;
  std::vector<std::unique_ptr<LaunchContext>> contexts;
  std::unique_ptr<LoadedPlan> plan;
};

void keep_for_good(Kept kept) {
  static std::mutex mutex;
  static auto* const all = new std::vector<Kept>;
  const std::lock_guard lock(mutex);
  all->push_back(std::move(kept));
}

}  // namespace

// A context for the time of one batch.
class CudaKernel::Borrowed {
 public:
  Borrowed(CudaKernel& kernel, LaunchContext* context) : kernel_(kernel), context_(context) {}
  ~Borrowed() {
    if (context_ != nullptr) kernel_.end(*context_);
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  LaunchContext* get() const noexcept { return context_; }

 private:
  CudaKernel& kernel_;
  LaunchContext* context_;
};

CudaKernel::CudaKernel(std::shared_ptr<Device> device, Plan plan, unsigned contexts)
    : device_(std::move(device)) {
  const CurrentContext current(*device_);
  try {
    loaded_ = std::make_unique<LoadedPlan>(device_->driver(), std::move(plan));
    for (unsigned i = 0; i < std::max(1u, contexts); ++i) {
      contexts_.push_back(std::make_unique<LaunchContext>(*device_, *loaded_));
      free_.push_back(contexts_.back().get());
    }
  } catch (const std::exception& error) {
    if (const auto* failed = dynamic_cast<const DriverError*>(&error)) device_->judge(failed->code());
    contexts_.clear();  // while the context is still current
    loaded_.reset();
    throw;
  }
  label_ = interned(loaded_->plan().label);
  api_ = {.abi = FUSED_MLP_KERNEL_ABI,
          .flags = FUSED_MLP_KERNEL_WAITS,
          .ctx = this,
          .in_features = loaded_->plan().in_features,
          .out_features = loaded_->plan().out_features,
          .run = run_batch,
          .strategy = strategy_of,
          .max_at_once = static_cast<std::uint32_t>(contexts_.size()),
          .steps = &kSteps,
          .run_groups = nullptr};
}

CudaKernel::~CudaKernel() {
  if (device_->hangs()) {
    keep_for_good({device_, std::move(contexts_), std::move(loaded_)});
    return;
  }
  try {
    const CurrentContext current(*device_);
    contexts_.clear();
    loaded_.reset();
  } catch (const std::exception&) {  // the driver has shut down before us, and freed everything
  }
}

template <class Work>
auto CudaKernel::on_device(Work work) const {
  try {
    const CurrentContext current(*device_);
    return work();
  } catch (const DriverError& error) {
    device_->judge(error.code());
    throw;
  }
}

std::chrono::nanoseconds CudaKernel::spin_beside(unsigned busy) const noexcept {
  return busy != UINT_MAX && busy >= device_->cores() ? kSpinAmongBusy : kSpin;
}

void CudaKernel::run(const float* x, std::size_t rows, float* y, unsigned busy) {
  if (rows == 0) return;
  device_->refuse_if_lost();
  on_device([&] {
    const std::chrono::nanoseconds spin = spin_beside(busy);
    const Borrowed first(*this, borrow(true));
    if (rows <= LaunchContext::kGraphRowsMost) {
      LaunchContext& context = *first.get();
      std::memcpy(context.begin(rows), x, loaded_->x_bytes(rows));
      context.start();
      std::memcpy(y, context.finish(spin), loaded_->y_bytes(rows));
      return;
    }
    // A second stream, if there is one to spare: while one part is copied, the other computes.
    const Borrowed second(*this, borrow(false));
    run_parts(*first.get(), second.get(), x, rows, y, spin);
  });
}

LaunchContext* CudaKernel::begin(std::size_t rows) noexcept {
  if (rows == 0 || rows > LaunchContext::kGraphRowsMost || device_->sticky_error() != kSuccess)
    return nullptr;
  return borrow(false);
}

void CudaKernel::start(LaunchContext& batch) {
  on_device([&] { batch.start(); });
}

const float* CudaKernel::finish(LaunchContext& batch, unsigned busy) {
  return on_device([&] { return batch.finish(spin_beside(busy)); });
}

void CudaKernel::end(LaunchContext& batch) noexcept {
  if (batch.in_flight()) {
    try {
      on_device([&] { batch.abandon(); });
    } catch (const std::exception&) {  // the batch has failed already
    }
  }
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(&batch);
  }
  given_back_.notify_one();
}

void CudaKernel::replay_graphs() {
  on_device([&] {
    for (const auto& context : contexts_) context->replay_graphs();
  });
}

void CudaKernel::run_parts(LaunchContext& first, LaunchContext* second, const float* x, std::size_t rows,
                           float* y, std::chrono::nanoseconds spin) {
  struct Part {
    LaunchContext* context;
    std::size_t at, rows;
  };
  const std::size_t streams = second != nullptr ? 2 : 1;
  Part parts[] = {{&first, 0, 0}, {second, 0, 0}};
  std::size_t size = part_rows(rows, streams, LaunchContext::part_limit(plan()));
  if (size > LaunchContext::kGraphRowsMost) {
    std::size_t room = first.make_room();
    if (second != nullptr) room = std::min(room, second->make_room());
    size = part_rows(rows, streams, room);
  }
  const std::size_t in = plan().in_features, out = plan().out_features;
  const auto finish = [&](const Part& part) {
    if (!part.context->in_flight()) return;
    std::memcpy(y + part.at * out, part.context->finish(spin), loaded_->y_bytes(part.rows));
  };
  std::size_t turn = 0;
  for (std::size_t at = 0; at < rows; at += size, ++turn) {
    Part& part = parts[turn % streams];
    finish(part);
    part.at = at;
    part.rows = std::min(size, rows - at);
    std::memcpy(part.context->begin(part.rows), x + at * in, loaded_->x_bytes(part.rows));
    part.context->start();
  }
  for (std::size_t i = 0; i < streams; ++i) finish(parts[(turn + i) % streams]);
}

std::size_t CudaKernel::device_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const auto& context : contexts_) bytes += context->device_bytes();
  return bytes;
}

LaunchContext* CudaKernel::borrow(bool may_wait) {
  std::unique_lock lock(mutex_);
  if (free_.empty() && !may_wait) return nullptr;
  given_back_.wait(lock, [&] { return !free_.empty(); });
  LaunchContext* const context = free_.back();
  free_.pop_back();
  return context;
}

}  // namespace fused_mlp::cuda
