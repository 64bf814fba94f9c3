// SPDX-License-Identifier: Apache-2.0
#include "model/split.hpp"

#include <algorithm>
#include <cstdint>

namespace fused_mlp {

// The contents of the columns of all buffers before an operation runs.
class Split::Columns {
 public:
  explicit Columns(const Program& program) {
    for (const std::size_t width : program.widths()) state_.emplace_back(width, std::uint8_t{0});
  }
  // Whether any of them differs between the rows of a group.
  bool differ(const Region& at, std::size_t width) const {
    const auto begin = of(at);
    return std::any_of(begin, begin + static_cast<std::ptrdiff_t>(width),
                       [](std::uint8_t state) { return (state & kDiffers) != 0; });
  }
  void write(const Region& at, std::size_t width, bool differs) {
    std::fill_n(of(at), width, differs ? kDiffers : std::uint8_t{0});
  }
  // Calls action(column, width) for what rows need of a group and do not have yet; they have it then.
  template <class Action>
  void give(const Region& at, std::size_t width, Action action) {
    const auto begin = of(at);
    for (std::size_t i = 0; i < width;) {
      std::size_t end = i;
      while (end < width && begin[static_cast<std::ptrdiff_t>(end)] == 0) {
        begin[static_cast<std::ptrdiff_t>(end++)] = kGiven;
      }
      if (end > i) action(at.column + i, end - i);
      i = std::max(end, i + 1);
    }
  }

