// SPDX-License-Identifier: Apache-2.0
#include "front/rest/http1.hpp"

#include <llhttp.h>

#include <algorithm>
#include <exception>

#include "front/call/metadata.hpp"
#include "front/http2/connection.hpp"
#include "front/rest/rest_call.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front {
namespace {

constexpr int64_t kDrainNotice = 20'000'000;
constexpr size_t kPiece = 64u << 10;  // of an answer, to the output at once
constexpr std::string_view kBodyEnd = "\r\n";

}  // namespace

bool HeadLines::scan(const uint8_t* data, size_t size, size_t most) {
  for (size_t i = 0; i < size && !ended_; ++i) {
    const uint8_t byte = data[i];
    if (++bytes_ > most) return false;
    if (after_cr_ != (byte == '\n')) return false;
    if (byte == '\n') {
      ended_ = line_empty_ && !first_line_;
      if (!line_empty_) first_line_ = false;  // empty lines in front of a request are passed over
      line_empty_ = true;
    } else if (byte != '\r') {
      if (line_empty_ && !first_line_ && (byte == ' ' || byte == '\t')) return false;
      line_empty_ = false;
    }
    after_cr_ = byte == '\r';
  }
  return true;
}

struct Http1::Parser {
  llhttp_t state;

  static Http1& self(llhttp_t* parser) { return *static_cast<Http1*>(parser->data); }

  // No exception may pass through llhttp.
  template <class Action>
  static int guarded(llhttp_t* parser, Action action) noexcept {
    Http1& http1 = self(parser);
    try {
      return action(http1) ? HPE_OK : HPE_USER;
    } catch (const std::exception&) {
      http1.failed_ = true;
      return HPE_USER;
    }
  }
  template <std::string Http1::*Text>
  static int append(llhttp_t* parser, const char* at, size_t size) {
    return guarded(parser, [&](Http1& http1) {
      (http1.*Text).append(at, size);
      return true;
    });
  }

  static const llhttp_settings_t* callbacks() {
    static const llhttp_settings_t made = [] {
      llhttp_settings_t s;
      llhttp_settings_init(&s);
      s.on_message_begin = [](llhttp_t* p) { return guarded(p, [](Http1& h) { return h.on_begin(); }); };
      s.on_url = append<&Http1::url_>;
      s.on_url_complete = [](llhttp_t* p) { return guarded(p, [](Http1& h) { return h.on_target(); }); };
      s.on_header_field = append<&Http1::name_>;
      s.on_header_value = append<&Http1::value_>;
      s.on_header_value_complete = [](llhttp_t* p) {
        return guarded(p, [](Http1& h) { return h.on_field(); });
      };
      s.on_headers_complete = [](llhttp_t* p) {
        p->upgrade = 0;  // to h2c, say: not taken up
        return guarded(p, [](Http1& h) { return h.on_head_end(); });
      };
      s.on_chunk_header = [](llhttp_t* p) {
        const int result = guarded(p, [&](Http1& h) { return h.on_chunk(p->content_length); });
        return result == HPE_OK && p->content_length == 0 ? HPE_PAUSED : result;  // at the end of the body
      };
      s.on_chunk_extension_name = [](llhttp_t* p, const char*, size_t) {
        return guarded(p, [](Http1& h) { return h.find_problem(400, "chunks: expected no extensions"); });
      };
      s.on_body = [](llhttp_t* p, const char* at, size_t size) {
        return guarded(p, [&](Http1& h) {
          Call* call = h.connection_.streams_.calls().first();
          if (call != nullptr) call->receive(reinterpret_cast<const uint8_t*>(at), size);
          return true;
        });
      };
      s.on_message_complete = [](llhttp_t* p) {
        const int result = guarded(p, [](Http1& h) {
          h.on_request_end();
          return true;
        });
        return result == HPE_OK ? HPE_PAUSED : result;
      };
      return s;
    }();
    return &made;
  }
};

const char* Http1::missing() { return nullptr; }

Http1::Http1(Connection& connection) : connection_(connection), parser_(std::make_unique<Parser>()) {
  llhttp_init(&parser_->state, HTTP_REQUEST, Parser::callbacks());
  parser_->state.data = this;
  connection.timers_.on_settings();
}

Http1::~Http1() = default;

// ---- A request comes in ----

bool Http1::on_begin() {
  if (connection_.streams_.open(connection_, ++requests_ & 0x7fffffff) != nullptr) return true;
  connection_.loop_.on_shortage(Shortage::calls, connection_.fd());
  return find_problem(503, "too many open calls; retry later");
}

