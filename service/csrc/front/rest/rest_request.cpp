// SPDX-License-Identifier: Apache-2.0
// Reads inference requests in JSON with simdjson, on demand: numbers go straight from the text into the
// tensor.
#include <simdjson.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>

#include "front/rest/rest_codec.hpp"

namespace fused_mlp::front {
namespace {

namespace json = simdjson::ondemand;
using simdjson::error_code;

constexpr int kMostDepth = 32;                  // of values that are passed over
constexpr size_t kKeptParserBytes = 64u << 10;  // documents up to this size are read without allocating

// What is wrong, told by throwing: the way out of several levels of JSON.
struct Problem {
  std::string text;
};

[[noreturn]] void fail(std::string text) { throw Problem{std::move(text)}; }

void check(error_code error) {
  if (error == simdjson::MEMALLOC) throw std::bad_alloc();
  if (error != simdjson::SUCCESS) {
    fail(std::string("body: expected JSON, got text that cannot be read as such: ") +
         simdjson::error_message(error));
  }
}

// The start of a value as it came.
std::string shown(json::value& value) {
  std::string_view token = value.raw_json_token();
  while (!token.empty() && (token.back() == ' ' || token.back() == '\n' || token.back() == '\r')) {
    token.remove_suffix(1);
  }
  return quote_name(token);
}

std::string_view text_of(json::value value, const char* field) {
  const std::string got = shown(value);
  std::string_view text;
  const error_code error = value.get_string().get(text);
  if (error == simdjson::INCORRECT_TYPE) fail(std::string(field) + ": expected a string, got " + got);
  check(error);
  if (!is_utf8(text)) fail(std::string(field) + ": expected UTF-8");
  return text;
}

bool flag_of(json::value value, const char* field) {
  const std::string got = shown(value);
  bool flag = false;
  if (value.get_bool().get(flag) != simdjson::SUCCESS) {
    fail(std::string(field) + ": expected true or false, got " + got);
  }
  return flag;
}

// Reads all of a value that means nothing here: on demand, mistakes are found only where one looks.
void pass_over(json::value value, int depth = 0) {
  if (depth > kMostDepth) fail("body: expected at most " + std::to_string(kMostDepth) + " levels of JSON");
  json::json_type type{};
  check(value.type().get(type));
  switch (type) {
    case json::json_type::array: {
      json::array array;
      check(value.get_array().get(array));
      for (auto each : array) {
        json::value element;
        check(each.get(element));
        pass_over(element, depth + 1);
      }
      return;
    }
    case json::json_type::object: {
      json::object object;
      check(value.get_object().get(object));
      for (auto each : object) {
        json::field field;
        check(std::move(each).get(field));
        std::string_view key;
        check(field.unescaped_key().get(key));
        pass_over(field.value(), depth + 1);
      }
      return;
    }
    case json::json_type::number: {
      double number;
      check(value.get_double().get(number));
      return;
    }
    case json::json_type::string: {
      std::string_view text;
      check(value.get_string().get(text));
      return;
    }
    case json::json_type::boolean: {
      bool flag;
      check(value.get_bool().get(flag));
      return;
    }
    case json::json_type::null: {
      bool null = false;
      check(value.is_null().get(null));  // by itself it would throw for what only begins like a null
      if (!null) check(simdjson::N_ATOM_ERROR);
      return;
    }
  }
}

// The fields of an object, each known one at most once.
template <class Action>
void each_field(json::value value, const char* where, Action action) {
  const std::string got = shown(value);
  json::object object;
  const error_code error = value.get_object().get(object);
  if (error == simdjson::INCORRECT_TYPE) fail(std::string(where) + ": expected an object, got " + got);
  check(error);
  uint32_t seen = 0;
  for (auto each : object) {
    json::field field;
    check(std::move(each).get(field));
    std::string_view key;
    check(field.unescaped_key().get(key));
    const int index = action(key, field.value());
    if (index < 0) {
      pass_over(field.value());
    } else if ((seen >> index & 1) != 0) {
      fail(std::string(where) + ": expected " + quote_name(key) + " once, got it twice");
    } else {
      seen |= 1u << index;
    }
  }
}

template <class Action>
void each_element(json::value value, const char* where, Action action) {
  const std::string got = shown(value);
  json::array array;
  const error_code error = value.get_array().get(array);
  if (error == simdjson::INCORRECT_TYPE) fail(std::string(where) + ": expected an array, got " + got);
  check(error);
  for (auto each : array) {
    json::value element;
    check(each.get(element));
    action(element);
  }
}

// A piece of Reader::texts_.
struct Place {
  size_t begin = 0, size = 0;
};

class Reader {
 public:
  explicit Reader(PredictInput& input) : input_(input) {}

  void read(json::value body, std::string_view binary);

