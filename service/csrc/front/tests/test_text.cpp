// SPDX-License-Identifier: Apache-2.0
// Timeouts, percent-encoding and base64.
#include <doctest/doctest.h>

#include <limits>

#include "front/call/metadata.hpp"

using namespace fused_mlp::front;

TEST_CASE("every unit of a timeout is read") {
  CHECK_EQ(*parse_timeout("7n"), 7);
  CHECK_EQ(*parse_timeout("7u"), 7'000);
  CHECK_EQ(*parse_timeout("7m"), 7'000'000);
  CHECK_EQ(*parse_timeout("7S"), 7'000'000'000);
  CHECK_EQ(*parse_timeout("7M"), 420'000'000'000);
  CHECK_EQ(*parse_timeout("7H"), 25'200'000'000'000);
  CHECK_EQ(*parse_timeout("0n"), 0);
}

TEST_CASE("the longest timeouts do not overflow") {
  for (const char* text : {"99999999H", "99999999M", "99999999S"}) {
    CHECK(*parse_timeout(text) > 0);
    CHECK(*parse_timeout(text) < std::numeric_limits<int64_t>::max() / 2);
  }
}

TEST_CASE("a timeout that is none is refused") {
  for (const char* text : {"", "n", "7", "7x", "-7n", "+7n", " 7n", "7 n", "123456789n", "0x7n", "7.5S"}) {
    CHECK(!parse_timeout(text).has_value());
  }
}

TEST_CASE("messages are percent encoded byte by byte") {
  CHECK_EQ(percent_encode("plain text ~"), "plain text ~");
  CHECK_EQ(percent_encode("100%"), "100%25");
  CHECK_EQ(percent_encode("\t\n\r\x7f"), "%09%0A%0D%7F");
  CHECK_EQ(percent_encode("\u2603"), "%E2%98%83");
}

TEST_CASE("base64 comes back with and without padding") {
  std::string bytes;
  for (int i = 0; i < 256; ++i) {
    CHECK_EQ(*base64_decode(base64_encode(bytes)), bytes);
    bytes.push_back(static_cast<char>(i));
  }
  CHECK_EQ(base64_encode("a"), "YQ");
  CHECK_EQ(*base64_decode("YQ=="), "a");
  CHECK_EQ(*base64_decode(""), "");
}

TEST_CASE("what is not base64 is refused") {
  for (const char* text : {"Y", "YQ*=", "Y Q", "====x"}) CHECK(!base64_decode(text).has_value());
}
