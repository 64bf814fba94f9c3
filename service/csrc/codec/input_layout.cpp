// SPDX-License-Identifier: Apache-2.0
#include "codec/input_layout.hpp"

#include <algorithm>
#include <stdexcept>

#include "codec/wire_tensor.hpp"
#include "engine/status.hpp"

namespace fused_mlp {
namespace {

constexpr size_t kShownNames = 8;

int64_t wrapping_sum(int64_t a, int64_t b) noexcept {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

int64_t wrapping_product(int64_t a, int64_t b) noexcept {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

int64_t floor_modulo(int64_t value, int64_t divisor) noexcept {
  const int64_t rest = value % divisor;
  return rest < 0 ? rest + divisor : rest;
}

size_t numbers_of(InputRule::Op op) {
  return op == InputRule::Op::clip || op == InputRule::Op::replace ? 2 : 1;
}

}  // namespace

void InputRule::apply(int64_t* values, size_t count, size_t width) const noexcept {
  const int64_t first = numbers.front(), last = numbers.back();
  const auto each = [&](auto change) {
    for (size_t i = 0; i < count; ++i) values[i] = change(values[i]);
  };
  switch (op) {
    case Op::add:
      if (numbers.size() == 1) return each([=](int64_t v) { return wrapping_sum(v, first); });
      for (size_t i = 0; i < count; ++i) values[i] = wrapping_sum(values[i], numbers[i % width]);
      return;
    case Op::divide:
      return each([=](int64_t v) { return v / first - (v % first < 0); });
    case Op::modulo:
      return each([=](int64_t v) { return floor_modulo(v, first); });
    case Op::remainder:
      return each([=](int64_t v) { return v % first; });
    case Op::clip:
      return each([=](int64_t v) { return std::min(std::max(v, first), last); });
    case Op::replace:
      return each([=](int64_t v) { return v == first ? last : v; });
    case Op::multiply:
      return each([=](int64_t v) { return wrapping_product(v, first); });
  }
}

Vocabulary::Vocabulary(std::vector<std::string> words, int64_t unknown) : unknown_(unknown) {
  words_.reserve(words.size());
  for (std::string& word : words) {
    longest_ = std::max(longest_, word.size());
    words_.emplace(std::move(word), static_cast<int64_t>(words_.size()));
  }
}

Vocabulary::Vocabulary(const std::vector<int64_t>& numbers, int64_t unknown) : unknown_(unknown) {
  numbers_.reserve(numbers.size());
  for (const int64_t number : numbers) numbers_.emplace(number, static_cast<int64_t>(numbers_.size()));
}

int64_t Vocabulary::find(std::string_view word) const noexcept {
  if (word.size() > longest_) return unknown_;  // hashing a megabyte takes long
  const auto found = words_.find(word);
  return found == words_.end() ? unknown_ : found->second;
}

int64_t Vocabulary::find(int64_t number) const noexcept {
  const auto found = numbers_.find(number);
  return found == numbers_.end() ? unknown_ : found->second;
}

InputLayout::InputLayout(std::vector<NamedInput> inputs)
    : inputs_(std::move(inputs)), refused_(new std::atomic<uint64_t>[inputs_.size()]()) {
  if (inputs_.empty() || inputs_.size() > kMaxInputs)
    throw std::invalid_argument("expected 1 to 1024 inputs");
  for (size_t i = 0; i < inputs_.size(); ++i) {
    NamedInput& input = inputs_[i];
    const auto wrong = [&](const char* what) {
      return std::invalid_argument("input " + quote_name(input.name) + ": " + what);
    };
    if (!by_name_.emplace(input.name, i).second) throw wrong("its name is twice there");
    input.width = 1;
    for (const int64_t size : input.shape) input.width *= static_cast<size_t>(size);
    if (input.width == 0 || input.fields.empty()) throw wrong("expected values and fields");
    if ((input.kind == InputKind::strings) > (input.vocabulary != nullptr))
      throw wrong("expected a vocabulary");
    for (InputField& field : input.fields) {
      const size_t width = field.positions.empty() ? input.width : field.positions.size();
      field.start = words_;
      words_ += width;
      input.counts |= field.size != 0 || !field.rules.empty();
      for (const uint32_t position : field.positions) {
        if (position >= input.width || input.ragged) throw wrong("expected positions within a row");
      }
      for (const InputRule& rule : field.rules) {
        const bool each = rule.op == InputRule::Op::add && rule.numbers.size() == width;
        if (rule.numbers.size() != numbers_of(rule.op) && !each)
          throw wrong("expected other numbers in a rule");
        const bool divides = rule.op >= InputRule::Op::divide && rule.op <= InputRule::Op::remainder;
        if (divides && rule.numbers[0] < 1) throw wrong("expected a divisor of at least 1");
      }
      if (field.size < 0 || field.size > INT32_MAX) throw wrong("expected a table of less than 2^31 rows");
    }
  }
}

size_t InputLayout::find(std::string_view name, size_t hint) const noexcept {
  if (hint < inputs_.size() && inputs_[hint].name == name) return hint;
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? inputs_.size() : found->second;
}

size_t InputLayout::words_of(size_t input) const noexcept {
  const auto start = [&](size_t i) { return i < inputs_.size() ? inputs_[i].fields[0].start : words_; };
  return start(input + 1) - start(input);
}

std::string InputLayout::names() const {
  std::string text;
  for (size_t i = 0; i < std::min(inputs_.size(), kShownNames); ++i) {
    text += (i == 0 ? "" : ", ") + quote_name(inputs_[i].name);
  }
  if (inputs_.size() > kShownNames) text += ", ... " + std::to_string(inputs_.size()) + " in all";
  return text;
}

}  // namespace fused_mlp
