package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The byte layout of the link; server/gavel_server/front/frames.py describes it and is its copy in Python.
const (
	headerBytes        = 4 + 4 + 1 // content length, number, kind
	requestHeaderBytes = 2 + 4     // caller length, remaining ms
	noDeadline         = math.MaxUint32
)

// Kinds of the server's frames.
const (
	response byte = 0
	refusal  byte = 1 // frames.py: STATUS
	serve    byte = 2
	stop     byte = 3
	ping     byte = 4
)

// Kinds of the front's frames besides the methods.
const (
	cancel  byte = 252
	pong    byte = 253
	bound   byte = 254
	unbound byte = 255
)

// newFrame returns a whole frame that is no request.
func newFrame(kind byte, number uint32, content string) []byte {
	frame := append(make([]byte, headerBytes, headerBytes+len(content)), content...)
	putHeader(frame, kind, number)
	return frame
}

// putHeader fills in the header of a frame whose content is in place.
func putHeader(frame []byte, kind byte, number uint32) {
	binary.LittleEndian.PutUint32(frame[0:], uint32(len(frame)-headerBytes))
	binary.LittleEndian.PutUint32(frame[4:], number)
	frame[8] = kind
}

// caller is the part of a request frame that describes the caller.
type caller struct {
	encoded  []byte    // peer and metadata, as a frame holds them
	deadline time.Time // zero: the call has none
}

// newCaller returns the caller of a call, or an error if its metadata cannot be passed on.
func newCaller(ctx context.Context, call *call) (caller, error) {
	all := call.metadata
	if err := call.checkMetadata(); err != nil {
		return caller{}, err
	}
	address := call.connection.peer
	encoded := append(append(make([]byte, 0, 128), byte(len(address))), address...)
	for key, values := range all {
		if !isOwn(key) {
			continue
		}
		for _, value := range values {
			encoded = binary.LittleEndian.AppendUint16(encoded, uint16(len(key)))
			encoded = binary.LittleEndian.AppendUint16(encoded, uint16(len(value)))
			encoded = append(append(encoded, key...), value...)
		}
	}
	deadline, _ := ctx.Deadline()
	return caller{encoded, deadline}, nil
}

// newRequest returns a request frame with room for a message of some bytes, and the part of the frame that is that room.
func (caller *caller) newRequest(messageBytes int) (frame []byte, message []byte) {
	start := headerBytes + requestHeaderBytes + len(caller.encoded)
	frame = make([]byte, start+messageBytes)
	binary.LittleEndian.PutUint16(frame[headerBytes:], uint16(len(caller.encoded)))
	binary.LittleEndian.PutUint32(frame[headerBytes+2:], caller.remainingMs())
	copy(frame[headerBytes+requestHeaderBytes:], caller.encoded)
	return frame, frame[start:]
}

func (caller *caller) remainingMs() uint32 {
	if caller.deadline.IsZero() {
		return noDeadline
	}
	return uint32(min(max(time.Until(caller.deadline).Milliseconds(), 0), noDeadline-1))
}

// checkMetadata returns an error if the caller's own metadata is too large to be passed on, or is not gRPC's: grpc-go would not send it on a
// forwarded call. Cutting it could change who the caller appears to be.
func (call *call) checkMetadata() error {
	limit := call.connection.table.limits.HeaderBytes - addedHeaderBytes
	if size := metadataBytes(call.metadata); size > limit {
		return exhausted(fmt.Sprintf("the call has %d bytes of metadata, more than %d", size, limit)).Err()
	}
	for key, values := range call.metadata {
		if !isOwn(key) {
			continue
		}
		if !isKey(key) {
			return status.Errorf(codes.Internal, "metadata key %q has a character other than 0-9, a-z, -, _ and .", key)
		}
		if !strings.HasSuffix(key, "-bin") && slices.ContainsFunc(values, isNotPrintable) {
			return status.Errorf(codes.Internal, "the value of metadata key %q is not printable ASCII; give bytes to a key that ends in -bin", key)
		}
	}
	return nil
}
