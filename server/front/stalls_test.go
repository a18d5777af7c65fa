package main

import (
	"testing"

	"google.golang.org/grpc/codes"

	"gavel/front/internal/http2"
)

// sent notes that bytes of a call's answers were sent, a second later.
func (call *call) sent(bytes int) {
	table := call.connection.table
	call.connection.send(http2.Frame{Kind: http2.Data, Stream: call.id, Length: bytes})
	table.tick()
}

// A caller that reads a few bytes now and then does not read: it must read stallBytesMin of what waits for it, or all, within StallSeconds.
func TestAnswersThatAreReadByteByByte(t *testing.T) {
	limits := limitsOfTests()
	call := callOf(t, limits)
	call.isReading = false // the request has come
	if err := call.prepare(1 << 20); err != nil {
		t.Fatal(err)
	}
	for range 3 * limits.StallSeconds {
		call.sent(stallBytesMin / (limits.StallSeconds - 2))
	}
	if call.refusal != nil {
		t.Fatalf("a caller that reads fast enough is refused: %v", call.refusal)
	}
	for range 2 * limits.StallSeconds {
		call.sent(2)
	}
	if call.refusal.Code() != codes.ResourceExhausted {
		t.Fatalf("a caller that reads two bytes a second is not refused: %v", call.refusal)
	}
	for range limits.StallSeconds {
		call.sent(2)
	}
	if len(call.connection.resets) != 1 || call.connection.bytes != 0 {
		t.Errorf("%d calls are reset, and %d bytes are in flight", len(call.connection.resets), call.connection.bytes)
	}
}

// A small answer must be read as a whole; then the next one has a time of its own.
func TestSmallAnswersThatAreReadInTime(t *testing.T) {
	limits := limitsOfTests()
	call := callOf(t, limits)
	call.isReading = false // the request has come
	for range 3 {
		if err := call.prepare(limits.StallSeconds - messageHeaderBytes); err != nil {
			t.Fatal(err)
		}
		for range limits.StallSeconds {
			call.sent(1)
		}
		for range 2 * limits.StallSeconds {
			call.connection.table.tick() // nothing waits
		}
	}
	if call.refusal != nil {
		t.Errorf("the caller is refused: %v", call.refusal)
	}
}
