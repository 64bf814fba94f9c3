// SPDX-License-Identifier: Apache-2.0
// A minimal test harness: TEST registers a test, CHECK and CHECK_EQ end it at the first failure.
#pragma once

#include <cstdio>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace check {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Test {
  const char* name;
  std::function<void()> body;
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

struct Registration {
  Registration(const char* name, std::function<void()> body) { tests().push_back({name, std::move(body)}); }
};

inline void fail(const char* file, int line, const std::string& text) {
  throw Failure(std::string(file) + ":" + std::to_string(line) + ": " + text);
}

template <class A, class B>
void equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream message;
  message << text << ": ";
  if constexpr (requires { message << a << b; }) message << a << " is not " << b;
  fail(file, line, message.str());
}

// Runs the tests whose name contains the argument, or all of them.
inline int run(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  int failed = 0;
  int ran = 0;
  for (const Test& test : tests()) {
    if (std::string(test.name).find(wanted) == std::string::npos) continue;
    ++ran;
    try {
      test.body();
    } catch (const std::exception& error) {
      ++failed;
      std::printf("FAILED %s\n  %s\n", test.name, error.what());
    }
  }
  std::printf("%d tests, %d failed\n", ran, failed);
  return failed == 0 && ran > 0 ? 0 : 1;
}

}  // namespace check

#define TEST(name)                                                   \
  static void name();                                                \
  static const check::Registration registration_##name(#name, name); \
  static void name()
#define CHECK(condition) \
  if (!(condition)) check::fail(__FILE__, __LINE__, "failed: " #condition)
#define CHECK_EQ(a, b) check::equal((a), (b), #a " == " #b, __FILE__, __LINE__)
