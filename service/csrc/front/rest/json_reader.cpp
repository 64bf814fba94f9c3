// SPDX-License-Identifier: Apache-2.0
#include "front/rest/json_reader.hpp"

#include <new>

namespace fused_mlp::front {
namespace {

using simdjson::error_code;

constexpr int kMaxDepth = 32;  // of values that are passed over

}  // namespace

void fail(std::string text) { throw JsonProblem{std::move(text)}; }

void check(error_code error) {
  if (error == simdjson::MEMALLOC) throw std::bad_alloc();
  if (error != simdjson::SUCCESS) {
    fail(std::string("body: expected JSON, got text that cannot be read as such: ") +
         simdjson::error_message(error));
  }
}

std::string shown(std::string_view token) {
  while (!token.empty() && (token.back() == ' ' || token.back() == '\n' || token.back() == '\r')) {
    token.remove_suffix(1);
  }
  return quote_name(token);
}

std::string_view read_text(json::value value, const char* field) {
  const std::string_view token = value.raw_json_token();
  std::string_view text;
  const error_code error = value.get_string().get(text);
  if (error == simdjson::INCORRECT_TYPE)
    fail(std::string(field) + ": expected a string, got " + shown(token));
  check(error);
  if (!simdjson::validate_utf8(text)) fail(std::string(field) + ": expected UTF-8");
  return text;
}

bool read_flag(json::value value, const char* field) {
  const std::string_view token = value.raw_json_token();
  bool flag = false;
  if (value.get_bool().get(flag) != simdjson::SUCCESS) {
    fail(std::string(field) + ": expected true or false, got " + shown(token));
  }
  return flag;
}

int64_t read_whole(json::value value, const char* expected) {
  const std::string_view token = value.raw_json_token();
  int64_t number = 0;
  if (value.get_int64().get(number) != simdjson::SUCCESS) {
    fail(std::string(expected) + ", got " + shown(token));
  }
  return number;
}

bool read_null(json::value value) {
  if (!value.raw_json_token().starts_with('n')) return false;
  pass_over(value);
  return true;
}

void pass_over(json::value value, int depth) {
  if (depth > kMaxDepth) fail("body: expected at most " + std::to_string(kMaxDepth) + " levels of JSON");
  json::json_type type{};
  check(value.type().get(type));
  switch (type) {
    case json::json_type::array:
      return each_element(value, "body", [depth](json::value element) { pass_over(element, depth + 1); });
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
    case json::json_type::number:
      return check(value.get_double().error());
    case json::json_type::string:
      return check(value.get_string().error());
    case json::json_type::boolean:
      return check(value.get_bool().error());
    case json::json_type::null: {
      bool null = false;
      check(value.is_null().get(null));  // by itself it would throw for what only begins like a null
      if (!null) check(simdjson::N_ATOM_ERROR);
      return;
    }
  }
}

}  // namespace fused_mlp::front
