package main

import (
	"context"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func callFrom(peer string, own metadata.MD) *call {
	table := newConnections(limitsOfTests())
	return &call{connection: &connection{table: table, peer: peer}, metadata: own}
}

// A request frame holds the caller's address, its own metadata and the remaining time, then the message.
func TestRequestFrame(t *testing.T) {
	call := callFrom("[::1]:4711", metadata.MD{"key": {"value"}, "grpc-timeout": {"1S"}, "user-agent": {"x"}, ":authority": {"x"}, peerKey: {"forged"}})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	caller, err := newCaller(ctx, call)
	if err != nil {
		t.Fatal(err)
	}
	frame, room := caller.newRequest(7)
	copy(room, "message")
	content := frame[headerBytes:]
	if remaining := binary.LittleEndian.Uint32(content[2:]); remaining > 60_000 || remaining < 50_000 {
		t.Errorf("the frame says that %d ms remain", remaining)
	}
	expected := "\x0a[::1]:4711\x03\x00\x05\x00keyvaluemessage"
	if length := int(binary.LittleEndian.Uint16(content)); length != len(expected)-len("message") {
		t.Errorf("the frame says that the caller takes %d bytes", length)
	}
	if string(content[requestHeaderBytes:]) != expected {
		t.Errorf("the frame holds %q", content[requestHeaderBytes:])
	}
}

// A caller on a unix socket without deadline and metadata has neither address nor remaining time.
func TestRequestFrameOfAUnixSocket(t *testing.T) {
	caller, err := newCaller(context.Background(), callFrom(unixPrefix, nil))
	if err != nil {
		t.Fatal(err)
	}
	frame, _ := caller.newRequest(0)
	if content := string(frame[headerBytes:]); content != "\x06\x00\xff\xff\xff\xff\x05unix:" {
		t.Errorf("the frame holds %q", content)
	}
}

// Metadata up to the limit fits into a frame; more is refused.
func TestLimitOfMetadata(t *testing.T) {
	room := limitsOfTests().HeaderBytes - addedHeaderBytes - len("key") - 32
	for size, code := range map[int]codes.Code{room: codes.OK, room + 1: codes.ResourceExhausted} {
		_, err := newCaller(context.Background(), callFrom(unixPrefix, metadata.Pairs("key", strings.Repeat("x", size))))
		if status.Code(err) != code {
			t.Errorf("metadata of %d bytes: %v", size, err)
		}
	}
}

// Metadata that gRPC does not allow is refused, as on a forwarded call; the front's and gRPC's own keys are not looked at.
func TestMetadataThatIsNotGRPC(t *testing.T) {
	for code, calls := range map[codes.Code][]metadata.MD{
		codes.Internal: {{"key": {"fine", "\xff\xfe"}}, {"key": {"\u00e9"}}, {"key": {"\x00"}}, {"key%00": {"value"}}, {"Key": {"value"}}},
		codes.OK:       {{"key-bin": {"\xff\x00"}}, {"a_b.c-0": {" ~"}}, {"key": {""}}, {peerKey: {"\xff"}}, {"user-agent": {"\xff"}}},
	} {
		for _, own := range calls {
			if _, err := newCaller(context.Background(), callFrom(unixPrefix, own)); status.Code(err) != code {
				t.Errorf("%q: %v", own, err)
			}
		}
	}
}

// What the front adds to a call on the hot path.
func BenchmarkRequestFrame(b *testing.B) {
	own := metadata.MD{":authority": {"localhost"}, "content-type": {"application/grpc"}, "user-agent": {"grpc-python"}, "te": {"trailers"}}
	call := callFrom("127.0.0.1:4711", own)
	for b.Loop() {
		caller, _ := newCaller(context.Background(), call)
		caller.newRequest(500)
	}
}
