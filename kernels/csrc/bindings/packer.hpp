// SPDX-License-Identifier: Apache-2.0
// Runs a kernel on the arrays of a model's inputs, where packing them takes no more than copies: floats, and
// ids that are rows of their tables as they are. Everything else is left to Python
// (models/program/inputs.py).
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "model/kernel.hpp"

namespace fused_mlp {

class Packer {
 public:
  // Name, values per row, and the size of the table of ids; 0 for floats.
  using Input = std::tuple<std::string, std::size_t, std::int32_t>;
  explicit Packer(const std::vector<Input>& inputs);

  // The kernel's result for `given`, a dict of arrays by name. None unless it has exactly the inputs, of as
  // many rows each: float32 for floats, int32 or int64 for ids, C-contiguous, ids in range.
  nanobind::object call(const MlpKernel& kernel, nanobind::handle given) const;

 private:
  struct Part {
    nanobind::object name;
    std::size_t width;
    std::int32_t size;
    std::size_t column;
  };
  using Arrays = std::array<PyObject*, 1024>;  // as many inputs as a model may have
  bool find(nanobind::handle given, Arrays& found) const;

  std::vector<Part> parts_;
  std::size_t words_ = 0;
};

}  // namespace fused_mlp