 private:
  static constexpr std::uint8_t kDiffers = 1, kGiven = 2;
  std::vector<std::uint8_t>::iterator of(const Region& at) {
    return state_[at.buffer].begin() + static_cast<std::ptrdiff_t>(at.column);
  }
  std::vector<std::uint8_t>::const_iterator of(const Region& at) const {
    return state_[at.buffer].begin() + static_cast<std::ptrdiff_t>(at.column);
  }
  std::vector<std::vector<std::uint8_t>> state_;
};

namespace {

bool equal(const fused_mlp_words& a, const fused_mlp_words& b) {
  return a.first == b.first && a.last == b.last;
}

std::size_t width_of(const std::vector<fused_mlp_words>& runs) {
  std::size_t width = 0;
  for (const fused_mlp_words& run : runs) width += run.last - run.first;
  return width;
}

double multiply_adds(const PackedLayer& layer, std::size_t in) {
  return static_cast<double>(in) * static_cast<double>(layer.out) * (layer.gated ? 2 : 1);
}

}  // namespace

Split::Split(const Program& program, std::span<const fused_mlp_words> shared, std::size_t panel)
    : program_(program), panel_(panel), shared_(shared.begin(), shared.end()) {
  Columns columns(program);
  std::uint32_t at = 0;
  const auto own = [&](std::uint32_t end) {
    if (end == at) return;
    own_.push_back({at, end});
    columns.write({Region::kInput, at}, end - at, true);
  };
  for (const fused_mlp_words& run : shared_) {
    own(run.first);
    at = run.last;
  }
  own(static_cast<std::uint32_t>(program.in_features()));
  shared_width_ = width_of(shared_);
  own_width_ = width_of(own_);
  row_share_ = 0;
  double all = 0;
  for (std::size_t i = 0; i < program.ops().size(); ++i) {
    const Op& op = program.ops()[i];
    op.lookups > 0 ? add_lookups(i, columns) : add(i, columns);
    if (op.product) all += multiply_adds(op.layer, op.layer.in);
  }
  row_share_ = all > 0 ? row_share_ / all : 1;
  Part& outputs = rows_.emplace_back();
  outputs.runs = false;
  keep(outputs, {Region::kOutput, 0}, program.out_features(), columns);
}

bool Split::is_for(std::span<const fused_mlp_words> shared) const {
  return std::equal(shared.begin(), shared.end(), shared_.begin(), shared_.end(), equal);
}

// Values that rows read of their group are copied when the operation that reads them comes: until then they
// are where they were written.
void Split::keep(Part& part, const Region& region, std::size_t width, Columns& columns) {
  Part kept{.op = part.op, .runs = false};
  columns.give(region, width, [&](std::size_t column, std::size_t count) {
    kept.copies.push_back({program_.locate({region.buffer, column}), kept_, count});
    kept_ += count;
  });
  if (kept.copies.empty()) return;
  part.copies.insert(part.copies.end(), kept.copies.begin(), kept.copies.end());
  groups_.push_back(std::move(kept));
}

void Split::add(std::size_t index, Columns& columns) {
  const Op& op = program_.ops()[index];
  const Program::Reads reads = program_.reads(index);
  bool differs = false;
  for (const auto& [region, width] : reads) differs |= columns.differ(region, width);
  if (!differs) {
    groups_.push_back({.op = index});
  } else if (op.product && op.layer.precision != Precision::kInt8) {
    add_product(index, columns);
  } else {
    Part part{.op = index};
    for (const auto& [region, width] : reads) keep(part, region, width, columns);
    rows_.push_back(std::move(part));
    if (op.product) row_share_ += multiply_adds(op.layer, op.layer.in);
  }
  const auto& [written, width] = program_.write(index);
  columns.write(written, width, differs);
}

// Lookups whose ids differ between rows run per row.
void Split::add_lookups(std::size_t index, Columns& columns) {
  const Op& op = program_.ops()[index];
  Part of_groups{.op = index}, of_rows{.op = index};
  for (std::size_t i = op.first_lookup; i < op.first_lookup + op.lookups; ++i) {
    const PlacedLookup& lookup = program_.lookups()[i];
    const Program::Regions& regions = program_.lookup_regions(i);
    const std::size_t ids = lookup.lookup.ids;
    const bool differs =
        columns.differ(regions.in, ids) || (lookup.has_factors && columns.differ(regions.other, ids));
    if (differs) {
      keep(of_rows, regions.in, ids, columns);
      if (lookup.has_factors) keep(of_rows, regions.other, ids, columns);
    }
    (differs ? of_rows : of_groups).lookups.push_back(lookup);
    columns.write(regions.out, lookup.lookup.features * (lookup.lookup.bag ? 1 : ids), differs);
  }
  if (!of_groups.lookups.empty()) groups_.push_back(std::move(of_groups));
  if (!of_rows.lookups.empty()) rows_.push_back(std::move(of_rows));
}

void Split::add_product(std::size_t index, Columns& columns) {
  const Op& op = program_.ops()[index];
  const PackedLayer& layer = op.layer;
  const std::size_t panels = layer.panels * panel_;  // of a sum
  Part of_rows{.op = index}, of_groups{.op = index};
  const Program::Reads reads = program_.reads(index);
  const Region in = reads[0].region;
  for (std::size_t first = 0; first < layer.in; first += kSumBlock) {
    const std::size_t count = std::min(kSumBlock, layer.in - first);
    const Region block{in.buffer, in.column + first};
    if (columns.differ(block, count)) {
      keep(of_rows, block, count, columns);
      const bool grows = !of_rows.sums.empty() && of_rows.sums.back().count > 0;
      grows ? void(of_rows.sums.back().count += count) : void(of_rows.sums.push_back({first, count, 0}));
      row_share_ += multiply_adds(layer, count);
    } else if (of_rows.sums.empty()) {  // from the bias on
      of_groups.first = first + count;
      if (of_rows.start == kNone) {
        of_rows.start = kept_;
        kept_ += panels;
      }
    } else {
      of_rows.sums.push_back({first, 0, kept_});
      of_groups.sums.push_back({first, count, kept_});
      kept_ += panels;
    }
  }
  of_groups.start = of_rows.start;
  for (std::size_t i = 1; i < reads.size(); ++i) keep(of_rows, reads[i].region, reads[i].width, columns);
  const bool splits = of_groups.first > 0 || !of_groups.sums.empty();
  if (splits) groups_.push_back(std::move(of_groups));
  if (!splits) of_rows.sums.clear();
  rows_.push_back(std::move(of_rows));
}

}  // namespace fused_mlp
