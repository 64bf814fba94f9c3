// SPDX-License-Identifier: Apache-2.0
// Turns named tensors into records: declared in input_layout.hpp.

#include <algorithm>
#include <bitset>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "codec/element_cursor.hpp"
#include "codec/input_layout.hpp"
#include "codec/predict_input.hpp"
#include "engine/status.hpp"

namespace fused_mlp {
namespace {

constexpr size_t kChunk = 256;  // values that are worked on at a time
constexpr const char* kKinds[] = {"numbers", "whole numbers", "BYTES"};

std::string of_input(const NamedInput& input) { return "input " + quote_name(input.name); }

std::string list_text(std::span<const int64_t> sizes, const char* first = "") {
  std::string text = "[";
  text += first;
  for (const int64_t size : sizes) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(size);
  }
  text += "]";
  return text;
}

bool fits(InputKind kind, Element element) {
  if (kind == InputKind::strings) return element == Element::bytes;
  return is_whole(element) || (kind == InputKind::floats && is_float(element));
}

// Values of one row as they came; nothing: its shape does not fit.
std::optional<size_t> row_values(const NamedInput& input, const WireTensor& tensor) {
  if (tensor.dimension_count == 0) return input.width;  // one row
  const std::span row = tensor.shape().subspan(1);
  if (std::equal(row.begin(), row.end(), input.shape.begin(), input.shape.end())) return input.width;
  if (row.size() != 1 || row[0] < 0) return std::nullopt;
  const auto given = static_cast<uint64_t>(row[0]);
  if (given == input.width || (input.ragged && given < input.width)) return given;
  return std::nullopt;
}

std::string check_input(const NamedInput& input, const WireTensor& tensor, uint32_t max_request_rows) {
  if (!fits(input.kind, tensor.element)) {
    return of_input(input) + ": expected " + kKinds[static_cast<size_t>(input.kind)] + ", got " +
           (tensor.element == Element::unknown ? quote_name(tensor.datatype)
                                               : std::string(element_name(tensor.element)));
  }
  const auto given = row_values(input, tensor);
  if (!given) {
    return of_input(input) + ": expected shape " + list_text(input.shape, "rows") +
           (input.ragged ? " or fewer" : "") + ", got " + list_text(tensor.shape());
  }
  const int64_t rows = tensor.dimension_count == 0 ? 1 : tensor.dimensions[0];
  if (rows < 1 || rows > max_request_rows) {
    return of_input(input) + ": expected 1 to " + std::to_string(max_request_rows) +
           " rows per request, got " + std::to_string(rows);
  }
  const uint64_t bytes = static_cast<uint64_t>(rows) * *given * element_size(tensor.element);
  if (tensor.typed_field == 0 && bytes != tensor.data.size() && tensor.element != Element::bytes) {
    return of_input(input) + ": expected " + std::to_string(bytes) + " bytes for " +
           list_text(tensor.shape()) + " " + std::string(element_name(tensor.element)) + ", got " +
           std::to_string(tensor.data.size());
  }
  return {};
}

// Truncates as a cast does. NaN and values outside of 64 bits become INT64_MIN.
int64_t cut_off(float value) noexcept {
  return std::abs(value) < 0x1p63f ? static_cast<int64_t>(value) : INT64_MIN;
}

// Packs a tensor some rows at a time: reads their values once, then stores them field by field.
class Packer {
 public:
  // Word `w` of the input's fields is at words[w + r * stride] for row r.
  Packer(const InputLayout& layout, const WireTensor& tensor, size_t rows, float* words, size_t stride)
      : layout_(layout),
        input_(layout.inputs()[tensor.input]),
        tensor_(tensor),
        words_(words - input_.fields[0].start),
        stride_(stride),
        rows_(rows),
        given_(*row_values(input_, tensor)) {}

