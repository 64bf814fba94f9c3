// SPDX-License-Identifier: Apache-2.0
// The named inputs of a model, and the record of 4-byte words that one row of them becomes. The reference is
// models/program/inputs.py. Made when a version is loaded, immutable from then on except for its counters.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "codec/wire_tensor.hpp"
#include "engine/ticket.hpp"

namespace fused_mlp {

constexpr int32_t kAbsent = -1;  // an id that is not there, in a ragged row

// Changes whole numbers before they are looked up, in 64 bits that wrap around.
struct InputRule {
  enum class Op : uint8_t { add, divide, modulo, remainder, clip, replace, multiply };
  Op op;
  std::vector<int64_t>
      numbers;  // to add; the divisor; least and most; the one found and the one in its place

  // values: rows of `width`.
  void apply(int64_t* values, size_t count, size_t width) const noexcept;
};

// One reading of an input: a word of the record for each value that it reads.
struct InputField {
  int64_t size = 0;  // ids are below it; 0: floats
  std::vector<InputRule> rules = {};
  std::vector<uint32_t> positions = {};  // of the values that it reads; none: all of them
  size_t start = 0;                      // its first word
};

// The values that are known, by their places.
class Vocabulary {
 public:
  static constexpr int64_t kRefuse = -1;
  Vocabulary(std::vector<std::string> words, int64_t unknown);
  Vocabulary(const std::vector<int64_t>& numbers, int64_t unknown);
  int64_t find(std::string_view word) const noexcept;  // kRefuse: unknown words are not accepted
  int64_t find(int64_t number) const noexcept;
  size_t size() const noexcept { return words_.size() + numbers_.size(); }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, int64_t, Hash, std::equal_to<>> words_;
  std::unordered_map<int64_t, int64_t> numbers_;
  size_t longest_ = 0;
  int64_t unknown_;
};

enum class InputKind : uint8_t { floats, whole, strings };

struct NamedInput {
  std::string name;
  InputKind kind = InputKind::floats;
  std::vector<int64_t> shape = {};  // of one row
  bool ragged = false;              // a row may have fewer values
  std::shared_ptr<const Vocabulary> vocabulary = nullptr;
  std::vector<InputField> fields = {};
  size_t width = 1;     // values of a row: the product of its shape
  bool counts = false;  // whether a field reads whole numbers, or floats as such
};

class InputLayout {
 public:
  // Sets widths and starts. Throws std::invalid_argument.
  explicit InputLayout(std::vector<NamedInput> inputs);
  InputLayout(const InputLayout&) = delete;  // its names are referred to
  const std::vector<NamedInput>& inputs() const noexcept { return inputs_; }
  size_t words() const noexcept { return words_; }
  // The input of that name; `hint`: where it is if they come in order. Size of inputs(): there is none.
  size_t find(std::string_view name, size_t hint) const noexcept;
  std::string names() const;                     // "'user', 'item', 'x'", for errors
  size_t words_of(size_t input) const noexcept;  // of an input, one after the other from its first field on

  // Requests that were refused for an id or a word of this input.
  void count_refused(size_t input) const noexcept { refused_[input].fetch_add(1, std::memory_order_relaxed); }
  uint64_t refused(size_t input) const noexcept { return refused_[input].load(std::memory_order_relaxed); }

 private:
  std::vector<NamedInput> inputs_;
  std::unordered_map<std::string_view, size_t> by_name_;
  size_t words_ = 0;
  std::unique_ptr<std::atomic<uint64_t>[]> refused_;
};

// The inputs that a request gives once for all its rows.
struct SharedInputs {
  std::vector<std::string_view> names = {};
  bool every_single = false;  // that has one row, where others have more
};

// Named tensors become records in two steps. First the quick checks, so that the memory of the records can be
// charged: each input is there once, with a dtype and a shape that fit it, all with the same rows, or one of
// those that are shared. Sets WireTensor::input and shared.
TensorCheck check_inputs(const InputLayout& layout, std::span<WireTensor> tensors, uint32_t max_request_rows,
                         const SharedInputs& shared = {});

// The words of the shared inputs, ascending.
std::vector<WordRun> shared_words(const InputLayout& layout, std::span<const WireTensor> tensors);

// Then the values: writes the shared words, then (rows, the other words). Returns what is wrong with the
// values, or nothing. Takes time in proportion to the message and the records.
std::string pack_inputs(const InputLayout& layout, std::span<const WireTensor> tensors, uint32_t rows,
                        float* records);

}  // namespace fused_mlp
