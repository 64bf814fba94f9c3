// Sends the demo model its own example row: `cargo run -- http://localhost:8001`.
use pb::inference_client::InferenceClient;
use pb::{DataType, GetModelRequest, PredictRequest, Tensor};

mod pb {
    tonic::include_proto!("fused_mlp.v1");
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let target = std::env::args().nth(1).expect("the server, such as http://localhost:8001");
    let mut client = InferenceClient::connect(target).await?;

    let wanted = GetModelRequest { model: "digits".into(), ..Default::default() };
    let info = client.get_model(wanted).await?.into_inner();
    let row = &info.model.expect("a model").versions[0].example;
    let input = Tensor {
        shape: vec![1, row.len() as i64],
        dtype: DataType::Fp32.into(),
        data: row.iter().flat_map(|value| value.to_le_bytes()).collect(),
        ..Default::default()
    };
    let request = PredictRequest { model: "digits".into(), input: Some(input), ..Default::default() };
    let answer = client.predict(request).await?.into_inner();

    let output = answer.output.expect("an output");
    let scores: Vec<f32> =
        output.data.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    let best = (0..scores.len()).max_by(|&a, &b| scores[a].total_cmp(&scores[b])).expect("a score");
    println!("digit {best}");
    Ok(())
}
