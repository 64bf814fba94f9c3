// SPDX-License-Identifier: Apache-2.0
#include "model/kernel.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <variant>

#include "model/float_mode.hpp"
#include "threads/pool.hpp"

namespace fused_mlp {

namespace {

int run_c(void* ctx, const float* x, std::size_t rows, float* y, unsigned busy, char* error,
          std::size_t error_size) {
  try {
    static_cast<const MlpKernel*>(ctx)->run(x, rows, y, busy);
    return 0;
  } catch (const std::exception& e) {
    if (error_size > 0) std::snprintf(error, error_size, "CPU kernel: %s", e.what());
    return 1;
  }
}

int run_groups_c(void* ctx, const fused_mlp_words* runs, std::size_t run_count, const fused_mlp_group* groups,
                 std::size_t group_count, float* y, unsigned busy, char* error, std::size_t error_size) {
  try {
    static_cast<const MlpKernel*>(ctx)->run_groups({runs, run_count}, {groups, group_count}, y, busy);
    return 0;
  } catch (const std::exception& e) {
    if (error_size > 0) std::snprintf(error, error_size, "CPU kernel: %s", e.what());
    return 1;
  }
}

struct LastRun {
  const MlpKernel* kernel = nullptr;
  std::size_t rows = 0;
  Strategy strategy{};
};
thread_local LastRun last_run;

const char* strategy_c(void* ctx, std::size_t rows) {
  return static_cast<const MlpKernel*>(ctx)->strategy(rows);
}

bool has_int8(const ProgramSource& program) {
  return std::any_of(program.ops.begin(), program.ops.end(), [](const auto& op) {
    const auto* const product = std::get_if<ProductSource>(&op);
    return product != nullptr && product->layer.precision == Precision::kInt8;
  });
}

}  // namespace

MlpKernel::MlpKernel(const ProgramSource& program, unsigned threads, const char* isa, const WakeCost* wake)
    : isa_(choose_isa(isa, has_int8(program))), threads_(threads), program_(program, isa_) {
  if (threads == 0 || threads > Pool::kMaxThreads) {
    throw std::invalid_argument("threads: expected 1 to " + std::to_string(Pool::kMaxThreads) + ", got " +
                                std::to_string(threads));
  }
  const std::vector<Op>& ops = program_.ops();
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const bool joins = !ops[i].product && !stages_.empty() && !ops[i - 1].product;
    if (joins) {
      stages_.back().last = i + 1;
    } else {
      stages_.push_back({i, i + 1});
    }
  }
  // Few rows are quantized by every thread for itself, which takes no stage.
  const auto quantizes = [&](const Stage& stage) { return ops[stage.first].quantizes; };
  const auto stages = stages_.size() - std::count_if(stages_.begin(), stages_.end(), quantizes);
  planner_ = std::make_unique<Planner>(program_, stages, isa_, threads_, wake, stages_.size() <= kMaxStages);
  api_ = {FUSED_MLP_KERNEL_ABI,
          0,
          this,
          program_.in_features(),
          program_.out_features(),
          run_c,
          strategy_c,
          0,
          nullptr,
          run_groups_c};
  std::size_t widest = 1;
  for (const Op& op : ops) widest = std::max(widest, op.product ? op.layer.panels * isa_.panel : 1);
  negative_zeros_ = FloatBuffer(widest);
  std::fill_n(negative_zeros_.data(), widest, -0.0f);
}

void MlpKernel::note_run(std::size_t rows, Strategy strategy) const noexcept {
  last_run = {this, rows, strategy};
}

const char* MlpKernel::strategy(std::size_t rows) const {
  if (last_run.kernel == this && last_run.rows == rows) return name_of(last_run.strategy);
  return planned_strategy(rows);
}

void MlpKernel::run(const float* x, std::size_t rows, float* y, unsigned busy) const {
  if (rows == 0) return;
  [[maybe_unused]] const FloatMode mode;
  // A low-priority caller is not counted: otherwise the others would get a thread less.
  if (threads_ == 1 || busy == std::numeric_limits<unsigned>::max()) {
    return run_planned(planner_->plan_alone(rows), x, rows, y);
  }
  Pool::CallerScope caller(Pool::shared());
  const unsigned threads = caller.free_threads(threads_, busy);
  if (threads == 1 || planner_->always_alone(rows))
    return run_planned(planner_->plan_alone(rows), x, rows, y);
  const bool awake = caller.follows_closely();
  const Plan plan = planner_->plan(rows, threads, awake);
  const bool alone = plan.threads > 1 && !awake && !caller.worth_waking(plan.wake_within_us);
  run_planned(alone ? planner_->plan_alone(rows) : plan, x, rows, y);
}

}  // namespace fused_mlp
