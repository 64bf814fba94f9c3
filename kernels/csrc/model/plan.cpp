// SPDX-License-Identifier: Apache-2.0
#include "model/plan.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace fused_mlp {

namespace {

constexpr std::size_t kGemvRows = 5;
// A thread's rows are cut into so many blocks, each of at least so many tiles: what a late thread leaves to
// the others, against reading the weights again for every block.
constexpr std::size_t kBlocksPerThread = 4;
constexpr std::size_t kMinTiles = 2;
// A helper that spins: until it has joined, and what it costs in processor time.
constexpr WakeCost kAwake = {2.0, 0.25};
// The barrier after a layer, with two threads and for each further one.
constexpr double kBarrierUs = 0.5;
constexpr double kBarrierPerThreadUs = 0.05;
// Read bandwidth per core in bytes per microsecond: from the L2 cache, the L3 cache, and memory.
constexpr double kL2BytesPerUs = 80e3;
constexpr double kL3BytesPerUs = 70e3;
constexpr double kMemoryBytesPerUs = 40e3;
// Threads share the bandwidth beyond the L2 cache: n of them read n^0.68 times as fast as one, 2 of them 1.6
// times.
constexpr double kMemoryScaling = 0.68;

double query_l2_bytes() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  const long size = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (size > 0) return static_cast<double>(size);
#endif
  return 512.0 * 1024.0;
}

// Queried once: some C libraries execute cpuid on every call, which a virtual machine traps.
double l2_bytes() {
  static const double bytes = query_l2_bytes();
  return bytes;
}

}  // namespace

// Estimates the time of a batch on one thread and on several, without waking them.
class CostModel {
 public:
  CostModel(const Program& program, std::size_t stages, const Isa& isa)
      : max_rows_(static_cast<double>(isa.max_rows)),
        multiply_adds_per_us_(isa.panel == 32     ? 80e3
                              : isa.max_rows >= 6 ? 45e3
                                                  : 10e3),
        int8_speed_(isa.int8_speed),
        far_bytes_per_us_(program.streamed() ? kMemoryBytesPerUs : kL3BytesPerUs),
        stages_(static_cast<double>(stages)) {
    for (const Op& op : program.ops()) {
      if (!op.product) continue;
      const auto panel = static_cast<double>(isa.panel) * static_cast<double>(op.layer.in);
      const Precision precision = op.layer.precision;
      Work each{.bytes = panel * static_cast<double>(bytes_per_weight(precision))};
      (precision == Precision::kInt8 ? each.int8 : each.float32) = panel;
      products_.push_back({each, op.layer.panels});
      work_.add(each, static_cast<double>(op.layer.panels));
    }
  }

  double alone(std::size_t rows) const { return microseconds(rows, work_, 1); }
  double by_columns(std::size_t rows, unsigned threads) const {
    const std::size_t unit = column_unit(rows);
    Work longest;
    for (const auto& [panel, panels] : products_) {
      const std::size_t units = (panels + unit - 1) / unit;
      longest.add(panel, static_cast<double>(std::min(panels, (units + threads - 1) / threads * unit)));
    }
    return microseconds(rows, longest, threads) +
           stages_ * (kBarrierUs + kBarrierPerThreadUs * (threads - 2));
  }
  double by_rows(std::size_t rows, unsigned threads) const {
    return microseconds((rows + threads - 1) / threads, work_, threads);
  }

 private:
  struct Work {
    double float32 = 0;  // multiply-adds of one row
    double int8 = 0;
    double bytes = 0;  // of weights

    void add(const Work& other, double times) {
      float32 += other.float32 * times;
      int8 += other.int8 * times;
      bytes += other.bytes * times;
    }
  };
  struct Product {
    Work panel;
    std::size_t panels;
  };

  double microseconds(std::size_t rows, const Work& work, unsigned threads) const {
    // A tile of few rows is bound by FMA latency: it costs as much as one of half the maximum rows. The sums
    // of int8 are in no order, and its tiles are bound by reading the weights at most.
    const auto count = static_cast<double>(rows);
    const double multiply_adds =
        std::max(count, max_rows_ / 2.0) * work.float32 + count * work.int8 / int8_speed_;
    const bool in_l2 = work.bytes <= 0.8 * l2_bytes();
    const double bandwidth =
        in_l2 ? kL2BytesPerUs : far_bytes_per_us_ * std::pow(threads, kMemoryScaling - 1.0);
    return std::max(multiply_adds / multiply_adds_per_us_, work.bytes / bandwidth);
  }

  double max_rows_;
  double multiply_adds_per_us_;
  double int8_speed_;
  double far_bytes_per_us_;  // of weights beyond the L2 cache
  double stages_;
  Work work_;  // of all products
  std::vector<Product> products_;
};

const char* name_of(Strategy strategy) {
  switch (strategy) {
    case Strategy::kGemv:
      return "gemv";
    case Strategy::kLayerByLayer:
      return "layer_by_layer";
    case Strategy::kRowBlock:
      return "row_block";
  }
  return "unknown";
}