 private:
  Place keep(std::string_view text) {
    texts_.append(text);
    return {texts_.size() - text.size(), text.size()};
  }
  void read_parameters(json::value value);
  void read_input(json::value value);
  void read_shape(json::value value);
  void read_input_parameters(json::value value);
  void read_output(json::value value);
  void read_data(json::value value, int depth);
  void add_number(json::value& value);
  void take_binary(std::string_view binary);
  void place_texts();

  PredictInput& input_;
  std::string texts_;  // strings of the request: the parser's own are gone with the next request
  Place id_, arm_;
  std::vector<Place> outputs_;
  std::string variant_, dtype_, name_;
  size_t inputs_ = 0, numbers_ = 0;
  bool has_data_ = false;
  int64_t binary_size_ = -1;
};

void Reader::read_parameters(json::value value) {
  each_field(value, "parameters", [&](std::string_view key, json::value each) {
    if (key == "variant") return variant_ = text_of(each, "parameters: variant"), 0;
    if (key == "arm") return arm_ = keep(text_of(each, "parameters: arm")), 1;
    if (key == "binary_data_output") {
      return input_.binary_output = flag_of(each, "parameters: binary_data_output"), 2;
    }
    return -1;
  });
}

void Reader::read_shape(json::value value) {
  each_element(value, "shape", [&](json::value size) {
    const std::string got = shown(size);
    int64_t number = 0;
    if (size.get_int64().get(number) != simdjson::SUCCESS) {
      fail("shape: expected whole numbers, got " + got);
    }
    input_.add_dimension(number);
  });
}

void Reader::read_input_parameters(json::value value) {
  each_field(value, "inputs: parameters", [&](std::string_view key, json::value each) {
    if (key != "binary_data_size") return -1;
    const std::string got = shown(each);
    if (each.get_int64().get(binary_size_) != simdjson::SUCCESS || binary_size_ < 0) {
      fail("binary_data_size: expected a whole number of bytes, got " + got);
    }
    return 0;
  });
}

// The data may come before the dtype that says what it is: it is read as FP64 then, and narrowed later.
void Reader::read_input(json::value value) {
  if (++inputs_ > 1) return pass_over(value);
  each_field(value, "inputs", [&](std::string_view key, json::value each) {
    if (key == "name") return name_ = text_of(each, "name"), 0;
    if (key == "datatype") return dtype_ = text_of(each, "datatype"), 1;
    if (key == "shape") return read_shape(each), 2;
    if (key == "parameters") return read_input_parameters(each), 3;
    if (key != "data") return -1;
    has_data_ = true;
    read_data(each, 0);
    return 4;
  });
}

void Reader::read_output(json::value value) {
  Place name;
  bool binary = false;
  each_field(value, "outputs", [&](std::string_view key, json::value each) {
    if (key == "name") return name = keep(text_of(each, "outputs: name")), 0;
    if (key != "parameters") return -1;
    each_field(each, "outputs: parameters", [&](std::string_view parameter, json::value flag) {
      if (parameter != "binary_data") return -1;
      return binary = flag_of(flag, "outputs: binary_data"), 0;
    });
    return 1;
  });
  if (outputs_.size() >= kMostHeads)
    fail("outputs: expected at most " + std::to_string(kMostHeads) + ", got more");
  if (binary) input_.binary_outputs |= uint64_t{1} << outputs_.size();
  outputs_.push_back(name);
}

void Reader::read_data(json::value value, int depth) {
  if (depth > static_cast<int>(kMostDimensions)) fail("data: expected fewer levels of arrays");
  each_element(value, "data", [&](json::value element) {
    json::json_type type{};
    check(element.type().get(type));
    if (type == json::json_type::array) return read_data(element, depth + 1);
    if (type != json::json_type::number) fail("data: expected numbers, got " + shown(element));
    add_number(element);
  });
}

// The text is rounded once: a double that lies half way between two floats may have been rounded to there, so
// that the text decides, as it does among subnormal floats.
bool must_read_again(double number) {
  constexpr uint64_t kDropped = (uint64_t{1} << 29) - 1, kHalf = uint64_t{1} << 28;
  const auto bits = std::bit_cast<uint64_t>(number);
  return (bits & kDropped) == kHalf || (std::abs(number) < 0x1p-126 && number != 0);
}

void Reader::add_number(json::value& value) {
  const std::string_view token = value.raw_json_token();
  double number = 0;
  if (value.get_double().get(number) != simdjson::SUCCESS) {
    fail("data: expected numbers, got " + quote_name(token.substr(0, token.find_first_of(" \n\r\t"))));
  }
  ++numbers_;
  if (dtype_ == "FP64") return input_.scattered.append(&number, sizeof number);
  auto narrow = static_cast<float>(number);
  if (must_read_again(number)) std::from_chars(token.data(), token.data() + token.size(), narrow);
  if (std::isinf(narrow)) {
    fail("data: expected numbers within FP32, got " +
         quote_name(token.substr(0, token.find_first_of(" \n\r\t"))));
  }
  input_.scattered.append(&narrow, sizeof narrow);
}

void Reader::take_binary(std::string_view binary) {
  if (has_data_ && binary_size_ >= 0) fail("inputs: expected data or binary_data_size, got both");
  if (has_data_ && input_.dtype != DType::fp32 && input_.dtype != DType::fp64) {
    fail("data: expected binary data for " + std::string(dtype_name(input_.dtype)) + ", got numbers");
  }
  const auto wanted = static_cast<uint64_t>(std::max<int64_t>(binary_size_, 0));
  if (binary.size() != wanted) {
    fail("body: expected " + std::to_string(wanted) + " bytes of binary data behind the JSON, got " +
         std::to_string(binary.size()));
  }
  if (!has_data_ && binary_size_ < 0) fail("inputs: expected data or binary_data_size, got neither");
  input_.typed = has_data_;
  if (!has_data_) input_.data = binary;
}

// Last: what is appended to may move.
void Reader::place_texts() {
  ByteBuffer& kept = input_.scattered;
  const size_t numbers = kept.size();
  kept.append(texts_.data(), texts_.size());
  const char* const begin = reinterpret_cast<const char*>(kept.data());
  const auto view = [&](Place place) { return std::string_view(begin + numbers + place.begin, place.size); };
  if (has_data_) input_.data = {begin, numbers};
  input_.request_id = view(id_);
  for (const Place place : outputs_) input_.outputs.push_back(view(place));
  if (std::string problem = input_.name_arm("parameters: arm", view(arm_)); !problem.empty()) fail(problem);
}

void Reader::read(json::value body, std::string_view binary) {
  each_field(body, "body", [&](std::string_view key, json::value each) {
    if (key == "id") return id_ = keep(text_of(each, "id")), 0;
    if (key == "parameters") return read_parameters(each), 1;
    if (key == "inputs") {
      each_element(each, "inputs", [&](json::value tensor) { read_input(tensor); });
      return 2;
    }
    if (key == "outputs") {
      each_element(each, "outputs", [&](json::value output) { read_output(output); });
      return 3;
    }
    return -1;
  });
  input_.arm.variant = variant_of(variant_);
  if (!variant_.empty() && input_.arm.variant == Variant::unspecified) {
    fail("parameters: expected variant fused or unfused, got " + quote_name(variant_));
  }
  if (inputs_ != 1 || name_ != "input") {
    fail("inputs: expected one tensor named 'input', got " + (inputs_ == 1   ? quote_name(name_)
                                                              : inputs_ == 0 ? "none"
                                                                             : std::to_string(inputs_)));
  }
  const auto dtype = dtype_from_name(dtype_);
  if (!dtype) fail(unknown_dtype_text(dtype_));
  input_.dtype = *dtype;
  input_.all_outputs = outputs_.empty();
  input_.outputs_field = "outputs";
  take_binary(binary);
  place_texts();
}

// simdjson reads beyond the end of its text: it gets a copy with room behind it.
struct Scratch {
  ByteBuffer text;
  json::parser parser;
};

}  // namespace

std::string read_rest_request(const uint8_t* data, size_t size, PredictInput& input) {
  const size_t json_bytes = std::min(input.head_bytes, size);
  if (input.head_bytes != SIZE_MAX && input.head_bytes > size) {
    return "inference-header-content-length: expected at most the body's " + std::to_string(size) +
           " bytes, got " + std::to_string(input.head_bytes);
  }
  thread_local std::unique_ptr<Scratch> scratch;
  if (scratch == nullptr) scratch = std::make_unique<Scratch>();
  try {
    scratch->text.clear();
    uint8_t* text = scratch->text.extend(json_bytes + simdjson::SIMDJSON_PADDING);
    std::memcpy(text, data, json_bytes);
    std::memset(text + json_bytes, ' ', simdjson::SIMDJSON_PADDING);
    json::document document;
    check(scratch->parser.iterate(text, json_bytes, json_bytes + simdjson::SIMDJSON_PADDING).get(document));
    json::value body;
    const error_code error = document.get_value().get(body);
    if (error == simdjson::SCALAR_DOCUMENT_AS_VALUE) fail("body: expected a JSON object, got a single value");
    check(error);
    Reader(input).read(body, {reinterpret_cast<const char*>(data) + json_bytes, size - json_bytes});
    if (document.current_location().error() != simdjson::OUT_OF_BOUNDS)
      fail("body: expected one JSON object, got more behind it");
  } catch (Problem& problem) {
    input.request_id = {};
    scratch.reset();
    return std::move(problem.text);
  }
  if (json_bytes > kKeptParserBytes) scratch.reset();
  return {};
}

}  // namespace fused_mlp::front
