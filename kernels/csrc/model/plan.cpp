#include "model/plan.hpp"

#include <unistd.h>

#include <algorithm>

namespace fused_mlp {

namespace {

constexpr std::size_t kGemvRows = 5;
// The cost of waking a helper, and of the barrier after a layer.
constexpr double kWakeUs = 2.0;
constexpr double kBarrierUs = 0.5;
// Read bandwidth per core in bytes per microsecond: from the L2 cache, and from the L3 cache or memory.
constexpr double kL2BytesPerUs = 80e3;
constexpr double kMemoryBytesPerUs = 40e3;
// Threads share the bandwidth beyond the L2 cache: all together read this much faster than one.
constexpr double kMemoryScaling = 1.6;

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

// Estimates the time of a batch on one thread and on several.
class CostModel {
 public:
  CostModel(const Program& program, std::size_t stages, const Isa& isa)
      : max_rows_(static_cast<double>(isa.max_rows)),
        multiply_adds_per_us_(isa.panel == 32     ? 80e3
                              : isa.max_rows >= 6 ? 45e3
                                                  : 10e3),
        barriers_us_(kBarrierUs * static_cast<double>(stages)) {
    for (const Op& op : program.ops()) {
      if (!op.product) continue;
      const double weights =
          static_cast<double>(op.layer.panels * isa.panel) * static_cast<double>(op.layer.in);
      const bool int8 = op.layer.precision == Precision::kInt8;
      multiply_adds_ += int8 ? weights / isa.int8_speed : weights;
      bytes_ += weights * static_cast<double>(bytes_per_weight(op.layer.precision));
    }
  }

  double alone(std::size_t rows) const { return microseconds(rows, 1.0, 1.0); }
  double by_columns(std::size_t rows, unsigned threads) const {
    return microseconds(rows, 1.0 / threads, threads) + kWakeUs + barriers_us_;
  }
  double by_rows(std::size_t rows, unsigned threads) const {
    return microseconds((rows + threads - 1) / threads, 1.0, threads) + kWakeUs;
  }

 private:
  double microseconds(std::size_t rows, double share, double threads) const {
    // A tile of few rows is bound by FMA latency: it costs as much as one of half the maximum rows.
    const double effective = std::max(static_cast<double>(rows), max_rows_ / 2.0);
    const double multiply_adds = multiply_adds_ * share;
    const double bytes = bytes_ * share;
    const bool in_l2 = bytes <= 0.8 * l2_bytes();
    const double bandwidth =
        in_l2 ? kL2BytesPerUs : kMemoryBytesPerUs * std::min(1.0, kMemoryScaling / threads);
    return std::max(effective * multiply_adds / multiply_adds_per_us_, bytes / bandwidth);
  }

  double max_rows_;
  double multiply_adds_per_us_;
  double barriers_us_;
  double multiply_adds_ = 0;  // of float32, or as many int8 ones as take the same time
  double bytes_ = 0;          // of weights
};

constexpr std::size_t kNever = static_cast<std::size_t>(-1);
constexpr std::size_t kSearchedRows = 4096;

}  // namespace

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

Planner::Planner(const Program& program, std::size_t stages, const Isa& isa, unsigned threads)
    : threads_(threads), by_columns_from_(kNever), by_rows_from_(kNever) {
  std::size_t widest = 1;
  for (const Op& op : program.ops()) {
    widest = std::max(widest, op.product ? std::max(op.layer.in, op.layer.out) : op.row.width);
  }
  // The input and output of a layer should fit in half of the L2 cache. But every block reads all weights
  // again, so blocks have a minimum size.
  const double row_bytes = 2.0 * sizeof(float) * static_cast<double>(widest);
  const auto fitting = static_cast<std::size_t>(l2_bytes() / 2.0 / row_bytes);
  max_block_rows_ = std::clamp(fitting, 16 * isa.max_rows, 48 * isa.max_rows);

  if (threads == 1) return;
  const CostModel cost(program, stages, isa);
  for (std::size_t rows = 1; rows <= kSearchedRows && by_rows_from_ == kNever; ++rows) {
    const double alone = cost.alone(rows);
    const double columns = cost.by_columns(rows, threads);
    if (columns < alone) by_columns_from_ = std::min(by_columns_from_, rows);
    // Split by rows, every thread would read all weights from memory: never for streamed models.
    if (!program.streamed() && rows % threads == 0 &&
        cost.by_rows(rows, threads) < std::min(alone, columns)) {
      by_rows_from_ = rows;
    }
  }
}

Plan Planner::plan(std::size_t rows) const {
  rows = std::max<std::size_t>(rows, 1);  // strategy(0) must have an answer
  const bool few = rows <= kGemvRows;
  if (rows >= by_rows_from_) {
    // Blocks of equal size, the same number of them per thread.
    const std::size_t each = (rows + threads_ - 1) / threads_;
    const std::size_t rounds = (each + max_block_rows_ - 1) / max_block_rows_;
    return {Strategy::kRowBlock, threads_, (each + rounds - 1) / rounds};
  }
  if (rows >= by_columns_from_) return {few ? Strategy::kGemv : Strategy::kLayerByLayer, threads_, rows};
  return plan_alone(rows);
}

Plan Planner::plan_alone(std::size_t rows) const {
  const bool few = rows <= kGemvRows;
  if (rows <= max_block_rows_) return {few ? Strategy::kGemv : Strategy::kRowBlock, 1, rows};
  const std::size_t rounds = (rows + max_block_rows_ - 1) / max_block_rows_;
  return {few ? Strategy::kGemv : Strategy::kRowBlock, 1, (rows + rounds - 1) / rounds};
}

}  // namespace fused_mlp
