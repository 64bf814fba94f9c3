// SPDX-License-Identifier: Apache-2.0
// A program for rows that have some words of their inputs in common: what depends on those words alone is
// computed once for a group of rows, everything else for each row. Products are split where their sum is:
// blocks of kSumBlock inputs that the rows have in common are summed once, and added in their place, so that
// the order of the sum, and every bit of a result, is that of the whole program.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernel_api.h"
#include "model/program.hpp"

namespace fused_mlp {

class Split {
 public:
  // Columns of a group that its rows need: kept at `kept`, in `width` floats.
  struct Copy {
    Location place;
    std::size_t kept;
    std::size_t width;
  };
  // An operation, or the part of it, of groups or of rows.
  struct Part {
    std::size_t op;
    std::vector<Copy> copies =
        {};  // kept before it is run for groups, given to rows before it is run for these
    std::vector<PlacedLookup> lookups = {};  // of an operation of lookups: those of this part
    // A product of rows: its sum from the bias or a kept one on, and where kept ones are.
    std::vector<SumPart> sums = {};
    std::size_t first = 0;  // the products before this one are kept, from the bias on
    std::size_t start = kNone;
    bool runs = true;  // false: only copies
  };
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  Split(const Program& program, std::span<const fused_mlp_words> shared, std::size_t panel);

  bool is_for(std::span<const fused_mlp_words> shared) const;
  const std::vector<Part>& groups() const { return groups_; }
  const std::vector<Part>& rows() const { return rows_; }
  const std::vector<fused_mlp_words>& shared() const { return shared_; }
  const std::vector<fused_mlp_words>& own() const { return own_; }  // the other words
  std::size_t shared_width() const { return shared_width_; }
  std::size_t own_width() const { return own_width_; }
  std::size_t kept() const { return kept_; }       // floats of a group
  double row_share() const { return row_share_; }  // of the program's multiply-adds that each row takes

 private:
  class Columns;
  void add(std::size_t op, Columns& columns);
  void add_lookups(std::size_t op, Columns& columns);
  void add_product(std::size_t op, Columns& columns);
  void keep(Part& part, const Region& region, std::size_t width, Columns& columns);

  const Program& program_;
  const std::size_t panel_;
  std::vector<fused_mlp_words> shared_, own_;
  std::size_t shared_width_ = 0, own_width_ = 0;
  std::vector<Part> groups_, rows_;
  std::size_t kept_ = 0;
  double row_share_ = 1;
};

}  // namespace fused_mlp
