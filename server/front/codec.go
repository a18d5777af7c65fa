package main

import (
	"compress/zlib"
	"fmt"
	"io"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // callers may compress with it
	"google.golang.org/grpc/mem"
)

// request is a message of the hot path as the frame that it will be: the header's place is in front of it.
type request []byte

// content is a message of the hot path that is sent.
type content []byte

// passed is a message that is passed on as it came, without a copy.
type passed struct {
	data mem.BufferSlice
}

// bytesCodec leaves messages as they are: what they mean is the server's affair.
type bytesCodec struct{}

// Name is that of protobuf, which callers say that they speak.
func (bytesCodec) Name() string { return "proto" }

// Marshal gives away what a passed message holds.
func (bytesCodec) Marshal(message any) (mem.BufferSlice, error) {
	switch message := message.(type) {
	case content:
		return mem.BufferSlice{mem.SliceBuffer(message)}, nil
	case *passed:
		return message.data, nil
	}
	return nil, fmt.Errorf("%T cannot be sent", message)
}

// Unmarshal fills in a request, or holds on to the data of a message that is passed on.
func (bytesCodec) Unmarshal(data mem.BufferSlice, message any) error {
	switch message := message.(type) {
	case *request:
		*message = make([]byte, headerBytes+data.Len())
		data.CopyTo((*message)[headerBytes:])
		return nil
	case *passed:
		data.Ref()
		message.data = data
		return nil
	}
	return fmt.Errorf("%T cannot be received", message)
}

// deflate is the other compression that gRPC's own libraries speak, and grpc-go does not: zlib's format.
type deflate struct{}

func init() {
	encoding.RegisterCompressor(deflate{})
}

func (deflate) Name() string { return "deflate" }

func (deflate) Compress(to io.Writer) (io.WriteCloser, error) {
	return zlib.NewWriter(to), nil
}

func (deflate) Decompress(from io.Reader) (io.Reader, error) {
	return zlib.NewReader(from)
}

var _ encoding.CodecV2 = bytesCodec{}
