package link

import (
	"context"
	"encoding/binary"
	"math"
	"time"

	"google.golang.org/grpc/metadata"

	"gavel/front/internal/headers"
)

// The byte layout of the link; server/gavel_server/front/frames.py describes it and is its copy in Python.
const (
	HeaderBytes        = 4 + 4 + 1     // content length, number, kind
	requestHeaderBytes = 2 + 4 + 8 + 4 // caller length, remaining ms, received, handle
	HandleBytes        = 4 + 8         // handle, remaining ms of the credential
	noDeadline         = math.MaxUint32
)

// Kinds of the server's frames.
const (
	Response byte = 0
	Refusal  byte = 1 // frames.py: STATUS
	Serve    byte = 2
	Stop     byte = 3
	Ping     byte = 4
	Revoke   byte = 5 // number: the handle; content: why
	TLS      byte = 6
)

// Kinds of the front's frames besides the methods.
const (
	OpenStream   byte = 248 // a request without a message; a CANCEL of its number ends the stream
	Refused      byte = 249 // a call without valid credentials was refused; content: the method
	Authenticate byte = 250
	Forget       byte = 251 // number: the handle
	Cancel       byte = 252
	Pong         byte = 253
	Bound        byte = 254
	Unbound      byte = 255
)

// NewFrame returns a whole frame that is not a request.
func NewFrame(kind byte, number uint32, content string) []byte {
	frame := append(make([]byte, HeaderBytes, HeaderBytes+len(content)), content...)
	PutHeader(frame, kind, number)
	return frame
}

// PutHeader fills in the header of a frame whose content is in place.
func PutHeader(frame []byte, kind byte, number uint32) {
	binary.LittleEndian.PutUint32(frame[0:], uint32(len(frame)-HeaderBytes))
	binary.LittleEndian.PutUint32(frame[4:], number)
	frame[8] = kind
}

// Caller is the part of a request frame that describes the caller.
type Caller struct {
	Received time.Time // when the call was received; zero: each request is received when its frame is made
	encoded  []byte    // peer and metadata, as a frame holds them
	deadline time.Time // zero: the call has none
	handle   uint32    // of the credential; 0: none is needed
}

// NewCaller returns the caller of a call that was received at some time: its address, and its metadata, which headers.Check has allowed.
func NewCaller(ctx context.Context, received time.Time, peer string, all metadata.MD, handle uint32) Caller {
	encoded := append(append(make([]byte, 0, 128), byte(len(peer))), peer...)
	for key, values := range all {
		if !headers.IsOwn(key) {
			continue
		}
		for _, value := range values {
			encoded = binary.LittleEndian.AppendUint16(encoded, uint16(len(key)))
			encoded = binary.LittleEndian.AppendUint16(encoded, uint16(len(value)))
			encoded = append(append(encoded, key...), value...)
		}
	}
	deadline, _ := ctx.Deadline()
	return Caller{received, encoded, deadline, handle}
}

// NewRequest returns a request frame with room for a message of some bytes, and the part of the frame that is that room.
func (caller *Caller) NewRequest(messageBytes int) (frame []byte, message []byte) {
	start := HeaderBytes + requestHeaderBytes + len(caller.encoded)
	frame = make([]byte, start+messageBytes)
	binary.LittleEndian.PutUint16(frame[HeaderBytes:], uint16(len(caller.encoded)))
	binary.LittleEndian.PutUint32(frame[HeaderBytes+2:], caller.remainingMs())
	received := caller.Received
	if received.IsZero() {
		received = time.Now()
	}
	binary.LittleEndian.PutUint64(frame[HeaderBytes+6:], uint64(received.UnixNano()))
	binary.LittleEndian.PutUint32(frame[HeaderBytes+14:], caller.handle)
	copy(frame[HeaderBytes+requestHeaderBytes:], caller.encoded)
	return frame, frame[start:]
}

func (caller *Caller) remainingMs() uint32 {
	if caller.deadline.IsZero() {
		return noDeadline
	}
	return uint32(min(max(time.Until(caller.deadline).Milliseconds(), 0), noDeadline-1))
}
