// SPDX-License-Identifier: Apache-2.0
// Many Predicts at once with stock grpc-java: `java Load TARGET CALLS AT_ONCE DEADLINE_MS`; prints one JSON object.
import com.google.protobuf.ByteString;
import fusedmlp.v1.InferenceGrpc;
import fusedmlp.v1.PredictRequest;
import fusedmlp.v1.PredictResponse;
import fusedmlp.v1.Tensor;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.StatusRuntimeException;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;

public final class Load {
  private static final Tensor INPUT =
      Tensor.newBuilder().addShape(1).addShape(64).setData(ByteString.copyFrom(new byte[256])).build();
  private static final Map<String, Integer> failed = new TreeMap<>();
  private static final AtomicInteger next = new AtomicInteger();
  private static final AtomicInteger ok = new AtomicInteger();
  private static String text = "";

  public static void main(String[] arguments) throws InterruptedException {
    int calls = Integer.parseInt(arguments[1]);
    int atOnce = Integer.parseInt(arguments[2]);
    int deadline = Integer.parseInt(arguments[3]);
    ManagedChannel channel = ManagedChannelBuilder.forTarget(arguments[0]).usePlaintext().build();
    var stub = InferenceGrpc.newBlockingStub(channel);
    var workers = Executors.newFixedThreadPool(atOnce);
    for (int i = 0; i < atOnce; i++) {
      workers.submit(
          () -> {
            for (int id = next.incrementAndGet(); id <= calls; id = next.incrementAndGet()) {
              predict(stub.withDeadlineAfter(deadline, TimeUnit.MILLISECONDS), Integer.toString(id));
            }
          });
    }
    workers.shutdown();
    workers.awaitTermination(10, TimeUnit.MINUTES);
    channel.shutdownNow();
    int lost = failed.values().stream().mapToInt(Integer::intValue).sum();
    String codes =
        failed.entrySet().stream()
            .map(entry -> quoted(entry.getKey()) + ": " + entry.getValue())
            .collect(Collectors.joining(", "));
    System.out.printf(
        "{\"sent\": %d, \"ok\": %d, \"failed\": {%s}, \"text\": %s}%n",
        ok.get() + lost, ok.get(), codes, quoted(text));
  }

  private static void predict(InferenceGrpc.InferenceBlockingStub stub, String id) {
    PredictRequest request =
        PredictRequest.newBuilder().setModel("digits").setRequestId(id).setInput(INPUT).build();
    try {
      PredictResponse answer = stub.predict(request);
      if (!answer.getRequestId().equals(id) || answer.getOutput().getData().size() != 40) {
        fail("WRONG ANSWER", answer.toString());
      } else {
        ok.incrementAndGet();
      }
    } catch (StatusRuntimeException error) {
      fail(error.getStatus().getCode().name(), error.getMessage());
    }
  }

  private static synchronized void fail(String code, String why) {
    failed.merge(code, 1, Integer::sum);
    text = why;
  }

  private static String quoted(String value) {
    return '"' + value.replaceAll("[\"\\\\\\p{Cntrl}]", " ") + '"';
  }
}