bool Http1::find_problem(int status, const char* text) {
  problem_ = status;
  problem_text_ = text;
  return false;
}

void Http1::add_field(std::string_view name, std::string_view value) {
  Loop& loop = connection_.loop_;
  connection_.streams_.calls().first()->head().field(name, value, loop.limits(), loop.application());
}

bool Http1::on_target() {
  add_field(":method", llhttp_method_name(static_cast<llhttp_method_t>(parser_->state.method)));
  add_field(":path", url_);
  url_.clear();
  return true;
}

bool Http1::on_field() {
  std::transform(name_.begin(), name_.end(), name_.begin(), lower_case);
  while (value_.ends_with(' ') || value_.ends_with('\t')) value_.pop_back();
  if (name_.empty()) return find_problem(400, "headers: expected a name in front of each colon");
  // llhttp takes "gzip, chunked" for chunked.
  if (name_ == "transfer-encoding" && !is_token(value_, "chunked")) {
    return find_problem(501, "transfer-encoding: expected chunked");
  }
  if (name_ == "expect") expects_continue_ = is_token(value_, "100-continue");
  add_field(name_, value_);
  name_.clear();
  value_.clear();
  return true;
}

bool Http1::on_head_end() {
  in_head_ = false;
  head_since_ns_ = 0;
  const llhttp_t& parser = parser_->state;
  Call* call = connection_.streams_.calls().first();
  const uint32_t hosts = call->head().rest()->hosts;
  if (parser.http_major != 1 || hosts > 1 || (hosts == 0 && parser.http_minor == 1)) {
    return find_problem(400, "expected HTTP/1.1 and one Host header");
  }
  chunked_ = (parser.flags & F_CHUNKED) != 0;
  if (chunked_ && parser.http_minor == 0) return find_problem(400, "expected HTTP/1.1 for chunks");
  // Known now: a call that is refused before its body has come must say so in its answer.
  closes_ = draining_ || parser.http_minor == 0 || llhttp_should_keep_alive(&parser) == 0;
  call->begin();
  if (expects_continue_ && parser.http_minor == 1 && !call->finished() && !call->rejected()) {
    constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    connection_.out_.append(reinterpret_cast<const uint8_t*>(kContinue.data()), kContinue.size());
    connection_.mark_dirty();
  }
  return true;
}

// A chunk costs more than its bytes.
bool Http1::on_chunk(size_t size) {
  constexpr size_t kFewChunks = 256, kMinBytes = 16;
  after_chunks_ = size == 0;
  chunk_bytes_ += std::min(size, connection_.loop_.limits().max_message_bytes);
  if (++chunks_ <= kFewChunks || chunk_bytes_ >= kMinBytes * chunks_) return true;
  return find_problem(400, "chunks: expected 16 bytes or more in each, got fewer");
}

void Http1::on_request_end() {
  request_ended_ = true;
  if (Call* call = connection_.streams_.calls().first()) call->half_close();
}

size_t Http1::process(const uint8_t* data, size_t size) {
  if (size == 0 || request_ended_) return 0;
  if (in_head_ && head_since_ns_ == 0) {
    head_since_ns_ = connection_.loop_.timer_now();
    connection_.set_idle_since(0);
  }
  const size_t most = connection_.loop_.limits().max_header_bytes;
  if (in_head_ && !lines_.scan(data, size, most)) {
    if (lines_.bytes() > most) {
      fail(End::headers, 431, "headers: expected at most " + std::to_string(most) + " bytes");
      return size;
    }
    fail(End::protocol, 400, "expected lines that end in CRLF, and none that continues another");
    return size;
  }
  // llhttp takes a lone LF for the end of the body, and any number of trailers.
  for (size_t i = 0; after_chunks_ && i < size && end_bytes_ < kBodyEnd.size(); ++i) {
    if (static_cast<char>(data[i]) == kBodyEnd[end_bytes_++]) continue;
    fail(End::protocol, 400, "chunks: expected CRLF behind the last one, and no trailers");
    return size;
  }
  const char* const text = reinterpret_cast<const char*>(data);
  const llhttp_errno_t error = llhttp_execute(&parser_->state, text, size);
  if (error == HPE_OK) return size;
  if (error == HPE_PAUSED) {
    const auto taken = static_cast<size_t>(llhttp_get_error_pos(&parser_->state) - text);
    if (request_ended_) return taken;
    llhttp_resume(&parser_->state);
    return taken + process(data + taken, size - taken);
  }
  if (failed_) {
    connection_.fail();
  } else if (problem_ != 0) {
    fail(End::protocol, problem_, problem_text_);
  } else {
    fail(End::protocol, 400,
         std::string("expected HTTP/1.1, got something else: ") + llhttp_get_error_reason(&parser_->state));
  }
  return size;
}

