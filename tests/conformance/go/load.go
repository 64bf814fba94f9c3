// SPDX-License-Identifier: Apache-2.0
// Many Predicts at once with stock grpc-go: `load TARGET CALLS AT_ONCE DEADLINE_MS`; prints one JSON object. SIGTERM ends it
// early: calls that are under way are waited for. Several targets, with commas between them, take turns.
package main

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	pb "fused_mlp/v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
)

type report struct {
	Sent        int            `json:"sent"`
	Ok          int            `json:"ok"`
	Failed      map[string]int `json:"failed"`
	Text        string         `json:"text"` // of the last failure
	Connections int64          `json:"connections"`
	SlowestMs   int64          `json:"slowest_ms"`
}

func number(i int) int {
	value, err := strconv.Atoi(os.Args[i])
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	calls, atOnce, deadline := number(2), number(3), time.Duration(number(4))*time.Millisecond
	result := report{Failed: map[string]int{}}
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		atomic.AddInt64(&result.Connections, 1)
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	target, options := os.Args[1], []grpc.DialOption{grpc.WithInsecure(), grpc.WithContextDialer(dial)}
	if targets := strings.Split(target, ","); len(targets) > 1 {
		list := manual.NewBuilderWithScheme("list")
		state := resolver.State{}
		for _, each := range targets {
			state.Addresses = append(state.Addresses, resolver.Address{Addr: each})
		}
		list.InitialState(state)
		roundRobin := grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`)
		target, options = "list:///servers", append(options, grpc.WithResolvers(list), roundRobin)
	}
	connection, err := grpc.Dial(target, options...)
	if err != nil {
		panic(err)
	}
	client := pb.NewInferenceClient(connection)
	input := &pb.Tensor{Shape: []int64{1, 64}, Data: make([]byte, 256)}

	predict := func(id string) (string, string) {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		answer, err := client.Predict(ctx, &pb.PredictRequest{Model: "digits", RequestId: id, Input: input})
		if err != nil {
			return status.Code(err).String(), err.Error()
		}
		if answer.RequestId != id || len(answer.Output.Data) != 40 {
			return "WRONG ANSWER", answer.String()
		}
		return "", ""
	}

	var next int64
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		<-stop
		atomic.AddInt64(&next, int64(calls))
	}()
	var lock sync.Mutex
	var workers sync.WaitGroup
	for i := 0; i < atOnce; i++ {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for {
				id := atomic.AddInt64(&next, 1)
				if id > int64(calls) {
					return
				}
				begin := time.Now()
				code, text := predict(strconv.FormatInt(id, 10))
				took := time.Since(begin).Milliseconds()
				lock.Lock()
				result.Sent++
				if took > result.SlowestMs {
					result.SlowestMs = took
				}
				if code == "" {
					result.Ok++
				} else {
					result.Failed[code]++
					result.Text = text
				}
				lock.Unlock()
			}
		}()
	}
	workers.Wait()
	json.NewEncoder(os.Stdout).Encode(result)
}
