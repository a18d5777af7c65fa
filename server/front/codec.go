package main

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"gavel/front/internal/link"
	"gavel/front/internal/refusals"
)

// In front of each message of gRPC: a byte that says whether it is compressed, and its length.
const messageHeaderBytes = 1 + 4

// request is a message of a caller. `caller`, `limit` and `decompressions` are set before decoding; `size` is the length that counts.
type request struct {
	caller         *link.Caller // the message becomes the frame that goes over the link; nil: it is held as it is
	limit          int          // in bytes, compressed or not
	decompressions chan struct{}

	frame     []byte
	message   rawMessage
	size      int
	wireBytes int            // as they came, with their header
	refusal   *status.Status // why the message is not taken
	turn      *turn          // of a large request on a stream
}

// content is a response of the hot path.
type content []byte

// rawMessage is a message of a forwarded call, held without a copy.
type rawMessage struct {
	data mem.BufferSlice
}

// bytesCodec leaves messages as they are: only the server knows what they mean.
type bytesCodec struct{}

// Name returns the name of protobuf, the codec that callers name.
func (bytesCodec) Name() string { return "proto" }

// Marshal gives away the data of a raw message.
func (bytesCodec) Marshal(message any) (mem.BufferSlice, error) {
	switch message := message.(type) {
	case content:
		return mem.BufferSlice{mem.SliceBuffer(message)}, nil
	case *rawMessage:
		return message.data, nil
	}
	return nil, fmt.Errorf("a %T cannot be sent", message)
}

// Unmarshal takes a caller's request, or keeps the data of a raw message.
func (bytesCodec) Unmarshal(data mem.BufferSlice, message any) error {
	switch message := message.(type) {
	case *request:
		message.take(data)
		return nil
	case *rawMessage:
		data.Ref()
		message.data = data
		return nil
	}
	return fmt.Errorf("a %T cannot be received", message)
}

// take takes the message, decompressed, or notes why it is refused: an error of decoding would be INTERNAL.
func (request *request) take(data mem.BufferSlice) {
	size := data.Len()
	compression := compressionOf(data)
	if compression != nil {
		size -= compressionMarkBytes
	}
	request.size, request.wireBytes = size, size+messageHeaderBytes
	if size > request.limit {
		request.refusal = refusals.TooLarge(request.limit)
		return
	}
	if compression != nil {
		plain, refusal := compression.decompress(data, request.limit, request.decompressions)
		if refusal != nil {
			request.refusal = refusal
			return
		}
		request.size = len(plain)
		data = mem.BufferSlice{mem.SliceBuffer(plain)}
	}
	if request.caller == nil {
		data.Ref()
		request.message.data = data
		return
	}
	frame, room := request.caller.NewRequest(data.Len())
	data.CopyTo(room)
	request.frame = frame
}

// endTurn ends the turn of the request, if it has one.
func (request *request) endTurn() {
	if request.turn != nil {
		request.turn.end()
	}
}

var _ encoding.CodecV2 = bytesCodec{}
