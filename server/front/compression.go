package main

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"crypto/rand"
	"errors"
	"io"
	"runtime"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"gavel/front/internal/refusals"
)

// compression is a way in which callers may compress messages. grpc-go would decompress up to the largest limit of all methods, and any number
// of messages at once. It therefore gets the compressed bytes as they are, after a mark, and the codec decompresses them.
//
// The mark is random, so no caller can put it in front of a message.
type compression struct {
	name string
	mark []byte
	open func(io.Reader) (io.Reader, error)
}

const compressionMarkBytes = 24

// The compressions that gRPC's libraries offer.
var compressions = []*compression{
	{name: "gzip", open: func(from io.Reader) (io.Reader, error) { return gzip.NewReader(from) }},
	{name: "deflate", open: func(from io.Reader) (io.Reader, error) { return zlib.NewReader(from) }},
}

func init() {
	for _, compression := range compressions {
		compression.mark = make([]byte, compressionMarkBytes)
		rand.Read(compression.mark)
		encoding.RegisterCompressor(compression)
	}
}

// Name returns the name in grpc-encoding.
func (compression *compression) Name() string { return compression.name }

// Compress is never called: answers are not compressed.
func (*compression) Compress(io.Writer) (io.WriteCloser, error) {
	return nil, errors.New("answers are not compressed")
}

// Decompress marks the bytes.
func (compression *compression) Decompress(from io.Reader) (io.Reader, error) {
	return io.MultiReader(bytes.NewReader(compression.mark), from), nil
}

// compressionOf returns the compression of a message, or nil if it is not compressed.
func compressionOf(data mem.BufferSlice) *compression {
	if len(data) == 0 {
		return nil
	}
	for _, compression := range compressions {
		if bytes.HasPrefix(data[0].ReadOnlyData(), compression.mark) {
			return compression
		}
	}
	return nil
}

// decompress returns a marked message decompressed. It never takes memory for more than `limit` bytes. `decompressions` limits how many run at once.
func (compression *compression) decompress(data mem.BufferSlice, limit int, decompressions chan struct{}) ([]byte, *status.Status) {
	decompressions <- struct{}{}
	defer func() { <-decompressions }()
	packed := data.Reader()
	defer packed.Close()
	if _, err := packed.Discard(compressionMarkBytes); err != nil {
		return nil, undecodable(err)
	}
	reader, err := compression.open(packed)
	if err != nil {
		return nil, undecodable(err)
	}
	plain := make([]byte, min(4*packed.Remaining()+512, limit+1))
	size := 0
	for {
		count, err := reader.Read(plain[size:min(size+turnBytes, len(plain))])
		runtime.Gosched()
		size += count
		switch {
		case size > limit:
			return nil, refusals.TooLarge(limit)
		case err == io.EOF:
			return plain[:size], nil
		case err != nil:
			return nil, undecodable(err)
		case size == len(plain):
			plain = append(make([]byte, 0, min(2*size, limit+1)), plain...)
			plain = plain[:cap(plain)]
		}
	}
}

func undecodable(err error) *status.Status {
	return refusals.Invalid("request", "cannot be decompressed: "+err.Error())
}
