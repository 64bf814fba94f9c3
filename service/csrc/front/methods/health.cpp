// SPDX-License-Identifier: Apache-2.0
#include "front/methods/health.hpp"

#include <optional>
#include <protozero/exception.hpp>
#include <protozero/pbf_reader.hpp>

#include "engine/status.hpp"
#include "front/access/loop_callers.hpp"
#include "front/call/call.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front {
namespace {

// The field `service` of a HealthCheckRequest; nullopt: not such a message.
std::optional<std::string_view> read_service(const Message& message) {
  constexpr protozero::pbf_tag_type kService = 1;
  std::string_view service;
  try {
    protozero::pbf_reader reader(reinterpret_cast<const char*>(message.data()), message.size());
    while (reader.next()) {
      if (reader.tag_and_type() !=
          protozero::tag_and_type(kService, protozero::pbf_wire_type::length_delimited)) {
        reader.skip();
        continue;
      }
      const protozero::data_view view = reader.get_view();
      service = {view.data(), view.size()};
    }
  } catch (const protozero::exception&) {
    return std::nullopt;
  }
  return service;
}

Metadata retry_after(uint32_t ms) {
  return ms == 0 ? Metadata() : Metadata{{"retry-after-ms", std::to_string(ms)}};
}

}  // namespace

void HealthTable::publish(Answers answers) {
  auto fresh = std::make_shared<const Answers>(std::move(answers));
  const std::lock_guard lock(mutex_);
  answers_ = std::move(fresh);
  generation_.fetch_add(1, std::memory_order_release);
}

std::shared_ptr<const HealthTable::Answers> HealthTable::answers() const {
  const std::lock_guard lock(mutex_);
  return answers_;
}

void HealthCheck::on_message(Call& call, Message&& message) {
  if (const uint64_t generation = table_.generation(); generation != generation_) {
    generation_ = generation;
    answers_ = table_.answers();
  }
  const std::optional<std::string_view> service = read_service(message);
  if (!service) {
    return call.finish(kInvalidArgument,
                       "message: expected a HealthCheckRequest, got bytes that cannot be read as one");
  }
  const auto found = answers_->find(*service);
  // Probes of the server need no key, and do not learn the names of models.
  const bool of_server = found != answers_->end() && !found->second.model;
  const std::optional<Rejection> rejection = callers_ != nullptr ? callers_->identify(call) : std::nullopt;
  const std::string_view asked = of_server ? std::string_view() : *service;
  const Caller* const caller = call.caller();
  const bool described =
      callers_ == nullptr || (caller != nullptr && caller->allows(Action::describe, asked));
  if (!of_server && rejection) {
    return call.finish(rejection->code, rejection->text, retry_after(rejection->retry_after_ms));
  }
  if (!of_server && caller != nullptr) {
    if (!described) {
      caller->count_denied();
      return call.finish(kPermissionDenied, "this caller may not describe model " + quote_name(asked));
    }
    const Caller::Admission admission = caller->admit(0, call.loop().now());
    if (admission.refused_by != Quota::none) {
      return call.finish(kResourceExhausted, admission.text(*caller), retry_after(admission.retry_after_ms));
    }
    if (caller->must_release()) caller->release();
  }
  if (found == answers_->end()) {
    return call.finish(kNotFound, "model " + quote_name(*service) + " is not served here");
  }
  constexpr uint8_t kStatus = 1 << 3;  // field 1, a varint
  uint8_t* response = call.add_message(2);
  response[0] = kStatus;
  response[1] = found->second.status;
  call.finish(kOk, {}, described ? found->second.trailers : Metadata());
}

}  // namespace fused_mlp::front
