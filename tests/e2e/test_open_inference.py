# SPDX-License-Identifier: Apache-2.0
"""The Open Inference Protocol over a real socket, with generated stubs; tritonclient's own tests are in
tests/conformance."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import numpy as np
import pytest

from fused_mlp import models
from fused_mlp.protos import open_inference_pb2 as pb
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.client import Client, PredictError
from tests.support.fronts import both_fronts
from tests.support.server import Server, demo_copy


@pytest.fixture(scope="module")
def stub(server: Server) -> Iterator[Stub]:
    with grpc.insecure_channel(server.target) as channel:
        yield Stub(channel, pb, "GRPCInferenceService")


class Loadable(NamedTuple):
    root: Path  # the model repository
    client: Client
    stub: Stub


@pytest.fixture
def loadable(tmp_path: Path, front: str) -> Iterator[Loadable]:
    """A server that loads and unloads models of a repository of its own."""
    root = demo_copy(tmp_path)
    with (
        Server(front=front, model_repository=root, allow_load=1) as server,
        Client(server.target) as client,
        grpc.insecure_channel(server.target) as channel,
    ):
        yield Loadable(root, client, Stub(channel, pb, "GRPCInferenceService"))


@both_fronts
def test_live_ready_and_metadata(stub: Stub) -> None:
    assert stub.ServerLive(pb.ServerLiveRequest()).live
    assert stub.ServerReady(pb.ServerReadyRequest()).ready
    assert stub.ModelReady(pb.ModelReadyRequest(name="digits")).ready
    assert stub.ModelReady(pb.ModelReadyRequest(name="digits", version="1")).ready
    assert not stub.ModelReady(pb.ModelReadyRequest(name="nonesuch")).ready
    assert stub.ServerMetadata(pb.ServerMetadataRequest()).name == "fused-mlp"
    metadata = stub.ModelMetadata(pb.ModelMetadataRequest(name="digits"))
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [("input", "FP32", [-1, 64])]
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.outputs] == [("output", "FP32", [-1, 10])]
    config = stub.ModelConfig(pb.ModelConfigRequest(name="digits")).config
    assert config.input[0].dims == [64]
    assert config.max_batch_size == 4096
    assert [m.name for m in stub.RepositoryIndex(pb.RepositoryIndexRequest()).models] == ["digits"]


@both_fronts
@pytest.mark.parametrize("how", ["raw", "fp32_contents", "fp64_contents"])
def test_infer_answers_in_raw_contents(stub: Stub, client: Client, example: np.ndarray, how: str) -> None:
    x = np.stack([example, example / 2])
    dtype = np.float64 if how == "fp64_contents" else np.float32
    tensor = pb.ModelInferRequest.InferInputTensor(
        name="input", datatype="FP64" if dtype is np.float64 else "FP32", shape=x.shape
    )
    request = pb.ModelInferRequest(model_name="digits", id="seven", inputs=[tensor])
    if how == "raw":
        request.raw_input_contents.append(x.tobytes())
    else:
        getattr(request.inputs[0].contents, how).extend(x.ravel())
    response = stub.ModelInfer(request)
    assert (response.id, response.model_name, response.model_version) == ("seven", "digits", "1")
    (output,) = response.outputs
    assert (output.name, list(output.shape)) == ("output", [2, 10])
    answered = np.frombuffer(response.raw_output_contents[0], dtype).reshape(2, 10)
    np.testing.assert_array_equal(answered, client.predict("digits", x).output.astype(dtype))


@both_fronts
def test_stream_infer_goes_on_after_a_bad_message(stub: Stub, example: np.ndarray) -> None:
    def request(name: str, model: str) -> pb.ModelInferRequest:
        tensor = pb.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=[1, 64])
        return pb.ModelInferRequest(
            model_name=model, id=name, inputs=[tensor], raw_input_contents=[example.tobytes()]
        )

    sent = [request("a", "digits"), request("b", "nonesuch"), request("c", "digits")]
    answers = {response.infer_response.id: response for response in stub.ModelStreamInfer(iter(sent))}
    assert sorted(answers) == ["a", "b", "c"]
    assert "nonesuch" in answers["b"].error_message
    assert not answers["a"].error_message
    assert len(answers["c"].infer_response.raw_output_contents[0]) == 40


def test_statistics_count_rows_and_batches(stub: Stub, client: Client, example: np.ndarray) -> None:
    def count() -> tuple[int, int, int]:
        (stats,) = stub.ModelStatistics(pb.ModelStatisticsRequest(name="digits")).model_stats
        return stats.inference_count, stats.execution_count, stats.inference_stats.success.count

    before = count()
    client.predict("digits", np.stack([example] * 3))
    assert tuple(np.subtract(count(), before)) == (3, 1, 1)


@both_fronts
def test_statistics_charge_each_request_every_phase(stub: Stub, client: Client, example: np.ndarray) -> None:
    def read() -> np.ndarray:
        """(count, ns) of the whole request, then of its phases."""
        (model,) = stub.ModelStatistics(pb.ModelStatisticsRequest(name="digits")).model_stats
        stats = model.inference_stats
        parts = (stats.success, stats.queue, stats.compute_input, stats.compute_infer, stats.compute_output)
        return np.array([(part.count, part.ns) for part in parts], np.int64)

    before = read()
    client.predict("digits", np.stack([example] * 3))
    counts, durations = (read() - before).T
    assert counts.tolist() == [1] * 5
    assert (durations >= 0).all()
    assert durations[3] > 0
    assert durations[1:].sum() <= durations[0]


@both_fronts
def test_statistics_keep_time_of_failures_apart(stub: Stub, client: Client, example: np.ndarray) -> None:
    def read() -> tuple[pb.StatisticDuration, pb.StatisticDuration]:
        (model,) = stub.ModelStatistics(pb.ModelStatisticsRequest(name="digits")).model_stats
        return model.inference_stats.success, model.inference_stats.fail

    client.predict("digits", example)
    success, failure = read()
    with pytest.raises(PredictError, match="INVALID_ARGUMENT"):
        client.predict("digits", example[:7])
    success_after, failure_after = read()
    assert success_after == success
    assert failure_after.count == failure.count + 1


def test_loading_and_unloading_are_off_by_default(stub: Stub) -> None:
    for call, request in (
        (stub.RepositoryModelLoad, pb.RepositoryModelLoadRequest(model_name="digits")),
        (stub.RepositoryModelUnload, pb.RepositoryModelUnloadRequest(model_name="digits")),
    ):
        with pytest.raises(grpc.RpcError) as failure:
            call(request)
        assert failure.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "FUSED_MLP_ALLOW_LOAD=1" in failure.value.details()


@both_fronts
def test_new_version_is_loaded_and_a_model_unloaded_when_allowed(loadable: Loadable) -> None:
    root, client, stub = loadable
    models.save(models.load(root / "digits" / "1"), root / "digits" / "2")
    stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="digits"))
    assert client.predict("digits", [0.0] * 64).version == 2
    assert client.predict("digits", [0.0] * 64, version=1).version == 1
    stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="digits"))
    assert not stub.ModelReady(pb.ModelReadyRequest(name="digits")).ready
    for name in ("digits", "../digits"):
        with pytest.raises(grpc.RpcError) as failure:
            stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name=name))
        assert failure.value.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError) as failure:
        stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="../digits"))
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_kserves_clients_name_the_model_in_the_first_field(loadable: Loadable) -> None:
    root, client, stub = loadable
    models.save(models.load(root / "digits" / "1"), root / "digits" / "2")
    # KServe's RepositoryModelLoadRequest and -UnloadRequest: model_name = 1, and nothing else.
    loaded = stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest.FromString(b"\x0a\x06digits"))
    assert (loaded.model_name, loaded.isLoaded) == ("digits", True)
    assert client.predict("digits", [0.0] * 64).version == 2
    unloaded = stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest.FromString(b"\x0a\x06digits"))
    assert (unloaded.model_name, unloaded.isUnloaded) == ("digits", True)
    assert not stub.ModelReady(pb.ModelReadyRequest(name="digits")).ready


def test_load_that_fails_says_so_and_leaves_what_serves(loadable: Loadable) -> None:
    root, client, stub = loadable
    (root / "digits/1/model.safetensors").write_bytes(b"not safetensors")
    (root / "hollow/1").mkdir(parents=True)
    for name in ("digits", "hollow"):
        with pytest.raises(grpc.RpcError) as failure:
            stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name=name))
        assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert f"{name}/1" in failure.value.details()
    assert client.predict("digits", [0.0] * 64).version == 1


def test_load_fails_when_one_version_cannot_be_served(loadable: Loadable) -> None:
    root, client, stub = loadable
    load = pb.RepositoryModelLoadRequest(model_name="digits")
    (root / "digits/2").mkdir()
    models.save(models.load(root / "digits" / "1"), root / "digits" / "3")
    with pytest.raises(grpc.RpcError) as failure:
        stub.RepositoryModelLoad(load)
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "model 'digits' keeps its current version: digits/2: " in failure.value.details()
    assert [v.version for v in client.model("digits").versions] == [1]
    assert client.predict("digits", [0.0] * 64).version == 1
    (root / "digits/2").rmdir()
    stub.RepositoryModelLoad(load)
    assert client.predict("digits", [0.0] * 64).version == 3


def test_load_of_a_new_model_serves_what_it_can_and_names_the_rest(loadable: Loadable) -> None:
    root, client, stub = loadable
    models.save(models.load(root / "digits" / "1"), root / "other" / "1")
    (root / "other/2").mkdir()
    with pytest.raises(grpc.RpcError) as failure:
        stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="other"))
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "other/2: " in failure.value.details()
    assert "other/1" not in failure.value.details()
    assert str(root) not in failure.value.details()
    # As when the server starts with such a repository.
    assert client.predict("other", [0.0] * 64).version == 1
    assert [v.state for v in client.model("other").versions] == ["READY", "UNAVAILABLE"]


def test_load_refuses_parameters_that_it_does_not_follow(loadable: Loadable) -> None:
    """As tritonclient's load_model(config=...) sends them: success would say that the versions named there serve."""
    config = '{"version_policy": {"specific": {"versions": [7]}}}'
    request = pb.RepositoryModelLoadRequest(model_name="digits")
    request.parameters["config"].string_param = config
    with pytest.raises(grpc.RpcError) as failure:
        loadable.stub.RepositoryModelLoad(request)
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert failure.value.details() == (
        "parameters: expected none, got 'config': what is served is what the model repository holds"
    )