Planner::Planner(const Program& program, std::size_t stages, const Isa& isa, unsigned threads,
                 const WakeCost* wake, bool splits_columns)
    : tile_rows_(isa.max_rows), awake_{{1, 1, false}}, asleep_{awake_} {
  std::size_t widest = 1;
  for (const Op& op : program.ops()) {
    widest = std::max(widest,
                      op.product ? std::max(op.layer.in, op.layer.out) : std::max(op.row.width, op.row.in));
  }
  // The input and output of a layer should fit in half of the L2 cache. But every block reads all weights
  // again, so blocks have a minimum size.
  const double row_bytes = 2.0 * sizeof(float) * static_cast<double>(widest);
  const auto fitting = static_cast<std::size_t>(l2_bytes() / 2.0 / row_bytes);
  max_block_rows_ = std::clamp(fitting, 16 * isa.max_rows, 48 * isa.max_rows);

  if (threads == 1) return;
  const CostModel cost(program, stages, isa);
  // Split by rows, every thread would read all weights from memory: never for streamed models.
  const Ways ways = {.columns = splits_columns, .rows = !program.streamed()};
  awake_ = search(cost, ways, threads, kAwake, true);
  asleep_ = search(cost, ways, threads, wake != nullptr ? *wake : measured_wake_cost(), false);
}

// Time and additional processor time count alike: a thread must save more of one than it costs of the other.
// Helpers that spin use their cores anyway, so that only the time counts. What is found for some rows is kept
// for more of them unless that changes to more threads, or from columns to rows.
Planner::Splits Planner::search(const CostModel& cost, Ways ways, unsigned threads, const WakeCost& wake,
                                bool awake) {
  constexpr std::size_t kSearchedRows = 4096;
  constexpr double kWorthAnEntry = 1.5;
  Splits splits{{1, 1, false}};
  for (std::size_t rows = 1; rows <= kSearchedRows; rows += std::max<std::size_t>(1, rows / 8)) {
    Split best{rows, 1, false};
    const double alone = cost.alone(rows);
    double least = alone;
    const auto consider = [&](unsigned count, bool by_rows) {
      const double time = by_rows ? cost.by_rows(rows, count) : cost.by_columns(rows, count);
      const double waking = wake.latency_us * std::floor(std::log2(count)) + wake.cpu_us * (count - 1);
      const double total = time + waking + (awake ? 0.0 : std::max(0.0, count * time - alone));
      // The time that each generation of helpers may take to wake.
      const double within = wake.latency_us + (alone - total) / std::floor(std::log2(count));
      if (total < least) best = {rows, count, by_rows, within}, least = total;
    };
    // 2, 3, 4, 6, 8, 12, ..., and all.
    for (unsigned count = 2;; count += std::has_single_bit(count) ? count / 2 : count / 3) {
      count = std::min(count, threads);
      if (ways.columns) consider(count, false);
      if (ways.rows) consider(count, true);
      if (count == threads) break;
    }
    const Split& last = splits.back();
    if (last.by_rows && !best.by_rows) continue;
    const bool gains_more =
        best.threads == last.threads && best.wake_within_us > kWorthAnEntry * last.wake_within_us;
    if (best.threads > last.threads || best.by_rows != last.by_rows || (gains_more && !awake)) {
      splits.push_back(best);
    }
  }
  return splits;
}

const Planner::Split& Planner::find(const Splits& splits, std::size_t rows) {
  auto split = splits.end() - 1;
  while (split != splits.begin() && split->from_rows > rows) --split;
  return *split;
}

Plan Planner::plan(std::size_t rows, unsigned threads, bool awake) const {
  rows = std::max<std::size_t>(rows, 1);  // strategy(0) must have an answer
  const Split& split = find(awake ? awake_ : asleep_, rows);
  threads = std::min(threads, split.threads);
  if (threads == 1) return plan_alone(rows);
  if (!split.by_rows) {
    return {rows <= kGemvRows ? Strategy::kGemv : Strategy::kLayerByLayer, threads, rows,
            split.wake_within_us};
  }
  const std::size_t each = (rows + threads - 1) / threads;
  const std::size_t block = std::max(each / kBlocksPerThread, kMinTiles * tile_rows_);
  return {Strategy::kRowBlock, threads, std::min(block, max_block_rows_), split.wake_within_us};
}

Plan Planner::plan_alone(std::size_t rows) const {
  const bool few = rows <= kGemvRows;
  if (rows <= max_block_rows_) return {few ? Strategy::kGemv : Strategy::kRowBlock, 1, rows};
  const std::size_t rounds = (rows + max_block_rows_ - 1) / max_block_rows_;
  return {few ? Strategy::kGemv : Strategy::kRowBlock, 1, (rows + rounds - 1) / rounds};
}

}  // namespace fused_mlp
