// SPDX-License-Identifier: Apache-2.0
// An echo on the gRPC C++ library: its asynchronous API, one completion queue and thread per core, messages
// as byte buffers that are not parsed: the most requests that this library can answer.
// `grpc_echo [threads]` prints its port and runs until it is killed.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace {

class EchoCall {
 public:
  EchoCall(grpc::AsyncGenericService* service, grpc::ServerCompletionQueue* queue)
      : service_(service), queue_(queue), stream_(&context_) {
    service_->RequestCall(&context_, &stream_, queue_, queue_, this);
  }

  void proceed(bool ok) {
    switch (step_) {
      case Step::accept:
        if (!ok) break;                  // the server is going away
        new EchoCall(service_, queue_);  // stands by for the next one
        step_ = Step::read;
        stream_.Read(&message_, this);
        return;
      case Step::read:
        step_ = Step::finish;
        if (ok) {
          stream_.WriteAndFinish(message_, grpc::WriteOptions(), grpc::Status::OK, this);
        } else {
          stream_.Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no message"), this);
        }
        return;
      case Step::finish:
        break;
    }
    delete this;
  }

 private:
  enum class Step { accept, read, finish };
  grpc::AsyncGenericService* service_;
  grpc::ServerCompletionQueue* queue_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_;
  grpc::ByteBuffer message_;
  Step step_ = Step::accept;
};

constexpr int kStandingBy = 64;

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : static_cast<int>(std::thread::hardware_concurrency());
  grpc::AsyncGenericService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterAsyncGenericService(&service);
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues;
  for (int i = 0; i < threads; ++i) queues.push_back(builder.AddCompletionQueue());
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  std::printf("%d\n", port);
  std::fflush(stdout);
  std::vector<std::thread> pool;
  for (auto& queue : queues) {
    pool.emplace_back([&service, &queue] {
      for (int i = 0; i < kStandingBy; ++i) new EchoCall(&service, queue.get());
      void* tag = nullptr;
      bool ok = false;
      while (queue->Next(&tag, &ok)) static_cast<EchoCall*>(tag)->proceed(ok);
    });
  }
  for (auto& thread : pool) thread.join();
}
