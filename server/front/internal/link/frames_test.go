package link

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"gavel/front/internal/headers"
)

// A request frame holds the caller's address, its own metadata and the remaining time, then the message.
func TestRequestFrame(t *testing.T) {
	all := metadata.MD{"key": {"value"}, "grpc-timeout": {"1S"}, "user-agent": {"x"}, ":authority": {"x"}, headers.PeerKey: {"forged"}, headers.ReceivedKey: {"forged"}, headers.HandleKey: {"1"}, "gavel-other": {"x"}, "authorization": {"Bearer x"}}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	caller := NewCaller(ctx, time.Unix(1, 2), "[::1]:4711", all, 0x01020304)
	frame, room := caller.NewRequest(7)
	copy(room, "message")
	content := frame[HeaderBytes:]
	if remaining := binary.LittleEndian.Uint32(content[2:]); remaining > 60_000 || remaining < 50_000 {
		t.Errorf("the frame says that %d ms remain", remaining)
	}
	if received := binary.LittleEndian.Uint64(content[6:]); received != 1_000_000_002 {
		t.Errorf("the frame says that the call was received at %d", received)
	}
	if handle := binary.LittleEndian.Uint32(content[14:]); handle != 0x01020304 {
		t.Errorf("the frame has handle %x", handle)
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
	caller := NewCaller(context.Background(), time.Unix(1, 2), "unix:", nil, 0)
	frame, _ := caller.NewRequest(0)
	if content := string(frame[HeaderBytes:]); content != "\x06\x00\xff\xff\xff\xff\x02\xca\x9a\x3b\x00\x00\x00\x00\x00\x00\x00\x00\x05unix:" {
		t.Errorf("the frame holds %q", content)
	}
}

// What the front adds to a call on the hot path.
func BenchmarkRequestFrame(b *testing.B) {
	own := metadata.MD{":authority": {"localhost"}, "content-type": {"application/grpc"}, "user-agent": {"grpc-python"}, "te": {"trailers"}}
	for b.Loop() {
		caller := NewCaller(context.Background(), time.Now(), "127.0.0.1:4711", own, 0)
		caller.NewRequest(500)
	}
}
