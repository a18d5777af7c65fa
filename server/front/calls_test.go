package main

import (
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gavel/front/internal/link"
)

// tests/integration/front tests whole fronts. The tests here would take 256 MiB, or a pipe cut in pieces, there.

// pipe returns calls on a link, and the server's end of the link, which the test reads.
func pipe(t *testing.T) (*calls, net.Conn) {
	ours, theirs := net.Pipe()
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	link := link.New(ours)
	go link.Write()
	calls := newCalls(link)
	calls.bytesMax = 1 << 20
	go link.Read(calls.deliver)
	return calls, theirs
}

func requestOf(size int) []byte {
	return make([]byte, link.HeaderBytes+size)
}

// callOf returns a call of a caller of its own.
func callOf(t *testing.T, limits limits) *call {
	return newConnections(limits).admitFrom(t, "10.0.0.1").openNext()
}

// receive reads one frame at the server's end.
func receive(t *testing.T, server net.Conn) []byte {
	header := make([]byte, link.HeaderBytes)
	if _, err := io.ReadFull(server, header); err != nil {
		t.Fatal(err)
	}
	content := make([]byte, int(header[0])|int(header[1])<<8|int(header[2])<<16)
	if _, err := io.ReadFull(server, content); err != nil {
		t.Fatal(err)
	}
	return append(header, content...)
}

func mustSend(t *testing.T, calls *calls, size int) (uint32, chan answer) {
	answers := make(chan answer, 1)
	number, err := calls.send(0, requestOf(size), pendingCall{call: callOf(t, limitsOfTests()), answers: answers})
	if err != nil {
		t.Fatalf("%d bytes have room, and: %v", size, err)
	}
	return number, answers
}

func mustBeFull(t *testing.T, calls *calls, size int) {
	_, err := calls.send(0, requestOf(size), pendingCall{call: callOf(t, limitsOfTests()), answers: make(chan answer, 1)})
	refusal := status.Convert(err)
	if refusal.Code() != codes.ResourceExhausted || refusal.Message() != "more than 1000 bytes of requests would wait for the server; try again" {
		t.Fatalf("there is no room for %d bytes, and: %v", size, err)
	}
	if info, ok := refusal.Details()[0].(*errdetails.ErrorInfo); !ok || info.Reason != "QUEUE_FULL" || info.Domain != "gavel" {
		t.Fatalf("the first detail is %v", refusal.Details()[0])
	}
	if retry, ok := refusal.Details()[1].(*errdetails.RetryInfo); !ok || retry.RetryDelay.AsDuration().Milliseconds() != 200 {
		t.Fatalf("the second detail is %v", refusal.Details()[1])
	}
}

// Requests up to the limit are sent, and one more byte is refused with a retry delay; answered and forgotten requests make room.
func TestLimitOfPendingBytes(t *testing.T) {
	calls, server := pipe(t)
	calls.bytesMax = 1000
	first, answers := mustSend(t, calls, 900)
	receive(t, server)
	waitUntilSent(calls)
	second, _ := mustSend(t, calls, 100)
	receive(t, server)
	waitUntilSent(calls)
	mustBeFull(t, calls, 1)
	if !calls.forget(second) {
		t.Fatal("the second call does not wait")
	}
	if frame := receive(t, server); frame[8] != link.Cancel || frame[4] != byte(second) {
		t.Fatalf("the server hears %v, and not that the second call's caller has gone", frame)
	}
	waitUntilSent(calls)
	mustSend(t, calls, 100)
	receive(t, server)
	waitUntilSent(calls)
	mustBeFull(t, calls, 1)
	if _, err := server.Write(link.NewFrame(link.Response, first, "done")); err != nil {
		t.Fatal(err)
	}
	if answer := <-answers; string(answer.content) != "done" {
		t.Fatalf("the first call got %q", answer.content)
	}
	waitUntilSent(calls)
	mustSend(t, calls, 900)
}

// While the server reads nothing, requests of callers that have gone still count: they are still in memory.
func TestForgottenRequestsCountUntilTheyAreSent(t *testing.T) {
	calls, server := pipe(t)
	calls.bytesMax = 1000
	number, _ := mustSend(t, calls, 1000-link.HeaderBytes)
	calls.forget(number)
	mustBeFull(t, calls, 1)
	receive(t, server)
	receive(t, server)
	waitUntilSent(calls)
	mustSend(t, calls, 1000)
}

func waitUntilSent(calls *calls) {
	for calls.link.UnsentBytes() > 0 {
		time.Sleep(time.Millisecond)
	}
}

// The same frames arrive however the stream of bytes is split; answers that match no call are dropped.
func TestFramesArriveHoweverTheBytesAreCut(t *testing.T) {
	calls, server := pipe(t)
	number, answers := mustSend(t, calls, 3)
	sent := append(link.NewFrame(link.Response, 4711, "nobody"), link.NewFrame(link.Refusal, number, "")...)
	other, others := mustSend(t, calls, 0)
	sent = append(sent, link.NewFrame(link.Response, other, string(make([]byte, 70_000)))...)
	for range 2 {
		receive(t, server)
	}
	for size := 1; len(sent) > 0; size = size*3 + 1 {
		count := min(size, len(sent))
		if _, err := server.Write(sent[:count]); err != nil {
			t.Fatal(err)
		}
		sent = sent[count:]
	}
	if answer := <-answers; answer.kind != link.Refusal || len(answer.content) != 0 {
		t.Fatalf("the first call got %v", answer)
	}
	if answer := <-others; answer.kind != link.Response || len(answer.content) != 70_000 {
		t.Fatalf("the second call got a frame of kind %d, %d bytes", answer.kind, len(answer.content))
	}
}

// Answers count as soon as they arrive, before their calls go on; an answer without room is dropped at once.
func TestAnswersCountWhenTheyArrive(t *testing.T) {
	calls, server := pipe(t)
	limits := limitsOfTests()
	limits.ConnectionBytes = 100_000
	connection := newConnections(limits).admitFrom(t, "10.0.0.1")
	var answers []chan answer
	for range 3 {
		waiting := make(chan answer, 1)
		number, err := calls.send(0, requestOf(1), pendingCall{call: connection.openNext(), answers: waiting})
		if err != nil {
			t.Fatal(err)
		}
		receive(t, server)
		answers = append(answers, waiting)
		go server.Write(link.NewFrame(link.Response, number, string(make([]byte, 40_000))))
		for len(waiting) == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	for index, size := range []int{40_000, 40_000, 0} {
		if answer := <-answers[index]; len(answer.content) != size {
			t.Errorf("answer %d has %d bytes in memory", index, len(answer.content))
		}
	}
	if connection.bytes > limits.ConnectionBytes {
		t.Errorf("%d bytes of answers are in flight", connection.bytes)
	}
}