// ---- Its answer goes out ----

void Http1::respond(Call& call, const AnswerHead& head) {
  answering_ = &call;
  closes_ = closes_ || !request_ended_;  // the rest of the request is not wanted
  ByteBuffer text;
  head.write_http1(closes_, text);
  connection_.out_.append(text.data(), text.size());
}

void Http1::write() {
  if (ending_) return connection_.leave(end_);
  OutputQueue& out = connection_.out_;
  while (true) {
    while (answering_ != nullptr && answering_->unsent_bytes() != 0 && !out.full()) {
      const size_t size = std::min(kPiece, answering_->unsent_bytes());
      answering_->take_answer(out.extend(size), size);
    }
    if (answering_ != nullptr && answering_->unsent_bytes() == 0) end_answer();
    if (connection_.closed_ || connection_.leaving_) return;
    if (out.empty()) break;
    const IoResult result = out.send(connection_.transport_, connection_.loop_.timer_now());
    if (result.state == Io::closed) return connection_.close(End::peer);
    if (result.state == Io::blocked) break;
    bump(connection_.loop_.stats().sent_bytes, result.bytes);
  }
  out.settle();
  connection_.loop_.watch(connection_);
  connection_.visit_again_if_pending();
}

// All of it is on its way: the next request may come.
void Http1::end_answer() {
  Call& call = *answering_;
  answering_ = nullptr;
  connection_.streams_.end(call);
  connection_.timers_.on_last_call_ended(connection_.loop_.timer_now());
  connection_.set_idle_since(connection_.loop_.now());
  if (closes_) return connection_.leave(draining_ ? End::done : End::peer);
  llhttp_reset(&parser_->state);
  lines_.restart();
  in_head_ = true;
  chunks_ = chunk_bytes_ = end_bytes_ = 0;
  request_ended_ = expects_continue_ = chunked_ = after_chunks_ = false;
}

void Http1::reset(End why) {
  ending_ = true;
  end_ = why;
  connection_.mark_dirty();
}

void Http1::fail(End why, int status, std::string_view text) {
  bump(connection_.loop_.stats().refused[static_cast<size_t>(kInvalidArgument)]);
  connection_.report(why, text);
  if (answering_ == nullptr) {  // else it is in the middle of another answer
    ByteBuffer body, head;
    write_error(text, body);
    AnswerHead fields(status, body.size());
    fields.add("content-type", "application/json");
    fields.write_http1(true, head);
    connection_.out_.append(head.data(), head.size());
    connection_.out_.append(body.data(), body.size());
  }
  connection_.leave(why);
}

// ---- Time and drain ----

void Http1::sweep() {
  const Limits& limits = connection_.loop_.limits();
  const int64_t now_ns = connection_.loop_.timer_now();
  if (elapsed(head_since_ns_, limits.receive_timeout_s, now_ns)) {
    return fail(End::slow_headers, 408, "headers not finished within receive_timeout_s");
  }
  connection_.streams_.sweep();
  if (connection_.closed_ || connection_.leaving_) return;
  connection_.loop_.watch(connection_);
  connection_.visit_again_if_pending();
  // A request that was on its way is answered.
  if (draining_ && connection_.streams_.empty() && head_since_ns_ == 0 &&
      now_ns - drain_since_ns_ > kDrainNotice) {
    return connection_.leave(End::done);
  }
  // Without pings there is no other way to find out that a peer has gone.
  if (connection_.streams_.empty() && head_since_ns_ == 0 &&
      connection_.timers_.silent(limits.keepalive_s + limits.keepalive_timeout_s, now_ns)) {
    return connection_.leave(End::done);
  }
  if (!draining_ && connection_.timers_.drain_due(!connection_.streams_.empty(), now_ns) != nullptr) {
    begin_drain();
  }
}

void Http1::begin_drain() {
  draining_ = closes_ = true;
  drain_since_ns_ = connection_.loop_.timer_now();
}

}  // namespace fused_mlp::front
