// SPDX-License-Identifier: Apache-2.0
// Many Predicts at once with stock @grpc/grpc-js: `node load.js TARGET CALLS AT_ONCE DEADLINE_MS`; prints one JSON
// object.
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const target = process.argv[2];
const [calls, atOnce, deadlineMs] = process.argv.slice(3).map(Number);
const file = path.join(process.env.PROTOS, "fused_mlp.proto");
const { fused_mlp } = grpc.loadPackageDefinition(loader.loadSync(file, { keepCase: true, longs: Number }));
const client = new fused_mlp.v1.Inference(target, grpc.credentials.createInsecure());
const input = { shape: [1, 64], data: Buffer.alloc(256) };
const result = { sent: 0, ok: 0, failed: {}, text: "" };

function predict(id) {
  return new Promise((resolve) => {
    const request = { model: "digits", request_id: id, input };
    client.Predict(request, { deadline: Date.now() + deadlineMs }, (error, answer) => {
      result.sent++;
      const right = answer && answer.request_id === id && answer.output.data.length === 40;
      if (right) {
        result.ok++;
      } else {
        const code = error ? grpc.status[error.code] : "WRONG ANSWER";
        result.failed[code] = (result.failed[code] || 0) + 1;
        result.text = error ? error.message : JSON.stringify(answer);
      }
      resolve();
    });
  });
}

let next = 0;
async function worker() {
  while (next < calls) await predict(String(++next));
}

Promise.all(Array.from({ length: atOnce }, worker)).then(() => {
  console.log(JSON.stringify(result));
  client.close();
});
