// SPDX-License-Identifier: Apache-2.0
#include "front/methods/health.hpp"

#include <optional>
#include <protozero/exception.hpp>
#include <protozero/pbf_reader.hpp>

#include "engine/status.hpp"
#include "front/grpc/call.hpp"

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
  if (found == answers_->end()) {
    return call.finish(kNotFound, "model " + quote_name(*service) + " is not served here");
  }
  constexpr uint8_t kStatus = 1 << 3;  // field 1, a varint
  uint8_t* response = call.add_message(2);
  response[0] = kStatus;
  response[1] = found->second.status;
  call.finish(kOk, {}, found->second.trailers);
}

}  // namespace fused_mlp::front
