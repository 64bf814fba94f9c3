// SPDX-License-Identifier: Apache-2.0
// gRPC's interop cases that apply to us, with @grpc/grpc-js: `node grpc_js_cases.js TARGET CA`; prints one JSON
// object, case -> "ok" or what went wrong.
const assert = require("node:assert");
const fs = require("node:fs");
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [target, ca] = process.argv.slice(2);
const load = (name) =>
  grpc.loadPackageDefinition(loader.loadSync(path.join(process.env.PROTOS, name), { keepCase: true, longs: Number, enums: String }));
const credentials = ca ? grpc.credentials.createSsl(fs.readFileSync(ca)) : grpc.credentials.createInsecure();
const Inference = load("fused_mlp.proto").fused_mlp.v1.Inference;
const client = new Inference(target, credentials);
const oip = new (load("open_inference.proto").inference.GRPCInferenceService)(target, credentials);

const data = (rows) => Buffer.from(new Float32Array(64 * rows).fill(0.5).buffer);
const request = (id, rows = 1) => ({
  model: "digits", request_id: id, input: { shape: [rows, 64], dtype: "FP32", data: data(rows) },
});
const soon = (ms) => ({ deadline: Date.now() + ms });
const unary = (stub, method, message, metadata = new grpc.Metadata(), options = soon(20000)) =>
  new Promise((resolve, reject) =>
    stub[method](message, metadata, options, (error, answer) => (error ? reject(error) : resolve(answer))));
const failure = async (promise) => promise.then(() => assert.fail("expected an error"), (error) => error);
const collect = (call) =>
  new Promise((resolve, reject) => {
    const answers = [];
    call.on("data", (answer) => answers.push(answer)).on("end", () => resolve(answers)).on("error", reject);
  });
const next = (call) => new Promise((resolve) => call.once("data", resolve));

const cases = {
  async empty_unary() {
    assert.strictEqual((await unary(oip, "ServerLive", {})).live, true);
  },
  async large_unary() {
    const answer = await unary(client, "Predict", request("large", 4000));
    assert.deepStrictEqual(answer.output.shape, [4000, 10]);
    assert.strictEqual(answer.output.data.length, 4000 * 10 * 4);
  },
  async many_at_once() {
    const answers = await Promise.all([...Array(200).keys()].map((i) => unary(client, "Predict", request(`${i}`))));
    answers.forEach((answer, i) => assert.strictEqual(answer.request_id, `${i}`));
  },
  async ping_pong() {
    const call = client.PredictStream(new grpc.Metadata(), soon(20000));
    for (let i = 0; i < 10; i++) {
      call.write(request(`${i}`));
      assert.strictEqual((await next(call)).request_id, `${i}`);
    }
    const rest = collect(call);
    call.end();
    assert.deepStrictEqual(await rest, []);
  },
  async empty_stream() {
    const call = client.PredictStream(new grpc.Metadata(), soon(20000));
    const answers = collect(call);
    call.end();
    assert.deepStrictEqual(await answers, []);
  },
  async bad_message_on_a_stream() {
    const call = client.PredictStream(new grpc.Metadata(), soon(20000));
    const answers = collect(call);
    call.write({ ...request("bad"), model: "nonesuch" });
    call.write(request("good"));
    call.end();
    const byId = Object.fromEntries((await answers).map((answer) => [answer.request_id, answer]));
    assert.strictEqual(byId.bad.error.code, grpc.status.NOT_FOUND);
    assert.ok(!byId.good.error);
  },
  async cancel_after_begin() {
    const call = client.PredictStream();
    const error = failure(collect(call));
    call.cancel();
    assert.strictEqual((await error).code, grpc.status.CANCELLED);
  },
  async cancel_after_first_response() {
    const call = client.PredictStream();
    const error = failure(collect(call));
    call.write(request("first"));
    await next(call);
    call.cancel();
    assert.strictEqual((await error).code, grpc.status.CANCELLED);
  },
  async timeout() {
    const call = client.PredictStream(new grpc.Metadata(), soon(50));
    assert.strictEqual((await failure(collect(call))).code, grpc.status.DEADLINE_EXCEEDED);
  },
  async custom_metadata() {
    const metadata = new grpc.Metadata();
    metadata.add("x-text", "value");
    metadata.add("x-data-bin", Buffer.from([0, 255, 10]));
    await unary(client, "Predict", request("m"), metadata);
    await unary(client, "ListModels", {}, metadata);
  },
  async status_and_special_message() {
    const error = await failure(unary(client, "Predict", { ...request(""), model: "no such: 100 % ☃ \u{1f600}" }));
    assert.strictEqual(error.code, grpc.status.NOT_FOUND);
    assert.ok(error.details.includes("100 % ☃ \u{1f600}"), error.details);
  },
  async unimplemented_method_and_service() {
    const make = (where) =>
      new Promise((resolve) =>
        client.makeUnaryRequest(where, (x) => x, (x) => x, Buffer.alloc(0), (error) => resolve(error.code)));
    assert.strictEqual(await make("/fused_mlp.v1.Inference/Nonesuch"), grpc.status.UNIMPLEMENTED);
    assert.strictEqual(await make("/nonesuch.Service/Method"), grpc.status.UNIMPLEMENTED);
  },
  async compressed_unary() {
    const gzip = { "grpc.default_compression_algorithm": grpc.compressionAlgorithms.gzip };
    const compressing = new Inference(target, credentials, gzip);
    assert.strictEqual((await unary(compressing, "Predict", request("z", 100))).request_id, "z");
    compressing.close();
  },
};

(async () => {
  const outcome = {};
  for (const [name, run] of Object.entries(cases)) {
    try {
      await run();
      outcome[name] = "ok";
    } catch (error) {
      outcome[name] = String(error.stack);
    }
  }
  console.log(JSON.stringify(outcome));
  process.exit(0);  // open channels would keep it waiting
})();
