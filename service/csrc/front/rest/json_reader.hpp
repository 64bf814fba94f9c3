// SPDX-License-Identifier: Apache-2.0
// Reading JSON on demand, with simdjson: each value is read where it is met, into what it is for. What is
// wrong is told by throwing, the way out of several levels. Pure functions.
#pragma once

#include <simdjson.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "engine/status.hpp"

namespace fused_mlp::front {

namespace json = simdjson::ondemand;

struct JsonProblem {
  std::string text;
};

[[noreturn]] void fail(std::string text);
// Throws for what is not JSON.
void check(simdjson::error_code error);

// The start of a value as it came, to be shown in an error.
std::string shown(std::string_view token);

// `field`: the name of the value, for errors.
std::string_view read_text(json::value value, const char* field);
bool read_flag(json::value value, const char* field);
int64_t read_whole(json::value value, const char* expected);  // "shape: expected whole numbers"

// Reads all of a value that means nothing here: on demand, mistakes are found only where one looks.
void pass_over(json::value value, int depth = 0);

// Reads it if it is.
bool read_null(json::value value);

// Calls action(key, value) for the fields of an object that `names` has, each at most once; those that are
// null count as missing. Returns the object.
template <class Action>
json::object each_field(json::value value, const char* where, std::initializer_list<std::string_view> names,
                        Action action) {
  const std::string_view token = value.raw_json_token();
  json::object object;
  const simdjson::error_code error = value.get_object().get(object);
  if (error == simdjson::INCORRECT_TYPE)
    fail(std::string(where) + ": expected an object, got " + shown(token));
  check(error);
  uint32_t seen = 0;
  for (auto each : object) {
    json::field field;
    check(std::move(each).get(field));
    std::string_view key;
    check(field.unescaped_key().get(key));
    const auto index = std::find(names.begin(), names.end(), key) - names.begin();
    if (static_cast<size_t>(index) == names.size()) {
      pass_over(field.value());
      continue;
    }
    if ((seen >> index & 1) != 0) {
      fail(std::string(where) + ": expected " + quote_name(key) + " once, got it twice");
    }
    seen |= 1u << index;
    if (!read_null(field.value())) action(key, field.value());
  }
  return object;
}

template <class Action>
void each_element(json::value value, const char* where, Action action) {
  const std::string_view token = value.raw_json_token();
  json::array array;
  const simdjson::error_code error = value.get_array().get(array);
  if (error == simdjson::INCORRECT_TYPE)
    fail(std::string(where) + ": expected an array, got " + shown(token));
  check(error);
  for (auto each : array) {
    json::value element;
    check(each.get(element));
    action(element);
  }
}

}  // namespace fused_mlp::front
