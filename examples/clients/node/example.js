// Sends the demo model its own example row: `node example.js localhost:8001`.
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const file = path.join(process.env.PROTOS, "fused_mlp.proto");
const { fused_mlp } = grpc.loadPackageDefinition(loader.loadSync(file, { keepCase: true, longs: Number }));
const client = new fused_mlp.v1.Inference(process.argv[2], grpc.credentials.createInsecure());

function call(method, request) {
  return new Promise((resolve, reject) => {
    const deadline = Date.now() + 10_000;
    client[method](request, { deadline }, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

async function main() {
  const { model } = await call("GetModel", { model: "digits" });
  const row = Float32Array.from(model.versions[0].example);
  const input = { shape: [1, row.length], dtype: "FP32", data: Buffer.from(row.buffer) };
  const { output } = await call("Predict", { model: "digits", input });
  const scores = Array.from({ length: output.shape[1] }, (_, i) => output.data.readFloatLE(4 * i));
  console.log("digit", scores.indexOf(Math.max(...scores)));
  client.close();
}

main();