  std::string pack() {
    ElementCursor cursor(tensor_);
    const size_t block = std::max<size_t>(1, kChunk / std::max<size_t>(1, given_));
    for (size_t row = 0; row < rows_; row += block) {
      const size_t count = std::min(block, rows_ - row);
      const size_t got = read(cursor, row, count * given_);
      if (!problem_.empty()) return std::move(problem_);
      if (got != count * given_) return wrong_count(std::to_string(row * given_ + got));
      for (const InputField& field : input_.fields) {
        store(field, row, count);
        if (!problem_.empty()) return std::move(problem_);
      }
    }
    return cursor.at_end() ? std::string() : wrong_count("more");
  }

 private:
  std::string wrong_count(const std::string& got) const {
    return of_input(input_) + ": expected " + std::to_string(rows_ * given_) + " values for " +
           list_text(tensor_.shape()) + ", got " + got;
  }

  size_t read(ElementCursor& cursor, size_t row, size_t count) {
    if (input_.kind == InputKind::strings) return look_up_words(cursor, row, count);
    if (input_.kind == InputKind::whole) return look_up_numbers(cursor, row, count);
    floats_.make(count);
    const size_t got = cursor.read(floats_.data(), count);
    if (!input_.counts) return got;
    std::transform(floats_.data(), floats_.data() + got, numbers_.make(count), cut_off);
    return got;
  }

  size_t look_up_numbers(ElementCursor& cursor, size_t row, size_t count) {
    int64_t* const values = numbers_.make(count);
    const size_t got = cursor.read(values, count);
    if (tensor_.element == Element::uint64) {
      const int64_t* const large = std::find_if(values, values + got, [](int64_t v) { return v < 0; });
      if (large != values + got) {
        problem_ = of_input(input_) + ": expected whole numbers below 2^63, got " +
                   std::to_string(static_cast<uint64_t>(*large));
        return got;
      }
    }
    if (input_.vocabulary == nullptr) return got;
    for (size_t i = 0; i < got; ++i) {
      const int64_t place = input_.vocabulary->find(values[i]);
      if (place == Vocabulary::kRefuse) return refuse_word(std::to_string(values[i]), row + i / given_), got;
      values[i] = place;
    }
    return got;
  }

  size_t look_up_words(ElementCursor& cursor, size_t row, size_t count) {
    int64_t* const values = numbers_.make(count);
    std::string_view word;
    for (size_t i = 0; i < count; ++i) {
      if (!cursor.read(word)) return i;
      values[i] = input_.vocabulary->find(word);
      if (values[i] == Vocabulary::kRefuse) return refuse_word(word, row + i / given_), i;
    }
    return count;
  }

  // Calls action(from, to) for each value that the field reads: where it is among those read, and its word.
  template <class Action>
  void each_value(const InputField& field, size_t row, size_t count, Action action) const {
    const size_t width = field.positions.empty() ? given_ : field.positions.size();
    for (size_t r = 0; r < count; ++r) {
      float* const words = words_ + (row + r) * stride_ + field.start;
      for (size_t i = 0; i < width; ++i) {
        action(r * given_ + (field.positions.empty() ? i : field.positions[i]), words + i);
      }
    }
  }

  void store(const InputField& field, size_t row, size_t count) {
    if (input_.kind == InputKind::floats && field.size == 0 && field.rules.empty()) {
      each_value(field, row, count, [&](size_t from, float* to) { *to = floats_.data()[from]; });
    } else {
      store_numbers(field, row, count);
    }
    if (given_ == input_.width) return;
    const int32_t absent = field.size == 0 ? 0 : kAbsent;  // 0 is 0.0f
    for (size_t r = row; r < row + count; ++r) {
      for (size_t i = given_; i < input_.width; ++i) {
        std::memcpy(words_ + r * stride_ + field.start + i, &absent, sizeof absent);
      }
    }
  }

