// Sends the demo model its own example row: `go run . localhost:8001`.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"os"
	"time"

	pb "fused_mlp/v1"

	"google.golang.org/grpc"
)

func main() {
	connection, err := grpc.Dial(os.Args[1], grpc.WithInsecure())
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	client := pb.NewInferenceClient(connection)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	info, err := client.GetModel(ctx, &pb.GetModelRequest{Model: "digits"})
	if err != nil {
		log.Fatal(err)
	}
	row := info.Model.Versions[0].Example
	var data bytes.Buffer
	binary.Write(&data, binary.LittleEndian, row)
	answer, err := client.Predict(ctx, &pb.PredictRequest{
		Model: "digits",
		Input: &pb.Tensor{Shape: []int64{1, int64(len(row))}, Dtype: pb.DataType_FP32, Data: data.Bytes()},
	})
	if err != nil {
		log.Fatal(err)
	}
	scores := make([]float32, answer.Output.Shape[1])
	binary.Read(bytes.NewReader(answer.Output.Data), binary.LittleEndian, scores)
	best := 0
	for i, score := range scores {
		if score > scores[best] {
			best = i
		}
	}
	fmt.Println("digit", best)
}
