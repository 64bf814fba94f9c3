// SPDX-License-Identifier: Apache-2.0
// An open-loop load: requests arrive at random (Poisson) at a given rate, whether or not earlier ones were answered.
// `open_loop -url URL -body FILE [-body FILE] -deadlines-ms 50,200 -phases RATExSECONDS,...` prints one JSON object per
// phase. Bodies and deadlines take turns. gRPC over cleartext HTTP/2 by default, HTTP/1.1 with -http1.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

var (
	url         = flag.String("url", "", "where to POST, with the path")
	http1       = flag.Bool("http1", false, "HTTP/1.1, a connection per outstanding request")
	contentType = flag.String("content-type", "application/grpc", "of the request")
	connections = flag.Int("connections", 4, "of HTTP/2")
	cancels     = flag.Bool("cancel", true, "the caller leaves at its deadline; false: it waits for an answer")
	deadlines   = flag.String("deadlines-ms", "0", "that take turns; 0: none")
	phases      = flag.String("phases", "100x1", "rate per second x seconds, in order")
	patience    = flag.Duration("patience", 5*time.Second, "of a caller without a deadline, or that waits")
	bodies      [][]byte
)

type report struct {
	Sent      int            `json:"sent"`
	Seconds   float64        `json:"seconds"`
	SentS     float64        `json:"sent_s"`     // until the last was sent: more than `seconds` if the generator fell behind
	AnsweredS float64        `json:"answered_s"` // until the last good answer
	Good      int            `json:"good"`       // answered within the deadline
	Late      int            `json:"late"`       // answered after it
	Refused   map[string]int `json:"refused"`    // by status
	Told      int            `json:"told"`       // refused with the time of a retry
	Expired   int            `json:"expired"`    // of the refused: accepted, and dropped when their deadline came
	GoodMs    []float64      `json:"good_ms"`
	RefusedMs []float64      `json:"refused_ms"` // without those that expired
	ExpiredMs []float64      `json:"expired_ms"`
	BehindMs  []float64      `json:"behind_ms"` // how late requests were sent: large where the generator is the bottleneck
	begin     time.Time
	behindMs  []float64
	lock      sync.Mutex
	goodMs    []float64
	refusedMs []float64
	expiredMs []float64
}

// p50, p99 and the largest.
func quantiles(times []float64) []float64 {
	if len(times) == 0 {
		return nil
	}
	sort.Float64s(times)
	return []float64{times[len(times)/2], times[len(times)*99/100], times[len(times)-1]}
}

func transport(int) http.RoundTripper {
	if *http1 {
		return &http.Transport{MaxIdleConnsPerHost: 1 << 14}
	}
	return &http2.Transport{
		AllowHTTP: true,
		DialTLS: func(network, address string, _ *tls.Config) (net.Conn, error) {
			return net.Dial(network, address)
		},
	}
}

func call(via http.RoundTripper, body []byte, deadline time.Duration, into *report) {
	begin := time.Now()
	limit := *patience
	if *cancels && deadline != 0 {
		limit = deadline
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	request, _ := http.NewRequestWithContext(ctx, "POST", *url, bytes.NewReader(body))
	request.Header.Set("Content-Type", *contentType)
	request.Header.Set("TE", "trailers")
	if deadline != 0 && !*http1 {
		request.Header.Set("grpc-timeout", strconv.FormatInt(deadline.Microseconds(), 10)+"u")
	}
	status, told, expired := "", false, false
	response, err := via.RoundTrip(request)
	if err == nil {
		_, err = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		status = response.Trailer.Get("grpc-status") + response.Header.Get("grpc-status")
		told = response.Trailer.Get("retry-after-ms")+response.Header.Get("retry-after-ms") != ""
		message := response.Trailer.Get("grpc-message") + response.Header.Get("grpc-message")
		expired = strings.Contains(message, "expired in the queue")
		if *http1 {
			status = "0"
			if response.StatusCode != 200 {
				status = strconv.Itoa(response.StatusCode)
			}
		}
	}
	if ctx.Err() != nil {
		status = "gave up"
	} else if err != nil {
		status = "broken: " + err.Error()
	}
	took := time.Since(begin)
	into.lock.Lock()
	defer into.lock.Unlock()
	switch {
	case status == "0" && (deadline == 0 || took <= deadline):
		into.Good++
		into.goodMs = append(into.goodMs, took.Seconds()*1e3)
		into.AnsweredS = time.Since(into.begin).Seconds()
	case status == "0":
		into.Late++
	default:
		into.Refused[status]++
		if told {
			into.Told++
		}
		if expired {
			into.Expired++
			into.expiredMs = append(into.expiredMs, took.Seconds()*1e3)
		} else if status != "gave up" {
			into.refusedMs = append(into.refusedMs, took.Seconds()*1e3)
		}
	}
}

func main() {
	flag.Func("body", "a file with one request; several take turns", func(path string) error {
		body, err := os.ReadFile(path)
		bodies = append(bodies, body)
		return err
	})
	flag.Parse()
	var allowed []time.Duration
	for _, text := range strings.Split(*deadlines, ",") {
		ms, err := strconv.ParseFloat(text, 64)
		if err != nil {
			panic(err)
		}
		allowed = append(allowed, time.Duration(ms*1e6))
	}
	var via []http.RoundTripper
	for i := 0; i < *connections; i++ {
		via = append(via, transport(i))
		call(via[i], bodies[i%len(bodies)], 0, &report{Refused: map[string]int{}}) // connects
	}
	var results []*report
	var open sync.WaitGroup
	sent := 0
	at := time.Now()
	for _, phase := range strings.Split(*phases, ",") {
		var rate, seconds float64
		if _, err := fmt.Sscanf(phase, "%fx%f", &rate, &seconds); err != nil {
			panic(err)
		}
		into := &report{Seconds: seconds, Refused: map[string]int{}, begin: at}
		results = append(results, into)
		end := at.Add(time.Duration(seconds * 1e9))
		for at = at.Add(time.Duration(rand.ExpFloat64() / rate * 1e9)); at.Before(end); {
			if wait := time.Until(at); wait > 0 {
				time.Sleep(wait)
			}
			into.behindMs = append(into.behindMs, time.Since(at).Seconds()*1e3)
			open.Add(1)
			into.Sent++
			// Each connection carries every deadline and every body: the strides have no common factor with it.
			go func(i int) {
				defer open.Done()
				call(via[i%len(via)], bodies[i/len(via)%len(bodies)], allowed[i/len(via)/len(bodies)%len(allowed)], into)
			}(sent)
			sent++
			at = at.Add(time.Duration(rand.ExpFloat64() / rate * 1e9))
		}
		into.SentS = time.Since(into.begin).Seconds()
		if at = end; time.Now().After(at) { // a phase does not send what the one before it was too slow for
			at = time.Now()
		}
	}
	open.Wait()
	for _, each := range results {
		each.GoodMs, each.RefusedMs = quantiles(each.goodMs), quantiles(each.refusedMs)
		each.ExpiredMs, each.BehindMs = quantiles(each.expiredMs), quantiles(each.behindMs)
		json.NewEncoder(os.Stdout).Encode(each)
	}
}
