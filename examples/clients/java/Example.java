// Sends the demo model its own example row: `java Example localhost:8001`.
import com.google.protobuf.ByteString;
import fusedmlp.v1.DataType;
import fusedmlp.v1.GetModelRequest;
import fusedmlp.v1.InferenceGrpc;
import fusedmlp.v1.PredictRequest;
import fusedmlp.v1.PredictResponse;
import fusedmlp.v1.Tensor;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.List;
import java.util.concurrent.TimeUnit;

public final class Example {
  public static void main(String[] arguments) {
    ManagedChannel channel = ManagedChannelBuilder.forTarget(arguments[0]).usePlaintext().build();
    var client = InferenceGrpc.newBlockingStub(channel).withDeadlineAfter(10, TimeUnit.SECONDS);

    var info = client.getModel(GetModelRequest.newBuilder().setModel("digits").build());
    List<Float> row = info.getModel().getVersions(0).getExampleList();
    ByteBuffer data = ByteBuffer.allocate(4 * row.size()).order(ByteOrder.LITTLE_ENDIAN);
    row.forEach(data::putFloat);
    Tensor input =
        Tensor.newBuilder()
            .addShape(1)
            .addShape(row.size())
            .setDtype(DataType.FP32)
            .setData(ByteString.copyFrom(data.flip()))
            .build();
    PredictResponse answer =
        client.predict(PredictRequest.newBuilder().setModel("digits").setInput(input).build());

    FloatBuffer scores =
        answer.getOutput().getData().asReadOnlyByteBuffer().order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer();
    int best = 0;
    for (int i = 0; i < scores.limit(); i++) {
      if (scores.get(i) > scores.get(best)) best = i;
    }
    System.out.println("digit " + best);
    channel.shutdownNow();
  }
}
