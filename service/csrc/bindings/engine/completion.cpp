// SPDX-License-Identifier: Apache-2.0
#include "bindings/engine/completion.hpp"

#include <nanobind/stl/string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "bindings/python_ref.hpp"
#include "bindings/register.hpp"

namespace nb = nanobind;

namespace fused_mlp {

CompletionChannel::CompletionChannel() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

CompletionChannel::~CompletionChannel() { ::close(fd_); }

void CompletionChannel::push(Ref<PythonTicket> ticket) noexcept {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  ticket->next = newest_;
  newest_ = ticket.leak();
  ++finished_;
}

void CompletionChannel::flush() noexcept {
  // One write until the loop calls take(), which returns all results.
  if (signalled_.exchange(true)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(fd_, &one, sizeof one);
}

std::vector<Ref<PythonTicket>> CompletionChannel::take() {
  const std::lock_guard lock(mutex_);
  std::vector<Ref<PythonTicket>> taken = take_all();  // if it throws, the descriptor stays readable
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(fd_, &count, sizeof count);
  signalled_.store(false);
  return taken;
}

std::vector<Ref<PythonTicket>> CompletionChannel::take_all() {
  std::vector<Ref<PythonTicket>> taken(finished_);
  while (newest_ != nullptr) {  // in the order of their ends
    PythonTicket* const ticket = std::exchange(newest_, newest_->next);
    taken[--finished_] = Ref<PythonTicket>::adopt(ticket);
  }
  return taken;
}

void CompletionChannel::close() {
  std::vector<Ref<PythonTicket>> unread;
  const std::lock_guard lock(mutex_);
  closed_ = true;
  unread = take_all();
}

PythonTicket::PythonTicket(std::uint32_t rows, DType dtype, const Lane& lane, Py_buffer input,
                           PyObject* token, std::shared_ptr<CompletionChannel> channel)
    : Ticket(rows, channel.get()),
      dtype_(dtype),
      in_count_(rows * lane.options.in_features),
      out_count_(rows * lane.options.out_features),
      input_(input),
      token_(Py_NewRef(token)),
      output_(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(out_count_ * dtype_size(dtype)))),
      channel_(std::move(channel)) {}

PythonTicket::~PythonTicket() {
  if (!token_) return;  // take_result() was called
  if (const GilIfAlive gil; gil) {
    PyBuffer_Release(&input_);
    Py_XDECREF(output_);
    Py_DECREF(token_);
  }
}

TicketResult PythonTicket::take_result() {
  PyBuffer_Release(&input_);
  result_.token = adopt(std::exchange(token_, nullptr));
  result_.data = adopt(std::exchange(output_, nullptr));
  if (result_.outcome().status != Status::ok) result_.data.reset();
  return std::move(result_);
}

void PythonTicket::gather(float* dst) noexcept { to_float32(dtype_, input_.buf, in_count_, dst); }

void PythonTicket::complete(const Outcome& outcome) noexcept {
  result_.set(outcome);
  if (outcome.status == Status::ok) {
    from_float32(dtype_, outcome.y, out_count_, PyBytes_AS_STRING(output_));
  }
  channel_->push(Ref<PythonTicket>::share(this));
}

void register_completion(nb::module_& m) {
  nb::class_<TicketHandle>(m, "Ticket", "A submitted request.")
      .def(
          "cancel", [](const TicketHandle& self) { self.ticket->cancel(); },
          "Cancel the request. Safe at any time; a result still arrives.");

  nb::class_<TicketResult>(m, "TicketResult", "How a ticket ended.")
      .def_prop_ro("token", [](const TicketResult& c) { return nb::borrow(c.token.get()); })
      .def_prop_ro("data",
                   [](const TicketResult& c) { return c.data ? nb::borrow(c.data.get()) : nb::none(); })
      .def_prop_ro("status", [](const TicketResult& c) { return c.outcome().status; })
      .def_prop_ro("rows", [](const TicketResult& c) { return c.outcome().rows; })
      .def_prop_ro("batch_rows", [](const TicketResult& c) { return c.outcome().batch_rows; })
      .def_prop_ro("queue_ns", [](const TicketResult& c) { return c.outcome().queue_ns; })
      .def_prop_ro("compute_ns", [](const TicketResult& c) { return c.outcome().compute_ns; })
      .def_ro("strategy", &TicketResult::strategy)
      .def_ro("detail", &TicketResult::detail);

  nb::class_<CompletionQueue>(m, "CompletionQueue", "Delivers finished tickets to one event loop.")
      .def(nb::init<>())
      .def(
          "fileno", [](const CompletionQueue& self) { return self.channel->fd(); },
          "Readable while results wait: for loop.add_reader.")
      .def(
          "drain",
          [](CompletionQueue& self) {
            nb::list result;
            for (Ref<PythonTicket>& ticket : self.channel->take()) result.append(ticket->take_result());
            return result;
          },
          nb::sig("def drain(self) -> list[TicketResult]"), "The results since the last call.");
}

}  // namespace fused_mlp