  void store_numbers(const InputField& field, size_t row, size_t count) {
    const size_t width = field.positions.empty() ? given_ : field.positions.size();
    const int64_t* values = numbers_.data();
    if (!field.positions.empty() || !field.rules.empty()) {  // other fields read the same numbers
      int64_t* at = made_.make(count * width);
      each_value(field, row, count, [&](size_t from, float*) { *at++ = values[from]; });
      for (const InputRule& rule : field.rules) rule.apply(made_.data(), count * width, width);
      values = made_.data();
    }
    const int64_t* next = values;
    if (field.size == 0) {
      return each_value(field, row, count, [&](size_t, float* to) { *to = static_cast<float>(*next++); });
    }
    for (size_t i = 0; i < count * width; ++i) {
      const bool outside = static_cast<uint64_t>(values[i]) >= static_cast<uint64_t>(field.size);
      if (!outside || (input_.ragged && values[i] == kAbsent)) continue;
      const size_t place = i % width;
      return refuse_id(field, row + i / width, field.positions.empty() ? place : field.positions[place],
                       values[i]);
    }
    each_value(field, row, count, [&](size_t, float* to) {
      const auto id = static_cast<int32_t>(*next++);
      std::memcpy(to, &id, sizeof id);  // the bits of the id, not its value as a float
    });
  }

  void refuse_id(const InputField& field, size_t row, size_t position, int64_t id) {
    layout_.count_refused(tensor_.input);
    problem_ = of_input(input_) + ", row " + std::to_string(row) +
               (input_.width > 1 ? ", position " + std::to_string(position) : "") +
               ": expected an id from 0 to " + std::to_string(field.size - 1) + ", got " + std::to_string(id);
  }

  void refuse_word(std::string_view word, size_t row) {
    layout_.count_refused(tensor_.input);
    problem_ = of_input(input_) + ", row " + std::to_string(row) + ": " +
               (is_utf8(word) ? quote_name(word) : "a text that is not UTF-8") +
               " is not in its vocabulary of " + std::to_string(input_.vocabulary->size());
  }

  // Room for some values; usually few.
  template <class Value>
  class Room {
   public:
    Value* make(size_t count) {
      if (count > kChunk) many_.resize(count);
      at_ = count > kChunk ? many_.data() : few_;
      return at_;
    }
    Value* data() const { return at_; }

   private:
    Value few_[kChunk];
    std::vector<Value> many_;
    Value* at_ = nullptr;
  };

  const InputLayout& layout_;
  const NamedInput& input_;
  const WireTensor& tensor_;
  float* const words_;
  const size_t stride_, rows_, given_;
  Room<float> floats_;
  Room<int64_t> numbers_, made_;
  std::string problem_;
};

int64_t rows_of(const WireTensor& tensor) { return tensor.dimension_count == 0 ? 1 : tensor.dimensions[0]; }

// Marks the tensors that are shared. What is wrong with their names or rows; empty: nothing.
std::string mark_shared(std::span<WireTensor> tensors, const SharedInputs& shared,
                        const InputLayout& layout) {
  std::bitset<kMaxInputs> named;
  for (const std::string_view name : shared.names) {
    const size_t found = layout.find(name, 0);
    if (found == layout.inputs().size())
      return "shared: expected " + layout.names() + ", got " + quote_name(name);
    named.set(found);
  }
  for (WireTensor& tensor : tensors) {
    tensor.shared = named[tensor.input] || (shared.every_single && rows_of(tensor) == 1);
  }
  const auto other =
      std::find_if(tensors.begin(), tensors.end(), [](const WireTensor& tensor) { return !tensor.shared; });
  for (WireTensor& tensor : tensors) {
    if (tensor.shared && rows_of(tensor) != 1) {
      return of_input(layout.inputs()[tensor.input]) + ": expected 1 row of a shared input, got " +
             std::to_string(rows_of(tensor)) +
             (other == tensors.end()
                  ? std::string()
                  : " beside " + std::to_string(rows_of(*other)) + " of " + quote_name(other->name));
    }
    // One row has nothing to share.
    tensor.shared &= other != tensors.end() && rows_of(*other) != 1;
  }
  return {};
}

}  // namespace

