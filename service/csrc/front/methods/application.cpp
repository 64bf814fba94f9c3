// SPDX-License-Identifier: Apache-2.0
#include "front/methods/application.hpp"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "codec/codec.hpp"
#include "front/access/loop_callers.hpp"
#include "front/methods/prediction.hpp"
#include "front/rest/rest_codec.hpp"

namespace fused_mlp::front {
namespace {

class PythonApplication : public Application {
 public:
  PythonApplication(Loop& loop, Bridge& bridge, const std::vector<PythonRpc>& rpcs)
      : bridge_(bridge), python_calls_(bridge, loop) {
    for (const PythonRpc& rpc : rpcs)
      add(rpc.path, std::make_unique<BridgeMethod>(python_calls_, rpc.client_streams));
  }

  Method* find(std::string_view path) final {
    if (path == last_path_) return last_method_;
    const auto found = methods_.find(path);
    if (found == methods_.end()) return nullptr;
    last_path_ = found->first;
    return last_method_ = found->second.get();
  }
  void on_bad_end(End why, std::string_view peer, std::string_view reason, int64_t now_ns) final {
    bridge_.on_bad_end(why, peer, reason, now_ns);
  }
  void on_shortage(std::string_view peer, std::string_view reason) final {
    bridge_.on_shortage(peer, reason);
  }

 protected:
  BridgeCalls& python_calls() { return python_calls_; }
  void add(const std::string& path, std::unique_ptr<Method> method) {
    methods_[path] = std::move(method);
    last_path_ = {};
    last_method_ = nullptr;
  }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  Bridge& bridge_;
  BridgeCalls python_calls_;
  std::unordered_map<std::string, std::unique_ptr<Method>, Hash, std::equal_to<>> methods_;
  // The one found last: most loops see one path only, and comparing costs less than hashing.
  std::string_view last_path_;
  Method* last_method_ = nullptr;
};

class ServiceApplication final : public PythonApplication {
 public:
  ServiceApplication(Loop& loop, Engine& engine, const Router& router, Bridge& bridge,
                     const HealthTable& health, const std::vector<PythonRpc>& rpcs, const RestOptions& rest,
                     Callers* callers)
      : PythonApplication(loop, bridge, rpcs), predictor_(loop, engine, router, bridge), rest_(rest) {
    if (callers != nullptr) callers_.emplace(*callers, loop);
    constexpr const char* kCheck = "/grpc.health.v1.Health/Check";
    if (find(kCheck) == nullptr) add(kCheck, std::make_unique<HealthCheck>(health, this->callers()));
    add_prediction("/fused_mlp.v1.Inference/Predict", predict_codec(), false);
    add_prediction("/fused_mlp.v1.Inference/PredictStream", predict_codec(), true);
    add_prediction("/inference.GRPCInferenceService/ModelInfer", infer_codec(), false);
    add_prediction("/inference.GRPCInferenceService/ModelStreamInfer", infer_stream_codec(), true);
    if (!rest.on) return;
    rest_infer_ =
        std::make_unique<PredictionMethod>(predictor_, rest_codec(), false, "POST /v2/models/{model}/infer");
    rest_other_ = std::make_unique<BridgeMethod>(python_calls(), false);
  }

  Method* find_rest(bool infer) override { return (infer ? rest_infer_ : rest_other_).get(); }
  const std::vector<std::string>& cors_origins() const override { return rest_.cors_origins; }
  bool allows_host(std::string_view host) override {
    if (host == last_host_) return true;
    if (!rest_.hosts.allows(host)) return false;
    last_host_ = host;
    return true;
  }
  LoopCallers* callers() override { return callers_ ? &*callers_ : nullptr; }
  bool work() override { return predictor_.run_ready(); }
  void tick() override {
    predictor_.tick();
    if (callers_) callers_->tick();
  }
  bool idle() const override { return predictor_.idle(); }

 private:
  void add_prediction(const char* path, const Codec& codec, bool streams) {
    add(path, std::make_unique<PredictionMethod>(predictor_, codec, streams, path + 1));
  }

  Predictor predictor_;
  const RestOptions rest_;
  std::optional<LoopCallers> callers_;
  std::string last_host_ = "localhost";  // one that is allowed
  std::unique_ptr<Method> rest_infer_, rest_other_;
};

class EchoMethod final : public Method {
 public:
  bool client_streams() const override { return false; }
  void on_message(Call& call, Message&& message) override {
    std::copy_n(message.data(), message.size(), call.add_message(message.size()));
    call.finish();
  }
};

class EchoApplication final : public Application {
 public:
  Method* find(std::string_view) override { return &method_; }

 private:
  EchoMethod method_;
};

}  // namespace

std::unique_ptr<Application> make_service_application(Loop& loop, Engine& engine, const Router& router,
                                                      Bridge& bridge, const HealthTable& health,
                                                      const std::vector<PythonRpc>& rpcs,
                                                      const RestOptions& rest, Callers* callers) {
  return std::make_unique<ServiceApplication>(loop, engine, router, bridge, health, rpcs, rest, callers);
}

std::unique_ptr<Application> make_python_application(Loop& loop, Bridge& bridge,
                                                     const std::vector<PythonRpc>& rpcs) {
  return std::make_unique<PythonApplication>(loop, bridge, rpcs);
}

std::unique_ptr<Application> make_echo_application() { return std::make_unique<EchoApplication>(); }

}  // namespace fused_mlp::front
