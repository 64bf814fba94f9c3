// SPDX-License-Identifier: Apache-2.0
// The fast path for numpy arrays: reads and writes them in place, without a Python frame or a copy. Releases
// the GIL while the kernel runs.
#pragma once

#include <nanobind/nanobind.h>

#include "model/kernel.hpp"

namespace fused_mlp {

// Looks up what the fast paths need of numpy: when the module is imported, because a call that imported it
// would release the GIL while other calls wait for its result with the GIL.
void find_numpy();

// A numpy array as the fast paths take it: no subclass (the data of a masked array has another meaning),
// C-contiguous, aligned, in native byte order. Reads the head of PyArrayObject, whose layout has been the
// same since numpy 1.0 and in 2.x: the buffer protocol takes 60 ns an array. Valid as long as the array is
// referenced.
class ArrayView {
 public:
  enum class Type { none, float32, int32, int64 };

  explicit ArrayView(nanobind::handle array);

  // Most of many arrays are in no cache: prefetches the heads of all, then the data that they point to.
  static void fetch_head(const void* array) {
    __builtin_prefetch(array);
    __builtin_prefetch(static_cast<const char*>(array) + 64);
  }
  static void fetch_values(nanobind::handle array);

  Type type() const { return type_; }
  bool writable() const { return writable_; }
  std::size_t rows() const { return rows_; }
  bool has_rows_of(std::size_t values) const { return dimensions_ > 0 && rows_ * values == size_; }
  bool is_matrix(std::size_t columns) const {
    return type_ == Type::float32 && dimensions_ == 2 && columns_ == columns;
  }
  template <class T>
  T* data() const {
    return static_cast<T*>(data_);
  }

 private:
  Type type_ = Type::none;
  bool writable_ = false;
  int dimensions_ = 0;
  std::size_t rows_ = 0;
  std::size_t columns_ = 0;
  std::size_t size_ = 0;
  void* data_ = nullptr;
};

// Returns the result in a new array or in `out`. Returns None and writes nothing unless x and out are numpy
// arrays, float32, C-contiguous and of matching shape.
nanobind::object call_numpy(const MlpKernel& kernel, nanobind::handle x, nanobind::handle out);

// The same for rows that are packed and checked already.
nanobind::object run_packed(const MlpKernel& kernel, const float* rows, std::size_t count);

}  // namespace fused_mlp
