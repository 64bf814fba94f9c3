// SPDX-License-Identifier: Apache-2.0
// Timeouts, percent-encoding and base64.
#include <limits>

#include "front/grpc/metadata.hpp"
#include "testing/check.hpp"

using namespace fused_mlp::front;

TEST(every_unit_of_a_timeout_is_read) {
  CHECK_EQ(*parse_timeout("7n"), 7);
  CHECK_EQ(*parse_timeout("7u"), 7'000);
  CHECK_EQ(*parse_timeout("7m"), 7'000'000);
  CHECK_EQ(*parse_timeout("7S"), 7'000'000'000);
  CHECK_EQ(*parse_timeout("7M"), 420'000'000'000);
  CHECK_EQ(*parse_timeout("7H"), 25'200'000'000'000);
  CHECK_EQ(*parse_timeout("0n"), 0);
}

TEST(the_longest_timeouts_do_not_overflow) {
  for (const char* text : {"99999999H", "99999999M", "99999999S"}) {
    CHECK(*parse_timeout(text) > 0);
    CHECK(*parse_timeout(text) < std::numeric_limits<int64_t>::max() / 2);
  }
}

TEST(a_timeout_that_is_none_is_refused) {
  for (const char* text : {"", "n", "7", "7x", "-7n", "+7n", " 7n", "7 n", "123456789n", "0x7n", "7.5S"}) {
    CHECK(!parse_timeout(text).has_value());
  }
}

TEST(messages_are_percent_encoded_byte_by_byte) {
  CHECK_EQ(percent_encode("plain text ~"), "plain text ~");
  CHECK_EQ(percent_encode("100%"), "100%25");
  CHECK_EQ(percent_encode("\t\n\r\x7f"), "%09%0A%0D%7F");
  CHECK_EQ(percent_encode("\u2603"), "%E2%98%83");
}

TEST(base64_comes_back_with_and_without_padding) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) {
    CHECK_EQ(*base64_decode(base64_encode(bytes)), bytes);
    bytes.push_back(static_cast<char>(i));
  }
  CHECK_EQ(base64_encode("a"), "YQ");
  CHECK_EQ(*base64_decode("YQ=="), "a");
  CHECK_EQ(*base64_decode(""), "");
}

TEST(what_is_not_base64_is_refused) {
  for (const char* text : {"Y", "YQ*=", "Y Q", "====x"}) CHECK(!base64_decode(text).has_value());
}