TensorCheck check_inputs(const InputLayout& layout, std::span<WireTensor> tensors, uint32_t max_request_rows,
                         const SharedInputs& shared) {
  const auto error = [](std::string text) { return TensorCheck{0, std::move(text)}; };
  std::bitset<kMaxInputs> seen;
  const std::vector<NamedInput>& inputs = layout.inputs();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t found = layout.find(tensors[i].name, i);
    if (found == inputs.size()) {
      return error("inputs: expected " + layout.names() + ", got " + quote_name(tensors[i].name));
    }
    if (seen[found]) return error("inputs: expected " + quote_name(tensors[i].name) + " once, got it twice");
    seen.set(found);
    tensors[i].input = static_cast<uint16_t>(found);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!seen[i])
      return error("inputs: expected " + layout.names() + ", got no " + quote_name(inputs[i].name));
  }
  for (const WireTensor& tensor : tensors) {
    if (std::string problem = check_input(inputs[tensor.input], tensor, max_request_rows); !problem.empty())
      return error(problem);
  }
  if (std::string problem = mark_shared(tensors, shared, layout); !problem.empty()) return error(problem);
  const WireTensor* first = nullptr;
  for (const WireTensor& tensor : tensors) {
    if (tensor.shared) continue;
    if (first == nullptr) first = &tensor;
    const int64_t rows = rows_of(*first), own = rows_of(tensor);
    if (own == rows) continue;
    std::string text = "inputs: expected the same number of rows in all, got " + std::to_string(rows) +
                       " of " + quote_name(first->name) + " and " + std::to_string(own) + " of " +
                       quote_name(tensor.name);
    if (rows == 1 || own == 1) text += "; name inputs of one row in shared";
    return error(std::move(text));
  }
  return {static_cast<uint32_t>(rows_of(*first)), {}, 1};
}

std::vector<WordRun> shared_words(const InputLayout& layout, std::span<const WireTensor> tensors) {
  std::vector<WordRun> runs;
  for (const WireTensor& tensor : tensors) {
    if (!tensor.shared) continue;
    const auto first = static_cast<uint32_t>(layout.inputs()[tensor.input].fields[0].start);
    runs.push_back({first, first + static_cast<uint32_t>(layout.words_of(tensor.input))});
  }
  std::sort(runs.begin(), runs.end(), [](const WordRun& a, const WordRun& b) { return a.first < b.first; });
  size_t last = 0;  // those side by side become one
  for (size_t i = 1; i < runs.size(); ++i) {
    runs[i].first == runs[last].last ? void(runs[last].last = runs[i].last) : void(runs[++last] = runs[i]);
  }
  if (!runs.empty()) runs.resize(last + 1);
  return runs;
}

std::string pack_inputs(const InputLayout& layout, std::span<const WireTensor> tensors, uint32_t rows,
                        float* records) {
  size_t shared = 0;
  for (const WireTensor& tensor : tensors) shared += tensor.shared ? layout.words_of(tensor.input) : 0;
  const size_t stride = layout.words() - shared;
  // How many words of each kind are in front of an input's.
  std::vector<size_t> before(layout.inputs().size());
  if (shared != 0) {
    for (const WireTensor& tensor : tensors) before[tensor.input] = tensor.shared ? 1 : 0;
    size_t in_front[2] = {0, 0};
    for (size_t i = 0; i < before.size(); ++i) {
      size_t& own = in_front[before[i]];
      before[i] = std::exchange(own, own + layout.words_of(i));
    }
  }
  for (const WireTensor& tensor : tensors) {
    const size_t start = shared == 0 ? layout.inputs()[tensor.input].fields[0].start : before[tensor.input];
    float* const words = records + (tensor.shared ? 0 : shared) + start;
    try {
      if (std::string problem = Packer(layout, tensor, tensor.shared ? 1 : rows, words, stride).pack();
          !problem.empty())
        return problem;
    } catch (const protozero::exception&) {
      return of_input(layout.inputs()[tensor.input]) + ": expected " +
             std::string(element_name(tensor.element)) + ", got bytes that cannot be read as such" +
             (tensor.element == Element::bytes ? ": their lengths do not add up" : "");
    }
  }
  return {};
}

}  // namespace fused_mlp
