// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 on one connection of the REST port, in nghttp2's place: requests are read by llhttp and become
// calls, one at a time, so that answers leave in the order of their requests however many are pipelined. What
// follows an unanswered request waits in the connection, and in the peer. Loop thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "front/http2/end.hpp"

namespace fused_mlp::front {

class Call;
class Connection;
class AnswerHead;

// A head in which each line ends in CRLF and none continues another. llhttp before 8.1.1 takes a lone CR for
// the end of a line (CVE-2023-30589), and two servers that disagree on lines disagree on where a request
// ends.
class HeadLines {
 public:
  // Looks at bytes up to the end of the head. False: they are not such lines, or more than `most` bytes.
  bool scan(const uint8_t* data, size_t size, size_t most);
  size_t bytes() const { return bytes_; }
  void restart() { *this = {}; }

 private:
  size_t bytes_ = 0;
  bool after_cr_ = false, line_empty_ = true, first_line_ = true, ended_ = false;
};

class Http1 {
 public:
  explicit Http1(Connection& connection);
  ~Http1();
  Http1(const Http1&) = delete;
  Http1& operator=(const Http1&) = delete;

  // Why a build has no HTTP/1.1; null: it has.
  static const char* missing();

  // The most bytes to read at once: what costs more than copying is cut into pieces, for others to have their
  // turn.
  size_t max_read() const { return in_head_ || chunked_ ? kCostlyRead : SIZE_MAX; }
  // Returns how many bytes were dealt with: up to the end of a request.
  size_t process(const uint8_t* data, size_t size);
  // A request has been read and is not answered: nothing more is processed.
  bool busy() const { return request_ended_; }
  // The call's head; its body is taken from the call as the socket takes it.
  void respond(Call& call, const AnswerHead& head);
  void write();
  void sweep();
  void begin_drain();
  // The call cannot be answered, or not further.
  void reset(End why);
  // Tells the peer what is wrong and ends the connection.
  void fail(End why, int status, std::string_view text);

 private:
  static constexpr size_t kCostlyRead = 16u << 10;
  struct Parser;
  friend struct Parser;
  // Callbacks of llhttp, in the order of a request.
  bool on_begin();
  bool on_target();
  bool on_field();
  bool on_head_end();
  bool on_chunk(size_t size);
  void on_request_end();
  bool find_problem(int status, const char* text);  // always false
  void add_field(std::string_view name, std::string_view value);
  void end_answer();

  Connection& connection_;
  std::unique_ptr<Parser> parser_;
  HeadLines lines_;
  std::string url_, name_, value_;  // as far as they have come
  int32_t requests_ = 0;
  size_t chunks_ = 0, chunk_bytes_ = 0;
  size_t end_bytes_ = 0;  // that have come behind the last chunk
  int64_t drain_since_ns_ = 0;
  int64_t head_since_ns_ = 0;  // 0: no head has begun
  Call* answering_ = nullptr;  // its head is on its way
  int problem_ = 0;            // the HTTP status of what a callback found
  const char* problem_text_ = "";
  bool in_head_ = true, request_ended_ = false, closes_ = false, draining_ = false, failed_ = false;
  bool expects_continue_ = false, chunked_ = false, after_chunks_ = false;
  End end_ = End::peer;  // of reset()
  bool ending_ = false;
};

}  // namespace fused_mlp::front
