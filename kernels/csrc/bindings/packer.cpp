// SPDX-License-Identifier: Apache-2.0
#include "bindings/packer.hpp"

#include <cstring>
#include <memory>

#include "bindings/numpy_call.hpp"

namespace nb = nanobind;

namespace fused_mlp {

namespace {

template <class Id>
bool copy_ids(const Id* ids, std::size_t rows, std::size_t width, std::int32_t size, float* to,
              std::size_t stride) {
  bool fit = true;
  for (std::size_t r = 0; r < rows; ++r, ids += width, to += stride) {
    for (std::size_t c = 0; c < width; ++c) {
      fit &= ids[c] >= 0 && ids[c] < static_cast<Id>(size);
      const auto id = static_cast<std::int32_t>(ids[c]);
      std::memcpy(to + c, &id, sizeof id);
    }
  }
  return fit;
}

}  // namespace

Packer::Packer(const std::vector<Input>& inputs) {
  for (const auto& [name, width, size] : inputs) {
    parts_.push_back({nb::steal(PyUnicode_InternFromString(name.c_str())), width, size, words_});
    words_ += width;
  }
}

// The arrays of a dict in the order of the parts; false if some are missing. Dicts are mostly made in that
// order, with names that are interned as ours are.
bool Packer::find(nb::handle given, Arrays& found) const {
  PyObject *name = nullptr, *array = nullptr;
  Py_ssize_t at = 0;
  std::size_t count = 0;
  while (PyDict_Next(given.ptr(), &at, &name, &array) && name == parts_[count].name.ptr()) {
    ArrayView::fetch_head(array);
    found[count++] = array;
  }
  for (; count < parts_.size(); ++count) {
    found[count] = PyDict_GetItemWithError(given.ptr(), parts_[count].name.ptr());
    if (found[count] == nullptr) return false;
    ArrayView::fetch_head(found[count]);
  }
  return true;
}

nb::object Packer::call(const MlpKernel& kernel, nb::handle given) const {
  Arrays arrays;
  if (!PyDict_CheckExact(given.ptr()) || PyDict_GET_SIZE(given.ptr()) != nb::ssize_t(parts_.size()) ||
      parts_.size() > arrays.size() || !find(given, arrays)) {
    return nb::none();
  }
  for (std::size_t i = 0; i < parts_.size(); ++i) ArrayView::fetch_values(arrays[i]);
  std::size_t rows = 0;
  std::unique_ptr<float[]> packed;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    const ArrayView view(arrays[i]);
    if (!view.has_rows_of(part.width) || (packed && view.rows() != rows)) return nb::none();
    if (!packed) {
      rows = view.rows();
      packed = std::make_unique_for_overwrite<float[]>(rows * words_);
    }
    float* const column = packed.get() + part.column;
    if (part.size == 0) {
      if (view.type() != ArrayView::Type::float32) return nb::none();
      const auto* from = view.data<float>();
      for (std::size_t r = 0; r < rows; ++r, from += part.width) {
        std::memcpy(column + r * words_, from, part.width * sizeof(float));
      }
    } else if (view.type() == ArrayView::Type::int64) {
      if (!copy_ids(view.data<std::int64_t>(), rows, part.width, part.size, column, words_))
        return nb::none();
    } else if (view.type() == ArrayView::Type::int32) {
      if (!copy_ids(view.data<std::int32_t>(), rows, part.width, part.size, column, words_))
        return nb::none();
    } else {
      return nb::none();
    }
  }
  return run_packed(kernel, packed.get(), rows);
}

}  // namespace fused_mlp
