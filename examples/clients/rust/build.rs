fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The folder that holds fused_mlp/protos/fused_mlp.proto.
    tonic_build::configure()
        .build_server(false)
        .compile_protos(&["fused_mlp/protos/fused_mlp.proto"], &["."])?;
    Ok(())
}
